"""Reads the recorded history of a cluster over a period from PostgreSQL.

The result contains a `Past` (fairshare.counterfactual.past) with the jobs, attempts, limits and nodes of the period. A
Past identifies tenants, users and generations by indices that start at 0, and jobs by their primary keys.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np
from django.db.models import Q, QuerySet

from fairshare.counterfactual.past import Attempt, Cause, Ineligible, NodeState, Past, PastJob, Rules
from fairshare.counterfactual.speeds import speeds_of
from scheduling.anomalies.past_limits import Indices, limits_between
from scheduling.anomalies.past_shares import shares_between
from scheduling.anomalies.spent_hours import SpentHours, spent_hours, when_spent
from scheduling.backends.base import End
from scheduling.books.closing import changes_of_nodes
from scheduling.leases.actions import BACK_OFF_SECONDS, STEADY
from scheduling.models import Cluster, ClusterPause, HeldGpu, Job, JobEvent, JobSpeed, Lease, Node, NodeChange
from scheduling.models.event_codes import EventCode


@dataclass(frozen=True, slots=True)
class Seen:
    """The history of a cluster (`past`), with the keys that belong to its indices.

    - `tenants`: the primary keys of the tenants, in the order of their indices.
    - `generations`: the names of the generations, in the order of their indices.
    """

    past: Past
    tenants: list[int]
    generations: list[str]  # by the Past's index of the generation


def jobs_of_period(cluster: Cluster, begins: datetime, ends: datetime) -> QuerySet[Job]:
    """Returns the cluster's jobs that existed at any moment between `begins` and `ends`, in order of their ids."""
    there = Q(ended_at=None) | Q(ended_at__gt=begins)
    return Job.objects.filter(there, cluster=cluster, created_at__lt=ends).order_by("id")


def read_past(cluster: Cluster, begins: datetime, ends: datetime) -> Seen:
    """Returns the cluster's history from `begins` to `ends`."""
    reader = _Reader(cluster, begins, ends)
    return reader.read()


@dataclass(frozen=True, slots=True)
class _Row:
    id: int
    tenant: int
    owner: int
    kind: str
    state: str
    workers: int
    gpus_per_worker: int
    generation_ids: list[int]
    priority: int
    created_at: datetime
    ended_at: datetime | None
    exit_code: int | None
    preemptible: bool


FIELDS = (
    "id", "tenant_id", "owner_id", "kind", "state", "workers", "gpus_per_worker", "generation_ids", "priority",
    "created_at", "ended_at", "exit_code", "preemptible",
)  # fmt: skip


class _Reader:
    """Reads the history of one cluster over one period."""

    def __init__(self, cluster: Cluster, begins: datetime, ends: datetime) -> None:
        self.cluster, self.begins, self.ends = cluster, begins, ends
        self.length = (ends - begins).total_seconds()
        self.jobs = jobs_of_period(cluster, begins, ends)
        self.rows = [_Row(*row) for row in self.jobs.values_list(*FIELDS)]
        self.changes = changes_of_nodes(cluster.pk, begins, ends)
        known = {change.generation_id for change in self.changes if change.gpus}
        names = dict(
            NodeChange.objects.filter(cluster=cluster, generation__in=known)
            .order_by()
            .values_list("generation_id", "generation__name")
        )
        self.column = {pk: k for k, pk in enumerate(sorted(names))}
        self.names = [names[pk] for pk in self.column]
        self.node = {pk: n for n, pk in enumerate(sorted({one.node_id for one in self.changes}))}

    def read(self) -> Seen:
        shares = shares_between(self.begins, self.ends, {(row.tenant, row.owner) for row in self.rows})
        index = {pk: t for t, pk in enumerate(shares.tenants)}
        past = Past(
            ends=self.length,
            generations=len(self.column),
            parts=tuple(shares.parts),
            user_tickets=tuple(shares.user_tickets),
            nodes=tuple(self._nodes()),
            jobs=tuple(self._jobs(index, shares.places)),
            limits=tuple(limits_between(self.begins, self.ends, Indices(index, self.column, shares.places))),
            rules=Rules(
                quantum=self.cluster.effective_quantum,
                ordering=str(self.cluster.ordering),
                min_hold=self.cluster.min_hold_seconds,
                switch_cost=self.cluster.switch_seconds,
            ),
        )
        return Seen(past, list(shares.tenants), self.names)

    def _since(self, moment: datetime | None, otherwise: float) -> float:
        """Returns the seconds from the period's start to `moment`, clamped to the period. Returns `otherwise` if
        `moment` is None."""
        if moment is None:
            return otherwise
        return min(max((moment - self.begins).total_seconds(), 0.0), self.length)

    def _nodes(self) -> Iterator[NodeState]:
        for change in self.changes:
            if change.generation_id not in self.column:
                continue
            # GPUs that pods outside Fairlot use were never available to tenants
            own = max(change.gpus - change.others_gpus, 0)
            usable = max(own - change.failed_gpus, 0) if change.state == Node.State.READY else 0
            yield NodeState(
                at=self._since(change.at, 0.0),
                node=self.node[change.node_id],
                generation=self.column[change.generation_id],
                gpus=own,
                usable=usable,
            )

    def _jobs(self, index: dict[int, int], user: Mapping[tuple[int, int], int]) -> Iterator[PastJob]:
        accepts = np.array(
            [[not row.generation_ids or pk in row.generation_ids for pk in self.column] for row in self.rows],
            dtype=bool,
        ).reshape(len(self.rows), len(self.column))
        speeds = speeds_of(
            self._rates(), accepts, np.array([row.tenant for row in self.rows], dtype=np.int64)
        )
        attempts = self._attempts()
        changes = JobEvent.objects.filter(job__in=self.jobs.values("pk"), kind=JobEvent.SHARING)
        changed = set(changes.values_list("job_id", flat=True))
        pauses = list(self._pauses())
        edited = self._edited()
        retries, tried = self._waits_for_retries(), self._tried_now()
        spent: dict[int, list[SpentHours]] = defaultdict(list)
        for one in spent_hours(self.begins, self.ends):
            spent[one.tenant].append(one)
        for row, speed in zip(self.rows, speeds, strict=True):
            own = attempts.get(row.id, [])
            yield PastJob(
                key=row.id,
                tenant=index[row.tenant],
                user=user[row.tenant, row.owner],
                arrival=self._since(row.created_at, 0.0),
                workers=row.workers,
                gpus_per_worker=row.gpus_per_worker,
                speeds=speed,
                priority=row.priority,
                attempts=tuple(own),
                ended=self._end(row),
                runs_to_its_end=_runs_to_its_end(row),
                # A job that was preemptible for part of the time takes up GPUs in the analysis but is not judged,
                # because its entitlement is unknown. Neither is a job whose GPU types or priority were changed.
                carried=row.created_at < self.begins or row.id in changed | edited,
                preemptible=row.preemptible and row.id not in changed,
                ineligible=(
                    *pauses,
                    *_until_tried([*_back_offs(own), *retries.get(row.id, ())], tried.get(row.id, ())),
                    *self._without_hours(row, spent[row.tenant]),
                ),
            )

    def _waits_for_retries(self) -> dict[int, list[Ineligible]]:
        """Returns, by job id, the waits between failures of the job's program and its retries, within the period."""
        found: dict[int, list[Ineligible]] = defaultdict(list)
        failures = JobEvent.objects.filter(job__in=self.jobs.values("pk"), code=EventCode.RETRIED)
        for job, at, detail in failures.order_by("id").values_list("job_id", "at", "detail"):
            since = self._since(at, 0.0)
            until = self._since(at + timedelta(seconds=detail["wait"]), 0.0)
            if since < until:
                found[job].append(Ineligible(since, until, Cause.FAILURE))
        return found

    def _edited(self) -> set[int]:
        """Returns the ids of jobs whose GPU types or priority were changed. What they were before is not known."""
        edits = JobEvent.objects.filter(job__in=self.jobs.values("pk"), code=EventCode.EDITED)
        return {
            job
            for job, detail in edits.values_list("job_id", "detail")
            if any(name in {"generations", "priority"} for name, _, _ in detail["changes"])
        }

    def _tried_now(self) -> dict[int, list[float]]:
        """Returns, by job id, the times at which a user ended a wait after a failure."""
        found: dict[int, list[float]] = defaultdict(list)
        events = JobEvent.objects.filter(job__in=self.jobs.values("pk"), code=EventCode.TRIED_NOW)
        for job, at in events.order_by("id").values_list("job_id", "at"):
            found[job].append(self._since(at, 0.0))
        return found

    def _without_hours(self, row: _Row, spent: list[SpentHours]) -> Iterator[Ineligible]:
        kinds = [pk for pk in self.column if not row.generation_ids or pk in row.generation_ids]
        own = [one for one in spent if one.user in {None, row.owner}]
        for cause, some in (
            (Cause.QUOTA, [one for one in own if not one.leaves_idle]),
            (Cause.IDLE_LIMIT, own),
        ):
            for since, until in when_spent(some, kinds):
                yield Ineligible(self._since(since, 0.0), self._since(until, 0.0), cause)

    def _end(self, row: _Row) -> float | None:
        return None if row.ended_at is None or row.ended_at > self.ends else self._since(row.ended_at, 0.0)

    def _rates(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        place = {row.id: i for i, row in enumerate(self.rows)}
        rates = np.full((len(self.rows), len(self.column)), np.nan)
        measured = JobSpeed.objects.filter(job__in=self.jobs.values("pk"), seconds__gt=0, steps__gt=0)
        for job, generation, steps, seconds in measured.values_list(
            "job_id", "generation_id", "steps", "seconds"
        ):
            if job in place and generation in self.column:
                rates[place[job], self.column[generation]] = steps / seconds
        return rates

    def _attempts(self) -> dict[int, list[Attempt]]:
        """Returns, by job id, the job's attempts that held GPUs during the period, oldest first."""
        leases = Lease.objects.filter(
            Q(held_until=None) | Q(held_until__gt=self.begins), cluster=self.cluster, held_from__lt=self.ends
        )
        ranks: dict[int, dict[int, int]] = defaultdict(dict)
        held = HeldGpu.objects.filter(lease__in=leases.values("pk")).order_by()
        for lease, rank, node in held.values_list("lease_id", "rank", "node_id"):
            ranks[lease][rank] = node
        found: dict[int, list[Attempt]] = defaultdict(list)
        rows = leases.order_by("job_id", "epoch").values_list(
            "id",
            "job_id",
            "generation_id",
            "decided_at",
            "held_from",
            "running_from",
            "held_until",
            "end_reason",
            "lost_from",
        )
        for pk, job, generation, decided, since, running, until, why, lost in rows:
            if generation not in self.column or since is None:
                continue
            ends = self._since(until, self.length)
            begins = self._since(since, 0.0)
            if ends <= begins:
                continue
            nodes = tuple(self.node[node] for _, node in sorted(ranks[pk].items()) if node in self.node)
            found[job].append(
                Attempt(
                    generation=self.column[generation],
                    begins=begins,
                    ready=self._since(running, ends),
                    ends=ends,
                    nodes=nodes,
                    failed=_has_failed(since, running, until, why),
                    reserved=self._since(decided, begins) if decided < since else None,
                    lost_from=None if lost is None else self._since(lost, begins),
                )
            )
        return found

    def _pauses(self) -> Iterator[Ineligible]:
        """Yields the intervals in which an operator had paused the cluster, within the period."""
        pauses = ClusterPause.objects.filter(cluster=self.cluster, during__overlap=(self.begins, self.ends))
        for during in pauses.order_by("during").values_list("during", flat=True):
            yield Ineligible(
                self._since(during.lower, 0.0), self._since(during.upper, self.length), Cause.PAUSE
            )


def _runs_to_its_end(row: _Row) -> bool:
    """Returns whether the row is a training job whose program exited by itself, with success or failure.

    Returns False if a person, a time limit or a failure of Fairlot ended the job.
    """
    by_itself = row.state == Job.State.SUCCEEDED or (
        row.state == Job.State.FAILED and row.exit_code is not None
    )
    return row.kind == Job.Kind.TRAINING and by_itself


def _has_failed(since: datetime, running: datetime | None, until: datetime | None, why: str) -> bool:
    """Returns whether the attempt failed to start, or was lost within STEADY (one minute) after it began to run.

    - `since`: the time at which the attempt got its GPUs.
    - `running`: the time at which all workers had begun to run; None if this never happened. The minute then counts
      from `since`.
    - `until`: the time at which the attempt ended; None if it has not ended.
    - `why`: the reason for the end.
    """
    if until is None:
        return False
    return why == End.START_FAILED or (why == End.LOST and until - (running or since) < STEADY)


def _until_tried(waits: Iterable[Ineligible], tried: Sequence[float]) -> Iterator[Ineligible]:
    """Yields the waits after failures. A wait that a user ended, at one of the times `tried`, ends there."""
    for wait in waits:
        until = min((at for at in tried if wait.begins < at < wait.ends), default=wait.ends)
        yield replace(wait, ends=until)


def _back_offs(attempts: Sequence[Attempt]) -> Iterator[Ineligible]:
    """Yields the back-off after each failed attempt: the interval in which Fairlot did not start the job again.

    The interval grows with the number of consecutive failures.
    """
    tries = 0
    for attempt in attempts:
        tries = tries + 1 if attempt.failed else 0
        if tries:
            wait = BACK_OFF_SECONDS[min(tries, len(BACK_OFF_SECONDS)) - 1]
            yield Ineligible(attempt.ends, attempt.ends + wait, Cause.FAILURE)
