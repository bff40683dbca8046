"""Protects trades against jobs that report false speeds.

A job's rate (steps per second) is reported by the job's own program, and its team trades by this rate. A team that
reports too high a rate on fast GPUs sells them at a higher price. A team that reports too low a rate there buys them
for less. Only the ratio of a job's rates on two generations matters in trades. This module therefore bounds these
ratios by independent evidence: the rates of other teams' jobs with the same model, or the operator's table of speeds.

Sizes of arrays: J jobs, K generations.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from fairshare.model import NOWHERE, Floats, Ints

# Fraction by which the ratio of a job's speeds on two generations may differ from each source.
SLACK_OF_MODEL, SLACK_OF_TABLE = 0.02, 0.2
LEAST_TEAMS = 3  # teams needed, so that a single team that lies cannot move the median far
ROUNDING = 1e-9


class Source(IntEnum):
    """The kind of evidence with which a job's reported speeds are compared, if there is any."""

    OWN = 0  # no source: the job's speeds are believed
    TABLE = 1  # the operator's table of generations
    MODEL = 2  # jobs of most teams with the same model


@dataclass(frozen=True, slots=True)
class Evidence:
    """The speeds that an independent source predicts for each of J jobs, and how far reported speeds may differ from
    them."""

    expected: Floats  # (J, K) speed, up to a factor for each job; NaN if unknown
    slack: Floats  # (J,) fraction by which the ratio of two generations may differ; infinite if the job is believed
    source: Ints  # (J,) a Source


def evidence_of(rate: Floats, team: Ints, model: Ints | None, table: Floats | None) -> Evidence:
    """Returns the best evidence on the speeds of each job.

    The best source is jobs with the same model: the median speed over at least three teams. Each team counts once. The
    second source is the operator's table. A source is used for a job only if it has speeds for at least two of the
    generations on which the job was measured.

    - `rate` (J, K): reported steps per second, NaN if unknown.
    - `team` (J,): an index that identifies each job's team.
    - `model` (J,): an index that identifies the model that each job trains or serves, or NOWHERE if the job names no
      model. None: no job names a model.
    - `table` (K,): the operator's speed of each generation, NaN if unknown. None: there is no table.
    """
    sources = []
    if table is not None:
        sources.append((np.broadcast_to(table, rate.shape), SLACK_OF_TABLE, Source.TABLE))
    if model is not None:
        sources.append((_of_models(rate, team, model), SLACK_OF_MODEL, Source.MODEL))
    expected, slack = np.full(rate.shape, np.nan), np.full(len(rate), np.inf)
    source = np.full(len(rate), Source.OWN, dtype=np.int64)
    for speeds, part, name in sources:
        knows = ((np.nan_to_num(speeds) > 0) & (np.nan_to_num(rate) > 0)).sum(axis=1) > 1
        expected[knows], slack[knows], source[knows] = speeds[knows], part, name
    return Evidence(expected, slack, source)


def _of_models(rate: Floats, team: Ints, model: Ints) -> Floats:
    """Returns the typical speeds of each job's model on each generation, as an array (J, K).

    The generation on which most jobs of the model were measured has speed 1. A speed of 2 means twice as fast. Each
    speed is the median over teams, or NaN if fewer than 3 teams measured it.
    """
    found = np.full(rate.shape, np.nan)
    log = np.log(np.where(np.nan_to_num(rate) > 0, rate, np.nan))
    named = np.flatnonzero(model != NOWHERE)
    named = named[np.argsort(model[named], kind="stable")]
    for jobs in np.split(named, np.flatnonzero(np.diff(model[named])) + 1) if len(named) else ():
        # the generation on which most of the jobs were measured
        first = int(np.isfinite(log[jobs]).sum(axis=0).argmax())
        against = log[jobs] - log[jobs, first][:, None]
        of_team = np.stack([_median(against[team[jobs] == one], 1) for one in np.unique(team[jobs])])
        found[jobs] = np.exp(_median(of_team, LEAST_TEAMS))
    return found


def _median(rows: Floats, least: int) -> Floats:
    """Returns the median of each column of `rows` (N, K), as an array (K,). NaN means unknown and is ignored.

    The result is NaN for a column with fewer than `least` known values.
    """
    known = np.isfinite(rows).sum(axis=0) >= least
    found = np.full(rows.shape[1], np.nan)
    found[known] = np.nanmedian(rows[:, known], axis=0)
    return found


def bounded(rate: Floats, evidence: Evidence) -> Floats:
    """Returns the rates with which jobs trade, as an array (J, K): the reported rates, corrected by the evidence.

    The ratio of a job's rates on two generations may differ from the evidence by the fraction `evidence.slack`, such as
    0.02. If it differs by more, rates are changed so that it differs by exactly this fraction.

    A job without evidence keeps its rates. A job with evidence gets NaN on generations for which its rate or the
    evidence is unknown, and cannot trade these generations.
    """
    judged = np.isfinite(evidence.slack)
    if not judged.any():
        return rate
    known = (np.nan_to_num(rate) > 0) & (np.nan_to_num(evidence.expected) > 0)
    off = np.log(np.divide(rate, evidence.expected, out=np.ones(rate.shape), where=known))
    most, least = (
        fill * np.where(known, fill * off, -np.inf).max(axis=1, initial=-np.inf) for fill in (1, -1)
    )
    middle = np.where(known.any(axis=1), (most + least) / 2, 0.0)[:, None]
    most_off = np.log1p(evidence.slack)[:, None] / 2
    too_far = known & (np.abs(off - middle) > most_off + ROUNDING)
    edge = evidence.expected * np.exp(middle + np.copysign(most_off, off - middle))
    found: Floats = np.where(judged[:, None], np.where(known, np.where(too_far, edge, rate), np.nan), rate)
    return found
