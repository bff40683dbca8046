"""Whose speed-ups changed as it began to trade, which is when it starts to pay to claim others than the true ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairshare.model import Bools, Floats, Ints


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
