"""Turns simulated waits into intervals that hold as often as they say, by what came of earlier forecasts.

The error of a forecast is the logarithm of the true wait divided by the expected one. An interval reaches from the
10 % quantile to the 90 % quantile of the errors of earlier forecasts of the same cluster, of which each has a weight:
recent ones more than old ones, and similar ones (jobs that had waited about as long, and were expected to wait about
as long) more than others. This is weighted conformal prediction (Barber, Candès, Ramdas, Tibshirani, "Conformal
prediction beyond exchangeability", Annals of Statistics 2023), localized as by Guan (Biometrika 2023).

Short waits end first. So at any time, the known errors are of jobs that waited less than expected, and quantiles of
them alone would be too small. Jobs that still wait therefore count as censored: their wait is longer than they have
waited so far (product-limit estimate: Kaplan, Meier, JASA 1958).

Jobs that wait at the same time have errors in common, because the same jobs are before them. Thousands of forecasts of
two busy days are one outcome rather than thousands. So forecasts count by the number of times that are as long as the
expected wait and have such forecasts; the fewer there are, the more counts what is assumed before the first outcome.
That is more precise where the simulated futures agree, as for a job that waits for the ends of many others.

Errors drift, and the jobs of a short time say little of the next. So intervals are also widened after misses and
narrowed after hits, by one step for all jobs of the cluster: adaptive conformal inference (Gibbs, Candès, NeurIPS
2021). A start after the interval is a miss as soon as the interval is over. What becomes known within SAME_TIME counts
as the square root of its number, because jobs that wait together are wrong together.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from fairshare.model import Bools, Floats

COVERAGE = 0.8
LEVELS = ((1 - COVERAGE) / 2, (1 + COVERAGE) / 2)
# The weight of a forecast halves with each HALF_LIFE later ones, down to LASTING of the weight of a new one. So
# intervals follow when the jobs of a cluster change, and remember how wrong forecasts have been before.
HALF_LIFE, LASTING = 50, 0.1
# Standard deviation of the Gaussian weight of similar forecasts, in logarithms of expected waits and of times waited.
SIMILAR = 1.0
# What is assumed before the first outcome: errors have a normal distribution. It counts as much as the outcomes of
# PRIOR_TIMES times of the length of the expected wait. Its standard deviation is EXCESS times that of the logarithms of
# the waits in the simulated futures, which do not know what jobs come later. Few futures show little, so PRIOR_SPREAD
# counts as much as PRIOR_FUTURES of them. With it alone, intervals reach to about 1.7 times the expected wait.
PRIOR_SPREAD, PRIOR_FUTURES, EXCESS, PRIOR_TIMES, PRIOR_POINTS = 0.4, 2, 1.6, 2.0, 40
# Intervals are widened on each side by at most MOST_WIDENED units, and narrowed by as much. One unit is the standard
# deviation of a normal distribution with that interval, but at most WIDEST_UNIT in logarithms. A miss widens by STEP
# times COVERAGE units, and a hit narrows by STEP times the rest.
STEP, SAME_TIME, MOST_WIDENED, WIDEST_UNIT = 0.1, 6 * 3600.0, 1.0, 0.7
# Infinite waits count as a year where futures are compared.
YEAR = 365 * 86400.0
# Older forecasts are not used, so that the cost is bounded.
MOST_OUTCOMES = 5000
# A time waited counts as this many quanta more, because seconds make no difference.
LEAST_AGE = 4
# Quantiles are computed once for all jobs whose logarithms are the same when rounded to so much.
ROUNDED = 0.25
_PRIOR = np.array([NormalDist().inv_cdf((point + 0.5) / PRIOR_POINTS) for point in range(PRIOR_POINTS)])


@dataclass(frozen=True, slots=True)
class Expected:
    """What simulated futures say of jobs.

    - `wait` (J,): the expected wait in seconds: the geometric mean of waits that are longer by a quantum.
    - `spread` (J,): the standard deviation of errors that is assumed before the first outcome.
    """

    wait: Floats
    spread: Floats


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Forecasts that were made earlier, oldest first, and what is known of them now. Times are in seconds.

    - `ago` (F,): how long ago the forecast was made.
    - `expected` (F,): the wait that was expected, as `Expected` has it.
    - `age` (F,): how long the job had already waited.
    - `waited` (F,): how long after the forecast the job started, or how long it has waited since without a start.
    - `started` (F,): whether the job has started.
    - `earliest`, `latest` (F,): the interval of the forecast: how long after it the start was expected.
    """

    ago: Floats
    expected: Floats
    age: Floats
    waited: Floats
    started: Bools
    earliest: Floats
    latest: Floats


def expected_of(waits: Floats, *, quantum: float, horizon: float) -> Expected:
    """Returns what is expected after simulated waits (S, J) in seconds, one row for each future.

    Infinite waits count as `horizon`.
    """
    mean = np.mean(np.log(np.minimum(waits, horizon) + quantum), axis=0)
    errors = EXCESS**2 * np.var(np.log(np.minimum(waits, YEAR) + quantum), axis=0)
    spread = (PRIOR_FUTURES * PRIOR_SPREAD**2 + len(waits) * errors) / (PRIOR_FUTURES + len(waits) - 1)
    return Expected(np.maximum(np.exp(mean) - quantum, 0.0), np.sqrt(spread))


def intervals(
    expected: Expected, age: Floats, past: Outcomes, *, quantum: float, share: float = 1.0
) -> tuple[Floats, Floats]:
    """Returns the earliest and the latest wait (J,) in seconds from now.

    - `expected`: what is expected of each of the J jobs.
    - `age` (J,): the seconds that each job has already waited.
    - `past`: earlier forecasts of the cluster, of which the last MOST_OUTCOMES are used.
    - `share`: the share of the cluster's forecasts that is in `past`, less than 1 for a random sample.
    """
    newest = slice(max(0, len(past.expected) - MOST_OUTCOMES), None)
    centre, ages = _logs(past.expected[newest], past.age[newest], quantum)
    known = np.log(past.waited[newest] + quantum) - centre
    started = np.concatenate([past.started[newest], np.ones(PRIOR_POINTS, dtype=np.bool_)])
    recent = 0.5 ** (np.arange(len(centre), 0, -1) / (HALF_LIFE * share)) + LASTING
    mine, my_ages = _logs(expected.wait, age, quantum)
    kinds = np.round(np.stack([mine, my_ages, np.log(expected.spread)]) / ROUNDED) * ROUNDED
    alike, kind = np.unique(kinds, axis=1, return_inverse=True)
    found = np.empty((2, alike.shape[1]))
    for place, (about, since, spread) in enumerate(alike.T.tolist()):
        errors = np.concatenate([known, _PRIOR * np.exp(spread)])
        order = np.lexsort((~started, errors))  # a start before a wait that goes on at the same time
        similar = np.exp((np.square(about - centre) + np.square(since - ages)) / (-2 * SIMILAR**2))
        weights = recent * similar
        times = _times(past.ago[newest], similar, np.exp(about))
        prior = PRIOR_TIMES * (weights.sum() / times if times > 0 else 1.0)
        weights = np.concatenate([weights, np.full(PRIOR_POINTS, prior / PRIOR_POINTS)])
        reached = _distribution(weights[order], started[order])
        found[:, place] = [_quantile(errors[order], reached, level, tail=np.exp(spread)) for level in LEVELS]
    low, high = np.maximum(mine + found[:, kind], np.log(quantum))
    unit = np.minimum((high - low) / (2 * NormalDist().inv_cdf(LEVELS[1])), WIDEST_UNIT)
    wider = widened(past) * unit
    low, high = np.minimum(low - wider, (low + high) / 2), np.maximum(high + wider, (low + high) / 2)
    earliest, latest = np.maximum(np.exp([low, high]) - quantum, 0.0)
    return earliest, latest


def widened(past: Outcomes) -> float:
    """Returns by how many units intervals are widened on each side after what came of earlier ones; a negative number
    means that they are narrowed."""
    late = past.waited > past.latest
    known = past.started | late
    since = (past.ago - np.where(late, past.latest, past.waited))[known]  # how long ago it became known
    missed = (late | (past.waited < past.earliest))[known] - (1 - COVERAGE)
    order = np.argsort(-since, kind="stable")
    times = np.floor(since[order] / SAME_TIME)
    first = np.flatnonzero(np.diff(times, prepend=np.inf))
    found = 0.0
    if len(first):
        counts = np.diff(first, append=len(times))
        for step in (STEP * np.add.reduceat(missed[order], first) / np.sqrt(counts)).tolist():
            found = min(max(found + step, -MOST_WIDENED), MOST_WIDENED)
    return found


def _logs(expected: Floats, age: Floats, quantum: float) -> tuple[Floats, Floats]:
    return np.log(expected + quantum), np.log(age + LEAST_AGE * quantum)


def _times(ago: Floats, similar: Floats, length: float) -> float:
    """Returns how many times of the length `length` have forecasts that were made `ago` (F,), oldest first. A time
    counts as much as its most similar forecast."""
    if not len(ago):
        return 0.0
    number = np.floor(ago / length)
    first = np.flatnonzero(np.diff(number, prepend=np.inf))
    return float(np.maximum.reduceat(similar, first).sum())


def _distribution(weights: Floats, started: Bools) -> Floats:
    """Returns the product-limit estimate (F,) of the distribution of errors in ascending order, with the weights (F,),
    of which those that have not started are known to be greater."""
    greater = weights[::-1].cumsum()[::-1]
    gone = weights / np.maximum(greater, 1e-300) * started
    reached: Floats = 1 - (1 - gone).cumprod()
    return reached


def _quantile(errors: Floats, reached: Floats, level: float, *, tail: float) -> float:
    """Returns the error below which the fraction `level` is, by the distribution `reached` (F,) of `errors` (F,).

    Where jobs that still wait have waited longest, the distribution ends before 1. Their waits then have a power law:
    as the logarithm grows by `tail`, the fraction that waits longer falls to 1 / e.
    """
    place = int(np.searchsorted(reached, level - 1e-9))
    if place < len(errors):
        return float(errors[place])
    return float(errors[-1] + tail * np.log((1 - reached[-1]) / (1 - level)))
