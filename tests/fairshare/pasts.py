"""Builds pasts, which are histories of shared clusters: small ones by hand, and ones in which each tenant had its own
machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fairshare.counterfactual.past import Attempt, NodeState, Past, PastJob, Rules
from fairshare.counterfactual.private import Purchase, replay, work_of
from fairshare.model import NOWHERE, Settings
from fairshare.simulator.engine import Engine
from fairshare.simulator.live import LiveScheduler, Tickets
from fairshare.simulator.model import JobOutcome, Machines, SimJob

HOUR = 3600.0
WEEK = 7 * 24 * HOUR


def nodes(*gpus: int, generation: int = 0, first: int = 0) -> tuple[NodeState, ...]:
    """Returns the states of nodes whose GPUs are all usable from the beginning of the past.

    - `gpus`: the number of GPUs of each node.
    - `generation`: the GPU generation of all these nodes.
    - `first`: the index of the first node. The other nodes have the indices that follow.
    """
    return tuple(NodeState(0.0, first + i, generation, some, some) for i, some in enumerate(gpus))


def past(
    jobs: Sequence[PastJob],
    *,
    parts: Sequence[float] = (0.5, 0.5),
    machines: tuple[NodeState, ...] = nodes(4, 4),
    ends: float = WEEK,
    generations: int = 1,
    **more: object,
) -> Past:
    """Returns a past. By default it has two tenants with one user each and equal tickets, on two nodes of four GPUs.

    - `parts`: for each tenant, the fraction of the cluster that its tickets are worth.
    - `machines`: the states of nodes.
    - `ends`: the end of the past, in seconds since its beginning.
    - `generations`: the number of GPU generations.
    - `more`: further fields of Past.
    """
    users = tuple((100.0,) for _ in parts)
    whole = {"user_tickets": users, "rules": Rules()} | more
    return Past(ends, generations, tuple(parts), nodes=machines, jobs=tuple(jobs), **whole)  # type: ignore[arg-type]


def attempt(
    begins: float, ends: float, *on: int, generation: int = 0, starts_in: float = 0.0, **more: object
) -> Attempt:
    return Attempt(generation, begins, begins + starts_in, ends, on, **more)  # type: ignore[arg-type]


def job(
    key: int, tenant: int, arrival: float, *attempts: Attempt, workers: int = 1, gpus: int = 4, **more: object
) -> PastJob:
    """Returns a past job with the given attempts. By default the job ended with its last attempt."""
    ended = attempts[-1].ends if attempts else None
    given = {"user": 0, "speeds": (1.0,), "ended": ended} | more
    return PastJob(
        key=key,
        tenant=tenant,
        arrival=arrival,
        workers=workers,
        gpus_per_worker=gpus,
        attempts=attempts,
        **given,  # type: ignore[arg-type]
    )


def shared(wanted: Past, *, quantum: float = 60.0) -> Past:
    """Returns the past in which the live policy runs the jobs of `wanted` on the nodes of `wanted`.

    Each tenant is a team of one user. In `wanted`, each job has one attempt, which says how long the job runs.
    """
    machines = Machines(
        tuple(node.generation for node in wanted.nodes),
        tuple(node.gpus for node in wanted.nodes),
        wanted.generations,
    )
    teams = Tickets((NOWHERE,) * len(wanted.parts), wanted.parts, (True,) * len(wanted.parts))
    simulated = [
        SimJob(
            one.arrival,
            work_of(one, wanted),
            workers=one.workers,
            gpus_per_worker=one.gpus_per_worker,
            speeds=one.speeds,
            account=one.tenant,
            priority=one.priority,
        )
        for one in wanted.jobs
    ]
    scheduler = LiveScheduler(machines, teams, Settings(quantum=quantum), asks_idly=False)
    fates = Engine(machines, simulated, scheduler).run(wanted.ends).fates
    return replace(
        wanted,
        jobs=tuple(
            replace(one, attempts=_attempts(fate, wanted), ended=fate.finish)
            for one, fate in zip(wanted.jobs, fates, strict=True)
        ),
    )


def apart(wanted: Past) -> Past:
    """Returns the past in which each tenant runs its jobs on its own private cluster, as `replay` simulates it.

    In `wanted`, each job has one attempt, which says how long the job runs.
    """
    purchase = Purchase.of(wanted)
    jobs: list[PastJob] = []
    states: list[NodeState] = []
    for tenant, tickets in enumerate(wanted.user_tickets):
        owned = purchase.machines(tenant)
        first = 1 + max((node.node for node in states), default=-1)
        states += [
            NodeState(since, first + i, kind, gpus, gpus)
            for since, machines in owned
            for i, (kind, gpus) in enumerate(zip(machines.node_generation, machines.node_gpus, strict=True))
        ]
        own = [one for one in wanted.jobs if one.tenant == tenant]
        own.sort(key=lambda one: (one.arrival, one.key))
        for one, fate in zip(own, replay(wanted, own, owned, tickets), strict=True):
            jobs.append(replace(one, attempts=_attempts(fate, wanted, first), ended=fate.finish))
    return replace(wanted, jobs=tuple(jobs), nodes=tuple(sorted(states, key=lambda node: node.at)))


def _attempts(fate: JobOutcome, wanted: Past, first: int = 0) -> tuple[Attempt, ...]:
    """Returns the attempts of a simulated job. `first` is added to the indices of all nodes in `fate`."""
    return tuple(
        Attempt(
            span.place.generation,
            span.begins,
            min(span.begins + wanted.rules.switch_cost, span.ends),
            span.ends,
            tuple(first + node for node in span.place.nodes),
        )
        for span in fate.spans
    )
