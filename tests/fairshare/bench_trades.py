"""Measures the gains of trades in simulated economies: `python -m tests.fairshare.bench_trades [--policies …]`.

Random teams have one-GPU jobs on two or three generations. Each economy is simulated quantum by quantum, once with and
once without trading. Progress is counted in GPU-quanta at a job's full speed.

- σ: how much the speed-ups from generation 0 to 1 differ within a team. It is the standard deviation of their binary
  logarithms.
- *own order*: the order in which a team runs its jobs. It is "in order" (by age: a job runs only as long as all jobs
  before it) or "evenly" (all jobs run equally long).
- *loser*: a team that makes less than 98 % of its progress without trading, and also less than 98 % of its progress
  alone on an equal part of each generation.
- *gain*: the sum of all teams' relative gains over the simulation without trading.
- *possible gain*: the largest gain without losers. Linear programs compute it twice: for teams that run their jobs in
  their own order, and for teams that may run any of their jobs.
- *captured*: the gain by trades as a fraction of the possible gain.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from itertools import product

import numpy as np

from fairshare.check.economy import Account, Economy, Job
from fairshare.check.oracle import Oracle
from fairshare.check.play import PolicyUnderTest
from fairshare.check.played import Played
from fairshare.check.policies import NEWEST, POLICIES, VERSION_1
from fairshare.model import Floats, Settings
from tests.fairshare.policies.teams import ORDERS, Order, most_progress, own_progress

SPREADS = (0.0, 0.1, 0.3, 0.6)
SETTLED = 10  # rounds before progress is counted


def teams(spread: float, seed: int, order: Order = "in order") -> Economy:
    """Returns two to five teams, each with as many jobs as the cluster has GPUs.

    `spread` is σ, and `order` the teams' own order of jobs.
    """
    chance = np.random.default_rng([seed, int(spread * 100)])
    nodes = tuple((k, int(chance.choice([4, 8]))) for k in range(int(chance.integers(2, 4))))
    total = sum(gpus for _, gpus in nodes)
    jobs = []
    for t in range(2 + seed % 4):
        gain = chance.uniform(0.2, 1.5)
        owns = gain + spread * chance.normal(size=total)
        jobs += [Job(t, rate={k: float(2.0 ** (own * k)) for k, _ in nodes}) for own in owns]
    accounts = tuple(Account(trades=True, evenly=order == "evenly") for _ in range(2 + seed % 4))
    return Economy(nodes, accounts, tuple(jobs), Settings(trading=True), rounds=70)


def progress(economy: Economy, judged: PolicyUnderTest) -> Floats:
    """Simulates the economy under the policy `judged`. Returns the mean progress of each team per round, as an array
    (T,)."""
    return Played.of(economy, judged).progress(since=SETTLED) / (economy.rounds - SETTLED)


def possible(economy: Economy, without: Floats, order: Order) -> float:
    """Returns the possible gain: the largest sum of relative gains without losers if teams run their jobs in the order
    `order`.

    `without` (T,): the teams' progress without trading.
    """
    owner = np.array([job.account for job in economy.jobs])
    worth = [economy.speed[owner == t] / alone for t, alone in enumerate(without)]
    # A played team may make a little more than its own order gives in the long run.
    least = np.full(len(without), 0.98)
    return float((most_progress(worth, economy.capacity, least, order) - 1).sum())


def private(economy: Economy, order: Order) -> Floats:
    """Returns the progress of each team alone on an equal part of every generation, as an array (T,).

    `order`: the order in which each team runs its jobs.
    """
    owner, count = np.array([job.account for job in economy.jobs]), len(economy.accounts)
    rates = [economy.speed[owner == t] for t in range(count)]
    return own_progress(rates, np.tile(economy.capacity / count, (count, 1)), order)


def trades(judged: PolicyUnderTest, spread: float, order: Order, instances: int) -> str:
    losers, worst, gains = 0, 1.0, []
    for seed in range(instances):
        economy = teams(spread, seed, order)
        alone = replace(economy, settings=replace(economy.settings, trading=False))
        traded, without = progress(economy, judged), progress(alone, judged)
        # With trading, a team no longer gets for free the time that other teams do not want.
        kept = traded / np.minimum(without, private(economy, order))
        losers += bool((kept < 0.98).any())
        worst = min(worst, float(kept.min()))
        best = Oracle(economy, economy.active(0)).best_trade(without)
        gained, of_any = ((made / without - 1).sum() for made in (traded, best))
        gains.append((float(gained), possible(economy, without, order), float(of_any)))
    made, by_order, by_any = np.sum(gains, axis=0)
    return (
        f"σ {spread}, {order}: {losers} of {instances} with a loser, worst {worst:.2f};"
        f" captured {made / by_order:.2f} of what own order allows, {made / by_any:.2f} of what any jobs could make\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fairshare.bench_trades")
    parser.add_argument("--policies", nargs="*", choices=list(POLICIES), default=[])
    parser.add_argument("--instances", type=int, default=39)
    asked = parser.parse_args()
    for name in dict.fromkeys(asked.policies or [NEWEST.name, VERSION_1.name]):
        for order, spread in product(ORDERS, SPREADS):
            sys.stdout.write(f"{name}, trades, {trades(POLICIES[name], spread, order, asked.instances)}")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
