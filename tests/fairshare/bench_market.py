"""Measures how long market prices take to compute in small random clusters: `python -m tests.fairshare.bench_market
[SEEDS]`.

Prints the milliseconds of CPU time for the prices of 60 random economies per seed, and the relative error of the
prices.
"""

from __future__ import annotations

import sys
from time import process_time

import numpy as np

from fairshare.check.generate import random_economy
from fairshare.policies.market import shares
from fairshare.policies.market.economy import Economy, Equilibrium
from fairshare.policies.market.economy import missed as missed_by
from fairshare.policies.market.equilibrium import equilibrium
from fairshare.reasons import may_run
from fairshare.tree import Tree

ECONOMIES = 60


def main(seeds: int) -> None:
    taken: list[float] = []
    missed: list[float] = []

    def timed(economy: Economy) -> Equilibrium:
        begin = process_time()
        found = equilibrium(economy)
        taken.append(1e3 * (process_time() - begin))
        missed.append(missed_by(economy, found))
        return found

    shares.equilibrium = timed  # type: ignore[attr-defined]
    for seed in range(seeds):
        for number in range(ECONOMIES):
            economy = random_economy(seed, number)
            view = economy.snapshot(economy.active(0), {}, {}, {}, {})
            tree = Tree.of(view.accounts.parent)
            shares.market_shares(view, tree, may_run(view, tree)[0])
    sys.stdout.write(
        f"prices of a market in {len(taken)} clusters: {np.median(taken):.1f} ms in the median,"
        f" {np.mean(taken):.1f} in the mean, {np.quantile(taken, 0.9):.1f} in nine of ten,"
        f" {np.quantile(taken, 0.99):.1f} in 99 of a hundred, at most {max(taken):.0f};"
        f" they miss an equilibrium by at most {max(missed):.0e}\n"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
