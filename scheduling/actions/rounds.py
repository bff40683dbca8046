"""One round: settle what was, read, decide, commit. One transaction under the cluster's lock."""

from __future__ import annotations

import secrets
import time
from collections import defaultdict
from datetime import datetime

import numpy as np
from django.db import transaction

from accounting.clock import now_from_database
from fairshare import codec
from fairshare import model as fs
from fairshare.policy import decide
from scheduling import live
from scheduling.actions import leases as lease_actions
from scheduling.actions.shares import describe_shares, save_shares, settle_shares
from scheduling.bulk import insert_rows, number_rows
from scheduling.history import History
from scheduling.lifecycle import Event
from scheduling.locks import try_lock_schedule
from scheduling.models import Cluster, HeldGpu, Job, Lease, Node, Round, RoundRecord, ShareBalance, Trade
from scheduling.snapshot import Legend, read_snapshot


@transaction.atomic(durable=True)
def run_round(*, cluster_id: int, force: Round.Kind | None = None) -> Round | None:
    """Decides for one cluster if a round is due (or `force` says so); None if not, or if another does it.

    Any number of workers may call this at any time: the lock lets one in, and what is not due by the
    database's clock is left alone.
    """
    if not try_lock_schedule(cluster_id):
        return None
    cluster = Cluster.objects.get(pk=cluster_id)
    now = now_from_database()
    kind = force or due_kind(cluster, now)
    if kind is None:
        return None
    previous = cluster.last_round_at
    cluster.last_round_at = now
    if kind == Round.Kind.QUANTUM:
        cluster.last_quantum_at = now
    cluster.round_wanted_at = None
    settle_shares(cluster, since=previous, now=now)
    if _anyone_there(cluster):
        round_ = _decide_and_commit(cluster, kind, now)
    else:
        round_ = None
        # Nobody has a share now, so that the next settling takes everybody for new.
        ShareBalance.objects.filter(cluster=cluster).update(share=0.0)
    cluster.save(update_fields=["last_round_at", "last_quantum_at", "round_wanted_at", "round_number"])
    live.publish(f"cluster:{cluster.pk}")
    return round_


def due_kind(cluster: Cluster, now: datetime) -> Round.Kind | None:
    """A quantum round when the quantum is over; else a fill round when something new waits."""
    last = cluster.last_quantum_at
    # A last one in the future means that the clock was set back: nobody shall wait until it is there again.
    if last is None or not 0 <= (now - last).total_seconds() < cluster.effective_quantum:
        return Round.Kind.QUANTUM
    if cluster.round_wanted_at is not None:
        return Round.Kind.FILL
    # Not by their time: a job may be committed after a round that began later than it was submitted.
    if Job.objects.filter(cluster=cluster).new_to_rounds().exists():
        return Round.Kind.FILL
    due_again = (
        Job.objects.filter(cluster=cluster)
        .waiting()
        .filter(not_before__gt=cluster.last_round_at, not_before__lte=now)
    )
    return Round.Kind.FILL if due_again.exists() else None


def _anyone_there(cluster: Cluster) -> bool:
    return Job.objects.filter(cluster=cluster).unfinished().exists()


def _decide_and_commit(cluster: Cluster, kind: Round.Kind, now: datetime) -> Round:
    stopwatch = _Stopwatch()
    snapshot, legend = read_snapshot(cluster, now=now, may_preempt=kind == Round.Kind.QUANTUM)
    read_ms = stopwatch.lap_ms()
    # PostgreSQL's bigint is signed, hence 63 bits; nobody can foresee them.
    seed = secrets.randbits(63)
    decision = decide(snapshot, seed)
    decide_ms = stopwatch.lap_ms()
    cluster.round_number += 1
    commit = _Commit(cluster, snapshot, legend, decision, now)
    started, stopped = commit.apply()
    up = int(snapshot.cluster.capacity.sum())
    jobs = snapshot.jobs
    round_ = Round.objects.create(
        cluster=cluster,
        number=cluster.round_number,
        kind=kind,
        at=now,
        draw=cluster.draw,
        seed=seed,
        gpus_up=up,
        gpus_given=int((jobs.workers * jobs.gpus)[decision.run].sum()),
        jobs_considered=len(jobs),
        started=started,
        stopped=stopped,
        read_ms=read_ms,
        decide_ms=decide_ms,
        shares=describe_shares(snapshot, decision, legend),
    )
    RoundRecord.objects.create(
        round=round_,
        snapshot=codec.encode(snapshot),
        decision=codec.encode(decision),
        legend=legend.to_json(),
    )
    _record_trades(round_, decision, legend, now)
    save_shares(cluster, decision, legend)
    return round_


def _record_trades(round_: Round, decision: fs.Decision, legend: Legend, now: datetime) -> None:
    Trade.objects.bulk_create(
        Trade(
            round=round_,
            seller_id=legend.accounts[trade.seller][0],
            buyer_id=legend.accounts[trade.buyer][0],
            slow_id=legend.generations[trade.slow],
            fast_id=legend.generations[trade.fast],
            fast_gpus=trade.fast_gpus,
            slow_gpus=trade.slow_gpus,
            price=trade.price,
            seller_speedup=trade.seller_speedup,
            buyer_speedup=trade.buyer_speedup,
            begins=now,
        )
        for trade in decision.trades
    )


class _Commit:
    """Turns a decision into leases, orders and reasons."""

    def __init__(
        self, cluster: Cluster, snapshot: fs.Snapshot, legend: Legend, decision: fs.Decision, now: datetime
    ) -> None:
        self.cluster, self.legend, self.decision, self.now = cluster, legend, decision, now
        self.snapshot = snapshot
        self.history = History()
        open_leases = Lease.objects.filter(cluster=cluster, state__in=Lease.OPEN).select_related(
            "job", "generation"
        )
        self.leases = {lease.job_id: lease for lease in open_leases}

    def apply(self) -> tuple[int, int]:
        """Writes everything; returns how many gangs were promised GPUs and how many must stop."""
        picks = self._picks()
        keep, leave = self._sort_present(picks)
        self._stop(leave)
        started = self._promise({job: pick for job, pick in picks.items() if job not in keep})
        # Saved first: the hand-over moves some of the same jobs on.
        self.history.save()
        lease_actions.advance(self.cluster.pk, now=self.now, history=self.history)
        self.history.save()
        self._write_reasons(set(picks))
        stopping = [lease for lease in leave if lease.state != Lease.State.PROMISED]
        return started, len(stopping)

    def _picks(self) -> dict[int, tuple[int, list[int]]]:
        """Job → generation and the nodes of its workers, all by primary key."""
        decision, legend = self.decision, self.legend
        picks = {}
        for p, job in enumerate(decision.run):
            begins, ends = decision.place_start[p], decision.place_start[p + 1]
            nodes = [legend.nodes[n] for n in decision.place_node[begins:ends]]
            picks[legend.jobs[job]] = (legend.generations[decision.generation[p]], nodes)
        return picks

    def _sort_present(self, picks: dict[int, tuple[int, list[int]]]) -> tuple[set[int], list[Lease]]:
        """Which present leases stay as they are (by job), and which must leave."""
        nodes_of: dict[int, dict[int, int]] = defaultdict(dict)
        held = HeldGpu.objects.filter(lease__in=self.leases.values())
        for lease_id, rank, node in held.values_list("lease_id", "rank", "node_id"):
            nodes_of[lease_id][rank] = node
        keep, leave = set(), []
        for job_id, lease in self.leases.items():
            if lease.state == Lease.State.STOPPING:
                continue
            generation, nodes = picks.get(job_id, (None, []))
            present = sorted(nodes_of[lease.pk].values())
            if generation == lease.generation_id and sorted(nodes) == present:
                keep.add(job_id)
            else:
                leave.append(lease)
        return keep, leave

    def _stop(self, leave: list[Lease]) -> None:
        promised = [lease for lease in leave if lease.state == Lease.State.PROMISED]
        lease_actions.withdraw(promised, now=self.now, why="withdrawn")
        for lease in promised:
            del self.leases[lease.job_id]
        lease_actions.ask_to_stop(
            [lease for lease in leave if lease.state != Lease.State.PROMISED],
            event=Event.PREEMPTED,
            text="Asked to give its GPUs to others; it goes on at its next turn",
            now=self.now,
            history=self.history,
            freeze=self.cluster.slicing == Cluster.Slicing.FREEZE,
        )

    def _promise(self, picks: dict[int, tuple[int, list[int]]]) -> int:
        """Creates promised leases with GPU numbers for the picked that hold nothing yet."""
        # A gang that moves first has to leave where it is; it is picked again once it has.
        newcomers = {job: pick for job, pick in picks.items() if job not in self.leases}
        jobs = {job.pk: job for job in Job.objects.filter(pk__in=newcomers)}
        numbers = _GpuNumbers(self.cluster)
        given: list[tuple[Lease, list[tuple[int, int, int]]]] = []
        for job_id, (generation, nodes) in newcomers.items():
            job = jobs[job_id]
            places = numbers.take(job, nodes)
            if places is None:
                continue
            self.history.change(job, epoch=job.epoch + 1)
            lease = Lease(
                job=job,
                cluster=self.cluster,
                epoch=job.epoch,
                generation_id=generation,
                gpus=job.gpus,
                decided_at=self.now,
            )
            given.append((lease, places))
        leases = [lease for lease, _ in given]
        number_rows(leases)
        insert_rows(leases)
        insert_rows(
            HeldGpu(lease=lease, node_id=node, rank=rank, gpu_index=number)
            for lease, places in given
            for rank, node, number in places
        )
        return len(given)

    def _write_reasons(self, picked: set[int]) -> None:
        """Stores why each job waits, where that changed; picked ones that still wait have a promise."""
        wanted: dict[int, list[int]] = defaultdict(list)
        present = dict(Job.objects.filter(cluster=self.cluster).waiting().values_list("id", "reason"))
        for i, job_id in enumerate(self.legend.jobs):
            if job_id not in present:
                continue
            reason = int(self.decision.reason[i])
            if job_id in picked:
                reason = int(fs.Reason.GPUS_DRAINING)
            if present[job_id] != reason:
                wanted[reason].append(job_id)
        for reason, job_ids in wanted.items():
            Job.objects.filter(pk__in=job_ids).update(reason=reason)


class _GpuNumbers:
    """Chooses GPU numbers on the nodes that a decision named: own former ones first, then free ones."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        size = dict(Node.objects.filter(cluster=cluster).values_list("id", "gpus"))
        self.open = {node: set(range(gpus)) for node, gpus in size.items()}
        self.busy: dict[int, set[int]] = defaultdict(set)
        held = HeldGpu.objects.filter(lease__cluster=cluster, lease__state__in=Lease.OPEN)
        for node, number, state in held.values_list("node_id", "gpu_index", "lease__state"):
            if state == Lease.State.STOPPING:
                self.busy[node].add(number)
            else:
                self.open[node].discard(number)
        self.former: dict[int, list[tuple[int, int]]] = defaultdict(list)
        frozen = Lease.objects.filter(cluster=cluster).of_frozen_processes()
        places = HeldGpu.objects.filter(lease__in=frozen.values("pk"))
        for job, node, number in places.values_list("lease__job_id", "node_id", "gpu_index"):
            self.former[job].append((node, number))

    def take(self, job: Job, nodes: list[int]) -> list[tuple[int, int, int]] | None:
        """(rank, node, number) for each GPU; None when the node's GPUs are not to be had after all."""
        places: list[tuple[int, int, int]] = []
        former = set(self.former.get(job.pk, ()))
        for rank, node in enumerate(nodes):
            numbers = self._preferred(node, former)[: job.gpus_per_worker]
            if len(numbers) < job.gpus_per_worker:
                for _, taken_node, number in places:
                    self.open[taken_node].add(number)
                return None
            self.open[node] -= set(numbers)
            places += [(rank, node, number) for number in numbers]
        return places

    def _preferred(self, node: int, former: set[tuple[int, int]]) -> list[int]:
        """Open numbers of a node: where the gang was, then free ones, then those that must be waited for."""
        return sorted(
            self.open[node],
            key=lambda number: ((node, number) not in former, number in self.busy[node], number),
        )


class _Stopwatch:
    """Milliseconds between laps, for the round's own record."""

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def lap_ms(self) -> float:
        now = time.perf_counter()
        elapsed, self._last = now - self._last, now
        return elapsed * 1000.0


def redraw(round_: Round) -> tuple[fs.Decision, fs.Decision]:
    """The stored decision of a round, and the one that its snapshot and seed give now."""
    record = round_.record
    snapshot = codec.decode_snapshot(bytes(record.snapshot))
    stored = codec.decode_decision(bytes(record.decision))
    return stored, decide(snapshot, round_.seed)


def decisions_equal(one: fs.Decision, other: fs.Decision) -> bool:
    """Whether two decisions run the same gangs in the same places after the same trades."""
    arrays = ("run", "generation", "place_start", "place_node", "reason", "entitled", "share")
    same = all(np.array_equal(getattr(one, name), getattr(other, name)) for name in arrays)
    return same and one.trades == other.trades
