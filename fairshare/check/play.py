"""The driver: it plays an economy quantum by quantum with any policy, and remembers where gangs ran."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from fairshare.balance import settle
from fairshare.check.economy import Economy
from fairshare.forecast import received_gpus
from fairshare.model import Decision, Floats, Snapshot
from fairshare.policy import decide

Places = dict[int, tuple[int, ...]]  # the node of each worker of the jobs that run


@dataclass(frozen=True)
class Policy:
    """A policy as the judge drives it. The state is whatever it likes; None before the first round."""

    name: str
    decide: Callable[[Snapshot, Any, int], Decision]
    # From the state, what was seen, what was decided and carried out, and how many seconds that lasted.
    observe: Callable[[Any, Snapshot, Decision, float], Any]


def _with_owed(snapshot: Snapshot, owed: Floats | None) -> Snapshot:
    if owed is None:
        return snapshot
    return replace(snapshot, accounts=replace(snapshot.accounts, owed=owed))


def _decide_1(snapshot: Snapshot, owed: Floats | None, seed: int) -> Decision:
    return decide(_with_owed(snapshot, owed), seed, explained=False)


def _observe_1(owed: Floats | None, snapshot: Snapshot, decision: Decision, lasted: float) -> Floats:
    active = np.zeros(len(snapshot.accounts.parent), dtype=bool)
    active[snapshot.jobs.account] = True
    before = snapshot.accounts.owed if owed is None else owed
    received = received_gpus(snapshot, decision, shared=True) * lasted
    return settle(before, decision.share, received, lasted, snapshot.settings.memory, active)


GANDIVA_FAIR_1 = Policy("gandiva_fair 1", _decide_1, _observe_1)


@dataclass(frozen=True)
class Round:
    """One quantum."""

    number: int
    active: tuple[int, ...]  # jobs that want to run
    before: Places  # of those, who ran until now
    after: Places  # who runs until the next round
    resident: dict[int, float]  # of those in `before`, seconds since they got their GPUs
    share: Floats  # (T, K) what the policy says that each account gets

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
    """A decision that cannot be carried out: the policy broke the rules before any promise."""

    number: int
    why: str

    def __str__(self) -> str:
        return f"round {self.number}: {self.why}"


def play(economy: Economy, policy: Policy, *, seed: int = 0) -> list[Round]:
    """All rounds of an economy. Raises Invalid where a decision breaks capacity, gangs or limits."""
    state: Any = None
    running: Places = {}
    last: Places = {}
    resident: dict[int, float] = {}
    rounds, quantum = [], economy.settings.quantum
    for number in range(economy.rounds):
        active = economy.active(number)
        before = {j: running[j] for j in active if j in running}
        snapshot = economy.snapshot(active, before, last, resident)
        try:
            decision = policy.decide(snapshot, state, seed + number)
        except Exception as error:
            raise Invalid(number, f"the policy fails with {error!r}") from error
        after: Places = {}
        for p, job in enumerate(decision.run.tolist()):
            nodes = decision.place_node[decision.place_start[p] : decision.place_start[p + 1]]
            after[active[job]] = tuple(nodes.tolist())
        why = invalid(economy, after)
        if why:
            raise Invalid(number, why)
        rounds.append(
            Round(number, active, before, after, {j: resident[j] for j in before}, np.array(decision.share))
        )
        state = policy.observe(state, snapshot, decision, quantum)
        stays = {j for j in after if before.get(j) == after[j]}
        resident = {j: (resident[j] if j in stays else 0.0) + quantum for j in after}
        running, last = after, last | after
    return rounds


def invalid(economy: Economy, places: Places) -> str | None:
    """Why nobody could carry the places out, or None."""
    free = [gpus for _, gpus in economy.nodes]
    used = np.zeros((len(economy.accounts), economy.generations))
    for j, nodes in places.items():
        job = economy.jobs[j]
        kinds = {economy.nodes[n][0] for n in nodes}
        if len(nodes) != job.workers or len(kinds) != 1 or not economy.able[j, next(iter(kinds))]:
            return f"job {j} is not whole on one generation that it accepts: nodes {nodes}"
        for node in nodes:
            free[node] -= job.gpus
        used[economy.paths[job.account], next(iter(kinds))] += job.size
    if min(free, default=0) < 0:
        return f"node {free.index(min(free))} gives {-min(free)} GPUs more than it has"
    for t, account in enumerate(economy.accounts):
        over = used[t].sum() > account.cap_total or any(used[t, k] > most for k, most in account.cap.items())
        if over:
            return f"account {t} has {used[t].tolist()} GPUs, which is more than its limit"
    return None
