"""Measures the gains of trades in simulated economies: `python -m tests.fairshare.bench_trades [--policies …]`.

Random teams have one-GPU jobs on two or three generations. The speed-ups of a team's jobs spread by σ around the team's
own. Each economy is simulated quantum by quantum, with and without trading. Teams run their jobs either in order of age
or evenly. Progress is counted in GPU-quanta at a job's full speed.

A *loser* is a team that makes less than 98 % of the lower of two amounts: its progress without trading, and its
progress alone on an equal part of each generation, with its jobs in its own order. The second amount is needed because,
with trading, a team no longer gets for free the time that other teams do not want.

*Captured* is the sum of all relative gains over the simulation without trading, divided by the largest sum without
losers, which a linear program finds. It is computed with two such largest sums. For the first, each team runs its jobs
in its own order. In order of age, a job runs only as long as all jobs before it; evenly, all jobs run equally long. For
the second, a team may run any of its jobs.
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
    """Returns two to five teams, each with as many jobs as the cluster has GPUs."""
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
    """Simulates the economy and returns the mean progress of each team per round, as an array (T,)."""
    return Played.of(economy, judged).progress(since=SETTLED) / (economy.rounds - SETTLED)


def possible(economy: Economy, without: Floats, order: Order) -> float:
    """Returns the largest sum of relative gains that trades can bring if each team runs its jobs in its own order.

    `without` (T,): the teams' progress without trading.
    """
    owner = np.array([job.account for job in economy.jobs])
    worth = [economy.speed[owner == t] / alone for t, alone in enumerate(without)]
    # A played team may make a little more than its own order gives in the long run.
    least = np.full(len(without), 0.98)
    return float((most_progress(worth, economy.capacity, least, order) - 1).sum())


def private(economy: Economy, order: Order) -> Floats:
    """Returns the progress of each team on an equal part of every generation, as an array (T,).

    Teams run their jobs in their own order.
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
