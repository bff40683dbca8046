"""Computes which GPUs accounts would sell or buy, and at what price.

The price depends on what an account gains by one additional GPU, or loses with one GPU less. An account's jobs run in
the order that its owner wants. An additional GPU is used by the next waiting job in this order. When the account has
one GPU less, the last running job loses it.
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
    """B blocks of GPUs that accounts would sell or buy.

    A block belongs to one job and to one pair of a slow and a fast generation. It is the GPUs of the fast generation
    that the job would trade for GPUs of the slow generation.
    """

    trader: Ints  # (B,) pair × L + account
    ratio: Floats  # (B,) slow GPUs for a fast GPU: the least at which the trader sells, or the most that it may pay
    gpus: Floats  # (B,) GPUs of the fast generation


class Margins:
    """The jobs that can trade pairs of generations, because they were measured on both, and the GPUs on which they run.

    There are P pairs, and no generation occurs in two of them. Each of S entries is one job on one pair. A *trader* is
    one of L accounts on one pair. Its index is (index of the pair) × L + (index of the account).
    """

    def __init__(self, rows: Rows, use: Floats, may: Bools, pairs: GenerationPairs) -> None:
        """Selects the entries (a job on one of the pairs of generations) from the R jobs in `rows`.

        - `use` (R, K): GPUs of each generation on which each job runs.
        - `may` (R, K): whether the job may trade the generation.
        - `pairs`: the pairs of generations.
        """
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
        """Returns the fast GPUs that jobs would sell. Jobs that gain least by the fast generation come first.

        At a price above 1 slow GPU for each fast GPU, an account gets more GPUs than it sells. Its next waiting jobs
        run on the additional GPUs. The value of an additional GPU is the mean of what it is worth to these jobs.
        """
        return self._margin(self._on_fast, self._waits, np.maximum, sells=True)

    def bought(self) -> Margin:
        """Returns the fast GPUs that jobs on the slow generation would buy. Jobs that would gain most come first.

        At a price above 1 slow GPU for each fast GPU, an account has fewer GPUs after the purchase than before. Its
        last running jobs lose these GPUs. The value of a lost GPU is the mean of what it is worth to these jobs.
        """
        return self._margin(self._on_slow, self._runs, np.minimum, sells=False)

    def _margin(self, gpus: Floats, moved: Floats, worse: np.ufunc, *, sells: bool) -> Margin:
        """Returns the blocks that all traders would sell if `sells` is true, or buy if it is false. A block is the GPUs
        that one job trades.

        At a price above 1 slow GPU for each fast GPU, a seller has more GPUs after the trade, and its waiting jobs run
        on them. A buyer has fewer GPUs, and some of its running jobs lose GPUs.

        - `gpus` (S,): GPUs that each entry can trade.
        - `moved` (S,): GPUs that the job of each entry could get (seller) or lose (buyer) when its account's GPUs
          change in this way.
        - `worse`: numpy.maximum for a seller, numpy.minimum for a buyer. A block has several price limits: the ratio of
          the job's rates, and one limit for each unit of progress. `worse` chooses the strictest of them.
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
