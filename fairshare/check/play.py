"""Simulates an economy (a test case) under a policy, quantum by quantum, and records where gangs ran."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fairshare.check.economy import Economy
from fairshare.driver import Situation
from fairshare.model import Decision, Floats, Settings
from fairshare.policies.base import Policy

Placements = dict[int, tuple[int, ...]]  # nodes of the workers, by running job


@dataclass(frozen=True)
class PolicyUnderTest:
    """A policy to check: its name, and a function that creates the policy from the settings of an economy."""

    name: str
    make: Callable[[Settings], Policy]


@dataclass(frozen=True)
class PlayedRound:
    """One simulated quantum: the jobs that wanted to run, and where jobs ran before and after the policy's decision."""

    number: int
    active: tuple[int, ...]  # jobs that want to run
    before: Placements  # active jobs that ran in the previous round
    after: Placements  # jobs that run in this round
    resident: dict[int, float]  # for jobs in `before`, seconds since they got their GPUs
    share: Floats  # (T, K) the share of each account in the policy's plan
    # The placements that an extra round would have given at this moment; None unless jobs came or went.
    between: Placements | None = None

    @cached_property
    def stopped(self) -> list[int]:
        return [j for j in self.before if j not in self.after]

    @cached_property
    def started(self) -> list[int]:
        return [j for j in self.after if j not in self.before]

    @cached_property
    def moved(self) -> list[int]:
        return [
            j
            for j, place in self.after.items()
            if j in self.before and sorted(self.before[j]) != sorted(place)
        ]

    @cached_property
    def waiting(self) -> list[int]:
        return [j for j in self.active if j not in self.after]


@dataclass(frozen=True)
class Invalid(Exception):
    """Raised when the policy under test raised an exception or returned a decision that cannot be carried out."""

    number: int
    why: str

    def __str__(self) -> str:
        return f"round {self.number}: {self.why}"


def play(economy: Economy, judged: PolicyUnderTest, *, seed: int = 0) -> list[PlayedRound]:
    """Simulates an economy under the policy `judged` and returns all rounds.

    Raises Invalid if the policy fails or returns a decision that cannot be carried out.
    """
    policy = judged.make(economy.settings)
    now: Situation | None = None
    running: Placements = {}
    last: Placements = {}
    resident: dict[int, float] = {}
    attained = {j: np.zeros(economy.generations) for j in range(len(economy.jobs))}
    rounds: list[PlayedRound] = []
    for number in range(economy.rounds):
        active = economy.active(number)
        before = {j: running[j] for j in active if j in running}
        view = economy.snapshot(
            active, before, last, resident, attained, now=number * economy.settings.quantum
        )
        try:
            now = Situation.first(policy, view) if now is None else Situation(policy, view, now.state)
            changed = bool(rounds) and active != rounds[-1].active
            between = _places(active, now.fill(seed + number)) if changed else None
            plan = now.decide(seed + number)
            now = now.after(plan)
        except Exception as error:
            raise Invalid(number, f"the policy fails with {error!r}") from error
        after = _places(active, plan)
        for places in (after, between or {}):
            why = invalid(economy, places)
            if why:
                raise Invalid(number, why)
        held = {j: resident[j] for j in before}
        rounds.append(PlayedRound(number, active, before, after, held, np.array(plan.share), between))
        stays = {j for j in after if before.get(j) == after[j]}
        resident = {j: (resident[j] if j in stays else 0.0) + economy.settings.quantum for j in after}
        for j, place in after.items():
            attained[j][economy.nodes[place[0]][0]] += economy.jobs[j].size * economy.settings.quantum
        running, last = after, last | after
    return rounds


def _places(active: tuple[int, ...], plan: Decision) -> Placements:
    nodes = np.split(plan.place_node, plan.place_start[1:-1]) if len(plan.run) else []
    return {active[job]: tuple(own.tolist()) for job, own in zip(plan.run.tolist(), nodes, strict=True)}


def invalid(economy: Economy, places: Placements) -> str | None:
    """Returns a sentence that says why the placements are impossible, or None if they are possible."""
    free = [gpus for _, gpus in economy.nodes]
    used = np.zeros((len(economy.accounts), economy.generations))
    for j, nodes in places.items():
        job = economy.jobs[j]
        kinds = {economy.nodes[n][0] for n in nodes}
        if len(nodes) != job.workers or len(kinds) != 1 or not economy.able[j, next(iter(kinds))]:
            return f"job {j} must run with all workers on one generation that it accepts, but it runs on nodes {nodes}"
        for node in nodes:
            free[node] -= job.gpus
        used[economy.paths[job.account], next(iter(kinds))] += job.size
    if min(free, default=0) < 0:
        return f"on node {free.index(min(free))}, jobs use {-min(free)} GPUs more than the node has"
    for t, account in enumerate(economy.accounts):
        over = used[t].sum() > account.cap_total or any(used[t, k] > most for k, most in account.cap.items())
        if over:
            return f"account {t} has {used[t].tolist()} GPUs, but its limits allow fewer"
    return None
