"""What trades bring as they are played: `python -m tests.fairshare.bench_trades [--policies …]`.

Random teams of 1-GPU jobs whose speed-ups spread by σ around their team's, on two or three generations, are played
quantum by quantum, with and without trading. Progress is in GPU-quanta of a job's full speed. A *loser* makes less
than 98 % of what it makes without trading; *captured* is the sum of all gains over that as a part of the largest sum
that a linear program finds among those in which nobody loses.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

import numpy as np

from fairshare.check.economy import Account, Economy, Job
from fairshare.check.oracle import Oracle
from fairshare.check.play import Judged
from fairshare.check.played import Played
from fairshare.check.policies import NEWEST, POLICIES, VERSION_1
from fairshare.model import Floats, Settings

SPREADS = (0.1, 0.3, 0.6)
SETTLED = 10  # rounds after which progress counts


def teams(spread: float, seed: int) -> Economy:
    """Two to five teams, each with as many jobs as there are GPUs."""
    chance = np.random.default_rng([seed, int(spread * 100)])
    nodes = tuple((k, int(chance.choice([4, 8]))) for k in range(int(chance.integers(2, 4))))
    total = sum(gpus for _, gpus in nodes)
    jobs = []
    for t in range(2 + seed % 4):
        gain = chance.uniform(0.2, 1.5)
        owns = gain + spread * chance.normal(size=total)
        jobs += [Job(t, rate={k: float(2.0 ** (own * k)) for k, _ in nodes}) for own in owns]
    accounts = tuple(Account(trades=True) for _ in range(2 + seed % 4))
    return Economy(nodes, accounts, tuple(jobs), Settings(trading=True), rounds=70)


def progress(economy: Economy, judged: Judged) -> Floats:
    """(T,) what teams make in a round."""
    return Played.of(economy, judged).progress(since=SETTLED) / (economy.rounds - SETTLED)


def trades(judged: Judged, spread: float, instances: int) -> str:
    losers, worst, captured = 0, 1.0, []
    for seed in range(instances):
        economy = teams(spread, seed)
        alone = replace(economy, settings=replace(economy.settings, trading=False))
        traded, without = progress(economy, judged), progress(alone, judged)
        losers += bool((traded < 0.98 * without).any())
        worst = min(worst, float((traded / without).min()))
        possible = float((Oracle(economy, economy.active(0)).best_trade(without) / without - 1).sum())
        if possible > 0.02:
            captured.append(float((traded / without - 1).sum()) / possible)
    return (
        f"σ {spread}: {losers} of {instances} with a loser, worst {worst:.2f};"
        f" captured {np.mean(captured):.2f} (median {np.median(captured):.2f})\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fairshare.bench_trades")
    parser.add_argument("--policies", nargs="*", choices=list(POLICIES), default=[])
    parser.add_argument("--instances", type=int, default=39)
    asked = parser.parse_args()
    for name in dict.fromkeys(asked.policies or [NEWEST.name, VERSION_1.name]):
        for spread in SPREADS:
            sys.stdout.write(f"{name}, trades, {trades(POLICIES[name], spread, asked.instances)}")


if __name__ == "__main__":
    main()
