"""Turns simulated waits into intervals that hold as often as they say, by what came of earlier forecasts.

The error of a forecast is the logarithm of the true wait divided by the expected one. An interval reaches from the
10 % quantile to the 90 % quantile of the errors of earlier forecasts of the same cluster, of which each has a weight:
recent ones more than old ones, and similar ones (jobs that had waited about as long, and were expected to wait about
as long) more than others. This is weighted conformal prediction (Barber, Candès, Ramdas, Tibshirani, "Conformal
prediction beyond exchangeability", Annals of Statistics 2023), localized as by Guan (Biometrika 2023).

Short waits end first. So at any time, the known errors are of jobs that waited less than expected, and quantiles of
them alone would be too small. Jobs that still wait therefore count as censored: their wait is longer than they have
waited so far (product-limit estimate: Kaplan, Meier, JASA 1958).
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
SIMILAR = 1.5
# What is known before the first outcome: errors have a normal distribution with this standard deviation, with the
# weight of so many new forecasts. A cluster's first intervals reach to 4.7 times the expected wait.
PRIOR_SPREAD, PRIOR_WEIGHT, PRIOR_POINTS = 1.2, 10.0, 40
# Older forecasts are not used, so that the cost is bounded. There must be many, because all jobs that wait at a time
# have errors in common: thousands of forecasts may come from a handful of busy weeks.
MOST_OUTCOMES = 5000
# A time waited counts as this many quanta more, because seconds make no difference.
LEAST_AGE = 4
# Quantiles are computed once for all jobs whose logarithms are the same when rounded to so much, and AT_ONCE
# together, which bounds the memory.
ROUNDED, AT_ONCE = 0.25, 64
_PRIOR = np.array(
    [NormalDist(0, PRIOR_SPREAD).inv_cdf((point + 0.5) / PRIOR_POINTS) for point in range(PRIOR_POINTS)]
)


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Forecasts that were made earlier, oldest first, and what is known of them now. Times are in seconds.

    - `expected` (F,): the wait that was expected, as `expected_wait` returns it.
    - `age` (F,): how long the job had already waited.
    - `waited` (F,): how long after the forecast the job started, or how long it has waited since without a start.
    - `started` (F,): whether the job has started.
    """

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
    for first in range(0, alike.shape[1], AT_ONCE):
        some = slice(first, first + AT_ONCE)
        apart = np.square(alike[0, some, None] - centre) + np.square(alike[1, some, None] - ages)
        weights = np.empty((len(apart), len(errors)))
        weights[:, : len(centre)] = recent * np.exp(apart / (-2 * SIMILAR**2))
        weights[:, len(centre) :] = PRIOR_WEIGHT / PRIOR_POINTS
        reached = _distribution(weights[:, order], started[order])
        for side, level in enumerate(((1 - COVERAGE) / 2, (1 + COVERAGE) / 2)):
            beyond = reached >= level - 1e-9
            place = np.where(beyond[:, -1], np.argmax(beyond, axis=1), len(errors) - 1)
            found[side, some] = errors[order][place]
    earliest, latest = np.maximum(np.exp(mine + found[:, kind]) - quantum, 0.0)
    return earliest, latest


def _logs(expected: Floats, age: Floats, quantum: float) -> tuple[Floats, Floats]:
    return np.log(expected + quantum), np.log(age + LEAST_AGE * quantum)


def _distribution(weights: Floats, started: Bools) -> Floats:
    """Returns the product-limit estimate (J, F) of the distribution of errors (F,) in ascending order, with the
    weights (J, F), of which those that have not started are known to be greater."""
    greater = np.cumsum(weights[:, ::-1], axis=1)[:, ::-1]
    gone = weights / np.maximum(greater, 1e-300) * started
    reached: Floats = 1 - (1 - gone).cumprod(axis=1)
    return reached
