"""How far what a job prints of its own speed is believed, and whose speeds change once it pays to lie.

A job's rate is what its own program prints, and a team trades by it: claiming too much for fast GPUs earns a higher
price for them. Only ratios between generations count in trades. What others know of these bounds them: jobs of other
teams with the same model, counters of the GPUs themselves, or the operator's table of generations.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from fairshare.model import NOWHERE, Bools, Floats, Ints

# By what part the ratio of a job's speeds on two generations may differ from what each source says of it.
SLACK_OF_MODEL, SLACK_OF_COUNTERS, SLACK_OF_TABLE = 0.03, 0.05, 0.25
LEAST_TEAMS = 3  # of which one may lie


class Source(IntEnum):
    """What a job's speeds are compared with."""

    OWN = 0  # nothing: they are believed as they are
    TABLE = 1  # the operator's table of generations
    COUNTERS = 2  # counters of the GPUs on which it ran
    MODEL = 3  # jobs of most teams with the same model


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of the speeds of J jobs besides what they print."""

    expected: Floats  # (J, K) speed up to a factor of the job's own; NaN unknown
    slack: Floats  # (J,) the part by which the ratio of two generations may differ; infinite where it is believed
    source: Ints  # (J,) a Source


def evidence_of(rate: Floats, team: Ints, model: Ints, counters: Floats, table: Floats) -> Evidence:
    """The best evidence for each job: of its model, else of counters, else of the table.

    `rate` (J, K) as printed, NaN unknown; `team` and `model` (J,), the latter NOWHERE where a job names none;
    `counters` (J, K) work per second by what the hardware counts, NaN unknown; `table` (K,) speed of a generation by
    the operator, NaN unknown. A source counts where it knows two generations. Of a model the median of at least
    three teams is taken, each being heard once, so that none of them can move it far, neither its own nor others'.
    An operator who wants no trade by a claim that nothing backs leaves out the jobs whose source is OWN.
    """
    sources = (
        (np.broadcast_to(table, rate.shape), SLACK_OF_TABLE, Source.TABLE),
        (counters, SLACK_OF_COUNTERS, Source.COUNTERS),
        (_of_models(rate, team, model), SLACK_OF_MODEL, Source.MODEL),
    )
    expected, slack = np.full(rate.shape, np.nan), np.full(len(rate), np.inf)
    source = np.full(len(rate), Source.OWN, dtype=np.int64)
    for speeds, part, name in sources:
        knows = ((np.nan_to_num(speeds) > 0) & (np.nan_to_num(rate) > 0)).sum(axis=1) > 1
        expected[knows], slack[knows], source[knows] = speeds[knows], part, name
    return Evidence(expected, slack, source)


def _of_models(rate: Floats, team: Ints, model: Ints) -> Floats:
    """(J, K) speeds of a job's model as most teams find them, up to a factor; NaN where fewer than three know it."""
    found = np.full(rate.shape, np.nan)
    log = np.log(np.where(np.nan_to_num(rate) > 0, rate, np.nan))
    for one in np.unique(model[model != NOWHERE]).tolist():
        jobs = np.flatnonzero(model == one)
        first = int(np.isfinite(log[jobs]).sum(axis=0).argmax())  # the generation that most of them know
        against = log[jobs] - log[jobs, first][:, None]
        of_team = np.stack([_median(against[team[jobs] == one], 1) for one in np.unique(team[jobs])])
        found[jobs] = np.exp(_median(of_team, LEAST_TEAMS))
    return found


def _median(rows: Floats, least: int) -> Floats:
    """(K,) the median of those of the rows that know it; NaN where less than `least` do."""
    known = np.isfinite(rows).sum(axis=0) >= least
    found = np.full(rows.shape[1], np.nan)
    found[known] = np.nanmedian(rows[:, known], axis=0)
    return found


def bounded(rate: Floats, evidence: Evidence) -> Floats:
    """(J, K) rates whose ratios differ from the evidence by no more than its slack; NaN stays NaN.

    Rates on generations of which the evidence knows nothing are not believed where it knows others: they become NaN,
    so that nobody trades by them. Jobs without evidence keep their rates.
    """
    known = (np.nan_to_num(rate) > 0) & (np.nan_to_num(evidence.expected) > 0)
    judged = np.flatnonzero(np.isfinite(evidence.slack) & known.any(axis=1))
    expected, known = evidence.expected[judged], known[judged]
    off = np.log(np.where(known, rate[judged], np.nan) / expected)
    middle, half = np.nanmedian(off, axis=1)[:, None], np.log1p(evidence.slack[judged])[:, None] / 2
    found = rate.copy()
    found[judged] = expected * np.exp(middle + np.clip(off - middle, -half, half))
    return found


@dataclass(frozen=True, slots=True)
class Samples:
    """S measurements of rates."""

    team: Ints  # (S,)
    model: Ints  # (S,) jobs of one model are comparable
    generation: Ints  # (S,)
    rate: Floats  # (S,) > 0
    trading: Bools  # (S,) whether the team traded by then


# A team is flagged when its speed-ups moved by more than this part, and by more than so many standard errors.
LEAST_CHANGE, LEAST_ERRORS = 0.05, 3.0


def changed_with_trading(samples: Samples, teams: int) -> Floats:
    """(teams,) by what factor each team's rates on one generation against another changed when it began to trade.

    1 where they did not change, or not more than chance explains; else the factor by which its ratios between two
    generations moved most: 1.2 where they became a fifth larger or smaller. Models are compared with themselves.
    """
    found = np.ones(teams)
    log = np.log(samples.rate)
    for team in range(teams):
        own = samples.team == team
        for model in np.unique(samples.model[own]).tolist():
            of_model = own & (samples.model == model)
            shifts = [
                _shift(log[some & ~samples.trading], log[some & samples.trading])
                for generation in np.unique(samples.generation[of_model]).tolist()
                for some in (of_model & (samples.generation == generation),)
            ]
            for i, (shift, error) in enumerate(shifts):
                for other, other_error in shifts[:i]:
                    moved, noise = abs(shift - other), np.hypot(error, other_error)
                    if moved > max(np.log1p(LEAST_CHANGE), LEAST_ERRORS * noise):
                        found[team] = max(found[team], float(np.exp(moved)))
    return found


def _shift(before: Floats, after: Floats) -> tuple[float, float]:
    """The difference of two means, and its standard error (Welch's); infinite where too few were measured."""
    if len(before) < 3 or len(after) < 3:
        return 0.0, float("inf")
    error = np.sqrt(before.var(ddof=1) / len(before) + after.var(ddof=1) / len(after))
    return float(after.mean() - before.mean()), float(error)
