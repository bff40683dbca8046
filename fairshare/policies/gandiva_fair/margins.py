"""Computes what accounts would sell and buy, from the worth to them of a little more or less of a generation.

An account's jobs run in its own order. So an additional GPU goes to the next jobs in this order, and a GPU less is
taken from the last.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairshare.columns import across
from fairshare.model import Bools, Floats, Ints
from fairshare.policies.gandiva_fair.own_order import GenerationPairs, Rows
from fairshare.policies.gandiva_fair.queues import LEAST_GPUS, Queue

LEAST_RATIO = 1e-6  # at a lower ratio an account counts as not wanting the GPU


@dataclass(frozen=True, slots=True)
class Margin:
    """The blocks of fast generations that accounts would sell or buy: B blocks, each of one job on one of P pairs."""

    trader: Ints  # (B,) pair × L + account
    ratio: Floats  # (B,) slow GPUs for a fast GPU: the least at which the trader sells, or the most that it may pay
    gpus: Floats  # (B,) GPUs of the fast generation


class Margins:
    """The jobs that were measured on both generations of a pair, and the GPUs on which they run there.

    Handles P pairs at once that have no generation in common. Each of S entries is a job on one pair. A *trader* is
    one of L accounts on one pair; its index is pair × L + account.
    """

    def __init__(self, rows: Rows, use: Floats, may: Bools, pairs: GenerationPairs) -> None:
        """Takes `use` (R, K), the GPUs on which jobs run, and `may` (R, K), which marks the generations that jobs
        trade."""
        self.pairs, slow, fast = pairs, pairs.slow, pairs.fast
        pair, row = np.nonzero((np.isfinite(pairs.lean) & may[:, slow] & may[:, fast]).T)
        self.leaves, self.traders = len(rows.account), len(rows.account) * len(slow)
        trader = pair * self.leaves + rows.leaf[row]
        low, high = (row * use.shape[1] + kind[pair] for kind in (slow, fast))
        runs = use.take(low) + use.take(high)
        some = np.flatnonzero((np.bincount(trader, runs, self.traders) > LEAST_GPUS)[trader])
        pair, row, self._trader, self._runs = pair[some], row[some], trader[some], runs[some]
        low, high = low[some], high[some]
        self._ratio = rows.rate.take(high) / rows.rate.take(low)
        self._order = Queue.of(self._trader, pair * len(rows.gpus) + rows.head[row])
        self._units = [(unit.take(low), unit.take(high)) for unit in rows.units]
        waits, takes_part = np.maximum(rows.gpus - across(use), 0.0), np.zeros(len(use))
        self._waits, takes_part[row] = waits[row], 1.0
        self._on_slow, self._on_fast = use.take(low), use.take(high)
        # (P × L,) GPUs of the slow generation on which these jobs of each trader run.
        self.on_slow: Floats = np.bincount(self._trader, self._on_slow, self.traders).astype(np.float64)
        # (L,) GPUs that these jobs could use in addition to the GPUs that they have.
        self.waiting: Floats = np.bincount(rows.leaf, waits * takes_part, self.leaves).astype(np.float64)

    def sold(self) -> Margin:
        """Returns the fast GPUs that jobs would sell; jobs that gain least by the fast generation come first.

        Slow GPUs beyond one for each fast GPU go to the account's next jobs, and count as worth the mean of what
        they are worth to the jobs that would run.
        """
        return self._margin(self._on_fast, self._waits, np.maximum, sells=True)

    def bought(self) -> Margin:
        """Returns the fast GPUs that jobs on the slow generation would buy; jobs that would gain most come first.

        Slow GPUs beyond one for each fast GPU are taken from the account's last jobs, and cost the mean of what they
        are worth to the jobs that stop.
        """
        return self._margin(self._on_slow, self._runs, np.minimum, sells=False)

    def _margin(self, gpus: Floats, moved: Floats, worse: np.ufunc, *, sells: bool) -> Margin:
        """Returns the margin of all traders.

        A price above 1 makes further jobs run on the slow generation, or makes jobs stop there; `moved` (S,) has the
        GPUs of these jobs.
        """
        by = np.flatnonzero(gpus > LEAST_GPUS)
        by = by[np.lexsort((self._ratio[by] * (1 if sells else -1), self._trader[by]))]
        ratio, trader = self._ratio[by], self._trader[by]
        paid = gpus[by] * np.maximum(ratio - 1, 0.0)
        paid = paid + Queue.one_by_one(trader).before(paid)
        for low, high in self._units:
            gain = high[by] - low[by]
            # The first of an account's jobs gives up its fast GPUs to jobs that gain more by them.
            least = np.full(self.traders, np.inf)
            least[trader[::-1]] = gain[::-1]
            does = np.maximum(low, high - least[self._trader])
            worth = self._order.mean(does, moved, trader, paid, first=sells)
            ratio = worse(ratio, np.divide(gain, worth, out=ratio - 1, where=worth > 0) + 1)
        gains = ratio > LEAST_RATIO
        return Margin(trader[gains], ratio[gains], gpus[by][gains])
