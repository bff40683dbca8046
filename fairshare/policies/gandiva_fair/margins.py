"""Computes which GPUs accounts would sell or buy in trades, and at what prices. `trades.py` uses the results.

In a trade, the seller gives GPUs of a fast generation and gets GPUs of a slow generation. The price is the number of
slow GPUs for one fast GPU. At a price above 1, the number of GPUs of both accounts changes:

- The seller gets more GPUs than it gives. Its next waiting jobs run on the additional GPUs.
- The buyer gives more GPUs than it gets. Its last running jobs lose them.

An acceptable price therefore depends on two things: the speed-up of the job whose GPUs are traded, and the progress of
the jobs that gain or lose GPUs. The jobs of an account run in the order that the account wants.

The results are *blocks*. A block is the GPUs that one job would exchange. Its *price limit* is the lowest price that
the seller accepts, or the highest price that the buyer accepts.

Progress is counted in two units, and no trade may reduce an account's progress in either of them. The units are GPUs of
the job's fastest generation, and GPUs of the generation that is slowest on average over all jobs (`Rows.units`).
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
    """B blocks of GPUs that accounts would sell, or B blocks that they would buy. Each has a price limit, in slow GPUs
    for one fast GPU."""

    trader: Ints  # (B,) pair × L + account
    ratio: Floats  # (B,) slow GPUs for a fast GPU: the least at which the trader sells, or the most that it may pay
    gpus: Floats  # (B,) GPUs of the fast generation


class Margins:
    """The jobs that can trade a pair of generations, and the GPUs of the pair on which they run.

    - There are P pairs of a slow and a fast generation. No generation occurs in two of them.
    - There are S entries. An entry is one job on one pair.
    - There are L leaf accounts. A *trader* is one account on one pair. Its index is (index of the pair) × L + (index of
      the account).
    """

    def __init__(self, rows: Rows, use: Floats, may: Bools, pairs: GenerationPairs) -> None:
        """Creates one entry for each job and each pair of generations that the job can trade.

        A job can trade a pair if its rates on both generations are known and `may` allows both. If no such job of an
        account runs on GPUs of the pair, the account gets no entries for the pair.

        - `rows`: the R jobs.
        - `use` (R, K): GPUs of each generation on which each job runs.
        - `may` (R, K): whether each job may trade each generation.
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
        """Returns the GPUs of fast generations that accounts would sell, one block for each job that runs on such GPUs.

        The price limit of a block is the lowest price at which the account makes no less progress than before. For each
        trader, jobs with the lowest speed-up come first.

        The progress on additional GPUs is estimated as a mean over the jobs that would get them.
        """
        return self._blocks(self._on_fast, self._waits, np.maximum, sells=True)

    def bought(self) -> Margin:
        """Returns the GPUs of fast generations that accounts would buy, one block for each job that runs on slow GPUs.

        The price limit of a block is the highest price at which the account makes no less progress than before. For
        each trader, jobs with the highest speed-up come first.

        The progress on lost GPUs is estimated as a mean over the jobs that would lose them.
        """
        return self._blocks(self._on_slow, self._runs, np.minimum, sells=False)

    def _blocks(self, gpus: Floats, affected: Floats, strictest: np.ufunc, *, sells: bool) -> Margin:
        """Returns the blocks of GPUs that all accounts would sell, or those that they would buy.

        The price limit of a block is the strictest of three prices: the speed-up of the job, and for each of the two
        units of progress the price at which the account's progress stays the same.

        - `gpus` (S,): GPUs that each entry can trade.
        - `affected` (S,): for sales, the GPUs that each entry's job still waits for; it can gain them. For purchases,
          the GPUs of the pair on which the job runs; it can lose them.
        - `strictest`: `numpy.maximum` for sales, `numpy.minimum` for purchases.
        - `sells`: true for sales, false for purchases.
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
            worth = self._order.mean(does, affected, trader, paid, first=sells)
            ratio = strictest(ratio, np.divide(gain, worth, out=ratio - 1, where=worth > 0) + 1)
        gains = ratio > LEAST_RATIO
        return Margin(trader[gains], ratio[gains], gpus[by][gains])
