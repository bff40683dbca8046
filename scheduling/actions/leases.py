"""Leases from promise to close. Everything here follows what was observed and holds the cluster's lock."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from django.db import transaction
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange
from django.db.models import Prefetch

from accounting.clock import now_from_database
from accounting.ledger import Usage, book_usage_many
from scheduling.backends.base import End, Observation, Phase
from scheduling.history import History
from scheduling.lifecycle import Event
from scheduling.locks import lock_schedule
from scheduling.models import Cluster, HeldGpu, Job, JobSpeed, Lease, Operation
from scheduling.wake import wake_operations, wake_rounds

MAX_FAILED_STARTS = 3
BACK_OFF_SECONDS = (5, 30, 120)
# How much one new measurement moves the smoothed cost of a switch.
SMOOTHING = 0.2
# last_seen_at and progress are written at most this often, to spare the disk.
SEEN_EVERY = timedelta(seconds=2)
LEASE_FIELDS = [
    "state", "running_from", "held_until", "last_seen_at", "end_reason", "billed_until",
    "progress_steps", "progress_at",
]  # fmt: skip


@transaction.atomic(durable=True)
def apply_observations(*, cluster_id: int, observations: Sequence[Observation]) -> list[Lease]:
    """Writes down what the backend saw; returns the leases whose processes are gone and booked.

    Any observation may come twice, late or never: only what changes an open lease has an effect.
    """
    lock_schedule(cluster_id)
    now = now_from_database()
    leases = {
        lease.token: lease
        for lease in Lease.objects.filter(token__in=[seen.token for seen in observations])
        .select_related("job__owner", "job__tenant", "generation", "cluster")
        .prefetch_related(Prefetch("held_gpus", HeldGpu.objects.select_related("node")))
    }
    desk = _Desk(cluster_id, now)
    gone: list[Lease] = []
    for seen in observations:
        lease = leases.get(seen.token)
        if lease is None:
            continue
        if lease.state in Lease.HOLDING:
            desk.observe(lease, seen)
        elif lease.state == Lease.State.CLOSED and lease.job.frozen:
            desk.observe_frozen(lease, seen)
        if seen.phase is Phase.ENDED and lease.state == Lease.State.CLOSED:
            gone.append(lease)
    desk.save()
    return gone


@transaction.atomic(durable=True)
def close_never_started(*, cluster_id: int, lease_ids: Iterable[int]) -> None:
    """Closes leases that were told to stop before anything of them had been started."""
    lock_schedule(cluster_id)
    now = now_from_database()
    desk = _Desk(cluster_id, now)
    leases = Lease.objects.filter(pk__in=lease_ids, cluster=cluster_id, state=Lease.State.STOPPING)
    for lease in leases.select_related("job__owner", "job__tenant", "generation", "cluster"):
        started = lease.operations.filter(
            verb__in=[Operation.Verb.START, Operation.Verb.THAW], attempts__gt=0
        )
        if not started.exists():
            desk.close(lease, at=now, why="stopped before it began")
            desk.release(lease, at=now, text="Its GPUs were given back before it had started")
    desk.save()


@transaction.atomic(durable=True)
def bill_running(*, cluster_id: int) -> int:
    """Books the full hours of leases that still run; returns how many leases had some."""
    lock_schedule(cluster_id)
    now = now_from_database()
    hour = now.replace(minute=0, second=0, microsecond=0)
    leases = list(
        Lease.objects.filter(cluster=cluster_id, state__in=Lease.HOLDING, held_from__lt=hour)
        .exclude(billed_until__gte=hour)
        .select_related("job__owner", "job__tenant", "generation")
    )
    _bill(leases, until=hour)
    Lease.objects.bulk_update(leases, ["billed_until"], batch_size=2000)
    return len(leases)


@transaction.atomic(durable=True)
def hand_over(*, cluster_id: int) -> int:
    """Gives promised GPUs that are free by now to their gangs; returns to how many."""
    lock_schedule(cluster_id)
    history = History()
    begun = advance(cluster_id, now=now_from_database(), history=history)
    history.save()
    return begun


def advance(cluster_id: int, *, now: datetime, history: History) -> int:
    """Gives promised GPUs to their gangs wherever the former holders have left. Returns how many began.

    Runs inside the caller's transaction; the caller holds the lock and saves `history`.
    """
    promised = list(
        Lease.objects.filter(cluster=cluster_id, state=Lease.State.PROMISED)
        .select_related("job", "generation")
        .prefetch_related(Prefetch("held_gpus", HeldGpu.objects.select_related("node")))
        .order_by("id")
    )
    if not promised:
        return 0
    taken = set(
        HeldGpu.objects.filter(
            lease__cluster=cluster_id, during__isnull=False, during__endswith__isnull=True
        ).values_list("node_id", "gpu_index")
    )
    begun: list[Lease] = []
    for lease in promised:
        wanted = {(gpu.node_id, gpu.gpu_index) for gpu in lease.held_gpus.all()}
        if wanted & taken:
            continue
        taken |= wanted
        begun.append(lease)
    _begin(begun, now=now, history=history)
    if begun:
        wake_operations(cluster_id)
    return len(begun)


def _begin(leases: Sequence[Lease], *, now: datetime, history: History) -> None:
    """The leases' GPUs are theirs from `now`; their processes are to be started."""
    operations = []
    for lease in leases:
        job = lease.job
        lease.state, lease.held_from, lease.last_seen_at = Lease.State.STARTING, now, now
        verb = Operation.Verb.THAW if job.frozen else Operation.Verb.START
        operations.append(Operation(cluster_id=lease.cluster_id, lease=lease, verb=verb))
        history.move(
            job,
            Event.PICKED,
            at=now,
            text=f"Given {lease.gpus} {lease.generation.name} on {describe_nodes(lease)}",
            reason=0,
            frozen=False,
            first_started_at=job.first_started_at or now,
        )
    Lease.objects.bulk_update(leases, ["state", "held_from", "last_seen_at"], batch_size=2000)
    HeldGpu.objects.filter(lease__in=leases).update(during=DateTimeTZRange(now, None, "[)"))
    Operation.objects.bulk_create(operations, batch_size=2000)


def ask_to_stop(
    leases: Sequence[Lease], *, event: Event, text: str, now: datetime, history: History, freeze: bool = False
) -> None:
    """Orders holding leases to give their GPUs back; inside the caller's transaction and lock."""
    stopping = [lease for lease in leases if lease.state in (Lease.State.STARTING, Lease.State.RUNNING)]
    operations = []
    for lease in stopping:
        frozen = freeze and lease.state == Lease.State.RUNNING
        lease.state, lease.stop_asked_at = Lease.State.STOPPING, now
        verb = Operation.Verb.FREEZE if frozen else Operation.Verb.STOP
        operations.append(Operation(cluster_id=lease.cluster_id, lease=lease, verb=verb))
        history.move(lease.job, event, at=now, text=text)
    Lease.objects.bulk_update(stopping, ["state", "stop_asked_at"], batch_size=2000)
    Operation.objects.bulk_create(operations, batch_size=2000, ignore_conflicts=True)
    if operations:
        wake_operations(operations[0].cluster_id)


def withdraw(leases: Sequence[Lease], *, now: datetime, why: str) -> None:
    """Takes promises back; nothing had been held."""
    HeldGpu.objects.filter(lease__in=leases).delete()
    Lease.objects.filter(pk__in=[lease.pk for lease in leases], state=Lease.State.PROMISED).update(
        state=Lease.State.CLOSED, end_reason=why
    )


def describe_nodes(lease: Lease) -> str:
    """ "v100-0 (GPU 0, 1) and v100-1 (GPU 3)"."""
    by_node: dict[str, list[int]] = defaultdict(list)
    for gpu in lease.held_gpus.all():
        by_node[gpu.node.name].append(gpu.gpu_index)
    parts = [
        f"{node} (GPU {', '.join(map(str, sorted(set(gpus))))})" for node, gpus in sorted(by_node.items())
    ]
    return " and ".join(parts) if len(parts) <= 3 else f"{len(parts)} nodes"


class _Desk:
    """Collects what observations change, and writes it in few statements."""

    def __init__(self, cluster_id: int, now: datetime) -> None:
        self.cluster_id = cluster_id
        self.now = now
        self.history = History()
        self._touched: dict[int, Lease] = {}
        self._closed: list[Lease] = []
        self._progress: list[tuple[Lease, float, float]] = []
        self._switches: list[float] = []

    # --- what was seen ---------------------------------------------------------------------------

    def observe(self, lease: Lease, seen: Observation) -> None:
        """One observation of a lease that holds GPUs."""
        at = self._moment(lease, seen.seen_age)
        if lease.last_seen_at is None or at - lease.last_seen_at >= SEEN_EVERY:
            lease.last_seen_at = at
            self._touched[lease.pk] = lease
        self._note_progress(lease, seen)
        if seen.phase is Phase.RUNNING and lease.state == Lease.State.STARTING:
            self._started(lease, seen)
        elif seen.phase is Phase.FROZEN and lease.state == Lease.State.STOPPING:
            self._frozen(lease, seen)
        elif seen.phase is Phase.ENDED:
            self._ended(lease, seen)

    def observe_frozen(self, lease: Lease, seen: Observation) -> None:
        """Frozen processes of a waiting job that are there no more: the job will start from its checkpoint."""
        if seen.phase is Phase.ENDED:
            self.history.change(lease.job, frozen=False)
            self.history.note(
                lease.job,
                "unfrozen",
                "Its frozen processes are gone; it will go on from its last checkpoint",
                at=self.now,
            )

    def _started(self, lease: Lease, seen: Observation) -> None:
        at = self._moment(lease, seen.running_age or 0.0)
        lease.state, lease.running_from = Lease.State.RUNNING, at
        self._touched[lease.pk] = lease
        self.history.move(
            lease.job,
            Event.STARTED,
            at=at,
            text=f"Running on {lease.gpus} {lease.generation.name}",
            failed_starts=0,
        )
        if lease.held_from:
            self._switches.append((at - lease.held_from).total_seconds())

    def _frozen(self, lease: Lease, seen: Observation) -> None:
        at = self._moment(lease, seen.frozen_age or 0.0)
        if lease.job.state == Job.State.STOPPING:
            self.close(lease, at=at, why="preempted")
            self.history.move(
                lease.job, Event.RELEASED, at=at, text="Frozen; goes on at its next turn", frozen=True
            )

    def _ended(self, lease: Lease, seen: Observation) -> None:
        at = self._moment(lease, seen.ended_age or 0.0)
        job, end = lease.job, seen.end or End.LOST
        self.close(lease, at=at, why=str(end))
        outcome = {"exit_code": seen.exit_code, "end_reason": str(end), "end_message": seen.message}
        if end is End.SUCCEEDED:
            self.history.move(job, Event.SUCCEEDED, at=at, text=seen.message or "Succeeded", **outcome)
        elif job.state == Job.State.CANCELLING:
            self.history.move(
                job,
                Event.GONE,
                at=at,
                text="Cancelled; all its processes are gone",
                **(outcome | {"end_reason": "cancelled", "end_message": "Cancelled"}),
            )
        elif end is End.FAILED:
            self.history.move(job, Event.FAILED, at=at, text=seen.message or "Failed", **outcome)
        elif end is End.START_FAILED:
            self._start_failed(lease, at=at, message=seen.message)
        elif end is End.LOST:
            self._lost(lease, at=at, message=seen.message)
        else:
            self.release(lease, at=at, text="Stopped; goes on from its checkpoint at its next turn")

    def _start_failed(self, lease: Lease, *, at: datetime, message: str) -> None:
        job = lease.job
        tries = job.failed_starts + 1
        wait = BACK_OFF_SECONDS[min(tries, len(BACK_OFF_SECONDS)) - 1]
        self.history.move(
            job,
            Event.START_FAILED,
            at=at,
            text=f"Could not be started: {message}",
            failed_starts=tries,
            not_before=self.now + timedelta(seconds=wait),
        )
        if tries >= MAX_FAILED_STARTS:
            self._give_up(job, at=at, message=message)

    def _lost(self, lease: Lease, *, at: datetime, message: str) -> None:
        """Vanished processes go on from their checkpoint, but not for ever without once having run."""
        job = lease.job
        tries = job.failed_starts + (lease.running_from is None)
        self.release(
            lease, at=at, text=f"Its processes vanished; it will go on from its checkpoint. {message}"
        )
        self.history.change(job, failed_starts=tries)

    def _give_up(self, job: Job, *, at: datetime, message: str) -> None:
        self.history.move(
            job,
            Event.FAILED,
            at=at,
            text=f"Given up after {job.failed_starts} failed starts",
            end_reason=str(End.START_FAILED),
            end_message=message,
        )

    # --- what follows from it --------------------------------------------------------------------

    def release(self, lease: Lease, *, at: datetime, text: str) -> None:
        """The job waits again, or is cancelled if that was asked."""
        job = lease.job
        if job.state == Job.State.CANCELLING:
            self.history.move(
                job, Event.GONE, at=at, text="Cancelled", end_reason="cancelled", end_message="Cancelled"
            )
        else:
            self.history.move(job, Event.RELEASED, at=at, text=text, frozen=False)

    def close(self, lease: Lease, *, at: datetime, why: str) -> None:
        """The lease's GPUs are free again from `at`."""
        if lease.stop_asked_at:
            self._switches.append(max(0.0, (at - lease.stop_asked_at).total_seconds()))
        lease.state, lease.held_until, lease.end_reason = Lease.State.CLOSED, at, why
        lease.last_seen_at = at
        self._touched[lease.pk] = lease
        self._closed.append(lease)

    def save(self) -> None:
        """Writes leases, GPUs, history, progress and the ledger; hands freed GPUs on."""
        if self._closed:
            self._free_gpus()
            _bill(self._closed, until=None)
        Lease.objects.bulk_update(
            self._touched.values(),
            LEASE_FIELDS,
            batch_size=2000,
        )
        self._save_progress()
        self._save_switch_cost()
        if self._closed:
            # Jobs are saved first, as the hand-over may move one of them again.
            self.history.save()
            advance(self.cluster_id, now=self.now, history=self.history)
            Cluster.objects.filter(pk=self.cluster_id).update(round_wanted_at=self.now)
            wake_rounds(self.cluster_id)
        self.history.save()

    def _free_gpus(self) -> None:
        """Ends the GPUs' ranges at each lease's own moment; a lease of no length leaves no rows."""
        by_moment: dict[tuple[datetime | None, datetime | None], list[Lease]] = defaultdict(list)
        for lease in self._closed:
            by_moment[lease.held_from, lease.held_until].append(lease)
        for (begins, ends), leases in by_moment.items():
            held = HeldGpu.objects.filter(lease__in=leases)
            if begins == ends:
                held.update(during=DateTimeTZRange(empty=True))
            else:
                held.update(during=DateTimeTZRange(begins, ends, "[)"))

    def _moment(self, lease: Lease, age: float) -> datetime:
        """An age as a moment of the database's clock, never before the lease began nor in the future."""
        at = self.now - timedelta(seconds=max(0.0, age))
        floor = max(filter(None, [lease.held_from, lease.billed_until]), default=at)
        return min(max(at, floor), self.now)

    # --- progress ----------------------------------------------------------------------------------

    def _note_progress(self, lease: Lease, seen: Observation) -> None:
        if seen.steps is None or not math.isfinite(seen.steps) or abs(seen.steps) > 1e18:
            return
        at = self._moment(lease, seen.steps_age or 0.0)
        if lease.progress_steps is None or lease.progress_at is None:
            lease.progress_steps, lease.progress_at = seen.steps, at
            self._touched[lease.pk] = lease
            return
        steps, seconds = seen.steps - lease.progress_steps, (at - lease.progress_at).total_seconds()
        if seconds < SEEN_EVERY.total_seconds() and seen.phase is Phase.RUNNING:
            return
        if steps > 0 and seconds > 0:
            self._progress.append((lease, steps, seconds))
            lease.progress_steps, lease.progress_at = seen.steps, at
            self._touched[lease.pk] = lease

    def _save_progress(self) -> None:
        for lease, steps, seconds in self._progress:
            speed, _ = JobSpeed.objects.get_or_create(job_id=lease.job_id, generation_id=lease.generation_id)
            speed.steps += steps
            speed.seconds += seconds
            speed.updated_at = self.now
            speed.save(update_fields=["steps", "seconds", "updated_at"])
            self.history.change(lease.job, steps_done=lease.progress_steps)

    def _save_switch_cost(self) -> None:
        if not self._switches:
            return
        cluster = Cluster.objects.get(pk=self.cluster_id)
        cost = cluster.switch_seconds
        for seconds in self._switches:
            cost += SMOOTHING * (seconds - cost)
        Cluster.objects.filter(pk=self.cluster_id).update(switch_seconds=cost)


def _bill(leases: Sequence[Lease], *, until: datetime | None) -> None:
    """Books each lease from where the ledger stands up to `until`, or to its end; sets billed_until."""
    usages = []
    for lease in leases:
        begins, ends = lease.billed_until or lease.held_from, until or lease.held_until
        if begins is None or ends is None or ends <= begins:
            continue
        usages.append(
            Usage(
                lease_id=lease.pk,
                job_id=lease.job_id,
                job_name=lease.job.name,
                tenant=lease.job.tenant,
                user=lease.job.owner,
                generation=lease.generation,
                gpus=lease.gpus,
                begins=begins,
                ends=ends,
            )
        )
        lease.billed_until = ends
    book_usage_many(usages)
