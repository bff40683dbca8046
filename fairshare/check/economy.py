"""Defines an economy, which is a test case: nodes, accounts, and jobs that arrive and leave.

`str` of an economy returns Python code that builds the same test case.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np

from fairshare.model import NOWHERE, Accounts, Bools, Cluster, Floats, Ints, Jobs, Settings, Snapshot

INF = float("inf")


@dataclass(frozen=True, slots=True)
class Account:
    """An account of the ticket tree: a user (a leaf), or a group of accounts such as a team (an inner account)."""

    tickets: float = 1.0
    parent: int = NOWHERE
    trades: bool = False
    cap: Mapping[int, float] = field(default_factory=dict)  # limit of GPUs of a generation at once
    cap_total: float = INF
    evenly: bool = False  # whether jobs of equal priority take turns, instead of the oldest first


@dataclass(frozen=True, slots=True)
class Job:
    """A gang that wants to run from round `comes` up to the round before `goes`."""

    account: int
    workers: int = 1
    gpus: int = 1
    accepts: tuple[int, ...] | None = None  # None: any generation
    rate: Mapping[int, float] = field(default_factory=dict)
    priority: int = 0
    comes: int = 0
    goes: int | None = None  # None: it stays to the end
    keeps: bool = False  # a service or session, not time-sliced within its account's guarantee

    @property
    def size(self) -> int:
        """Returns the number of GPUs of the whole gang."""
        return self.workers * self.gpus


@dataclass(frozen=True)
class Economy:
    """A test case: nodes, accounts, jobs and settings, to be simulated for `rounds` quanta.

    If a user has several jobs of one priority, the job that comes first in `jobs` is the one that the user wants most.
    """

    nodes: tuple[tuple[int, int], ...]  # generation and GPUs of each node
    accounts: tuple[Account, ...]
    jobs: tuple[Job, ...]
    settings: Settings = field(default_factory=Settings)
    rounds: int = 40

    @property
    def generations(self) -> int:
        return max((k for k, _ in self.nodes), default=-1) + 1

    @cached_property
    def children(self) -> dict[int, list[int]]:
        """Returns the indices of each account's children. The keys are indices of accounts; the key NOWHERE is for the
        root accounts."""
        found: dict[int, list[int]] = {}
        for t, account in enumerate(self.accounts):
            found.setdefault(account.parent, []).append(t)
        return found

    @cached_property
    def paths(self) -> list[list[int]]:
        """Returns, for each account, the indices of the account and of all accounts above it, up to the root."""
        found: list[list[int]] = []
        for t, account in enumerate(self.accounts):
            found.append([t, *(found[account.parent] if account.parent != NOWHERE else [])])
        return found

    @cached_property
    def capacity(self) -> Floats:
        """Returns the total number of GPUs of each generation, as an array (K,)."""
        total = np.zeros(self.generations)
        for k, gpus in self.nodes:
            total[k] += gpus
        return total

    @cached_property
    def able(self) -> Bools:
        """Returns whether each job could run on each generation, as a mask (J, K).

        A job could run on a generation if its gang fits into the empty cluster and within the limits of its accounts.
        """
        found = np.zeros((len(self.jobs), self.generations), dtype=bool)
        for j, job in enumerate(self.jobs):
            for k in range(self.generations) if job.accepts is None else job.accepts:
                slots = sum(gpus // job.gpus for at, gpus in self.nodes if at == k)
                found[j, k] = slots >= job.workers and all(
                    job.size <= min(self.accounts[t].cap.get(k, INF), self.accounts[t].cap_total)
                    for t in self.paths[job.account]
                )
        return found

    @cached_property
    def filled(self) -> Floats:
        """Returns how many GPUs copies of each job's gang can occupy on each generation, as an array (J, K).

        As many copies of the gang as fit are placed on the empty cluster, and their GPUs are counted. For example,
        gangs of one worker with 3 GPUs can occupy only 6 of the 8 GPUs of a node.
        """
        found = np.zeros((len(self.jobs), self.generations))
        for j, job in enumerate(self.jobs):
            for k, gpus in self.nodes:
                found[j, k] += gpus // job.gpus
            found[j] = found[j] // job.workers * job.size
        return found

    @cached_property
    def speed(self) -> Floats:
        """Returns each job's relative speed on each generation, as an array (J, K).

        A speed is the job's rate divided by its best known rate. It is 1 where the rate is unknown, and 0 where the job
        may not run.
        """
        found = self.able.astype(np.float64)
        for j, job in enumerate(self.jobs):
            known = {k: rate for k, rate in job.rate.items() if self.able[j, k]}
            for k, rate in known.items():
                found[j, k] = rate / max(known.values())
        return found

    def active(self, number: int) -> tuple[int, ...]:
        """Returns the indices of the jobs that want to run in round `number`."""
        return tuple(
            j
            for j, job in enumerate(self.jobs)
            if job.comes <= number and (job.goes is None or number < job.goes)
        )

    @property
    def is_still(self) -> bool:
        """Returns whether the set of jobs never changes: every job wants to run in every round."""
        return all(job.comes == 0 and job.goes is None for job in self.jobs)

    @cached_property
    def _accounts(self) -> Accounts:
        shape = (len(self.accounts), self.generations)
        cap = np.full(shape, INF)
        for t, account in enumerate(self.accounts):
            for k, most in account.cap.items():
                cap[t, k] = most
        return Accounts(
            parent=np.array([account.parent for account in self.accounts], dtype=np.int64),
            tickets=np.array([account.tickets for account in self.accounts], dtype=np.float64),
            trades=np.array([account.trades for account in self.accounts], dtype=bool),
            owed=np.zeros(shape),
            cap=cap,
            cap_total=np.array([account.cap_total for account in self.accounts], dtype=np.float64),
            evenly=np.array([account.evenly for account in self.accounts], dtype=bool),
        )

    @cached_property
    def _cluster(self) -> Cluster:
        gpus = np.array([gpus for _, gpus in self.nodes], dtype=np.int64)
        kinds = np.array([k for k, _ in self.nodes], dtype=np.int64)
        return Cluster(tuple(f"G{k}" for k in range(self.generations)), kinds, gpus, gpus)

    def snapshot(
        self,
        active: Sequence[int],
        running: Mapping[int, tuple[int, ...]],
        last: Mapping[int, tuple[int, ...]],
        resident: Mapping[int, float],
        attained: Mapping[int, Floats],
        *,
        now: float = 0.0,
    ) -> Snapshot:
        """Returns the snapshot that a policy receives for a round in which the jobs `active` want to run.

        `now` is the time of the round in seconds. The keys of the mappings are jobs. The values are:
        - `running`: the node of each worker of a running job.
        - `last`: the node of each worker when the job ran most recently.
        - `resident`: seconds since a running job got its GPUs.
        - `attained`: GPU-seconds that the job has received so far on each generation, (K,).
        """
        key = tuple(active)
        if key not in self._waiting:
            self._waiting[key] = self._all_waiting([self.jobs[j] for j in active])
        nothing = np.zeros(self.generations)
        places = [running.get(j, last.get(j, ())) for j in active]
        on = [self.nodes[running[j][0]][0] if j in running else NOWHERE for j in active]
        seen = replace(
            self._waiting[key],
            running_on=_ints(on),
            resident=np.array([resident.get(j, 0.0) for j in active], dtype=np.float64),
            place_start=np.cumsum([0, *map(len, places)], dtype=np.int64),
            place_node=_ints([node for place in places for node in place]),
            attained=np.array([attained.get(j, nothing) for j in active]).reshape(len(active), len(nothing)),
        )
        return Snapshot(self._cluster, self._accounts, seen, self.settings, now)

    @cached_property
    def _waiting(self) -> dict[tuple[int, ...], Jobs]:
        """Returns the cache of `snapshot`. A key is a tuple of active jobs, its value is the result of `_all_waiting`.

        With the cache, rounds with the same active jobs get the same array objects. A policy can detect this and reuse
        its results.
        """
        return {}

    def _all_waiting(self, jobs: Sequence[Job]) -> Jobs:
        """Returns the job arrays of a snapshot in which all `jobs` wait and none has ever run."""
        rate = np.full((len(jobs), self.generations), np.nan)
        accepts = np.zeros(rate.shape, dtype=bool)
        for i, job in enumerate(jobs):
            accepts[i, list(range(self.generations) if job.accepts is None else job.accepts)] = True
            for k, value in job.rate.items():
                rate[i, k] = value
        return Jobs(
            account=_ints([job.account for job in jobs]),
            workers=_ints([job.workers for job in jobs]),
            gpus=_ints([job.gpus for job in jobs]),
            accepts=accepts,
            rate=rate,
            priority=_ints([job.priority for job in jobs]),
            running_on=np.full(len(jobs), NOWHERE),
            resident=np.zeros(len(jobs)),
            blocked=np.zeros(len(jobs), dtype=np.int64),
            place_start=np.zeros(len(jobs) + 1, dtype=np.int64),
            place_node=_ints([]),
            keeps=np.array([job.keeps for job in jobs]) if any(job.keeps for job in jobs) else None,
            submitted=np.array([job.comes for job in jobs]) * self.settings.quantum,
        )

    def __str__(self) -> str:
        """Returns Python code that builds this economy, so that a failing case can be pasted into a test.

        The code uses the short notation of tests/fairshare/build.py, extended by the fields `comes` and `goes` of jobs.
        """
        lines = [
            f"S({list(self.nodes)},",
            f"  [{_several('A', self.accounts)}],",
            f"  [{_several('J', self.jobs)}],",
        ]
        chosen = _chosen(self.settings)
        lines.append(f"  {', '.join([*chosen, f'rounds={self.rounds}'])})")
        return "\n".join(lines)


def _ints(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64)


def _chosen(thing: Any) -> list[str]:
    """Returns Python code for each field of a dataclass that differs from its default, such as `tickets=2.0`.

    Fields without a default are written without their names.
    """
    found = []
    for one in fields(thing):
        value = getattr(thing, one.name)
        usual = one.default_factory() if one.default_factory is not MISSING else one.default
        if usual is MISSING:
            found.append(repr(value))
        elif value != usual:
            found.append(f"{one.name}={value!r}")
    return found


def _several(letter: str, things: Sequence[Any]) -> str:
    said = [f"{letter}({', '.join(_chosen(thing))})" for thing in things]
    parts = [(text, len(list(same))) for text, same in groupby(said)]
    return ", ".join(text if count == 1 else f"*[{text}] * {count}" for text, count in parts)


def economy(
    nodes: Sequence[tuple[int, int]],
    accounts: Sequence[Account],
    jobs: Sequence[Job],
    *,
    rounds: int = 40,
    **settings: Any,
) -> Economy:
    """Creates an economy. The arguments have the form that `str` of an economy prints, so that printed cases can be
    used in tests.

    `nodes`: a pair (generation, number of GPUs) for each node. `settings`: fields of `Settings`, the settings of the
    scheduler.

    Example: S([(0, 8)], [A(), A()], [J(0), J(1, gpus=8)], rounds=100). Printed code abbreviates this function as S,
    Account as A, and Job as J.
    """
    return Economy(tuple(nodes), tuple(accounts), tuple(jobs), Settings(**settings), rounds)
