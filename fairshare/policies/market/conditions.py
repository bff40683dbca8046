"""The conditions of a market equilibrium, relaxed by a slack, and Newton's method to solve them.

`economy.py` describes the market: L accounts buy GPUs of K generations for their C classes of jobs. Progress is counted
in GPUs of full speed.

The conditions use shadow prices: what an account or a class would gain if a constraint were relaxed by one unit.
- `worth`: the progress that one more unit of income gains for an account.
- `gain`: the progress that a class gains if its jobs can use one more GPU.
- `limit_gain`: the progress that a class gains if it can use one more GPU of a particular generation. It is 0 if the
  class can use all GPUs of the generation.

If a class uses one more GPU of a generation, it forgoes progress elsewhere. This progress is the *cost* of the GPU. It
is the sum of three amounts, in GPUs of full speed:
- `worth` × price: the progress that the account could buy for the price of the GPU;
- `gain`: the GPU is one of the limited number of GPUs that the class can use. Without it, the class could use another
  GPU, and would gain this progress;
- `limit_gain`: the same for the limited number of GPUs of this generation that the class can use.

The *loss* of the class on the generation is this cost minus its speed there, which is the progress that it makes with
the GPU.

In an equilibrium, no amount in the following pairs is negative, and at least one amount of each pair is zero
(complementary slackness):
- the GPUs of a generation that a class uses, and its loss there;
- the `gain` of a class, and the GPUs that it could use and does not have;
- the `limit_gain` of a class on a generation, and the GPUs of the generation that it could use and does not have;
- the `worth` of income to an account, and the income that the account saves;
- the price of a generation, and the GPUs of the generation that are not sold.

Here these conditions are relaxed as in interior-point methods (Nocedal and Wright, "Numerical Optimization", chapters
14 and 19). Both amounts of a pair are positive. Instead of zero, their product is the *slack* times a constant of the
pair. For example, the price of a generation times its unsold GPUs equals the slack times all GPUs of the generation.
The slack (usually called the barrier parameter) is the same for all pairs. The smaller it is, the closer is the
solution to an equilibrium.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairshare.model import Floats
from fairshare.policies.market.economy import Economy, Equilibrium

# The lowest worth of income to any account, in GPUs of full speed for the mean price of a GPU. It makes an account with
# too much income buy the cheapest GPUs.
LEAST_WORTH = 1e-7


@dataclass(frozen=True, slots=True)
class _Pairs:
    """The amounts of all pairs that the file's docstring lists, at one point (see `Conditions`).

    A comment says which two fields are a pair. The field `worth` has only the part of the worth that exceeds
    LEAST_WORTH.
    """

    use: Floats  # (C, K) GPUs; paired with `loss`
    loss: Floats  # (C, K) how much less a GPU there is worth to the class than it costs
    gain: Floats  # (C,) GPUs of full speed that another GPU gains for the class; paired with `waits`
    waits: Floats  # (C,) GPUs that the class could use and does not have
    worth: Floats  # (L,) GPUs of full speed that income gains beyond LEAST_WORTH; paired with `saved`
    saved: Floats  # (L,) income that each account saves
    limit_gain: Floats  # (C, K) GPUs of full speed that another usable GPU there gains; paired with `room`
    room: Floats  # (C, K) further GPUs that the class could use there; not used where it can use all
    price: Floats  # (K,) income for a GPU; paired with `unsold`
    unsold: Floats  # (K,) GPUs


class Conditions:
    """The relaxed conditions of an equilibrium, as functions of a point.

    A point is a vector of logarithms, so that all amounts are positive. It has one amount of each pair, in this order:
    the GPUs that classes use, `gain`, `worth`, `limit_gain`, prices. The last entry is the logarithm of the slack. The
    other amount of each pair follows from these, because the product of both is given.
    """

    def __init__(self, economy: Economy) -> None:
        """Prepares the conditions for an economy, in which every generation must have GPUs."""
        self._economy = economy
        self._unit = float(economy.income.sum() / economy.capacity.sum())
        self._income = economy.income / self._unit
        self._runs = (economy.speed > 0) & (economy.room > 0)
        # The geometric mean of what a class could use and what its account could buy, as income may be worth much more
        # or less.
        most = np.minimum(economy.gpus, economy.capacity.sum())
        self._size = np.sqrt(most * np.minimum(most, self._income[economy.account])) / len(economy.capacity)
        classes, kinds = economy.speed.shape
        whole = np.minimum(economy.gpus[:, None], economy.capacity)
        self._limited = self._runs & (economy.room < whole)
        limits = np.count_nonzero(self._limited)
        self._ends = np.cumsum([classes * kinds, classes, len(economy.income), limits, kinds])

    def start(self) -> Floats:
        """Returns a point with slack 1, from which Newton's method can begin. For slack 1, the conditions have exactly
        one solution, and the point is close to it."""
        use = np.where(self._runs, np.log(self._size)[:, None], 0.0)
        return np.append(use.ravel(), np.zeros(self._ends[-1] - use.size + 1))

    def reached(self, point: Floats) -> Equilibrium:
        """Returns the prices and purchases at a point. Prices are in the economy's own unit of income."""
        now = self._pairs(point)
        return Equilibrium(now.price * self._unit, now.use, (now.worth + LEAST_WORTH) / self._unit)

    def _pairs(self, point: Floats) -> _Pairs:
        use, gain, worth, limit, price, slack = np.split(np.exp(point), self._ends)
        use, limit_gain, room = (
            use.reshape(self._runs.shape),
            np.zeros(self._runs.shape),
            np.ones(self._runs.shape),
        )
        limit_gain[self._limited] = limit
        room[self._limited] = slack * np.repeat(self._size, self._limited.sum(axis=1)) / limit
        return _Pairs(
            use=np.where(self._runs, use, 0.0),
            loss=np.where(self._runs, slack * self._size[:, None] / use, 1.0),
            gain=gain,
            waits=slack * self._size / gain,
            worth=worth,
            saved=slack * self._income / worth,
            limit_gain=limit_gain,
            room=room,
            price=price,
            unsold=slack * self._economy.capacity / price,
        )

    def newton(self, point: Floats) -> tuple[Floats, Floats, float]:
        """Computes one step of Newton's method, and the direction in which the solution moves when the slack changes.

        Returns three things:
        - The step, as a vector like a point. Added to the point, it leads towards the solution for the same slack.
        - The derivative of the solution with respect to the logarithm of the slack, as a vector like a point.
        - The sign (1, -1 or 0) of the determinant of the matrix `change` of `_solve`. `equilibrium.py` uses it to
          recognise the path of solutions.
        """
        # The unknowns of each class are eliminated first, then those of each account, so that K prices remain. Sums of
        # small numbers replace differences of large, nearly equal ones, to avoid rounding errors.
        economy, now = self._economy, self._pairs(point)
        kinds = len(now.price)
        worth = now.worth + LEAST_WORTH
        bought = economy.of_accounts(now.use)
        of_class = _Classes(now)
        # The first entry of each array is the residual at the point, the second its change with the slack.
        cost = worth[economy.account, None] * now.price + now.gain[:, None] + now.limit_gain - economy.speed
        room = np.where(self._limited, (economy.room - now.use - now.room, -now.room), 0.0)
        loss = np.where(self._runs, (now.loss - cost, now.loss), 0.0) + now.limit_gain / now.room * room
        waits = np.stack((economy.gpus - now.use.sum(axis=1) - now.waits, -now.waits))
        saved = np.stack((self._income - bought @ now.price - now.saved, -now.saved))
        unsold = np.stack((economy.capacity - bought.sum(axis=0) - now.unsold, -now.unsold))

        more = np.stack([economy.of_accounts(one) for one in of_class.use(loss, waits)])  # (2, L, K)
        by_loss, dearer, by_worth = of_class.slopes(economy, now.price)
        slope = 1.0 / (by_worth + now.saved / now.worth)
        by_price = bought - worth[:, None] * dearer
        spent = more @ now.price - saved
        excess = (more - dearer * (slope * spent)[..., None]).sum(axis=1) - unsold
        change = np.tensordot(worth, by_loss, axes=1) + (dearer * slope[:, None]).T @ by_price
        change[np.arange(kinds), np.arange(kinds)] += now.unsold / now.price
        change = change * now.price
        price = _solve(change, excess)

        d_price = price * now.price
        d_worth = slope * (spent + d_price @ by_price.T)
        loss = (
            loss
            - worth[economy.account, None] * d_price[:, None]
            - d_worth[:, economy.account, None] * now.price
        )
        gain = of_class.gain(loss, waits) / now.gain
        use = of_class.use(loss, waits)
        limit = ((use - room) / now.room)[:, self._limited]
        use = np.divide(use, now.use, out=np.zeros(use.shape), where=self._runs)
        found = [
            np.concatenate(one, axis=None)
            for one in zip(use, gain, d_worth / now.worth, limit, price, (0.0, 1.0), strict=True)
        ]
        return found[0], found[1], float(np.linalg.slogdet(change).sign)


def _solve(change: Floats, excess: Floats) -> Floats:
    """Returns the changes of the logarithms of prices that remove the excess demand, as an array (2, K).

    Excess demand is the GPUs that accounts want to buy minus those that exist. The result is NaN if the matrix `change`
    is singular.

    - `change` (K, K): how much the excess demand for each generation falls when the logarithm of each price rises.
    - `excess` (2, K): the excess demand for each generation at the point, and its derivative with respect to the
      logarithm of the slack. Each is solved separately.
    """
    scale = np.abs(change).max(axis=1)
    try:
        found: Floats = np.linalg.solve(change / scale[:, None], (excess / scale).T).T
    except np.linalg.LinAlgError:
        return np.full(excess.shape, np.nan)
    return found


class _Classes:
    """The response of each class to small changes, at one point: derivatives of its use of GPUs and of its `gain`.

    An axis of length 2 has the step of Newton's method first, and then the derivative with respect to the logarithm of
    the slack. Each is computed separately.
    """

    def __init__(self, now: _Pairs) -> None:
        self._each = now.use / (now.loss + now.use * now.limit_gain / now.room)
        waits = now.waits / now.gain
        self._part = self._each / (self._each.sum(axis=1) + waits)[:, None]
        self._all = 1.0 / (self._each.sum(axis=1) + waits)
        self._waits = waits[:, None]
        self._others = 1.0 - np.eye(len(now.price))
        self._rest = self._waits + self._each @ self._others

    def use(self, loss: Floats, waits: Floats) -> Floats:
        """Returns by how much the GPUs that each class uses on each generation rise, as an array (2, C, K).

        - `loss` (2, C, K): by how much the loss of each class on each generation falls.
        - `waits` (2, C): by how much the GPUs that each class can use in total rise.
        """
        found: Floats = self._part * (
            self._rest * loss - (self._each * loss) @ self._others + waits[..., None]
        )
        return found

    def gain(self, loss: Floats, waits: Floats) -> Floats:
        """Returns by how much the `gain` of each class rises, as an array (2, C).

        - `loss` (2, C, K): by how much the loss of each class on each generation falls.
        - `waits` (2, C): by how much the GPUs that each class can use in total rise.
        """
        found: Floats = self._all * ((self._each * loss).sum(axis=-1) - waits)
        return found

    def slopes(self, economy: Economy, price: Floats) -> tuple[Floats, Floats, Floats]:
        """Returns how the GPUs that each account uses change if the losses of all its classes change by the same
        amounts.

        `price` (K,): the vector p of prices.

        The result is three arrays:
        - (L, K, K): a matrix A for each account. Entry (i, j) is the number of additional GPUs of generation i that the
          account uses if the loss on generation j falls by one unit.
        - (L, K): A p. The account uses this many GPUs of each generation less if the loss on each generation rises by
          its price.
        - (L,): p A p. The account then spends this much less.
        """
        kinds = np.arange(len(price))
        between = np.stack(
            [economy.of_accounts(self._part[:, k, None] * self._each) for k in kinds], axis=1
        )  # (L, K, K)
        waits = economy.of_accounts(self._part * self._waits)
        apart = price - price[:, None]
        dearer = waits * price - (between * apart).sum(axis=2)
        twice = waits @ price**2 + (between * apart**2).sum(axis=(1, 2)) / 2
        by_loss = -between
        by_loss[:, kinds, kinds] = economy.of_accounts(self._part * self._rest)
        return by_loss, dearer, twice
