"""Changes the state of leases, from reservation to closing, as the backend's observations show.

Every change is made while the cluster's scheduling lock is held.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median
from typing import Any

from django.db import models, transaction
from django.db.models import F, Prefetch

from accounting.core.bulk import insert_rows, update_rows
from accounting.core.calendar import start_of_hour
from accounting.core.clock import now_from_database
from accounting.ledger import Usage, book_usage
from scheduling.backends.base import End, Observation, Phase
from scheduling.core.enqueue import wake_operations, want_rounds
from scheduling.core.locks import lock_schedule
from scheduling.core.run_apart import apart
from scheduling.leases.gpu_use import end_with, unused_of
from scheduling.leases.history import History
from scheduling.leases.lifecycle import Event
from scheduling.leases.lost_work import write_lost_work
from scheduling.leases.repeated_work import warn_of_repeated_work
from scheduling.leases.reservations import advance, withdraw, write_times
from scheduling.models import Cluster, GpuUse, HeldGpu, Job, JobSpeed, Lease, Node, Operation
from scheduling.models.event_codes import EventCode, LeaseEnd, Message
from scheduling.models.leases import LeaseQuerySet
from scheduling.shares.intervals import ObservedLease, correct_rounds
from scheduling.spec.retries import Retries

MAX_FAILED_STARTS = 3
# More than MAX_FAILED_STARTS, because machines also die without any fault of the job.
MAX_LOST_STARTS = 8
BACK_OFF_SECONDS = (5, 30, 120)
# A run whose processes vanish sooner than this counts as a failed start.
STEADY = timedelta(seconds=60)
# States of a job that Fairlot has ordered to stop.
LEAVING = (Job.State.STOPPING, Job.State.CANCELLING)
BEGIN = (Operation.Verb.START, Operation.Verb.THAW)
# The weight of a new measurement in the moving average of the cost of a switch.
SMOOTHING = 0.2
# The billing of a full hour waits this long for measurements of GPU use in that hour.
MEASURE_PATIENCE = timedelta(seconds=100)
# The least time between two writes of last_seen_at and of progress, to reduce disk writes.
SEEN_EVERY = timedelta(seconds=2)
# Numbers above MOST_STEPS are not counts of steps and are ignored; smaller increases than LEAST_STEPS count once they
# add up. The bounds keep the rates finite from which schedules and trades are computed.
LEAST_STEPS, MOST_STEPS = 1e-6, 1e18
LEASE_FIELDS = [
    "state", "running_from", "held_until", "last_seen_at", "missing_since", "end_reason", "billed_until",
    "progress_steps", "progress_at", "first_steps", "first_steps_at", "lost_from", "address", "ready_since",
    "why_not_ready",
]  # fmt: skip


def apply_observations(*, cluster_id: int, observations: Sequence[Observation]) -> list[Lease]:
    """Applies observations of a backend to leases and jobs. Returns the leases that ended; they are now closed and
    billed.

    An observation may arrive twice or late; it has an effect only if it changes an open lease. If an observation cannot
    be stored, the others are still applied.
    """
    return apart(cluster_id, observations, lambda some: _apply(cluster_id, some))


@transaction.atomic(durable=True)
def _apply(cluster_id: int, observations: Sequence[Observation]) -> list[Lease]:
    lock_schedule(cluster_id)
    now = now_from_database()
    leases = {
        lease.token: lease
        for lease in Lease.objects.filter(cluster=cluster_id, token__in=[seen.token for seen in observations])
        .select_related("job__owner", "job__tenant", "generation", "cluster")
        .prefetch_related(Prefetch("held_gpus", HeldGpu.objects.select_related("node")))
    }
    # Observations of several leases of one job must change the same job object.
    jobs: dict[int, Job] = {}
    for lease in leases.values():
        lease.job = jobs.setdefault(lease.job_id, lease.job)
    batch = ObservationBatch(cluster_id, now)
    gone: list[Lease] = []
    for seen in observations:
        if seen.token not in leases:
            continue
        lease = leases[seen.token]
        if lease.state in Lease.HOLDING:
            batch.observe(lease, seen)
        elif lease.end_reason == Lease.End.FROZEN and lease.job.frozen and seen.phase is Phase.ENDED:
            batch.frozen_are_gone(lease)
        if seen.phase is Phase.ENDED and lease.state == Lease.State.CLOSED:
            gone.append(lease)
    batch.save()
    return gone


def close_never_started(*, cluster_id: int, lease_ids: Iterable[int]) -> set[int]:
    """Closes those of the leases that were ordered to stop before any of their processes started. Returns their ids."""
    return set(apart(cluster_id, list(lease_ids), lambda some: _close_never_started(cluster_id, some)))


@transaction.atomic(durable=True)
def _close_never_started(cluster_id: int, lease_ids: Sequence[int]) -> set[int]:
    lock_schedule(cluster_id)
    now = now_from_database()
    batch = ObservationBatch(cluster_id, now)
    leases = list(
        Lease.objects.filter(pk__in=lease_ids, cluster=cluster_id, state=Lease.State.STOPPING).select_related(
            "job__owner", "job__tenant", "generation", "cluster"
        )
    )
    # Locks the start orders: waits for a worker that is claiming one now, and prevents later claims.
    begins = Operation.objects.select_for_update().filter(lease__in=leases, verb__in=BEGIN).order_by("id")
    first = {begin.lease_id: begin for begin in begins}
    closed = [lease for lease in leases if lease.pk not in first or not first[lease.pk].attempts]
    for lease in closed:
        begin = first.get(lease.pk)
        at = batch.moment(lease, 0.0)
        batch.close(lease, at=at, why=Lease.End.NEVER_STARTED)
        batch.never_started(lease, at=at, thaws=begin is not None and begin.verb == Operation.Verb.THAW)
    Operation.objects.filter(lease__in=closed, verb__in=BEGIN).update(done_at=now)
    batch.save()
    return {lease.pk for lease in closed}


def bill_running(*, cluster_id: int) -> int:
    """Books the full hours of running leases in the ledger. Returns the number of leases that had full hours to book.

    If booking fails for a lease, its hours stay unbilled and the cluster's page shows the failure. Other leases are
    still booked.
    """
    due = list(_to_bill(cluster_id, now_from_database()).order_by("pk").values_list("pk", flat=True))
    return len(apart(cluster_id, due, lambda some: _bill_running(cluster_id, some)))


@transaction.atomic(durable=True)
def _bill_running(cluster_id: int, lease_ids: Sequence[int]) -> list[Lease]:
    lock_schedule(cluster_id)
    now = now_from_database()
    due = _to_bill(cluster_id, now).filter(pk__in=lease_ids)
    leases = list(due.select_related("job__owner", "job__tenant", "generation"))
    bill(leases, until=start_of_hour(now))
    update_rows(leases, ["billed_until"])
    return leases


def _to_bill(cluster_id: int, now: datetime) -> LeaseQuerySet:
    """Returns the leases whose full hours before `now` are not billed yet and can be billed now.

    Leaves out two kinds of leases:

    - Leases for which a measurement of GPU use in these hours may still arrive.
    - Leases that were not observed in the present hour, because their processes may have died before it.
    """
    hour = start_of_hour(now)
    held = Lease.objects.filter(
        cluster=cluster_id, state__in=Lease.HOLDING, held_from__lt=hour, last_seen_at__gte=hour
    )
    return held.exclude(billed_until__gte=hour).exclude(pk__in=_being_measured(hour, now))


def _being_measured(hour: datetime, now: datetime) -> models.QuerySet[GpuUse, int]:
    """Returns a query for the ids of leases for which a measurement of GPU use before `hour` may still arrive.

    `hour` is the start of the present hour. If it is MEASURE_PATIENCE or longer ago, the query finds no leases.
    """
    if now >= hour + MEASURE_PATIENCE:
        return GpuUse.objects.none().values_list("lease_id", flat=True)
    soon = GpuUse.objects.filter(measured_until__gte=hour - MEASURE_PATIENCE, measured_until__lt=hour)
    return soon.values_list("lease_id", flat=True)


@transaction.atomic(durable=True)
def hand_over(*, cluster_id: int) -> int:
    """Starts the gangs whose reserved GPUs are all free now. Returns the number of started gangs."""
    lock_schedule(cluster_id)
    history = History()
    begun = advance(cluster_id, now=now_from_database(), history=history)
    history.save()
    return begun


@dataclass(frozen=True)
class StopOrder:
    """An order that a lease must release its GPUs, with the reason.

    The processes are stopped, or frozen if `freeze` is set.
    """

    lease: Lease
    said: Message
    cause: str = ""
    freeze: bool = False


def ask_to_stop(orders: Iterable[StopOrder], *, event: Event, now: datetime, history: History) -> None:
    """Orders starting and running leases to release their GPUs, and applies `event` to their jobs.

    Runs within the caller's transaction. The caller holds the cluster's scheduling lock, and saves `history`.
    """
    stopping, operations = [], []
    for order in orders:
        lease = order.lease
        if lease.state not in (Lease.State.STARTING, Lease.State.RUNNING):
            continue
        frozen = order.freeze and lease.state == Lease.State.RUNNING
        lease.state, lease.stop_asked_at, lease.stop_cause = Lease.State.STOPPING, now, order.cause
        verb = Operation.Verb.FREEZE if frozen else Operation.Verb.STOP
        operations.append(Operation(cluster_id=lease.cluster_id, lease=lease, verb=verb))
        history.move(lease.job, event, at=now, said=order.said, epoch=lease.epoch, cause=order.cause)
        stopping.append(lease)
    update_rows(stopping, ["state", "stop_asked_at", "stop_cause"])
    insert_rows(operations, ignore_conflicts=True)
    if operations:
        wake_operations(operations[0].cluster_id)


def end_frozen(job: Job, *, verb: Operation.Verb) -> None:
    """Orders the backend to end the frozen processes of a job, if it has any.

    `verb` is STOP to give the processes their grace period, or KILL to end them immediately. Runs within the caller's
    transaction. The caller holds the cluster's scheduling lock.
    """
    lease = (
        Lease.objects.filter(job=job, state=Lease.State.CLOSED, end_reason=Lease.End.FROZEN)
        .order_by("-epoch")
        .first()
    )
    if lease is not None:
        Operation.objects.get_or_create(cluster_id=lease.cluster_id, lease=lease, verb=verb)
        wake_operations(lease.cluster_id)


class ObservationBatch:
    """Collects the changes of leases and jobs that result from observations. `save` writes them with few SQL
    statements."""

    def __init__(self, cluster_id: int, now: datetime) -> None:
        self.cluster_id = cluster_id
        self.now = now
        self.history = History()
        self._touched: dict[int, Lease] = {}
        self._progress: list[tuple[Lease, float, float]] = []
        self._begun: list[Lease] = []  # leases whose workers were first observed running
        self._last_seen: dict[int, datetime | None] = {}  # last_seen_at before this batch, by lease id
        self._closed: list[Lease] = []
        self._resumed: dict[Lease, float] = {}  # the first observed step of an attempt, by its lease

    # --- observations ----------------------------------------------------------------------------

    def observe(self, lease: Lease, seen: Observation) -> None:
        """Applies one observation to a lease that holds GPUs, and to the lease's job."""
        at = self.moment(lease, seen.seen_age)
        self._last_seen.setdefault(lease.pk, lease.last_seen_at)
        if lease.last_seen_at is None or at - lease.last_seen_at >= SEEN_EVERY:
            lease.last_seen_at = at
            self._touched[lease.pk] = lease
        if lease.missing_since is not None:
            lease.missing_since = None
            self._touched[lease.pk] = lease
        self._note_progress(lease, seen)
        if seen.phase is Phase.RUNNING and lease.state == Lease.State.STARTING:
            self._started(lease, seen)
        elif seen.phase is Phase.FROZEN and lease.state == Lease.State.STOPPING:
            self._frozen(lease, seen)
        elif seen.phase is Phase.ENDED:
            self._ended(lease, seen)
        if seen.phase is Phase.RUNNING and lease.state == Lease.State.RUNNING:
            self._note_readiness(lease, seen)
        if lease.pk in self._touched and lease.state in Lease.HOLDING:
            # The row is written anyway, and processes existed at least until this observation.
            lease.last_seen_at = max(lease.last_seen_at or at, at)

    def frozen_are_gone(self, lease: Lease) -> None:
        """Records that the frozen processes of a waiting job have ended, so that its next attempt starts from a
        checkpoint.

        Ignores an observation of an older lease, because the job may have been thawed and frozen again since.
        """
        if lease in Lease.objects.filter(job=lease.job_id).of_frozen_processes():
            self.history.change(lease.job, frozen=False)
            said = Message.of(EventCode.UNFROZEN, starts_again=True)
            self.history.note(lease.job, "unfrozen", said, at=self.now, epoch=lease.epoch)

    def _started(self, lease: Lease, seen: Observation) -> None:
        at = self.moment(lease, seen.running_age or 0.0)
        lease.state, lease.running_from = Lease.State.RUNNING, at
        self._touched[lease.pk] = lease
        self.history.move(
            lease.job,
            Event.STARTED,
            at=at,
            said=Message.of(EventCode.STARTED, gpus=lease.gpus, generation=lease.generation.name),
            epoch=lease.epoch,
        )
        self._begun.append(lease)
        self._note_resumed(lease, seen, at=at)

    def _note_resumed(self, lease: Lease, seen: Observation, *, at: datetime) -> None:
        if seen.resumed_from:
            said = Message.of(EventCode.RESUMED, checkpoint=seen.resumed_from)
            self.history.note(lease.job, "resumed", said, at=at, epoch=lease.epoch)

    def _note_readiness(self, lease: Lease, seen: Observation) -> None:
        """Records the network address of the job's program, and whether the program answers there."""
        why = "" if seen.ready_age is not None else seen.why_not_ready[:300]
        if (lease.address, lease.why_not_ready) != (seen.address, why):
            lease.address, lease.why_not_ready = seen.address, why
            self._touched[lease.pk] = lease
        if (lease.ready_since is None) == (seen.ready_age is None):
            return
        job, at = lease.job, self.now
        if seen.ready_age is None:
            lease.ready_since, kind = None, "unready"
            said = Message.of(EventCode.UNREADY, why=why)
        else:
            at = lease.ready_since = self.moment(lease, seen.ready_age)
            kind, said = "ready", Message.of(EventCode.READY, address=seen.address)
            self.history.change(job, first_ready_at=job.first_ready_at or at)
        self._touched[lease.pk] = lease
        self.history.change(job)
        self.history.note(job, kind, said, at=at, epoch=lease.epoch)

    def _frozen(self, lease: Lease, seen: Observation) -> None:
        at = self.moment(lease, seen.frozen_age or 0.0)
        if lease.job.state == Job.State.STOPPING:
            self.close(lease, at=at, why=Lease.End.FROZEN)
            said = Message.of(EventCode.FROZEN)
            self._release(lease, at=at, said=said, frozen=True, failed_starts=0)

    def _ended(self, lease: Lease, seen: Observation) -> None:
        at = self.moment(lease, seen.ended_age or 0.0)
        job, end, message = lease.job, seen.end or End.LOST, seen.message
        if lease.running_from is None and seen.running_age is not None:
            lease.running_from = min(self.moment(lease, seen.running_age), at)
        if end is End.START_FAILED and lease.running_from is not None:
            end = End.LOST  # its processes did start
        if end is End.STOPPED and job.state not in LEAVING:
            end, message = End.LOST, "The processes were stopped, but not by Fairlot."
        if lease.state == Lease.State.STARTING and lease.running_from is not None:
            self._note_resumed(lease, seen, at=lease.running_from)
        self.close(lease, at=at, why=Lease.End(end))
        outcome: dict[str, Any] = {
            "exit_code": seen.exit_code,
            "end_reason": Job.End(end),
            "end_message": message,
        }
        epoch = lease.epoch
        if end is End.SUCCEEDED:
            said = Message.of(EventCode.SUCCEEDED, message=message)
            self.history.move(job, Event.SUCCEEDED, at=at, said=said, epoch=epoch, **outcome)
        elif job.state == Job.State.CANCELLING:
            self.history.move(
                job,
                Event.GONE,
                at=at,
                said=Message.of(EventCode.CANCELLED_GONE),
                epoch=epoch,
                **(outcome | _cancelled(job)),
            )
        elif end is End.DELETED:
            self._deleted(job, at=at, epoch=epoch, message=message, outcome=outcome)
        elif end is End.FAILED:
            self._failed(lease, at=at, message=message, outcome=outcome)
        elif end is End.START_FAILED:
            self._start_failed(lease, at=at, message=message)
        elif end is End.LOST:
            self._lost(lease, at=at, message=message)
        else:
            failed_starts = job.failed_starts if lease.running_from is None else 0
            self._release(lease, at=at, said=Message.of(EventCode.STOPPED), failed_starts=failed_starts)

    def _deleted(self, job: Job, *, at: datetime, epoch: int, message: str, outcome: dict[str, Any]) -> None:
        """Cancels a job because somebody deleted its Kubernetes objects in the cluster.

        This counts as cancelling, because users who may delete the objects may also cancel the job. `epoch` is the
        number of the job's attempt, `message` is the observed cause, and `outcome` has the values of the job's end
        fields.
        """
        said = Message.of(EventCode.DELETED, message=message)
        self.history.move(job, Event.CANCEL, at=at, said=said, epoch=epoch)
        self.history.move(job, Event.GONE, at=at, said=Message.of(EventCode.GONE), epoch=epoch, **outcome)

    def _failed(self, lease: Lease, *, at: datetime, message: str, outcome: dict[str, Any]) -> None:
        """Ends a job whose program failed, or makes it wait for its next attempt if its spec asks for retries.

        `message` is the observed cause, and `outcome` has the values of the job's end fields.
        """
        job, retries = lease.job, Retries.of_stored(lease.job.spec)
        failures = job.failures + 1
        wait = retries.wait_after(failures, outcome["exit_code"])
        if wait is None:
            told = {"retries": retries.times, "failures": failures} if retries.times else {}
            said = Message.of(EventCode.FAILED, message=message, **told)
            self.history.move(
                job, Event.FAILED, at=at, said=said, epoch=lease.epoch, failures=failures, **outcome
            )
            return
        if lease.progress_steps is None and lease.held_from is not None and lease.held_from < at:
            # Without steps, nobody knows how much of the attempt a checkpoint has kept.
            lease.lost_from = lease.held_from
        said = Message.of(
            EventCode.RETRIED,
            message=message,
            exit_code=outcome["exit_code"],
            retry=failures,
            retries=retries.times,
            wait=round(wait.total_seconds()),
        )
        self.history.move(
            job,
            Event.RETRIED,
            at=at,
            said=said,
            epoch=lease.epoch,
            frozen=False,
            failed_starts=0,
            failures=failures,
            not_before=self.now + wait,
        )

    def _start_failed(self, lease: Lease, *, at: datetime, message: str) -> None:
        job = lease.job
        tries = job.failed_starts + 1
        self.history.move(
            job,
            Event.START_FAILED,
            at=at,
            said=Message.of(EventCode.START_FAILED, message=message),
            epoch=lease.epoch,
            failed_starts=tries,
            not_before=self._back_off(tries),
        )
        if tries >= MAX_FAILED_STARTS:
            self._give_up(lease, at=at, end=End.START_FAILED, message=message)

    def _lost(self, lease: Lease, *, at: datetime, message: str) -> None:
        """Makes a job wait again after its processes vanished. The job continues from its checkpoint.

        An attempt that ran for less than STEADY (one minute) counts as a failed start. If MAX_LOST_STARTS attempts in a
        row count as failed starts, the job fails.
        """
        job = lease.job
        said = Message.of(EventCode.VANISHED, message=message)
        if job.state == Job.State.STOPPING or (lease.running_from and at - lease.running_from >= STEADY):
            self._release(lease, at=at, said=said, failed_starts=0)
            return
        tries = job.failed_starts + 1
        if tries >= MAX_LOST_STARTS:
            self.history.change(job, failed_starts=tries)
            self._give_up(lease, at=at, end=End.LOST, message=message)
        else:
            # The first loss may be chance, so the job may start again at once.
            later = self._back_off(tries - 1) if tries > 1 else None
            self._release(lease, at=at, said=said, failed_starts=tries, not_before=later)

    def _back_off(self, tries: int) -> datetime:
        return self.now + timedelta(seconds=BACK_OFF_SECONDS[min(tries, len(BACK_OFF_SECONDS)) - 1])

    def _give_up(self, lease: Lease, *, at: datetime, end: End, message: str) -> None:
        job = lease.job
        self.history.move(
            job,
            Event.FAILED,
            at=at,
            epoch=lease.epoch,
            said=Message.of(EventCode.GIVEN_UP, starts=job.failed_starts),
            end_reason=Job.End(end),
            end_message=message,
        )

    # --- consequences ----------------------------------------------------------------------------

    def never_started(self, lease: Lease, *, at: datetime, thaws: bool) -> None:
        """Ends an attempt whose processes never started. The job waits again, or ends if it was being cancelled.

        `thaws` is True if the attempt was meant to resume frozen processes. These stay frozen if the job waits again
        and all their nodes are ready; in all other cases they are ended.
        """
        job = lease.job
        if job.state == Job.State.CANCELLING:
            said = Message.of(EventCode.CANCELLED_EARLY)
            self.history.move(job, Event.GONE, at=at, said=said, epoch=lease.epoch, **_cancelled(job))
            if thaws:
                end_frozen(job, verb=Operation.Verb.KILL)
            return
        stays = thaws and not lease.held_gpus.exclude(node__state=Node.State.READY).exists()
        if thaws and not stays:
            end_frozen(job, verb=Operation.Verb.STOP)
        self._release(lease, at=at, said=Message.of(EventCode.NOT_STARTED), frozen=stays)

    def _release(
        self, lease: Lease, *, at: datetime, said: Message, frozen: bool = False, **changes: Any
    ) -> None:
        self.history.move(
            lease.job, Event.RELEASED, at=at, said=said, epoch=lease.epoch, frozen=frozen, **changes
        )

    def close(self, lease: Lease, *, at: datetime, why: LeaseEnd) -> None:
        """Closes the lease at the time `at`, from which its GPUs are free."""
        lease.state, lease.held_until, lease.end_reason = Lease.State.CLOSED, at, why
        if lease.held_from is not None:
            self.history.change(lease.job, held_for=lease.job.held_for + (at - lease.held_from))
            if lease.running_from is None and lease.held_from < at:
                lease.lost_from = lease.held_from
        self._closed.append(lease)
        self._last_seen.setdefault(lease.pk, lease.last_seen_at)
        lease.last_seen_at = at
        self._touched[lease.pk] = lease

    def save(self) -> None:
        """Writes leases, GPUs, progress, history and ledger entries. Then starts gangs whose reserved GPUs are free
        now."""
        closed = self._closed
        if closed:
            bill(closed, until=None)
            end_with(closed)
        update_rows(self._touched.values(), LEASE_FIELDS)
        warn_of_repeated_work(write_lost_work(self._resumed))
        self._save_progress()
        self._save_switch_cost()
        heard = [
            ObservedLease(one, self._last_seen[pk])
            for pk, one in self._touched.items()
            if pk in self._last_seen
        ]
        if heard:
            correct_rounds(heard[0].lease.cluster, heard)
        if closed:
            write_times(lease.pk for lease in closed)
            # Saved before the hand-over, which may move one of these jobs again.
            self.history.save()
            _withdraw_reservations([lease.job for lease in closed], now=self.now)
            advance(self.cluster_id, now=self.now, history=self.history)
            want_rounds(Cluster.objects.filter(pk=self.cluster_id))
        self.history.save()

    def moment(self, lease: Lease, age: float) -> datetime:
        """Returns the time `age` seconds ago by the database's clock, or the start of the lease's unbilled time if that
        is later."""
        at = self.now - timedelta(seconds=max(0.0, age))
        # The bound is applied last: if the clock was set back, even the present may precede the lease's start.
        return max(filter(None, [at, lease.unbooked_from]))

    # --- progress ----------------------------------------------------------------------------------

    def _note_progress(self, lease: Lease, seen: Observation) -> None:
        if seen.steps is None or not 0 <= seen.steps <= MOST_STEPS:
            return
        at = self.moment(lease, seen.steps_age or 0.0)
        fewer = lease.progress_steps is not None and seen.steps < lease.progress_steps
        if lease.progress_steps is None or lease.progress_at is None or fewer:
            if lease.progress_steps is None:
                self._resumed[lease] = seen.steps
            lease.first_steps, lease.first_steps_at = seen.steps, at
            lease.progress_steps, lease.progress_at = seen.steps, at
            self._touched[lease.pk] = lease
            self.history.change(lease.job, steps_done=seen.steps)
            return
        steps, seconds = seen.steps - lease.progress_steps, (at - lease.progress_at).total_seconds()
        if seconds < SEEN_EVERY.total_seconds() and seen.phase is Phase.RUNNING:
            return
        if steps >= LEAST_STEPS and seconds > 0:
            self._progress.append((lease, steps, seconds))
            lease.progress_steps, lease.progress_at = seen.steps, at
            self._touched[lease.pk] = lease
        elif steps > 0 and seen.phase is Phase.ENDED:
            # These steps have no duration, because an earlier observation was stored late. They still count.
            lease.progress_steps = seen.steps
            self._touched[lease.pk] = lease
            self.history.change(lease.job, steps_done=seen.steps)

    def _save_progress(self) -> None:
        for lease, steps, seconds in self._progress:
            speed, _ = JobSpeed.objects.get_or_create(job_id=lease.job_id, generation_id=lease.generation_id)
            # The speed is that of the least size: a gang is assumed to be as much faster as it is larger.
            speed.steps += steps * lease.job.gpus / lease.gpus
            speed.seconds += seconds
            speed.updated_at = self.now
            speed.save(update_fields=["steps", "seconds", "updated_at"])
            self.history.change(lease.job, steps_done=lease.progress_steps)

    def _save_switch_cost(self) -> None:
        """Updates the cluster's switch cost: a moving average of the seconds that a gang loses when it is stopped and
        started again.

        The new measurement is the median over the gangs that started again in this batch.
        """
        # First starts are not part of a switch, and many simultaneous ones would be slow and distort the average.
        begun = {(lease.job_id, lease.epoch): lease for lease in self._begun if lease.epoch > 1}
        if not begun:
            return
        stopped = Lease.objects.filter(
            job__in={job for job, _ in begun},
            state=Lease.State.CLOSED,
            end_reason__in=(Lease.End.STOPPED, Lease.End.FROZEN),
            stop_asked_at__isnull=False,
        ).order_by("pk")
        lost = []
        for before in stopped:
            after = begun.get((before.job_id, before.epoch + 1))
            if (
                after
                and after.held_from
                and after.running_from
                and before.held_until
                and before.stop_asked_at
            ):
                stop = before.held_until - before.stop_asked_at
                start = after.running_from - after.held_from
                lost.append(max(0.0, (stop + start).total_seconds()))
        if lost:
            cost = F("switch_seconds") * (1 - SMOOTHING) + median(lost) * SMOOTHING
            Cluster.objects.filter(pk=self.cluster_id).update(switch_seconds=cost)


def _withdraw_reservations(jobs: Sequence[Job], *, now: datetime) -> None:
    """Withdraws the reservations of jobs that have ended, or that must wait before they start again after a failure
    of their start or program."""
    out = [job.pk for job in jobs if job.has_ended or (job.not_before and job.not_before > now)]
    if out:
        reserved = Lease.objects.filter(job__in=out, state=Lease.State.RESERVED)
        withdraw(list(reserved), why=Lease.End.NOT_NEEDED)


def _cancelled(job: Job) -> dict[str, str]:
    """Returns the values of a cancelled job's fields `end_reason` and `end_message`.

    Keeps the message that was stored when the user cancelled the job.
    """
    return {"end_reason": Job.End.CANCELLED, "end_message": job.end_message}


def bill(leases: Sequence[Lease], *, until: datetime | None) -> None:
    """Books the unbilled time of each lease in the ledger, up to `until` or to the lease's end if that is earlier.

    `until` None means up to the lease's end. Sets `billed_until` of the leases, but does not save them.
    """
    usages = []
    stretches = [(lease, *period) for lease in leases if (period := lease.unbooked_period(until)) is not None]
    if not stretches:
        return
    first, last = min(begins for _, begins, _ in stretches), max(ends for _, _, ends in stretches)
    unused = unused_of([lease.pk for lease, _, _ in stretches], first, last)
    for lease, begins, ends in stretches:
        usages.append(
            Usage(
                book=lease.cluster_id,
                lease_id=lease.pk,
                job_id=lease.job_id,
                job_name=lease.job.name,
                tenant=lease.job.tenant,
                user=lease.job.owner,
                generation=lease.generation,
                gpus=lease.gpus,
                begins=begins,
                ends=ends,
                running_from=lease.running_from,
                unused=unused.get(lease.pk, ()),
            )
        )
        lease.billed_until = ends
    book_usage(usages)
