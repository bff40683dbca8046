"""Finds teams whose measured speed-ups changed when they began to trade.

Such a change is suspicious, because a team can profit from false reports of speeds only while it trades.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairshare.model import Bools, Floats, Ints


@dataclass(frozen=True, slots=True)
class Samples:
    """S measured rates of jobs. Each has the team, the generation, and the model that the job trains or serves.

    `trading` says whether the team traded when the rate was measured.
    """

    team: Ints  # (S,)
    model: Ints  # (S,) number of the model; only jobs of the same model are comparable
    generation: Ints  # (S,)
    rate: Floats  # (S,) > 0
    trading: Bools  # (S,) whether the team traded at that time


# A team is flagged when its speed-ups changed by more than this fraction and by more than this many standard errors.
LEAST_CHANGE, LEAST_ERRORS = 0.05, 3.0


def changed_with_trading(samples: Samples, teams: int) -> Floats:
    """Returns how much each team's speed-ups changed when it began to trade, as a factor, in an array (teams,).

    A speed-up is the ratio of a model's speeds on two generations. The result is the largest change over all models and
    pairs of generations: 1.2 means that a ratio grew or shrank by a factor of 1.2. Changes that are small or may be due
    to chance are ignored. If there are only such changes, the factor is 1.
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
    """Returns the mean of `after` minus the mean of `before`, and the standard error of this difference (by Welch's
    method).

    If a list has fewer than 3 values, returns a difference of 0 with an infinite error.
    """
    if len(before) < 3 or len(after) < 3:
        return 0.0, float("inf")
    error = np.sqrt(before.var(ddof=1) / len(before) + after.var(ddof=1) / len(after))
    return float(after.mean() - before.mean()), float(error)
