"""The scenarios of test_crashes.py, which run with the settings of a running portal; see scenarios.py."""

from __future__ import annotations

import io
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any

from celery import current_app
from django.core.management import call_command
from django.db import connection, transaction
from django.db.models import Sum

from accounting.core.clock import now_from_database
from accounting.models import UsageSegment
from scheduling.clusters.actions import update_cluster
from scheduling.models import Cluster, HeldGpu, Job, Lease, Round, SharingAnalysis
from tests.proof.marks import job_processes
from tests.waiting import PATIENCE, wait_for

TRANSIT = 15.0  # seconds that a gang may take to start or to stop


def quicken(*, quantum: float) -> dict[str, Any]:
    """Shortens the quantum of the demo's cluster to `quantum` seconds so that gangs are preempted often.

    Waits until a job reports progress, and returns the number of unfinished jobs.
    """
    cluster = update_cluster(
        actor=None, cluster=Cluster.objects.get(), quantum_seconds=quantum, overhead_limit=1.0
    )
    wait_for(lambda: _steps() > 0, what="the demo's jobs make progress", every=0.2)
    return {"jobs": Job.objects.filter(cluster=cluster).unfinished().count()}


def recovered(*, jobs_dir: str, steps: float) -> dict[str, Any]:
    """Checks that the portal has recovered from a crash.

    Waits until leases and running processes agree, and until all jobs together have done more than `steps` steps. Then
    checks leases, bills and the ledger. Returns figures for the log, among them the new number of steps.
    """
    since = now_from_database()
    doubts = ["nothing was looked at"]

    def fits() -> bool:
        doubts[:] = _doubts(jobs_dir)
        return not doubts

    wait_for(fits, what=lambda: "; ".join(doubts), every=0.2)
    settled = (now_from_database() - since).total_seconds()
    wait_for(lambda: _steps() > steps, what=lambda: f"{_steps()} steps, {steps} before", every=0.2)
    _check_books()
    said = io.StringIO()
    call_command("verify_ledger", stdout=said)
    return {
        "settled_s": round(settled, 2),
        "steps": _steps(),
        "closed_leases": Lease.objects.filter(state=Lease.State.CLOSED).count(),
        "ledger": said.getvalue().strip(),
    }


def many_hands(*, quanta: int, workers: int) -> dict[str, Any]:
    """Waits until at least `workers` Celery workers answer, and then until more than `quanta` quanta have passed.

    Returns facts about the rounds of these quanta, such as their numbers and the shortest time between two.
    """
    answers: list[Any] = []

    def all_answer() -> bool:
        answers[:] = current_app.control.ping(timeout=1.0) or []
        return len(answers) >= workers

    wait_for(all_answer, what=lambda: f"{workers} workers answer: {answers}")
    cluster = Cluster.objects.get()
    first = cluster.round_number
    found = Round.objects.filter(cluster=cluster, number__gt=first)
    quantum_rounds = found.filter(kind=Round.Kind.QUANTUM)
    wait_for(
        lambda: quantum_rounds.count() > quanta,
        what="enough quanta",
        every=0.5,
    )
    rounds = list(found.order_by("number"))
    moments = [round_.at for round_ in rounds if round_.kind == Round.Kind.QUANTUM]
    return {
        "workers": len(answers),
        "first": first,
        "numbers": [round_.number for round_ in rounds],
        "in_order": all(one.at <= other.at for one, other in pairwise(rounds)),
        "least_gap_s": min((other - one).total_seconds() for one, other in pairwise(moments)),
        "quantum_rounds": len(moments),
    }


def stuck_analyses(*, sent: int, stuck: int) -> dict[str, Any]:
    """Locks the table of sharing analyses, sends `sent` analyses, and waits until `stuck` of them wait for the lock.
    Then waits for two rounds.

    Returns how many analyses still wait, and how many rounds have run.
    """
    with transaction.atomic(), connection.cursor() as cursor:
        table = connection.ops.quote_name(SharingAnalysis._meta.db_table)
        cursor.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        for _ in range(sent):
            current_app.send_task("scheduling.tasks.analyse_nightly", expires=PATIENCE)

        def waiting() -> int:
            cursor.execute(
                "SELECT count(*) FROM pg_locks WHERE relation = %s::regclass AND NOT granted", [table]
            )
            return int(cursor.fetchone()[0])

        wait_for(lambda: waiting() >= stuck, what=f"{stuck} analyses wait for the lock")
        rounds = Round.objects.filter(number__gt=Cluster.objects.get().round_number)
        wait_for(lambda: rounds.count() >= 2, what="two rounds beside the stuck analyses", every=0.2)
        return {"stuck": waiting(), "rounds": rounds.count()}


# --- helpers -----------------------------------------------------------------------------------------


def _steps() -> float:
    return float(Job.objects.aggregate(total=Sum("steps_done"))["total"] or 0)


def _doubts(jobs_dir: str) -> list[str]:
    """Returns a sentence for each disagreement between leases and running processes; [] if they agree."""
    now = now_from_database()
    before = {lease.pk: lease.state for lease in Lease.objects.filter(state__in=Lease.HOLDING)}
    alive = {(process.job, process.epoch, process.rank) for process in job_processes(jobs_dir)}
    leases = Lease.objects.filter(pk__in=before, state__in=Lease.HOLDING).select_related("job")
    doubts = []
    for lease in leases:
        ranks = {rank for job, epoch, rank in alive if (job, epoch) == (lease.job_id, lease.epoch)}
        if before[lease.pk] == lease.state == Lease.State.RUNNING and len(ranks) < lease.job.workers:
            doubts.append(f"lease {lease.pk} of job {lease.job_id} runs without processes")
        since = lease.stop_asked_at if lease.state == Lease.State.STOPPING else lease.held_from
        if lease.state != Lease.State.RUNNING and since and now - since > timedelta(seconds=TRANSIT):
            doubts.append(f"lease {lease.pk} is {lease.state} since {since}")
    # Leases are read after processes, and processes once more after that: a process that had no lease at the first look
    # may have ended since.
    held = set(Lease.objects.filter(state__in=Lease.HOLDING).values_list("job_id", "epoch"))
    still = {(process.job, process.epoch) for process in job_processes(jobs_dir)}
    doubts += [f"job {job}, epoch {epoch}, runs without a lease" for job, epoch in still - held]
    return doubts


@transaction.atomic
def _check_books() -> None:
    """Checks that leases, held GPUs and bills agree.

    Fairlot changes them in one transaction, so they agree in every snapshot of the database. This function reads them
    all in one snapshot.
    """
    with connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    billed = dict(UsageSegment.objects.values_list("lease_id").annotate(total=Sum("gpu_seconds")))
    for lease in Lease.objects.filter(state=Lease.State.CLOSED, held_from__isnull=False):
        assert lease.held_from
        assert lease.held_until
        microseconds = (lease.held_until - lease.held_from) // timedelta(microseconds=1)
        exact = lease.gpus * Decimal(microseconds).scaleb(-6)
        assert billed.get(lease.pk, Decimal(0)) == exact, (
            f"lease {lease.pk} held {exact}: {billed.get(lease.pk)}"
        )
    for gpu in HeldGpu.objects.select_related("lease"):
        lease = gpu.lease
        if lease.state == Lease.State.RESERVED:
            assert gpu.during is None, f"GPU of reserved lease {lease.pk}"
        elif lease.state in Lease.HOLDING:
            assert (gpu.during.lower, gpu.during.upper) == (lease.held_from, None), f"GPU of {lease.pk}"
        elif lease.held_from != lease.held_until:
            assert (gpu.during.lower, gpu.during.upper) == (lease.held_from, lease.held_until), lease.pk
    for lease in Lease.objects.filter(state__in=Lease.OPEN).prefetch_related("held_gpus"):
        assert lease.held_gpus.count() == lease.gpus, f"lease {lease.pk} has other GPUs than it says"


SCENARIOS: dict[str, Callable[..., dict[str, Any]]] = {
    "quicken": quicken,
    "recovered": recovered,
    "many_hands": many_hands,
    "stuck_analyses": stuck_analyses,
}
