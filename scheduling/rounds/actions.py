"""Runs scheduling rounds. A round counts the GPU time since the last round, reads a snapshot of the cluster, lets the
policy decide, and stores the decision.

A round is one transaction that holds the cluster's scheduling lock.
"""

from __future__ import annotations

import gc
import logging
import secrets
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np
from django.db import connection, transaction
from django.db.models import DateTimeField, Value
from django.db.models.fields.json import KT
from django.db.models.functions import NullIf

from accounting.core.bulk import array
from accounting.core.clock import now_from_database
from accounting.models import Generation
from fairshare import codec
from fairshare import model as fs
from fairshare.driver import between_quanta
from fairshare.validate import InvalidPlan
from scheduling.core import pubsub
from scheduling.core.enqueue import want_rounds
from scheduling.core.event_texts import sentence_of
from scheduling.core.locks import try_lock_schedule
from scheduling.leases import actions as lease_actions
from scheduling.leases.causes import Causes
from scheduling.leases.history import History
from scheduling.leases.lifecycle import Event
from scheduling.leases.reservations import Place, Reservation, advance, reserve, withdraw
from scheduling.models import Cluster, HeldGpu, Job, JobEvent, Lease, Node, Round, RoundRecord
from scheduling.models.event_codes import Cause, EventCode, Message
from scheduling.rounds.builds import build_of
from scheduling.rounds.gpu_numbers import Gpu, GpuNumbers, NoGpus
from scheduling.rounds.notices import give_notice, notices_over
from scheduling.shares.advance import seconds_to_next_edge
from scheduling.shares.intervals import describe_shares, end_shares, save_shares, settle_shares
from scheduling.shares.preemptible import note_preemptible
from scheduling.shares.situations import (
    Lasted,
    Memory,
    happened_as_bytes,
    options_as_json,
    policy_of_cluster,
    remember,
    situation_of_record,
    situation_of_round,
)
from scheduling.shares.snapshot import SnapshotIndex, read_snapshot
from scheduling.shares.trades import record_trades

logger = logging.getLogger(__name__)


@contextmanager
def _no_garbage_collected() -> Iterator[None]:
    """Context manager that disables Python's garbage collector."""
    # It would take a third of a round's time. A round creates no reference cycles, so no memory is lost.
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@_no_garbage_collected()
@transaction.atomic(durable=True)
def run_round(*, cluster_id: int, force: Round.Kind | None = None) -> Round | None:
    """Runs a round of one cluster, of kind `force` or, without `force`, of the kind that is due. Returns the round.

    Any number of workers may call this at any time. Returns None in these cases:

    - Another worker holds the cluster's scheduling lock.
    - The cluster has no unfinished jobs.
    - `force` is None, and no round is due or the cluster does not answer.
    """
    if not try_lock_schedule(cluster_id):
        return None
    cluster = Cluster.objects.get(pk=cluster_id)
    now = now_from_database()
    kind = force or due_kind(cluster, now)
    if kind is None or (force is None and cluster.is_silent(now)):
        return None
    previous = cluster.last_round_at
    cluster.last_round_at = now
    if kind == Round.Kind.QUANTUM:
        cluster.last_quantum_at = now
    wanted = cluster.round_wanted_at
    if _anyone_there(cluster):
        lasted = settle_shares(cluster, since=previous, now=now)
        round_ = _decide_and_commit(cluster, kind, lasted, now=now)
    else:
        round_, cluster.ask_again_at = None, None
        end_shares(cluster, since=previous, now=now)
    # Keeps a request that came after `wanted` was read, because this round may not have seen its cause.
    cluster.round_wanted_at = NullIf("round_wanted_at", Value(wanted, DateTimeField()))
    cluster.save(
        update_fields=["last_round_at", "last_quantum_at", "round_wanted_at", "ask_again_at", "round_number"]
    )
    pubsub.publish(f"cluster:{cluster.pk}")
    return round_


def due_kind(cluster: Cluster, now: datetime) -> Round.Kind | None:
    """Returns the kind of round that is due at `now`; None if no round is due.

    A quantum round is due when the quantum is over. Before that, a fill round is due for any of these reasons:

    - Somebody requested a round, or the time has come at which the policy wanted to decide again.
    - New jobs wait.
    - A job that had to wait after a failed start may start again.
    - The notice time of a replica or session is over, so that a round may preempt it.
    """
    last = cluster.last_quantum_at
    # A last round in the future means that the clock was set back: jobs must not wait until the clock catches up.
    if last is None or not 0 <= (now - last).total_seconds() < cluster.effective_quantum:
        return Round.Kind.QUANTUM
    if cluster.round_wanted_at is not None or (cluster.ask_again_at and cluster.ask_again_at <= now):
        return Round.Kind.FILL
    # Submit times do not help: a job may be committed after a round that began later than the job's submit time.
    if Job.objects.filter(cluster=cluster).new_to_rounds().exists():
        return Round.Kind.FILL
    if notices_over(cluster, now):
        return Round.Kind.FILL
    due_again = (
        Job.objects.filter(cluster=cluster)
        .waiting()
        .filter(not_before__gt=cluster.last_round_at, not_before__lte=now)
    )
    return Round.Kind.FILL if due_again.exists() else None


def _anyone_there(cluster: Cluster) -> bool:
    return Job.objects.filter(cluster=cluster).unfinished().exists()


def _decide_and_commit(cluster: Cluster, kind: Round.Kind, lasted: Lasted | None, *, now: datetime) -> Round:
    stopwatch = _Stopwatch()
    memory = Memory.read(cluster)
    # Accounts whose jobs all ended since the last round stay in the snapshot until their share and GPU time are
    # counted.
    also = (memory.users if memory else set()) | (lasted.users if lasted else set())
    is_fill = kind == Round.Kind.FILL
    snapshot, legend = read_snapshot(cluster, now=now, lock=True, also=also, between=is_fill)
    if is_fill:
        settings = between_quanta(policy_of_cluster(cluster), snapshot.settings)
        snapshot = replace(snapshot, settings=settings)
    situation, happened = situation_of_round(cluster, snapshot, legend.axes, memory=memory, lasted=lasted)
    read_ms = stopwatch.lap_ms()
    # 63 bits, because PostgreSQL's bigint is signed. Nobody can predict the seed.
    seed = secrets.randbits(63)
    try:
        decision = situation.decide(seed)
    except InvalidPlan:
        logger.exception("%s: what round %s decided is refused", cluster, cluster.round_number + 1)
        raise
    decide_ms = stopwatch.lap_ms()
    if decision.remark is not None:
        logger.warning("%s, round %s: %s", cluster, cluster.round_number + 1, decision.remark)
    asks = [decision.ask_again, seconds_to_next_edge(snapshot)]
    soonest = min((one for one in asks if one is not None), default=None)
    cluster.ask_again_at = None if soonest is None else now + timedelta(seconds=soonest)
    cluster.round_number += 1
    commit = _Commit(cluster, snapshot, legend, decision, now)
    started, stopped = commit.apply()
    give_notice(cluster, snapshot, decision, legend, causes=commit.causes, now=now)
    note_preemptible(
        cluster_id=cluster.pk,
        preemptible=()
        if decision.preemptible is None
        else [legend.jobs[job] for job in decision.preemptible.tolist()],
        anew=snapshot.settings.may_preempt,
        now=now,
    )
    up = int(snapshot.cluster.capacity.sum())
    round_ = Round.objects.create(
        cluster=cluster,
        number=cluster.round_number,
        kind=kind,
        at=now,
        ordering=cluster.ordering,
        policy=situation.policy.name,
        policy_version=situation.policy.version,
        policy_build=build_of(situation.policy.name, situation.policy.version),
        policy_options=options_as_json(situation.policy),
        seed=seed,
        gpus_up=up,
        gpus_given=int(decision.gpus(snapshot.jobs).sum()),
        jobs_considered=len(snapshot.jobs),
        started=started,
        stopped=stopped,
        read_ms=read_ms,
        decide_ms=decide_ms,
        shares=describe_shares(snapshot, decision, legend.axes),
    )
    RoundRecord.objects.create(
        round=round_,
        snapshot=codec.encode(snapshot),
        state=codec.encode_state(situation.state),
        happened=happened_as_bytes(happened),
        decision=codec.encode(decision),
        legend=legend.to_json(),
    )
    record_trades(round_, decision, legend)
    remember(cluster, situation, decision, legend.axes)
    save_shares(cluster, situation, decision, legend, corrected=lasted is not None)
    return round_


@dataclass(frozen=True, slots=True)
class _Open:
    """An open lease with its GPUs."""

    id: int
    job: int
    state: str
    generation: int
    places: list[Place]


class _Commit:
    """Writes a decision to the database: as leases, orders to the backend, and reasons of waiting jobs."""

    def __init__(
        self, cluster: Cluster, view: fs.Snapshot, legend: SnapshotIndex, decision: fs.Decision, now: datetime
    ) -> None:
        self.cluster, self.legend, self.decision, self.now = cluster, legend, decision, now
        self.causes = Causes(view, decision, legend)
        self.history = History()
        self.open = _read_open(cluster)  # by id
        self.freezing: set[int] = set()  # ids of leases whose gangs this decision freezes
        self.place_lost: dict[
            Job, Message
        ] = {}  # picked jobs whose GPUs turned out to be unavailable, and why

    def apply(self) -> tuple[int, int]:
        """Writes the decision. Returns the number of gangs that get a new lease, and the number of gangs that must
        stop."""
        picks = self._picks()
        # A stopping job may have a reservation in addition to its lease; other jobs have at most one lease.
        present = {one.job: one for one in self.open.values() if one.state != Lease.State.STOPPING}
        leave = self._leaving(present, picks)
        stopping = self._stop(leave, movers={job: picks[job][1] for job in leave if job in picks})
        newcomers = {job: pick for job, pick in picks.items() if job not in present or job in leave}
        started = self._reserve(newcomers, stopping)
        advance(self.cluster.pk, now=self.now, history=self.history)
        self.history.save()
        self._write_reasons()
        return started, len(stopping)

    def _picks(self) -> dict[int, tuple[int, list[int]]]:
        """Returns (generation id, node ids by rank) for each job that the decision runs, by job id."""
        decision, legend = self.decision, self.legend
        picks = {}
        nodes = [legend.nodes[n] for n in decision.place_node.tolist()]
        bounds = decision.place_start.tolist()
        for p, (job, kind) in enumerate(
            zip(decision.run.tolist(), decision.generation.tolist(), strict=True)
        ):
            picks[legend.jobs[job]] = (legend.generations[kind], nodes[bounds[p] : bounds[p + 1]])
        return picks

    @staticmethod
    def _leaving(present: dict[int, _Open], picks: dict[int, tuple[int, list[int]]]) -> dict[int, _Open]:
        """Returns, by job id, the leases in `present` that must end.

        These are the leases of jobs that the decision does not run, or that it runs on another GPU type or on other
        nodes.
        """
        leave = {}
        for job, lease in present.items():
            generation, nodes = picks.get(job, (None, []))
            here = {place.rank: place.node for place in lease.places}
            if generation != lease.generation or sorted(nodes) != sorted(here.values()):
                leave[job] = lease
        return leave

    def _stop(self, leave: dict[int, _Open], *, movers: dict[int, list[int]]) -> dict[int, Job]:
        """Withdraws those leases in `leave` that are only reserved, and orders the others to stop or freeze.

        `movers` has the new nodes of the jobs that get other GPUs in this round; their gangs are stopped, not frozen,
        because frozen processes cannot change nodes. Gangs that may change their size are never frozen. Returns, by id,
        the jobs whose leases were ordered to stop or freeze.
        """
        leases = list(
            Lease.objects.filter(pk__in=[lease.id for lease in leave.values()])
            .select_related("job")
            .prefetch_related("job__owner")  # reads each owner once: few owners have many jobs
            .defer("job__spec")
        )
        reserved = [lease for lease in leases if lease.state == Lease.State.RESERVED]
        holding = [lease for lease in leases if lease.state != Lease.State.RESERVED]
        withdraw(reserved, why=Lease.End.WITHDRAWN)
        for lease in reserved:
            del self.open[lease.pk]
        archived, without_right = self._with(fs.Reason.TEAM_ARCHIVED), self._with(fs.Reason.OWNER_MAY_NOT)
        freezes = self.cluster.freezes
        resumable = self._resumable(holding) if self.cluster.slicing == Cluster.Slicing.AUTO else set()
        moves = set(movers) | (self._on_closed(holding) if freezes and holding else set())
        said = dict.fromkeys(moves, (Cause.MOVED, Message.of(EventCode.MOVED)))
        said |= {lease.job_id: resized for lease in holding if (resized := self._resized(lease, movers))}
        said |= dict.fromkeys(archived, (Cause.ARCHIVED, Message.of(EventCode.TEAM_ARCHIVED)))
        said |= dict.fromkeys(without_right, (Cause.NO_RIGHT, Message.of(EventCode.OWNER_MAY_NOT)))
        orders = []
        for lease in holding:
            cause, why = said.get(lease.job_id) or self.causes.why(lease.job)
            # A gang frozen on these nodes cannot resume on other nodes.
            frozen = freezes and cause is not Cause.MOVED and lease.job.max_workers is None
            frozen = frozen and lease.job_id not in resumable
            orders.append(lease_actions.StopOrder(lease, why, cause, freeze=frozen))
            if frozen:
                self.freezing.add(lease.pk)
        lease_actions.ask_to_stop(orders, event=Event.PREEMPTED, now=self.now, history=self.history)
        for lease in holding:
            self.open[lease.pk] = replace(self.open[lease.pk], state=lease.state)
        return {lease.job_id: lease.job for lease in holding}

    @staticmethod
    def _resized(lease: Lease, movers: dict[int, list[int]]) -> tuple[Cause, Message] | None:
        """Returns why an elastic gang stops if it continues with another number of workers; None if it does not."""
        before, now = lease.gpus // lease.job.gpus_per_worker, len(movers.get(lease.job_id, ()))
        if now in (0, before):
            return None
        return Cause.RESIZED, Message.of(EventCode.RESIZED, before=before, workers=now)

    def _with(self, reason: fs.Reason) -> set[int]:
        """Returns the ids of the jobs for which the decision gives the reason `reason`."""
        return {self.legend.jobs[i] for i in np.flatnonzero(self.decision.reason == reason).tolist()}

    @staticmethod
    def _resumable(holding: Iterable[Lease]) -> set[int]:
        """Returns the ids of the jobs that have a `checkpoint` in their spec, from which they can resume."""
        named = Job.objects.alias(checkpoint=KT("spec__checkpoint")).filter(checkpoint__gt="")
        return set(named.filter(pk__in=[lease.job_id for lease in holding]).values_list("pk", flat=True))

    def _on_closed(self, holding: Iterable[Lease]) -> set[int]:
        """Returns the job ids of those leases in `holding` that have GPUs on a node that is not ready.

        Gangs of these jobs must not be frozen, because nothing starts or resumes on such a node.
        """
        closed = Node.objects.filter(cluster=self.cluster).exclude(state=Node.State.READY)
        nodes = set(closed.values_list("pk", flat=True))
        return {lease.job_id for lease in holding if nodes & {at.node for at in self.open[lease.pk].places}}

    def _reserve(self, newcomers: dict[int, tuple[int, list[int]]], stopping: dict[int, Job]) -> int:
        """Chooses and reserves GPUs for the picked jobs in `newcomers`. Gangs whose GPUs are all free start
        immediately.

        - `newcomers`: (generation id, node ids by rank) for each job that gets a new lease, by job id.
        - `stopping`: the jobs whose present leases were ordered to stop or freeze, by job id.

        Returns the number of new leases. A job whose GPUs are unavailable gets no lease; it is added to the attribute
        `place_lost`.
        """
        read = Job.objects.filter(pk__in=newcomers.keys() - stopping.keys()).defer("spec")
        jobs = stopping | {job.pk: job for job in read}
        generations = Generation.objects.in_bulk(self.legend.generations)
        numbers = _GpuNumbers(self.cluster, self.open.values(), self.freezing)
        new = []
        for job_id in numbers.frozen_first(newcomers):
            job, (generation, nodes) = jobs[job_id], newcomers[job_id]
            try:
                places = numbers.take(job, nodes)
            except _PlaceLost as lost:
                self.place_lost[job] = lost.why
                continue
            self.history.change(job, epoch=job.epoch + 1)
            lease = Lease(
                job=job,
                cluster=self.cluster,
                epoch=job.epoch,
                generation=generations[generation],
                gpus=len(places),
                decided_at=self.now,
            )
            new.append(Reservation(lease, places))
        reserve(new, busy=numbers.busy, now=self.now, history=self.history)
        return len(new)

    def _write_reasons(self) -> None:
        """Stores the reasons of those waiting jobs whose reason changed.

        A picked job that still waits gets one of these reasons:

        - GPUS_DRAINING: other gangs have not left its GPUs yet.
        - PLACE_LOST: its GPUs are unavailable.
        """
        reasons = self.decision.reason.copy()
        reasons[self.decision.run] = fs.Reason.GPUS_DRAINING
        if self.place_lost:
            self._note_lost_places(reasons)
        changed = np.flatnonzero(reasons != self.legend.reasons)
        jobs = [self.legend.jobs[i] for i in changed.tolist()]
        with connection.cursor() as cursor:
            cursor.execute(
                """
                UPDATE scheduling_job AS job SET reason = new.reason
                  FROM unnest(%s::bigint[], %s::smallint[]) AS new (id, reason)
                 WHERE job.id = new.id AND job.state = ANY(%s)
                """,
                [array(jobs), array(reasons[changed].tolist()), list(Job.WAITING)],
            )

    def _note_lost_places(self, reasons: fs.Ints) -> None:
        """Writes PLACE_LOST to `reasons` (J,) for picked jobs whose GPUs were unavailable.

        If the reason is new for a job, also adds an entry to the job's history and requests another round.
        """
        row = {job: i for i, job in enumerate(self.legend.jobs)}
        for job, why in self.place_lost.items():
            i = row[job.pk]
            reasons[i] = fs.Reason.PLACE_LOST
            logger.warning(
                "job %s could not start on the GPUs that it was assigned: %s", job.pk, sentence_of(why)
            )
            if self.legend.reasons[i] != fs.Reason.PLACE_LOST:
                self.history.note(job, JobEvent.PLACE_LOST, why, at=self.now)
                # A third attempt would fail in the same way: the next quantum is early enough.
                want_rounds(Cluster.objects.filter(pk=self.cluster.pk))
        self.history.save()


def _read_open(cluster: Cluster) -> dict[int, _Open]:
    leases = Lease.objects.filter(cluster=cluster, state__in=Lease.OPEN)
    found = {
        pk: _Open(pk, job, state, generation, [])
        for pk, job, state, generation in leases.values_list("id", "job_id", "state", "generation_id")
    }
    gpus = HeldGpu.objects.filter(lease__cluster=cluster, lease__state__in=Lease.OPEN).order_by()
    for lease, rank, node, gpu in gpus.values_list("lease_id", "rank", "node_id", "gpu_index"):
        found[lease].places.append(Place(rank, node, gpu))
    return found


class _PlaceLost(Exception):
    """Raised if GPUs that a decision gave to a job are unavailable. `why` is a message that names the node and the
    cause."""

    def __init__(self, why: Message) -> None:
        super().__init__(why)
        self.why = why


class _GpuNumbers:
    """Chooses the GPU indices for gangs on the nodes that a decision gave them (gpu_numbers.py)."""

    def __init__(self, cluster: Cluster, leases: Iterable[_Open], freezing: Collection[int]) -> None:
        """Computes which GPUs may be taken, and which of them stopping gangs still hold.

        - `leases`: all open leases.
        - `freezing`: the ids of those leases whose gangs are being frozen.
        """
        nodes = Node.objects.filter(cluster=cluster).only("name", "gpus", "state", "state_reason")
        self.nodes = {node.pk: node for node in nodes}
        ready = {
            node.pk: set(range(node.gpus)) if node.state == Node.State.READY else set()
            for node in self.nodes.values()
        }
        busy: set[Gpu] = set()
        former: dict[int, set[Gpu]] = defaultdict(set)
        for lease in leases:
            its = {(place.node, place.gpu) for place in lease.places}
            if lease.state == Lease.State.STOPPING:
                busy |= its
            else:
                for node, number in its:
                    ready[node].discard(number)
            if lease.id in freezing:
                former[lease.job] |= its
        frozen = Lease.objects.filter(cluster=cluster).of_frozen_processes()
        places = HeldGpu.objects.filter(lease__in=frozen.values("pk")).order_by()
        for job, node, number in places.values_list("lease__job_id", "node_id", "gpu_index"):
            former[job].add((node, number))
        self._numbers = GpuNumbers(ready, busy, former)

    @property
    def busy(self) -> set[Gpu]:
        return self._numbers.busy

    def frozen_first(self, jobs: Iterable[int]) -> list[int]:
        """Returns the ids of jobs, first of those that have frozen processes."""
        return sorted(jobs, key=lambda job: not self._numbers.is_frozen(job))

    def take(self, job: Job, nodes: list[int]) -> list[Place]:
        """Takes GPUs for each worker of `job`. `nodes` are the ids of the workers' nodes, by rank. Returns a Place for
        each GPU.

        If a node has too few GPUs that may be taken, raises _PlaceLost and takes no GPUs.
        """
        try:
            taken = self._numbers.take(job.pk, nodes, job.gpus_per_worker)
        except NoGpus as lack:
            raise _PlaceLost(self._why_lost(self.nodes.get(lack.node), lack.wanted)) from None
        return [Place(rank, node, number) for rank, (node, number) in taken]

    def _why_lost(self, node: Node | None, wanted: int) -> Message:
        if node is None:
            return Message.of(EventCode.CHOSEN_NODE_GONE)
        its: dict[str, Any] = {"gpus": wanted, "node": node.name}
        if node.state != Node.State.READY:
            its |= {"state": node.state, "reason": node.state_reason}
            return Message.of(EventCode.CHOSEN_NODE_CLOSED, **its)
        return Message.of(EventCode.CHOSEN_GPUS_HELD, free=len(self._numbers.open[node.pk]), **its)


class _Stopwatch:
    """Measures how long each phase of a round takes, in milliseconds."""

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def lap_ms(self) -> float:
        now = time.perf_counter()
        elapsed, self._last = now - self._last, now
        return elapsed * 1000.0


def redraw(round_: Round) -> tuple[fs.Decision, fs.Decision]:
    """Returns the stored decision of a round, and the decision that its policy makes now from the round's recorded
    input.

    The input is the snapshot, the policy's state and the seed.
    """
    stored = codec.decode_decision(bytes(round_.record.decision))
    return stored, situation_of_record(round_).decide(round_.seed)


def decisions_equal(one: fs.Decision, other: fs.Decision) -> bool:
    """Returns whether two decisions are equal: in gangs, places, reasons, shares, trades, and `ask_again` (the time
    at which the policy wants to decide next)."""
    arrays = ["run", "generation", "place_start", "place_node", "reason", "share"]
    # Early rounds do not store preemptible jobs, and later rounds do not store the entitlement.
    if one.preemptible is not None:
        arrays.append("preemptible")
    if other.entitled is not None:
        arrays.append("entitled")
    same = all(np.array_equal(getattr(one, name), getattr(other, name)) for name in arrays)
    return same and (one.trades, one.ask_again) == (other.trades, other.ask_again)
