"""Actions that cancel jobs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db import transaction

from accounting.access import audit
from accounting.core.clock import now_from_database
from accounting.models import Tenant, User
from scheduling.core.enqueue import wake_operations
from scheduling.core.locks import lock_schedule
from scheduling.leases.actions import StopOrder, ask_to_stop, end_frozen
from scheduling.leases.history import History
from scheduling.leases.lifecycle import Event
from scheduling.leases.reservations import withdraw
from scheduling.models import Job, Lease, Operation
from scheduling.models.event_codes import EventCode, Message
from scheduling.models.ownership import require_changeable


@transaction.atomic(durable=True)
def cancel_job(*, actor: User, job: Job) -> Job:
    """Cancels a job, and gives its processes a short grace period. Cancelling a job again changes nothing.

    Raises NotAllowed unless the actor is the owner, a manager of the team or an operator.
    """
    return cancel_within(actor=actor, job=job)


def cancel_within(*, actor: User | None, job: Job, why: Message | None = None, cause: str = "") -> Job:
    """Cancels a job like `cancel_job`, but within the caller's transaction.

    - `actor`: the user who cancels the job; None means that Fairlot cancels it.
    - `why`: the message for the job's history. By default, it says that `actor` cancelled the job.
    - `cause`: a value of Cause that says why the job lost its GPUs; empty for no value.
    """
    if actor is not None:
        require_changeable(actor, job, "cancel this job")
    lock_schedule(job.cluster_id)
    job = Job.objects.select_related("tenant").get(pk=job.pk)
    if job.has_ended or job.state == Job.State.CANCELLING:
        return job
    now = now_from_database()
    history = History()
    said = why or Message.of(EventCode.CANCELLED, user=actor.get_username() if actor else None)
    if job.state in Job.WAITING:
        _end_waiting([job], said=said, now=now, history=history, cause=cause)
    else:
        withdraw(list(job.leases.filter(state=Lease.State.RESERVED)), why=Lease.End.CANCELLED)
        lease = job.leases.select_related("job").get(state__in=Lease.HOLDING)
        history.change(job, **_ended_by(said))
        if lease.state == Lease.State.STOPPING:
            history.move(job, Event.CANCEL, at=now, said=said, epoch=lease.epoch, cause=cause)
            # The job may have been ordered to freeze, or to stop with a long grace period; another stop order shortens
            # that.
            again = {"cluster_id": job.cluster_id, "done_at": None, "not_before": now}
            Operation.objects.update_or_create(lease=lease, verb=Operation.Verb.STOP, defaults=again)
            wake_operations(job.cluster_id)
        else:
            lease.job = job
            ask_to_stop([StopOrder(lease, said, cause)], event=Event.CANCEL, now=now, history=history)
    history.save()
    audit.record(actor=actor, verb="job.cancel", target=job, tenant=job.tenant)
    return job


def cancel_waiting_within(*, actor: User | None, jobs: Sequence[Job], why: Message) -> None:
    """Cancels many waiting jobs, with few queries. `why` is the message for the histories of the jobs.

    Runs within the caller's transaction. The caller must already have checked the permission, and must hold the
    scheduling locks of the jobs' clusters. This function requests no rounds, so the caller must do that.
    """
    history = History()
    _end_waiting(jobs, said=why, now=now_from_database(), history=history)
    history.save()
    by_tenant: dict[Tenant, list[Job]] = defaultdict(list)
    for job in jobs:
        by_tenant[job.tenant].append(job)
    for tenant, its in by_tenant.items():
        audit.record_many(
            actor=actor, verb="job.cancel", tenant=tenant, changes=[(job, audit.NOTHING) for job in its]
        )


def _end_waiting(
    jobs: Sequence[Job], *, said: Message, now: datetime, history: History, cause: str = ""
) -> None:
    reserved = Lease.objects.filter(job__in=jobs, state=Lease.State.RESERVED)
    withdraw(list(reserved), why=Lease.End.CANCELLED)
    outcome: dict[str, Any] = {"end_reason": Job.End.CANCELLED, "frozen": False} | _ended_by(said)
    for job in jobs:
        if job.frozen:
            end_frozen(job, verb=Operation.Verb.KILL)
        history.move(job, Event.CANCEL, at=now, said=said, cause=cause, **outcome)


def _ended_by(said: Message) -> dict[str, Any]:
    return {"end_code": said.code, "end_detail": dict(said.parameters)}
