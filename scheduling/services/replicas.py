"""The controller of services: compares the replicas of a service with the service's desired state, and creates and ends
replicas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from django.db import models, transaction
from django.db.models import Exists, F, OuterRef, Window
from django.db.models.functions import RowNumber

from accounting.access import audit
from accounting.core.clock import now_from_database
from accounting.core.errors import NotAllowed, Refused
from accounting.core.wording import counted
from accounting.models import User
from fairshare.model import Reason
from scheduling.core import pubsub
from scheduling.core.announcing import announce_crash_loop, announce_failed_revision
from scheduling.jobs.actions import cancel_within
from scheduling.jobs.submitting import submit_stored
from scheduling.models import Job, Lease, Service, ServiceEvent, ServiceRevision
from scheduling.models.event_codes import Cause, EventCode, Message
from scheduling.models.event_codes import ServiceEventKind as Kind
from scheduling.services.crashes import crash_loop_of
from scheduling.services.rollout import Replica, Wanted, plan
from scheduling.spec.job_spec import JobSpec, SpecError

# Added to the priority: above what users may ask for, so that replicas run before other jobs of their author.
FIRST = 1000
# Back-off in seconds before a replica that ended by itself is replaced.
REST_SECONDS = (1, 10, 60, 300)
# A replica that was ready and lasted this long ends the series of failures that the back-off counts.
STEADY = timedelta(minutes=10)
# Each rollout begins with an event of one of these kinds.
ROLLOUTS = (Kind.CREATED, Kind.UPDATED, Kind.ROLLED_BACK)
# Minimum interval between announcements that replicas of a service end again and again.
CRASHES_TOLD_EVERY = timedelta(days=1)
# Minimum interval between updates of `progress_at`, to save writes.
NOTED_EVERY = timedelta(seconds=5)


@transaction.atomic(durable=True)
def step_service(*, service_id: int) -> bool:
    """Creates and ends the replicas of a service that must be created or ended now. Returns whether anything changed.

    Also marks the current revision as good or failed, may roll back a failed revision, and announces replicas that end
    again and again. Any number of workers may
    call this at any time.
    """
    services = Service.objects.select_related("tenant", "cluster", "current__author", "good__author")
    service = services.select_for_update(of=("self",)).filter(pk=service_id).first()
    if service is None or service.current is None:
        return False
    look = _ServiceState(service, now_from_database())
    before = service.current
    _judge(look)
    if service.current != before:
        look = _ServiceState(service, look.now)
    if look.resting:
        _announce_crash_loop(look)
    todo = plan(look.wanted, look.replicas, look.resting)
    by_id = {job.pk: job for job in look.jobs}
    for pk in todo.end:
        cause = Cause.PERSON if service.stopped_at else Cause.REPLACED
        cancel_within(actor=None, job=by_id[pk], why=look.why_end(by_id[pk]), cause=cause)
    _make(look, todo.make)
    if todo.make or todo.end or service.current != before:
        pubsub.publish(f"jobs:{service.tenant_id}")
        return True
    return False


@dataclass
class _ServiceState:
    """The state of a service and of its replicas, as read at the time `now`."""

    service: Service
    now: datetime

    @cached_property
    def jobs(self) -> Sequence[Job]:
        """Returns the replicas that have not ended, oldest first."""
        ready = Lease.objects.ready().filter(job=OuterRef("pk"))
        living = Job.objects.filter(service=self.service).unfinished().select_related("tenant", "revision")
        return list(living.defer("spec").annotate(is_ready=Exists(ready)).order_by("pk"))

    @property
    def staying(self) -> Sequence[Job]:
        return [job for job in self.jobs if job.state != Job.State.CANCELLING]

    @property
    def of_current(self) -> Sequence[Job]:
        return [job for job in self.staying if job.revision_id == self.service.current_id]

    @property
    def wanted(self) -> Wanted:
        service = self.service
        return Wanted(service.wanted, service.max_surge, service.max_unavailable)

    @property
    def replicas(self) -> Sequence[Replica]:
        return [
            Replica(
                id=job.pk,
                slot=_number(job.slot),
                is_current=job.revision_id == self.service.current_id,
                is_ready=job.is_ready,  # type: ignore[attr-defined]  # annotated above
                is_ending=job.state == Job.State.CANCELLING,
            )
            for job in self.jobs
        ]

    @cached_property
    def ended(self) -> Mapping[int, Sequence[Job]]:
        """Returns, by slot, the latest replicas that ended in the slot; the latest comes first.

        A slot is a numbered position in the service. A new replica takes the slot of the replica that it replaces.
        Leaves out slots in which a replica runs or waits now. Returns at most four replicas of a slot (the length of
        REST_SECONDS).
        """
        taken = [job.slot for job in self.jobs]
        latest = Window(RowNumber(), partition_by=F("slot"), order_by=F("attempt").desc())
        found = (
            Job.objects.filter(service=self.service, state__in=Job.ENDED)
            .exclude(slot__in=taken)
            .annotate(back=latest)
            .filter(back__lte=len(REST_SECONDS))
            .defer("spec")
        )
        by_slot: dict[int, list[Job]] = {}
        for job in sorted(found, key=lambda job: -_number(job.attempt)):
            by_slot.setdefault(_number(job.slot), []).append(job)
        return by_slot

    @cached_property
    def resting(self) -> set[int]:
        """Returns the slots (numbered positions of replicas) in back-off.

        The last replica in such a slot ended by itself and must not be replaced yet.
        """
        return set(self.next_tries)

    @cached_property
    def next_tries(self) -> Mapping[int, datetime]:
        """Returns when the back-off of each slot in `resting` ends."""
        found = {slot: self._rests_until(jobs) for slot, jobs in self.ended.items()}
        return {slot: until for slot, until in found.items() if until is not None and self.now < until}

    def _rests_until(self, jobs: Sequence[Job]) -> datetime | None:
        tries = 0
        for job in jobs:
            began, ended = job.first_started_at or job.created_at, job.ended_at
            steady = ended is not None and job.first_ready_at is not None and ended - began >= STEADY
            if job.revision_id != self.service.current_id or job.state not in Job.BY_ITSELF or steady:
                break
            tries += 1
        ended = jobs[0].ended_at
        if not tries or ended is None:
            return None
        return ended + timedelta(seconds=REST_SECONDS[min(tries, len(REST_SECONDS)) - 1])

    def why_end(self, job: Job) -> Message:
        service = self.service
        name = {"service": service.name}
        if service.removed_at:
            return Message.of(EventCode.SERVICE_REMOVED, **name)
        if service.stopped_at:
            return Message.of(EventCode.SERVICE_STOPPED, **name)
        if service.replicas and service.current is not None and job.revision_id != service.current_id:
            return Message.of(EventCode.SERVICE_CHANGES, **name, revision=service.current.number)
        return Message.of(EventCode.SERVICE_SHRINKS, **name, replicas=service.replicas)


def _make(look: _ServiceState, slots: Sequence[int]) -> None:
    """Submits a replica for each of `slots`, the numbered positions without a replica.

    After the first refusal, submits no more and stores the reason on the service.
    """
    service, trouble = look.service, ""
    for slot in slots:
        latest = look.ended.get(slot, ())
        try:
            job = _submit(service, slot, attempt=_number(latest[0].attempt) + 1 if latest else 1)
        except (NotAllowed, Refused, SpecError) as error:
            trouble = str(error)
            break
        if latest and latest[0].state in Job.BY_ITSELF and latest[0].revision_id == service.current_id:
            ended = latest[0]
            note(
                service, Kind.REPLACED, replica=ended.name, by=job.name, state=ended.state, code=ended.end_code,
                detail=ended.end_detail, message=ended.end_message,
            )  # fmt: skip
    if trouble != service.trouble:
        service.trouble = trouble
        service.save(update_fields=["trouble"])
        if trouble:
            note(service, Kind.TROUBLE, trouble=trouble)


def _announce_crash_loop(look: _ServiceState) -> None:
    """Announces that replicas of the good revision end by themselves again and again, at most once a day."""
    service = look.service
    told = service.events.filter(kind=Kind.CRASHES, at__gt=look.now - CRASHES_TOLD_EVERY)
    found = crash_loop_of(service, now=look.now)
    if found is None or service.current is None or told.exists():
        return
    note(service, Kind.CRASHES, text=found.text)
    announce_crash_loop(service, service.current, found.text, at=look.now)
    pubsub.publish(f"jobs:{service.tenant_id}")


def _submit(service: Service, slot: int, *, attempt: int) -> Job:
    revision = service.current
    assert revision is not None  # noqa: S101 - it was looked at
    return submit_stored(
        # The revision's author, not the service's owner: otherwise a user could write a revision that runs with another
        # user's secrets.
        actor=revision.author,
        tenant=service.tenant,
        cluster=service.cluster,
        data=revision.spec,
        name=f"{service.name}-{slot}-{attempt}",
        why=Message.of(EventCode.REPLICA_MADE, slot=slot, service=service.name, revision=revision.number),
        replica={
            "kind": Job.Kind.REPLICA,
            "service": service,
            "revision": revision,
            "slot": slot,
            "attempt": attempt,
            "priority": FIRST + JobSpec.stored(revision.spec).priority,
        },
    )


@dataclass(frozen=True)
class NextSteps:
    """What Fairlot does next with a service whose replicas do not become ready or stay up.

    - `next_try_at`: when the next replica is created in place of one that ended by itself; None if none is due.
    - `gives_up_at`: when the rollout counts as failed if no further replica becomes ready until then; None if no
      rollout is in progress, or if its replicas only wait for GPUs.
    - `back_to`: the revision to which the service is then rolled back; None without automatic rollback, or if no
      revision has worked yet.
    """

    next_try_at: datetime | None = None
    gives_up_at: datetime | None = None
    back_to: ServiceRevision | None = None


def next_steps_of(service: Service, *, at: datetime) -> NextSteps:
    """Returns what the controller does next with a service, as seen at the time `at`. Changes nothing."""
    if not service.wanted or service.current is None:
        return NextSteps()
    look = _ServiceState(service, at)
    tries = [until for slot, until in look.next_tries.items() if slot < service.wanted + service.max_surge]
    next_try = min(tries, default=None) if len(look.of_current) < service.wanted else None
    if service.good_id == service.current_id or not _is_trying(look):
        return NextSteps(next_try)
    back_to = service.good if service.auto_rollback else None
    failed = service.current.failed_at
    if back_to is None and failed is not None and failed >= service.progress_at:
        return NextSteps(next_try)
    gives_up = service.progress_at + timedelta(seconds=service.progress_deadline_seconds)
    return NextSteps(next_try, gives_up, back_to)


# --- judging the current revision --------------------------------------------------------------------------


def _judge(look: _ServiceState) -> None:
    """Marks the current revision as good or as failed, as soon as this is known.

    - Good: the desired number of its replicas have become ready.
    - Failed: no replica became ready for the first time within the progress deadline. Time in which the replicas only
      wait for GPUs does not count.

    If the service has automatic rollback, a failed revision is rolled back.
    """
    service, revision = look.service, look.service.current
    if revision is None or service.good_id == revision.pk or not service.wanted:
        return
    proven = sum(job.first_ready_at is not None for job in look.of_current)
    if proven >= service.replicas:
        _prove(look, revision)
    elif proven > service.progress or not _is_trying(look):
        if proven > service.progress or look.now - service.progress_at >= NOTED_EVERY:
            service.progress, service.progress_at = max(proven, service.progress), look.now
            service.save(update_fields=["progress", "progress_at"])
    elif look.now - service.progress_at >= timedelta(seconds=service.progress_deadline_seconds):
        _fail(look, revision, proven)


def _is_trying(look: _ServiceState) -> bool:
    """Returns whether the current revision may itself be the reason why its replicas do not become ready.

    Returns True in these cases, and False if its replicas only wait for GPUs:

    - A replica has never been ready although it has GPUs.
    - A replica has failed to start, or can never run.
    - A replica has recently ended by itself.
    """
    trying = any(
        job.first_ready_at is None
        and (
            job.state in (Job.State.STARTING, Job.State.RUNNING)
            or job.failed_starts > 0
            or Reason(job.reason).is_never
        )
        for job in look.of_current
    )
    ended = Job.objects.filter(
        service=look.service,
        revision=look.service.current,
        state__in=Job.BY_ITSELF,
        ended_at__gte=look.service.progress_at,
    )
    return trying or ended.exists()


def give_up(service: Service, *, actor: User, at: datetime) -> str:
    """Marks the current revision as failed if `actor` replaces it although it does not work. Runs in the caller's
    transaction, before the revision is replaced.

    It does not work if it is not good, and its replicas ended by themselves or run and are not ready. Returns why the
    revision failed; "" if it did not, as far as is known.
    """
    look, revision = _ServiceState(service, at), service.current
    if revision is None or service.good_id == revision.pk or not service.wanted or not _is_trying(look):
        return ""
    if revision.failed_at is not None and revision.failed_at >= service.progress_at:
        return revision.why_failed
    if not (words := _last_words(look)):
        return ""
    proven = sum(job.first_ready_at is not None for job in look.of_current)
    revision.failed_at = at
    revision.why_failed = (
        f"{proven} of {counted(service.replicas, 'replica')} had become ready when {actor.get_username()} replaced the"
        f" revision{words}"
    )
    revision.save(update_fields=["failed_at", "why_failed"])
    return revision.why_failed


def judge(service: Service, *, at: datetime) -> None:
    """Marks the current revision as good or as failed, if this is known at the time `at`. Runs in the caller's
    transaction.

    Callers do this before they replace the revision with another one.
    """
    _judge(_ServiceState(service, at))


def _prove(look: _ServiceState, revision: ServiceRevision) -> None:
    service = look.service
    service.good = revision
    service.save(update_fields=["good"])
    if revision.proved_at is None:
        revision.proved_at = look.now
    revision.failed_at, revision.why_failed = None, ""
    revision.save(update_fields=["proved_at", "failed_at", "why_failed"])
    note(service, Kind.PROVED, revision=revision.number, replicas=service.replicas)


def _fail(look: _ServiceState, revision: ServiceRevision, proven: int) -> None:
    service = look.service
    why = (
        f"{proven} of {counted(service.replicas, 'replica')} became ready, and no further one became ready within"
        f" {service.progress_deadline_seconds} s{_last_words(look)}"
    )
    if revision.failed_at is None or revision.failed_at < service.progress_at:
        is_first = revision.failed_at is None
        revision.failed_at, revision.why_failed = look.now, why
        revision.save(update_fields=["failed_at", "why_failed"])
        if service.good is None or not service.auto_rollback:
            if is_first:
                note(service, Kind.FAILED, revision=revision.number, why=why)
            said = f"The rollout was given up: {why}"
            announce_failed_revision(service, revision, said, rollout=_rollout_of(service))
            return
    if service.good is None or not service.auto_rollback:
        return
    said = f"The rollout was given up: {why}. The service was rolled back to revision {service.good.number}"
    announce_failed_revision(service, revision, said, rollout=_rollout_of(service))
    make_current(service, service.good, at=look.now)
    note(service, Kind.ROLLED_BACK, failed=revision.number, why=why, revision=service.good.number)
    audit.record(
        actor=None,
        verb="service.roll_back",
        target=service,
        tenant=service.tenant,
        before={"revision": revision.number},
        after={"revision": service.good.number, "why": why},
    )


def _rollout_of(service: Service) -> int:
    """Returns a number that tells the current rollout from other rollouts, also from those of the same revision."""
    return service.events.filter(kind__in=ROLLOUTS).values_list("pk", flat=True).first() or 0


def _last_words(look: _ServiceState) -> str:
    """Returns, in parentheses, why a running replica is not ready, or else how the last ended replica ended.

    Returns an empty text if neither is known.
    """
    waiting = Lease.objects.filter(job__in=[job.pk for job in look.of_current], state=Lease.State.RUNNING)
    said = waiting.exclude(why_not_ready="").values_list("why_not_ready", flat=True).first()
    if not said:
        failed = Job.objects.filter(
            service=look.service, revision=look.service.current, state__in=Job.BY_ITSELF
        )
        said = failed.order_by("-ended_at").values_list("end_message", flat=True).first()
    return f" ({said})" if said else ""


def make_current(service: Service, revision: ServiceRevision, *, at: datetime) -> None:
    """Makes `revision` the current one. Runs in the transaction of a caller that has locked the service's row."""
    service.current, service.progress, service.progress_at = revision, 0, at
    service.save(update_fields=["current", "progress", "progress_at"])


def note(service: Service, kind: Kind, **parameters: Any) -> None:
    """Adds an entry to the service's history. scheduling/core/service_texts.py says which parameters a kind has."""
    ServiceEvent.objects.create(service=service, kind=kind, detail=parameters)


def _number(value: int | None) -> int:
    """Returns `value`, the slot or attempt number of a replica. Raises ValueError for None: then the job is not a
    replica."""
    if value is None:
        raise ValueError("this job is not a replica")
    return value


def services_to_step() -> models.QuerySet[Service]:
    """Returns the services that may need a step. Leaves out removed services whose replicas have all ended."""
    left = Job.objects.filter(service=OuterRef("pk")).unfinished()
    return Service.objects.filter(models.Q(removed_at=None) | Exists(left))
