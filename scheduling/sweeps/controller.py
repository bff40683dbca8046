"""The controller of sweeps: submits the jobs of members a few at a time, and records how they ended.

It keeps only as many members waiting as may start soon. So rounds and limits see a sweep of 10 000 members as a small
group. One step costs the same for any number of members, except for counting their states in an index.

Any number of workers may take steps at any time, and may die in the middle of one. The lock on the sweep's row makes
steps follow each other, and a job is stored in the same transaction as the state of its member.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import TypeAlias

from django.db import transaction
from django.db.models import Count, Max, Q, QuerySet

from accounting.access import audit
from accounting.core.bulk import update_rows
from accounting.core.clock import now_from_database
from accounting.core.errors import NotAllowed, Refused
from scheduling.backends.base import Backend, BackendError
from scheduling.clusters.backend_factory import backend_for
from scheduling.core import pubsub
from scheduling.core.announcing import announce_end_of_sweep
from scheduling.core.enqueue import want_rounds
from scheduling.core.locks import lock_schedule
from scheduling.jobs.actions import cancel_waiting_within, cancel_within
from scheduling.jobs.submitting import submit_each_stored
from scheduling.metrics.printed import READ, read_metrics
from scheduling.models import Cluster, Job, Lease, Sweep, SweepMember
from scheduling.models.event_codes import EventCode, Message
from scheduling.spec.job_spec import JobSpec, SpecError
from scheduling.sweeps.actions import counts_of, skip_pending
from scheduling.sweeps.commands import spec_of_member
from scheduling.sweeps.stopping import Look, look_at

logger = logging.getLogger(__name__)

# Members that wait, at least; more wait while more run.
LEAST_WAITING = 16
# Bounds the length of one transaction; a longer step takes several.
MOST_A_STEP = 100
# The last lines of a log may arrive this long after the job's end. A later line is not read.
LOG_LATENESS = timedelta(minutes=1)
MOST_METRIC_NAMES = 50

Metrics: TypeAlias = Mapping[int, dict[str, float]]  # by id of the job
Member, ENDS = SweepMember.State, {str(state): str(state) for state in Job.ENDED}


def sweeps_to_step() -> QuerySet[Sweep]:
    """Returns the sweeps that may need a step."""
    return Sweep.objects.unfinished()


def step_sweep(*, sweep_id: int) -> None:
    """Submits and cancels the jobs of a sweep that must be submitted or cancelled now. Records members that ended."""
    while _step(sweep_id, _read_ended(sweep_id), look_at(sweep_id)):
        pass


def _read_ended(sweep_id: int) -> Metrics:
    """Returns the metrics of ended jobs whose members are not recorded as ended yet. Leaves out jobs whose log may
    still grow.

    Reads logs, so it holds no lock.
    """
    ended = SweepMember.objects.filter(sweep=sweep_id, state=Member.ACTIVE, job__state__in=Job.ENDED)
    jobs = [member.job for member in ended.select_related("job__cluster")[:MOST_A_STEP] if member.job]
    if not jobs:
        return {}
    ran = Lease.objects.filter(job__in=jobs, running_from__isnull=False)
    attempts = dict(ran.order_by().values_list("job").annotate(last=Max("epoch")))
    backend, now = _backend_of(jobs[0].cluster), now_from_database()
    found: dict[int, dict[str, float]] = {}
    for job in jobs:
        overdue = job.ended_at is None or now - job.ended_at > LOG_LATENESS
        metrics = _metrics_of(backend, job, attempts.get(job.pk, 0), overdue=overdue)
        if metrics is not None:
            found[job.pk] = metrics
    return found


def _backend_of(cluster: Cluster) -> Backend | None:
    """Returns the backend of the cluster; None if it cannot be reached, for example because the cluster is detached."""
    try:
        return backend_for(cluster)
    except BackendError as error:
        logger.warning("the logs of %s cannot be read: %s", cluster, error)
        return None


def _metrics_of(
    backend: Backend | None, job: Job, last_attempt: int, *, overdue: bool
) -> dict[str, float] | None:
    """Returns the metrics in the log of an ended job; None if they must be read later.

    With `overdue`, does not wait any longer for the rest of the log.
    """
    if not last_attempt or job.files_removed_at:
        return {}
    if backend is None:
        return {} if overdue else None
    try:
        size = backend.log_size(job_id=job.pk, rank=0)
        begin = max(0, size - READ)
        chunk = backend.read_log(job_id=job.pk, rank=0, offset=begin, limit=READ, last_attempt=last_attempt)
    except (BackendError, OSError) as error:
        if not overdue:
            return None
        logger.warning("the metrics of job %s cannot be read: %s", job.pk, error)
        return {}
    if not chunk.complete and not overdue:
        return None
    return read_metrics(chunk.data, is_whole=begin == 0)


@transaction.atomic(durable=True)
def _step(sweep_id: int, metrics: Metrics, look: Look | None) -> bool:
    """Takes one step of a sweep. `metrics` has the metrics of ended jobs, `look` what those of members at work say.
    Returns whether another step may follow at once."""
    locked = Sweep.objects.select_for_update(of=("self",)).select_related("tenant", "owner", "cluster")
    sweep = locked.filter(pk=sweep_id, ended_at=None).first()
    if sweep is None:
        return False
    trouble = sweep.trouble
    settled = _settle(sweep, metrics)
    stopped = _heed(sweep, look) if look else 0
    sweep.trouble = ""
    if sweep.state == Sweep.State.RUNNING:
        moved = _submit(sweep)
    elif sweep.state == Sweep.State.CANCELLED or sweep.stop_cancels:
        moved = _cancel_jobs(sweep)
    else:
        moved = 0
    if settled or stopped or moved or sweep.trouble != trouble:
        _note(sweep)
    return MOST_A_STEP in (moved, settled)


def _note(sweep: Sweep) -> None:
    """Stores what a step has changed. Ends the sweep if all its members have ended."""
    sweep.counts = counts_of(sweep)
    if not sweep.counts.keys() & set(SweepMember.UNFINISHED):
        sweep.ended_at = now_from_database()
        if sweep.state == Sweep.State.RUNNING:
            sweep.state = Sweep.State.FINISHED
        announce_end_of_sweep(sweep)
    sweep.save(update_fields=["counts", "ended_at", "metric_names", "state", "stopped_by", "trouble"])
    pubsub.publish(f"jobs:{sweep.tenant_id}")


def _settle(sweep: Sweep, metrics: Metrics) -> int:
    """Records the members whose jobs have ended, and stops the sweep if one of them meets the stop rule. Returns their
    number."""
    if not metrics:
        return 0
    ended = sweep.members.filter(state=Member.ACTIVE, job__in=metrics, job__state__in=Job.ENDED)
    members = list(ended.select_related("job").order_by("job__ended_at", "index"))
    for member in members:
        if member.job is None:  # a constraint of the table forbids it
            continue
        member.state = ENDS[member.job.state]
        if member.outdone_at is not None and member.state == Member.CANCELLED:
            member.state = Member.STOPPED
        member.metrics = metrics[member.job.pk]
        new = [name for name in member.metrics if name not in sweep.metric_names]
        sweep.metric_names = [*sweep.metric_names, *new][:MOST_METRIC_NAMES]
    update_rows(members, ["state", "metrics"])
    reached = [one for one in members if one.state == Member.SUCCEEDED and sweep.is_reached_by(one.metrics)]
    if reached and sweep.state == Sweep.State.RUNNING:
        _stop(sweep, reached[0].index, reached[0].metrics[sweep.metric])
    return len(members)


def _stop(sweep: Sweep, index: int, value: float) -> None:
    """Stops the sweep, because the member `index` has met the stop rule with this value."""
    sweep.state, sweep.stopped_by = Sweep.State.STOPPED, index
    skip_pending(sweep)
    after = {"member": index, sweep.metric: value}
    audit.record(actor=None, verb="sweep.stop", target=sweep, tenant=sweep.tenant, after=after)


def _heed(sweep: Sweep, look: Look) -> int:
    """Stops the sweep if a member at work meets the stop rule, and otherwise the members that are worse than the median
    of the others. Returns how many of these there are, the sweep included."""
    if sweep.state != Sweep.State.RUNNING:
        return 0
    sweep.looked_at = look.at
    sweep.save(update_fields=["looked_at"])
    at_work = sweep.members.filter(state=Member.ACTIVE, job__state__in=Job.HOLDING)
    good = [job for job, value in look.latest.items() if sweep.is_reached_by({sweep.metric: value})]
    if best := at_work.filter(job__in=good).order_by("index").first() if good else None:
        _stop(sweep, best.index, look.latest[best.job_id or 0])
        return 1
    members = list(at_work.filter(job__in=look.outdone, outdone_at=None).select_related("job")[:MOST_A_STEP])
    if members:
        lock_schedule(sweep.cluster_id)
    for member in members:
        member.outdone_at = look.outdone[member.job_id or 0]
        why = Message.of(
            EventCode.MEMBER_OUTDONE, sweep=sweep.name, metric=sweep.metric, step=round(member.outdone_at)
        )
        if member.job:
            cancel_within(actor=None, job=member.job, why=why)
    update_rows(members, ["outdone_at"])
    return len(members)


def _submit(sweep: Sweep) -> int:
    """Submits the next members, as far as the window has room. Returns their number.

    Stores on the sweep why the rest was refused, if it was.
    """
    count = _room(sweep)
    pending = sweep.members.filter(state=Member.PENDING).order_by("index")
    members = list(pending[:count]) if count > 0 else []
    if not members:
        return 0
    base = JobSpec.stored(sweep.spec)
    try:
        outcomes = submit_each_stored(
            actor=sweep.owner,
            tenant=sweep.tenant,
            cluster=sweep.cluster,
            specs=[spec_of_member(base, member.index, member.parameters) for member in members],
            fields=[{"sweep": sweep, "sweep_index": member.index} for member in members],
            why=Message.of(EventCode.SUBMITTED_BY_SWEEP, sweep=sweep.name),
        )
    except (NotAllowed, Refused, SpecError) as error:
        sweep.trouble = str(error)
        return 0
    submitted = []
    for member, outcome in zip(members, outcomes, strict=True):
        if isinstance(outcome, Job):
            member.state, member.job, member.metrics = Member.ACTIVE, outcome, {}
            member.attempts += 1
            submitted.append(member)
        elif not sweep.trouble:
            sweep.trouble = str(outcome)
    update_rows(submitted, ["state", "job", "metrics", "attempts"])
    return len(submitted)


def _room(sweep: Sweep) -> int:
    """Returns how many members may be submitted now."""
    living = Job.objects.filter(sweep=sweep).unfinished()
    found = living.aggregate(
        waiting=Count("pk", filter=Q(state__in=Job.WAITING)),
        running=Count("pk", filter=Q(state__in=Job.HOLDING)),
    )
    waiting: int = found["waiting"]
    running: int = found["running"]
    room = max(LEAST_WAITING, running) - waiting
    if sweep.at_once is not None:
        room = min(room, sweep.at_once - waiting - running)
    return min(room, MOST_A_STEP)


def _cancel_jobs(sweep: Sweep) -> int:
    """Cancels jobs of the sweep that wait or run, at most MOST_A_STEP. Returns their number.

    The member that met the stop rule goes on, so that its result is complete.
    """
    left = Job.objects.filter(sweep=sweep).unfinished().exclude(state=Job.State.CANCELLING)
    if sweep.state == Sweep.State.STOPPED and sweep.stopped_by is not None:
        left = left.exclude(sweep_index=sweep.stopped_by)
    if not left.exists():
        return 0
    lock_schedule(sweep.cluster_id)
    jobs = list(left.select_related("tenant").defer("spec").order_by("pk")[:MOST_A_STEP])
    why = _why_cancelled(sweep)
    waiting = [job for job in jobs if job.state in Job.WAITING]
    if waiting:
        cancel_waiting_within(actor=None, jobs=waiting, why=why)
        want_rounds(Cluster.objects.filter(pk=sweep.cluster_id))
    for job in jobs:
        if job.state in Job.HOLDING:
            cancel_within(actor=None, job=job, why=why)
    return len(jobs)


def _why_cancelled(sweep: Sweep) -> Message:
    if sweep.state == Sweep.State.STOPPED:
        return Message.of(EventCode.SWEEP_STOPPED, sweep=sweep.name, index=sweep.stopped_by)
    user = sweep.cancelled_by.get_username() if sweep.cancelled_by else None
    return Message.of(EventCode.SWEEP_CANCELLED, sweep=sweep.name, user=user)
