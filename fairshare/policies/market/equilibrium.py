"""Computes a competitive equilibrium of a market for GPU time, by following a path of approximate solutions.

`economy.py` describes the market. Without caps on the demand of classes, an equilibrium would be the maximum of a
concave function. With caps there is no such function, so that an equilibrium must be found in another way.

`conditions.py` relaxes the conditions of an equilibrium by a number called slack. With slack 1, they have exactly one
solution, which is easy to find. As the slack decreases, the solution moves along a path, and comes closer to an
equilibrium. This module follows the path from slack 1 to almost zero.

In places, the path turns back: the slack must increase for a while. A method that always decreases the slack would fail
there. The algorithm therefore measures its steps along the path (pseudo-arclength continuation with a predictor and a
corrector). See Allgower and Georg, "Introduction to Numerical Continuation Methods", SIAM 2003, chapters 2 and 6.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fairshare.model import Floats
from fairshare.policies.market.conditions import Conditions
from fairshare.policies.market.economy import Economy, Equilibrium

# LEAST_SLACK is the slack at which the path ends, relative to the sizes of classes, accounts and generations. At
# LITTLE_SLACK the path may already end if rounding stops it.
LEAST_SLACK, LITTLE_SLACK = 1e-10, 3e-8
MOST_STEPS = 400
LONGEST, SHORTEST = 8.0, 1e-7  # length of a step along the path, measured by the logarithm that changes most
ON_PATH = 0.2  # length of Newton's step below which a point counts as on the path
AT_END = 1e-4  # the same limit where almost no slack is left
MOST_CHANGE = 2.0  # largest change of a logarithm in one Newton step
SETTLED = 1e-6  # a Newton step shorter than this is not worth taking
CROSSING = 1e-3  # step length below which a change of side means that paths cross
# most Newton steps for the way back to the path, and the number up to which the next step along it may be longer
BACK, FEW = 6, 2
TO_START, TO_END = 100, 5  # most Newton steps to the beginning of the path, and at its end


def equilibrium(economy: Economy) -> Equilibrium:
    """Returns prices and purchases in a competitive equilibrium of the market, or the best approximation found.

    `missed` in `economy.py` measures how close the result is to an equilibrium. Generations without GPUs get price 0.
    """
    has = economy.capacity > 0
    price, use = np.zeros(len(has)), np.zeros(economy.speed.shape)
    if not has.any() or not len(economy.gpus):
        return Equilibrium(price, use, np.zeros(len(economy.income)))
    most = None if economy.most is None else economy.most[:, has]
    conditions = Conditions(
        replace(economy, speed=economy.speed[:, has], capacity=economy.capacity[has], most=most)
    )
    with np.errstate(all="ignore"):  # overflows in steps that are too long are harmless, as these are undone
        found = conditions.reached(_end_of_path(conditions))
    price[has], use[:, has] = found.price, found.use
    return Equilibrium(price, use, found.worth)


def _end_of_path(conditions: Conditions) -> Floats:
    """Follows the path from its start until almost no slack is left. Returns the last point."""
    path, length = _Path(conditions), 1.0
    for _ in range(MOST_STEPS):
        slack, ahead = path.point[-1], path.direction[-1]
        length = min(length, (np.log(LEAST_SLACK) - slack) / ahead) if ahead < 0 else length
        if length < (ON_PATH if slack < np.log(LITTLE_SLACK) else SHORTEST):
            break
        length = path.advance(length)
    # At the end of the path, a long step is an effect of rounding errors.
    return _improved(conditions, path.point, TO_END, ON_PATH)


def _improved(conditions: Conditions, point: Floats, steps: int, most: float = np.inf) -> Floats:
    """Moves a point towards the path, by at most `steps` steps of Newton's method. Returns the new point.

    The slack of the point does not change. Ends before a step that is too short to matter, or longer than `most`.
    """
    for _ in range(steps):
        step, _, _ = conditions.newton(point)
        size = float(np.abs(step).max())
        if not SETTLED < size < most:
            break
        point = point + step * min(1.0, MOST_CHANGE / size)
    return point


class _Path:
    """A position on the path of solutions: the current point, and the direction in which the path goes on.

    A point is a vector of logarithms of prices, purchases and other amounts, and of the slack as its last entry (see
    `Conditions`). A direction is a vector of changes of these logarithms. Its largest entry is 1 or -1.
    """

    def __init__(self, conditions: Conditions) -> None:
        self._conditions = conditions
        self.point = _improved(conditions, conditions.start(), TO_START)
        _, more_slack, side = conditions.newton(self.point)
        self._orientation = -side
        self.direction = -more_slack / np.abs(more_slack).max()

    def advance(self, length: float) -> float:
        """Tries to move along the path by `length`. Returns the length to try next.

        Lengths are measured by the logarithm that changes most. The predictor takes a straight step in the current
        direction. The corrector, Newton's method, then leads back to the path. If the corrector fails, the position
        does not move along the path, and the returned length is shorter.
        """
        ahead = self.point + length * self.direction
        near = ON_PATH if ahead[-1] > np.log(LITTLE_SLACK) else AT_END
        steps = self._correct(ahead, min(near, length / 10), length)
        if steps is None:  # next time try a shorter step, from a point nearer to the path
            self._correct(self.point, length / 40, length)
            return length / 4
        return min(length * 2, LONGEST) if steps <= FEW else length / 2 if steps == BACK else length

    def _correct(self, point: Floats, near: float, length: float) -> int | None:
        """Moves from `point` to the path, and makes the result the new position. Returns the number of Newton steps.

        The movement is at right angles to the current direction of the path. Returns None and keeps the old position in
        two cases:
        - Newton's method does not reach the path.
        - It reaches another part of the path than the one that is being followed.

        - `near`: the point counts as on the path if the last Newton step is shorter than this.
        - `length`: the length of the step along the path that led to `point`.
        """
        last = np.inf
        for steps in range(1, BACK + 1):
            step, more_slack, side = self._conditions.newton(point)
            onward = np.sign(self.direction @ more_slack)
            step = step - more_slack * ((self.direction @ step) / (self.direction @ more_slack))
            size = float(np.abs(step).max())
            if not size < (0.9 * last if steps > FEW else np.inf):
                return None
            point, last = point + step * min(1.0, MOST_CHANGE / size), size
            if size < near:
                # The path keeps to one side. Where the side changes, the point is on another part of the path, or two
                # paths cross here.
                if side * onward != self._orientation and length > CROSSING:
                    return None
                self._orientation = side * onward
                self.point, self.direction = point, more_slack * (onward / np.abs(more_slack).max())
                return steps
        return None
