"""Scenarios for the tests of a whole portal. They call the same actions as the portal's pages.

Usage: python -m tests.proof NAME JSON-ARGUMENTS, with the portal's settings in the environment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from django.db.models import Max

from accounting.actions import add_member, create_tenant, create_user
from accounting.models import Tenant, UsageSegment, User
from scheduling.clusters.actions import update_cluster
from scheduling.jobs.actions import cancel_job
from scheduling.jobs.submitting import submit_job
from scheduling.models import (
    Cluster,
    HeldGpu,
    Job,
    JobSpeed,
    Lease,
    Round,
    ShareBalance,
    ShareInterval,
    Trade,
)
from scheduling.spec.job_spec import JobSpec
from tests.proof import crashes
from tests.waiting import wait_for

# The duration of one step of the training program on a GPU of speed 1. Where no steps are counted, few steps leave the
# processors to the portal.
SECONDS_PER_STEP, SLOW_STEP = 0.1, 2.0
# Quanta within which all gangs start.
WARM_UP = 10


def fairness(*, tickets: list[int], quanta: int, quantum: float) -> dict[str, Any]:
    """Creates a team for each number in `tickets`. All teams compete for all GPUs for `quanta` quanta of `quantum`
    seconds.

    Returns figures for each team, among them its entitlement and its usage in the ledger, both in GPU-seconds, and the
    ratio of the two.
    """
    cluster = _prepare(quantum=quantum, trading=False)
    gpus = sum(node.gpus for node in cluster.nodes.all())
    teams = [_team(f"Tickets {count}", count) for count in tickets]
    jobs = [
        job
        for tenant, user in teams
        for job in _submit(cluster, tenant, user, gpus, "1.0", seconds_per_step=SLOW_STEP)
    ]
    _wait_for_quanta(cluster, WARM_UP)
    # The first team held all GPUs until the other teams' gangs had started, which takes a time that depends on the
    # machine. The first team repays this time during the next quanta, and these are not counted.
    wait_for(lambda: _is_even(cluster), what=lambda: f"nobody is owed much: {_owed(cluster)}", every=0.2)
    first, owed_before = _last_round(cluster), _owed(cluster)
    _wait_for_quanta(cluster, quanta)
    last, owed_after = _last_round(cluster), _owed(cluster)
    begins, ends = Round.objects.get(number=first).at, Round.objects.get(number=last).at
    _cancel(jobs)
    rows: list[dict[str, Any]] = []
    for tenant, _ in teams:
        segments = UsageSegment.objects.filter(tenant=tenant)
        held = sum(_overlap(s.period.lower, s.period.upper, begins, ends) * s.gpus for s in segments)
        intervals = ShareInterval.objects.filter(
            tenant=tenant, round__number__gte=first, round__number__lt=last
        )
        entitled = sum(interval.entitled for interval in intervals)
        rows.append(
            {
                "team": tenant.name,
                "tickets": tenant.tickets,
                "entitled_gpu_seconds": round(entitled, 1),
                "ledger_gpu_seconds": round(held, 1),
                "ratio": round(held / entitled, 4),
                "owed_before": owed_before[tenant.name],
                "owed_after": owed_after[tenant.name],
            }
        )
    return {
        "seconds": round((ends - begins).total_seconds(), 1),
        "quanta": _quanta_since(cluster, first, last),
        "gpus": gpus,
        "generations": sorted({node.generation.name for node in cluster.nodes.all()}),
        "busy": round(
            sum(row["ledger_gpu_seconds"] for row in rows) / gpus / (ends - begins).total_seconds(), 4
        ),
        "teams": rows,
    }


def trading(*, quanta: int, quantum: float, sensitivities: list[str]) -> dict[str, Any]:
    """Runs two teams with equal tickets for `quanta` quanta without trading, then for as many with trading.

    `sensitivities`: one for each team. A GPU of speed s runs the team's jobs s**sensitivity times as fast. Returns the
    steps per second of each team in both cases, and their ratio.
    """
    # Fairlot measures the speeds of gangs only where trading is on. The comparison begins when these speeds are known.
    cluster = _prepare(quantum=quantum, trading=True)
    gpus = sum(node.gpus for node in cluster.nodes.all())
    teams = [_team(f"Sensitivity {value}", 100) for value in sensitivities]
    jobs = {
        tenant.name: _submit(cluster, tenant, user, gpus, value)
        for (tenant, user), value in zip(teams, sensitivities, strict=True)
    }
    _wait_all_busy(cluster, gpus)

    def measured() -> bool:
        """Returns whether each team has a job whose speed on both generations is known."""
        return all(
            any(JobSpeed.objects.filter(job=job, seconds__gt=0).count() == 2 for job in team)
            for team in jobs.values()
        )

    wait_for(measured, what=lambda: f"speeds on both generations, by round {_last_round(cluster)}", every=0.5)
    update_cluster(actor=None, cluster=cluster, trading=False)
    _wait_for_quanta(cluster, 3)  # lets the last trades end
    without = _steps_in(cluster, jobs, quanta)
    update_cluster(actor=None, cluster=cluster, trading=True)
    first = _last_round(cluster)
    traded = Trade.objects.filter(round__number__gt=first)
    wait_for(traded.exists, what=lambda: f"a trade, by round {_last_round(cluster)}", every=0.2)
    _wait_for_quanta(cluster, 2)
    with_trades = _steps_in(cluster, jobs, quanta)
    trades = list(Trade.objects.select_related("seller", "buyer").order_by("-id")[:1])
    _cancel([job for team in jobs.values() for job in team])
    return {
        "quanta": quanta,
        "seconds_without": round(without["seconds"], 1),
        "seconds_with": round(with_trades["seconds"], 1),
        "teams": [
            {
                "team": name,
                "steps_a_second_without": round(without[name] / without["seconds"], 2),
                "steps_a_second_with": round(with_trades[name] / with_trades["seconds"], 2),
                "gain": round(
                    with_trades[name] / with_trades["seconds"] / (without[name] / without["seconds"]), 4
                ),
            }
            for name in jobs
        ],
        "last_trade": [
            f"{t.seller.name} gave {t.fast_gpus:.2f} fast for {t.slow_gpus:.2f} slow GPUs of {t.buyer.name} "
            f"at {t.price:.2f} ({t.seller_speedup:.2f} < price < {t.buyer_speedup:.2f})"
            for t in trades
        ],
    }


# --- helpers -----------------------------------------------------------------------------------------


def _prepare(*, quantum: float, trading: bool) -> Cluster:
    """Cancels all jobs and returns the demo's cluster with short quanta.

    The cluster freezes preempted gangs instead of restarting them, because restarts would use CPU time and distort
    the measurement.
    """
    cluster = Cluster.objects.get()
    _cancel(Job.objects.unfinished())
    return update_cluster(
        actor=None,
        cluster=cluster,
        quantum_seconds=quantum,
        slicing=Cluster.Slicing.FREEZE,
        overhead_limit=1.0,
        trading=trading,
        ordering=Cluster.Ordering.STRIDE,
    )


def _team(name: str, tickets: int) -> tuple[Tenant, User]:

    tenant = create_tenant(actor=None, name=name, parent=None, tickets=tickets)
    user = create_user(actor=None, username=name.lower().replace(" ", "-")).user
    add_member(actor=None, tenant=tenant, user=user)
    return tenant, user


def _submit(
    cluster: Cluster,
    tenant: Tenant,
    user: User,
    count: int,
    sensitivity: str,
    *,
    seconds_per_step: float = SECONDS_PER_STEP,
) -> list[Job]:
    command = (
        f'python "$FAIRLOT_EXAMPLES/digits/train.py" --steps 1000000 --seconds-per-step {seconds_per_step} '
        f"--sensitivity {sensitivity}"
    )
    spec = JobSpec(name="digits", command=command, environment="python", checkpoint_grace_seconds=10)
    return [submit_job(actor=user, tenant=tenant, cluster=cluster, spec=spec) for _ in range(count)]


def _cancel(jobs: Iterable[Job]) -> None:
    """Cancels the jobs, and waits until they have ended. Then all their usage is in the ledger."""
    jobs = list(jobs)
    for job in jobs:
        cancel_job(actor=job.owner, job=job)
    left = Job.objects.filter(pk__in=[job.pk for job in jobs]).unfinished()
    wait_for(lambda: not left.exists(), what="cancelled jobs are gone", every=0.2)


def _wait_all_busy(cluster: Cluster, gpus: int) -> None:

    busy = HeldGpu.objects.filter(lease__cluster=cluster, lease__state=Lease.State.RUNNING)
    wait_for(lambda: busy.count() == gpus, what=lambda: f"{busy.count()} of {gpus} busy", every=0.2)


def _last_round(cluster: Cluster) -> int:

    rounds = Round.objects.filter(cluster=cluster, kind=Round.Kind.QUANTUM)
    return int(rounds.aggregate(last=Max("number", default=0))["last"])


def _quanta_since(cluster: Cluster, first: int, last: int | None = None) -> int:

    rounds = Round.objects.filter(cluster=cluster, kind=Round.Kind.QUANTUM, number__gt=first)
    return rounds.filter(number__lte=last).count() if last else rounds.count()


def _owed(cluster: Cluster) -> dict[str, list[float]]:
    """Returns the balances of each team that has a share, in GPU-seconds by generation, as of the last round.

    A positive balance is time that the team is owed.
    """
    balances = ShareBalance.objects.filter(cluster=cluster, share__gt=0).order_by("tenant", "generation")
    owed: dict[str, list[float]] = {}
    for team, seconds in balances.values_list("tenant__name", "owed"):
        owed.setdefault(team, []).append(round(seconds, 1))
    return owed


def _is_even(cluster: Cluster) -> bool:
    """Returns whether GPU time is divided evenly: no team's balance exceeds the time of one GPU in two quanta.

    A balance is added up over the generations, because the gangs are equally fast on each.
    """
    quanta = Round.objects.filter(cluster=cluster, kind=Round.Kind.QUANTUM).order_by("-number")
    last, before = quanta.values_list("at", flat=True)[:2]
    turns = 2 * (last - before).total_seconds()
    return all(abs(sum(team)) <= turns for team in _owed(cluster).values())


def _overlap(begins: datetime, ends: datetime, since: datetime, until: datetime) -> float:
    return max(0.0, (min(ends, until) - max(begins, since)).total_seconds())


def _wait_for_quanta(cluster: Cluster, quanta: int) -> None:
    first = _last_round(cluster)
    wait_for(
        lambda: _quanta_since(cluster, first) >= quanta,
        what=lambda: f"{_quanta_since(cluster, first)} of {quanta} quanta",
        every=0.2,
    )


def _steps_in(cluster: Cluster, jobs: dict[str, list[Job]], quanta: int) -> dict[str, float]:
    """Waits for `quanta` quanta. Returns the steps that the jobs of each team report meanwhile, by team name, and the
    elapsed time under the key "seconds"."""
    begun, before = time.monotonic(), _steps(jobs)
    _wait_for_quanta(cluster, quanta)
    ended, after = time.monotonic(), _steps(jobs)
    return {name: after[name] - before[name] for name in jobs} | {"seconds": ended - begun}


def _steps(jobs: dict[str, list[Job]]) -> dict[str, float]:

    return {
        name: float(sum(job.steps_done or 0 for job in Job.objects.filter(pk__in=[j.pk for j in team])))
        for name, team in jobs.items()
    }


def hurry(*, cluster: str, quantum: float) -> dict[str, Any]:
    """Sets the quantum to `quantum` seconds, turns trading off, and removes the limit on the overhead of preemption."""
    found = Cluster.objects.get(name=cluster)
    update_cluster(actor=None, cluster=found, quantum_seconds=quantum, overhead_limit=1.0, trading=False)
    return {}


SCENARIOS: dict[str, Callable[..., dict[str, Any]]] = {
    "fairness": fairness,
    "trading": trading,
    "hurry": hurry,
    **crashes.SCENARIOS,
}
