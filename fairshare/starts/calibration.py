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
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from fairshare.model import Bools, Floats

COVERAGE = 0.8
# The weight of a forecast halves with each HALF_LIFE later ones, down to LASTING of the weight of a new one. So
# intervals follow when the jobs of a cluster change, and remember how wrong forecasts have been before.
HALF_LIFE, LASTING = 50, 0.1
# Standard deviation of the Gaussian weight of similar forecasts, in logarithms of expected waits and of times waited.
SIMILAR = 1.0
# What is assumed before the first outcome: errors have a normal distribution with this standard deviation. It counts as
# much as the outcomes of PRIOR_TIMES times of the length of the expected wait. A cluster's first intervals reach to 2.8
# times the expected wait.
PRIOR_SPREAD, PRIOR_TIMES, PRIOR_POINTS = 0.8, 1.0, 40
# Older forecasts are not used, so that the cost is bounded.
MOST_OUTCOMES = 5000
# A time waited counts as this many quanta more, because seconds make no difference.
LEAST_AGE = 4
# Quantiles are computed once for all jobs whose logarithms are the same when rounded to so much.
ROUNDED = 0.25
_PRIOR = np.array(
    [NormalDist(0, PRIOR_SPREAD).inv_cdf((point + 0.5) / PRIOR_POINTS) for point in range(PRIOR_POINTS)]
)


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Forecasts that were made earlier, oldest first, and what is known of them now. Times are in seconds.

    - `ago` (F,): how long ago the forecast was made.
    - `expected` (F,): the wait that was expected, as `expected_wait` returns it.
    - `age` (F,): how long the job had already waited.
    - `waited` (F,): how long after the forecast the job started, or how long it has waited since without a start.
    - `started` (F,): whether the job has started.
    """

    ago: Floats
    expected: Floats
    age: Floats
    waited: Floats
    started: Bools


def expected_wait(waits: Floats, *, quantum: float, horizon: float) -> Floats:
    """Returns the expected wait (J,) of simulated waits (S, J), all in seconds: the geometric mean of waits that are
    longer by a quantum. Infinite waits count as `horizon`."""
    logs = np.log(np.minimum(waits, horizon) + quantum)
    expected: Floats = np.maximum(np.exp(np.mean(logs, axis=0)) - quantum, 0.0)
    return expected


def intervals(expected: Floats, age: Floats, past: Outcomes, *, quantum: float) -> tuple[Floats, Floats]:
    """Returns the earliest and the latest wait (J,) in seconds from now.

    - `expected` (J,): the expected wait of each job, as `expected_wait` returns it.
    - `age` (J,): the seconds that each job has already waited.
    - `past`: earlier forecasts of the cluster, of which the last MOST_OUTCOMES are used.
    """
    newest = slice(max(0, len(past.expected) - MOST_OUTCOMES), None)
    centre, ages = _logs(past.expected[newest], past.age[newest], quantum)
    errors = np.concatenate([np.log(past.waited[newest] + quantum) - centre, _PRIOR])
    started = np.concatenate([past.started[newest], np.ones(PRIOR_POINTS, dtype=np.bool_)])
    order = np.lexsort((~started, errors))  # a start before a wait that goes on at the same time
    recent = 0.5 ** (np.arange(len(centre), 0, -1) / HALF_LIFE) + LASTING
    mine, my_ages = _logs(expected, age, quantum)
    alike, kind = np.unique(
        np.round(np.stack([mine, my_ages]) / ROUNDED) * ROUNDED, axis=1, return_inverse=True
    )
    found = np.empty((2, alike.shape[1]))
    for place, (about, since) in enumerate(alike.T.tolist()):
        similar = np.exp((np.square(about - centre) + np.square(since - ages)) / (-2 * SIMILAR**2))
        weights = recent * similar
        times = _times(past.ago[newest], similar, np.exp(about))
        prior = PRIOR_TIMES * (weights.sum() / times if times > 0 else 1.0)
        weights = np.concatenate([weights, np.full(PRIOR_POINTS, prior / PRIOR_POINTS)])
        reached = _distribution(weights[order], started[order])
        levels = np.array([(1 - COVERAGE) / 2, (1 + COVERAGE) / 2]) - 1e-9
        found[:, place] = errors[order][np.minimum(np.searchsorted(reached, levels), len(errors) - 1)]
    earliest, latest = np.maximum(np.exp(mine + found[:, kind]) - quantum, 0.0)
    return earliest, latest


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
