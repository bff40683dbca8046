"""The conditions of a market equilibrium, relaxed by a slack parameter, and Newton's method to solve them.

A class is a group of equal jobs of one account. Speeds are relative to the generation on which the class is fastest. A
GPU of that generation is a GPU of full speed. For a class, the cost of one more GPU of a generation is the sum of three
amounts, all in GPUs of full speed:

- the price, multiplied by the value of income: what one more unit of income would gain for the account;
- the class's gain from one more GPU;
- the class's gain from a higher limit on the generation.

The loss of the class on the generation is this cost minus the speed of its jobs there.

In an equilibrium, at least one amount of each of the following pairs is zero (complementary slackness):

- the GPUs of a generation that a class uses; and the loss of the class on this generation;
- the class's gain from one more GPU; and the GPUs of its jobs that wait;
- the class's gain from a higher limit on a generation; and the GPUs that it could still use within this limit;
- the value of more income to an account; and the income that the account saves;
- the price of a generation; and its GPUs that are not sold.

Here both amounts of a pair are kept positive, as in interior-point methods (Nocedal and Wright, "Numerical
Optimization", chapters 14 and 19). Their product must be the slack times a fixed number for the pair, such as the GPUs
of the generation. The smaller the slack, the closer is the solution to an equilibrium. At fixed prices and slack, the
conditions describe the maximum of a strictly concave function for each account.
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
    """The amounts that the docstring of this module lists in pairs, at one point (see `Conditions`).

    The product of the two amounts of a pair is the slack times a fixed number for the pair.
    """

    use: Floats  # (C, K) GPUs; paired with `loss`
    loss: Floats  # (C, K) how much less a GPU there is worth to the class than it costs
    gain: Floats  # (C,) GPUs of full speed that another GPU gains for the class; paired with `waits`
    waits: Floats  # (C,) GPUs that the class could use and does not have
    worth: Floats  # (L,) GPUs of full speed that income gains beyond LEAST_WORTH; paired with `saved`
    saved: Floats  # (L,) income that each account saves
    crowd: Floats  # (C, K) how much more a GPU would be worth if the class could use more there; paired with `room`
    room: Floats  # (C, K) further GPUs that the class could use there; not used where it can use all
    price: Floats  # (K,) income for a GPU; paired with `unsold`
    unsold: Floats  # (K,) GPUs


class Conditions:
    """The conditions of an equilibrium as functions of a point.

    A point is a vector of logarithms of these amounts, in this order: the GPUs that classes of jobs use, their gain
    from one more GPU, the value of income to accounts, the gain from higher limits, prices, and the slack.
    """

    def __init__(self, economy: Economy) -> None:
        """Prepares the conditions for an economy. Every generation must have GPUs."""
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
        """Returns a point with slack 1 that is close to a solution. For this slack there is exactly one solution."""
        use = np.where(self._runs, np.log(self._size)[:, None], 0.0)
        return np.append(use.ravel(), np.zeros(self._ends[-1] - use.size + 1))

    def reached(self, point: Floats) -> Equilibrium:
        """Returns the prices and purchases at a point, converted to GPUs and to the economy's unit of income."""
        now = self._pairs(point)
        return Equilibrium(now.price * self._unit, now.use, (now.worth + LEAST_WORTH) / self._unit)

    def _pairs(self, point: Floats) -> _Pairs:
        use, gain, worth, limit, price, slack = np.split(np.exp(point), self._ends)
        use, crowd, room = (
            use.reshape(self._runs.shape),
            np.zeros(self._runs.shape),
            np.ones(self._runs.shape),
        )
        crowd[self._limited] = limit
        room[self._limited] = slack * np.repeat(self._size, self._limited.sum(axis=1)) / limit
        return _Pairs(
            use=np.where(self._runs, use, 0.0),
            loss=np.where(self._runs, slack * self._size[:, None] / use, 1.0),
            gain=gain,
            waits=slack * self._size / gain,
            worth=worth,
            saved=slack * self._income / worth,
            crowd=crowd,
            room=room,
            price=price,
            unsold=slack * self._economy.capacity / price,
        )

    def newton(self, point: Floats) -> tuple[Floats, Floats, float]:
        """Returns three things: Newton's step at the same slack, the direction of the solution path, and a sign.

        - The step leads towards the point that meets the conditions.
        - The direction is the derivative of that point with respect to the logarithm of the slack.
        - The sign is that of the determinant of a matrix: the derivative of excess demand with respect to prices.

        The unknowns of each class and then of each account are eliminated, so that only prices remain to be solved for.
        Differences of large, nearly equal numbers are rewritten as sums of small numbers, to avoid rounding errors.
        """
        economy, now = self._economy, self._pairs(point)
        kinds = len(now.price)
        worth = now.worth + LEAST_WORTH
        bought = economy.of_accounts(now.use)
        of_class = _Classes(now)
        # The first entry of each array is the residual at the point, the second its change with the slack.
        cost = worth[economy.account, None] * now.price + now.gain[:, None] + now.crowd - economy.speed
        room = np.where(self._limited, (economy.room - now.use - now.room, -now.room), 0.0)
        loss = np.where(self._runs, (now.loss - cost, now.loss), 0.0) + now.crowd / now.room * room
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
    """Returns the changes of prices that remove the excess demand, as an array (2, K).

    `change`: the derivative of excess demand with respect to prices. `excess` (2, K): the excess demand in two cases,
    for which the linear system is solved separately. The result is NaN if the matrix is singular.
    """
    scale = np.abs(change).max(axis=1)
    try:
        found: Floats = np.linalg.solve(change / scale[:, None], (excess / scale).T).T
    except np.linalg.LinAlgError:
        return np.full(excess.shape, np.nan)
    return found


class _Classes:
    """The derivatives of the GPUs that each class of jobs uses, with respect to its losses on generations.

    A loss is what one more GPU of a generation costs the class, minus what the GPU is worth to it.
    """

    def __init__(self, now: _Pairs) -> None:
        self._each = now.use / (now.loss + now.use * now.crowd / now.room)
        waits = now.waits / now.gain
        self._part = self._each / (self._each.sum(axis=1) + waits)[:, None]
        self._all = 1.0 / (self._each.sum(axis=1) + waits)
        self._waits = waits[:, None]
        self._others = 1.0 - np.eye(len(now.price))
        self._rest = self._waits + self._each @ self._others

    def use(self, loss: Floats, waits: Floats) -> Floats:
        """Returns how the GPUs that each class uses on each generation change, as an array (2, C, K).

        The change is the effect of two other changes:
        - `loss` (2, C, K): the decrease of the loss of each class on each generation.
        - `waits` (2, C): the increase of the GPUs that each class can use.

        Two independent cases are computed together; the first axis of all arrays selects the case.
        """
        found: Floats = self._part * (
            self._rest * loss - (self._each * loss) @ self._others + waits[..., None]
        )
        return found

    def gain(self, loss: Floats, waits: Floats) -> Floats:
        """Returns how each class's gain from one more GPU changes, as an array (2, C).

        The change is the effect of two other changes:
        - `loss` (2, C, K): the decrease of the loss of each class on each generation.
        - `waits` (2, C): the increase of the GPUs that each class can use.

        Two independent cases are computed together; the first axis of all arrays selects the case.
        """
        found: Floats = self._all * ((self._each * loss).sum(axis=-1) - waits)
        return found

    def slopes(self, economy: Economy, price: Floats) -> tuple[Floats, Floats, Floats]:
        """Returns the derivatives of each account's use of generations with respect to its losses on generations.

        The result is three arrays for L accounts: the matrix A of derivatives of each account (L, K, K), the products A
        p with the vector p of prices (L, K), and the products p A p (L,).
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
