"""What trades bring, and what lies about speeds bring: `python -m tests.fairshare.bench_trades [--policies …]`.

Random teams of 1-GPU jobs whose speed-ups spread by σ around their team's, on two or three generations, are played
quantum by quantum, with and without trading. Progress is in GPU-quanta of a job's full speed. A *loser* makes less
than 98 % of what it makes without trading; *captured* is the sum of all gains over that as a part of the largest sum
that a linear program finds among those in which nobody loses. For lies, one team tells rates
on faster generations that are wrong by some factor, or takes part as two teams; *gain* is in its true progress.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from fairshare.check.economy import Account, Economy, Job
from fairshare.check.oracle import Oracle
from fairshare.check.play import Judged, play
from fairshare.check.played import Played
from fairshare.check.policies import DEFAULT, POLICIES, VERSION_1
from fairshare.model import Floats, Settings

SPREADS = (0.1, 0.3, 0.6)
FACTORS = (0.25, 0.5, 0.67, 0.8, 1.25, 1.5, 2.0, 4.0)
WHOSE = ("all jobs", "its faster half", "its slower half")
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


def progress(true: Economy, told: Economy, judged: Judged) -> Floats:
    """(T,) what teams make in a round by their true speeds when a policy is told others."""
    rounds = len(range(SETTLED, true.rounds))
    return Played(true, judged, 0, play(told, judged)).progress(since=SETTLED) / rounds


def trades(judged: Judged, spread: float, instances: int) -> str:
    losers, worst, captured = 0, 1.0, []
    for seed in range(instances):
        economy = teams(spread, seed)
        alone = replace(economy, settings=replace(economy.settings, trading=False))
        traded, without = progress(economy, economy, judged), progress(alone, alone, judged)
        losers += bool((traded < 0.98 * without).any())
        worst = min(worst, float((traded / without).min()))
        possible = float((Oracle(economy, economy.active(0)).best_trade(without) / without - 1).sum())
        if possible > 0.02:
            captured.append(float((traded / without - 1).sum()) / possible)
    return (
        f"σ {spread}: {losers} of {instances} with a loser, worst {worst:.2f};"
        f" captured {np.mean(captured):.2f} (median {np.median(captured):.2f})\n"
    )


def lies(economy: Economy) -> Iterator[tuple[str, Economy]]:
    """The economy as team 0 tells it, falsely."""
    own = [j for j, job in enumerate(economy.jobs) if job.account == 0]
    last = economy.generations - 1
    by_gain = sorted(own, key=lambda j: economy.jobs[j].rate[last])
    half = len(own) // 2
    for whose, liars in zip(WHOSE, (own, by_gain[half:], by_gain[:half]), strict=True):
        for factor in FACTORS:
            jobs = list(economy.jobs)
            for j in liars:
                rate = {k: rate * (factor if k else 1.0) for k, rate in jobs[j].rate.items()}
                jobs[j] = replace(jobs[j], rate=rate)
            yield f"{whose} × {factor:g}", replace(economy, jobs=tuple(jobs))


def split(economy: Economy) -> tuple[Economy, Economy]:
    """Team 0 as two teams of half its tickets, the second with its faster half of jobs; and the same, told."""
    own = [j for j, job in enumerate(economy.jobs) if job.account == 0]
    faster = set(sorted(own, key=lambda j: economy.jobs[j].rate[economy.generations - 1])[len(own) // 2 :])
    new = len(economy.accounts)
    jobs = tuple(replace(job, account=new) if j in faster else job for j, job in enumerate(economy.jobs))
    accounts = (Account(0.5, trades=True), *economy.accounts[1:], Account(0.5, trades=True))
    both = replace(economy, accounts=accounts, jobs=jobs)
    return both, both


def false_rates(judged: Judged, spread: float, instances: int) -> str:
    gains: dict[str, list[float]] = {}
    for seed in range(instances):
        economy = teams(spread, seed)
        honest = progress(economy, economy, judged)[0]
        for name, told in lies(economy):
            gains.setdefault(name, []).append(progress(economy, told, judged)[0] / honest - 1)
        made = progress(*split(economy), judged)
        gains.setdefault("as two teams", []).append((made[0] + made[-1]) / honest - 1)
    best = max(gains, key=lambda name: float(np.mean(gains[name])))
    most = max(max(some) for some in gains.values())
    return (
        f"σ {spread}: of {len(gains)} lies the best on average is {best!r} with {np.mean(gains[best]):+.1%};"
        f" the most that one brought in any of {instances} instances is {most:+.1%}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fairshare.bench_trades")
    parser.add_argument("--policies", nargs="*", choices=list(POLICIES), default=[])
    parser.add_argument("--instances", type=int, default=39)
    parser.add_argument("--liars", type=int, default=8, help="instances in which each lie is told")
    asked = parser.parse_args()
    for name in dict.fromkeys(asked.policies or [DEFAULT.name, VERSION_1.name]):
        for spread in SPREADS:
            sys.stdout.write(f"{name}, trades, {trades(POLICIES[name], spread, asked.instances)}")
        for spread in SPREADS if asked.liars else ():
            sys.stdout.write(f"{name}, false rates, {false_rates(POLICIES[name], spread, asked.liars)}")


if __name__ == "__main__":
    main()
