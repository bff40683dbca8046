"""Measures what a team gains by lying about speeds: `python -m tests.fairshare.bench_lies [ECONOMIES]`.

In each random economy one team, the liar, either reports false speed-ups of its jobs, in 24 ways, or splits into two
accounts. Its gain is its additional progress, as a fraction of its progress without the lie. A job makes progress 1 per
quantum on a slow GPU, and its true speed-up on a fast GPU. The liar's jobs run in their order.

`bound` limits which reports the policy believes:
- "none": it believes all reports.
- "table": reports are bounded by the operator's table of generations.
- "models": reports are bounded by what most teams report for the same model, or by the table if fewer than three teams
  know the model.

`pricing` is the policy's option for the price of a trade. Sellers and buyers each offer a ratio: slow GPUs for one fast
GPU.
- "between": the price is the geometric mean of the seller's and the buyer's ratio.
- "second_price": the price is the highest ratio that another party offers, among those up to the buyer's ratio.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from fairshare.model import Floats, Snapshot
from tests.fairshare.policies.teams import teams, traded

ECONOMIES = 30
CAPACITY = (12, 12)
MODELS = 3  # number of models, shared by jobs of all teams
SPREAD = 0.03  # standard deviation of a job's speed-up around that of its model, in logarithms
LIAR = 0

Bound = Literal["none", "table", "models"]
Pricing = Literal["between", "second_price"]
Lie = Callable[
    [Floats, Floats], Floats
]  # (true speed-ups of the liar's jobs, those of all others) -> its claims


def _times(factor: float) -> Lie:
    return lambda own, others: own * factor


def _last(factor: float, part: float) -> Lie:
    """Returns a lie that multiplies the speed-ups of a team's last jobs by `factor`, and reports its first jobs truly.

    `part`: the fraction of the team's jobs that are first. With 0.5 the last jobs are those that wait, because a team's
    share is enough for about half of its jobs.
    """
    return lambda own, others: np.where(np.arange(len(own)) < part * len(own), own, own * factor)


def _best(factor: float) -> Lie:
    return lambda own, others: np.where(own >= np.median(own), own * factor, own)


def _worst(factor: float) -> Lie:
    return lambda own, others: np.where(own < np.median(own), own * factor, own)


LIES: dict[str, Lie] = {
    **{f"all × {factor:g}": _times(factor) for factor in (0.25, 0.5, 0.7, 0.8, 0.9, 0.95)},
    **{f"all × {factor:g}": _times(factor) for factor in (1.05, 1.1, 1.25, 1.5, 2.0, 4.0)},
    "waiting × 2": _last(2.0, 0.5),
    "waiting × 0.5": _last(0.5, 0.5),
    "best half × 1.5": _best(1.5),
    "worst half × 1.5": _worst(1.5),
    "worst half × 0.7": _worst(0.7),
    "all as the best": lambda own, others: np.full_like(own, own.max()),
    "all as the worst": lambda own, others: np.full_like(own, own.min()),
    "all as the mean": lambda own, others: np.full_like(own, own.mean()),
    "no gain": lambda own, others: np.ones_like(own),
    "the other way round": lambda own, others: own[::-1].copy(),
    "just below the best buyer": lambda own, others: np.maximum(own, others.max() * 0.94),
    "just above the cheapest seller": lambda own, others: np.minimum(own, others.min() * 1.06),
}


@dataclass(frozen=True)
class Economy:
    """Teams with jobs of models that several teams use.

    A speed-up is the speed on the second generation relative to the first.
    """

    speed_up: list[Floats]  # (jobs,) for each team
    model: list[Floats]


def economy(seed: int, *, alike: bool = False) -> Economy:
    """Returns random teams. Most jobs of a team are of one model; with `alike`, all are."""
    chance = np.random.default_rng(seed)
    of_model = chance.uniform(1.0, 6.0, MODELS)
    count = int(chance.integers(4, 7))
    favourite = chance.integers(0, MODELS, count)
    model = [
        np.where(alike | (chance.random(2 * sum(CAPACITY) // count) < 0.7), one, chance.integers(0, MODELS))
        for one in favourite
    ]
    speed_up = [of_model[own] * np.exp(SPREAD * chance.normal(size=len(own))) for own in model]
    return Economy(speed_up, model)


def progress(speed_up: Floats, held: Floats) -> float:
    """Returns the progress per quantum of one-GPU jobs that run in order. A job on a slow GPU makes progress 1.

    `held`: the numbers of slow and of fast GPUs. The fast GPUs go to the running jobs with the highest true speed-ups.
    """
    runs = np.clip(held.sum() - np.arange(len(speed_up)), 0.0, 1.0)
    by_gain = np.argsort(-speed_up, kind="stable")
    fast = np.clip(held[1] - (np.cumsum(runs[by_gain]) - runs[by_gain]), 0.0, runs[by_gain])
    return float(runs.sum() + fast @ (speed_up[by_gain] - 1))


def rates_of(speed_up: list[Floats]) -> list[Floats]:
    return [np.stack((np.ones(len(own)), own), axis=1) for own in speed_up]


def seen(one: Economy, claims: list[Floats], bound: Bound, pricing: Pricing) -> Snapshot:
    """Returns the snapshot that the policy sees if teams report the speed-ups in `claims`.

    `bound` decides which evidence about true speed-ups the snapshot contains: "none" for no evidence, "table" for the
    operator's table, "models" for the table and the jobs' models.
    """
    view = teams(rates_of(claims), CAPACITY, pricing=pricing)
    if bound == "none":
        return view
    table = np.array([1.0, np.concatenate(one.speed_up).mean()])
    model = np.concatenate(one.model).astype(np.int64) if bound == "models" else None
    return replace(view, cluster=replace(view.cluster, table=table), jobs=replace(view.jobs, model=model))


def outcome(one: Economy, claims: list[Floats], *, bound: Bound, pricing: Pricing) -> float:
    """Returns the liar's progress, counted with its true speeds, if teams report the speed-ups in `claims`."""
    share, _ = traded(seen(one, claims, bound, pricing))
    return progress(one.speed_up[LIAR], share[LIAR])


def gain(lie: Lie, seed: int, *, bound: Bound, pricing: Pricing = "between") -> float:
    """Returns the liar's gain by the lie, as a fraction of the progress that it makes if it tells the truth."""
    one = economy(seed)
    others = np.concatenate(one.speed_up[1:])
    false = [np.maximum(lie(one.speed_up[LIAR], others), 0.05), *one.speed_up[1:]]
    truth = outcome(one, one.speed_up, bound=bound, pricing=pricing)
    return outcome(one, false, bound=bound, pricing=pricing) / truth - 1


def gain_of_splitting(seed: int, *, alike: bool = False, pricing: Pricing = "between") -> float:
    """Returns the gain of a team that splits into two accounts, each with half of the tickets and every other job.

    The gain is a fraction of the team's progress without the split.
    """
    one = economy(seed, alike=alike)
    truth = outcome(one, one.speed_up, bound="none", pricing=pricing)
    own = one.speed_up[LIAR]
    # If the team's jobs differ, the split also changes the order of the jobs, and so which jobs run.
    halves = [own[::2], own[1::2]]
    tickets = [0.5, 0.5, *(1.0 for _ in one.speed_up[1:])]
    share, _ = traded(teams(rates_of([*halves, *one.speed_up[1:]]), CAPACITY, tickets, pricing=pricing))
    return sum(progress(half, share[at]) for at, half in enumerate(halves)) / truth - 1


def main(economies: int) -> None:
    sys.stdout.write(f"{len(LIES)} lies in {economies} economies, gains in the liar's true progress:\n")
    for pricing in get_args(Pricing):
        for bound in get_args(Bound):
            found = {
                name: np.array([gain(lie, seed, bound=bound, pricing=pricing) for seed in range(economies)])
                for name, lie in LIES.items()
            }
            best = max(found, key=lambda name: found[name].max())
            mean = np.mean(list(found.values()))
            most = max(some.mean() for some in found.values())
            sys.stdout.write(
                f"  price {pricing}, bounded by {bound}: {mean:+.1%} in the mean, {most:+.1%} by the lie that pays most"
                f" in the mean, at most {found[best].max():+.1%} ({best})\n"
            )
        for alike in (True, False):
            split = np.array(
                [gain_of_splitting(seed, alike=alike, pricing=pricing) for seed in range(economies)]
            )
            sys.stdout.write(
                f"  price {pricing}, splitting a team whose jobs {'are alike' if alike else 'differ'}:"
                f" {split.mean():+.1%} in the mean, at most {split.max():+.1%}\n"
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ECONOMIES)
