"""Computes the finish-time fairness (ρ) of training jobs, once for each job, after the job's end.

ρ is the time from submission to end, divided by the time that the job would have taken alone on its part of the
tenant's entitlement. This part is the entitlement divided evenly among the tenant's unfinished jobs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

import numpy as np
from django.db import connection
from django.db.models import Q, QuerySet

from accounting.core.bulk import array, insert_rows
from accounting.core.calendar import HOUR, start_of_hour
from accounting.models import Generation
from fairshare.fairness import finish_time_fairness, unfinished_between
from fairshare.model import Floats
from scheduling.models import FinishTime, Job, JobEvent, ShareHour

# A job whose end becomes known later than this gets no finish time.
KNOWN_WITHIN = timedelta(days=7)
EPOCH = datetime(2000, 1, 1, tzinfo=UTC)

# Selects the share intervals that overlap the given hours, each cut to the hour, with its part of `entitled`.
IN_HOURS = """
    SELECT tenant_id, generation_id, greatest(begins, hour), least(ends, hour + interval '1 hour'),
           entitled * extract(epoch FROM least(ends, hour + interval '1 hour') - greatest(begins, hour))::float8
                    / extract(epoch FROM ends - begins)::float8
      FROM unnest(%(hours)s::timestamptz[]) AS hour JOIN scheduling_shareinterval
        ON tstzrange(begins, ends) && tstzrange(hour, hour + interval '1 hour')
     WHERE cluster_id = %(cluster)s AND tenant_id = ANY(%(tenants)s)
"""
HELD = """
    SELECT job_id, generation_id, sum(gpus * extract(epoch FROM held_until - held_from))::float8
      FROM scheduling_lease WHERE job_id = ANY(%s) AND held_until IS NOT NULL AND held_from IS NOT NULL
     GROUP BY job_id, generation_id
"""


def write_finish_times(cluster_id: int, hour: datetime) -> None:
    """Writes a FinishTime for each training job that ended before the end of `hour` and does not have one yet.

    The caller must have summed the share intervals of `hour` before.
    """
    untold = ended_without_finish_time(cluster_id, since=hour + HOUR - KNOWN_WITHIN)
    jobs = list(untold.filter(ended_at__lt=hour + HOUR).defer("spec").order_by("pk"))
    if jobs:
        rhos = _Rhos(cluster_id, jobs)
        insert_rows(
            FinishTime(
                job=job,
                cluster_id=cluster_id,
                tenant_id=job.tenant_id,
                ended_at=job.ended_at,
                seconds=max(_seconds(job.ended_at) - _seconds(job.created_at), 0.0),
                rho=rhos.of(job, sharers),
            )
            for job, sharers in zip(jobs, rhos.sharers(), strict=True)
            if job.ended_at is not None
        )


def ended_without_finish_time(cluster_id: int, *, since: datetime) -> QuerySet[Job]:
    """Returns the cluster's training jobs that ended at or after `since` and do not have a FinishTime yet."""
    return Job.objects.filter(
        cluster=cluster_id,
        kind=Job.Kind.TRAINING,
        state__in=Job.ENDED,
        finish_time=None,
        ended_at__gte=since,
    )


class _Rhos:
    """Computes the ρ (finish-time fairness) of jobs of one cluster. Reads the recorded data for all jobs together."""

    def __init__(self, cluster_id: int, jobs: Sequence[Job]) -> None:
        self.cluster_id, self.jobs = cluster_id, jobs
        weights = dict(Generation.objects.values_list("pk", "weight"))
        self.column = {generation: k for k, generation in enumerate(weights)}
        self.weight: Floats = np.array([float(weight) for weight in weights.values()])
        changes = JobEvent.objects.filter(job__in=jobs, kind=JobEvent.SHARING)
        self.changed = set(changes.values_list("job_id", flat=True))
        self.held = self._read_held()
        self.entitled = {key: _running_total(pieces) for key, pieces in self._read_entitled().items()}

    def of(self, job: Job, sharers: float) -> float | None:
        """Returns the ρ of a job; None if the job did not succeed, was preemptible at some time, or if records are
        missing.

        `sharers` is the average number of the tenant's unfinished jobs while the job was unfinished.
        """
        if job.state != Job.State.SUCCEEDED or job.preemptible or job.pk in self.changed:
            return None
        since, until = _seconds(job.created_at), _seconds(job.ended_at)
        entitled = np.zeros(len(self.column))
        for generation, k in self.column.items():
            total = self.entitled.get((job.tenant_id, generation))
            if total is not None and (not job.generation_ids or generation in job.generation_ids):
                before, after = np.interp([since, until], *total)
                entitled[k] = after - before
        return finish_time_fairness(
            seconds=until - since,
            held=self.held[job.pk],
            entitled=entitled,
            weight=self.weight,
            gpus=job.gpus,
            sharers=sharers,
        )

    def sharers(self) -> list[float]:
        """Returns, for each job, the average number of its tenant's unfinished jobs between the job's submission and
        end.

        Preemptible jobs do not count.
        """
        first, last = self._bounds()
        there = Job.objects.filter(
            Q(ended_at=None) | Q(ended_at__gt=first), cluster=self.cluster_id, created_at__lt=last,
            tenant__in={job.tenant_id for job in self.jobs}, preemptible=False,
        ).values_list("tenant_id", "created_at", "ended_at")  # fmt: skip
        times: dict[int, list[tuple[float, float]]] = defaultdict(list)
        for tenant, begins, ends in there:
            times[tenant].append((_seconds(begins), _seconds(ends or last)))
        found = np.zeros(len(self.jobs))
        for tenant, spans in times.items():
            mine = [i for i, job in enumerate(self.jobs) if job.tenant_id == tenant]
            begins, ends = np.array(spans).T
            since = np.array([_seconds(self.jobs[i].created_at) for i in mine])
            until = np.array([_seconds(self.jobs[i].ended_at) for i in mine])
            found[mine] = unfinished_between(begins, np.maximum(ends, begins), since, until)
        return found.tolist()

    def _bounds(self) -> tuple[datetime, datetime]:
        ends = [job.ended_at for job in self.jobs if job.ended_at]
        return min(job.created_at for job in self.jobs), max(ends)

    def _read_held(self) -> dict[int, Floats]:
        held: dict[int, Floats] = {job.pk: np.zeros(len(self.column)) for job in self.jobs}
        with connection.cursor() as cursor:
            cursor.execute(HELD, [array(held)])
            for job, generation, seconds in cursor.fetchall():
                held[job][self.column[generation]] = seconds
        return held

    def _read_entitled(self) -> dict[tuple[int, int], list[tuple[float, float, float]]]:
        """Returns lists of (start, end, entitled GPU-seconds) pieces, by (tenant id, generation id).

        Start and end are in seconds since EPOCH. A piece is one hour or a part of an hour.
        """
        tenants = {job.tenant_id for job in self.jobs}
        # Hours in which a job was submitted or ended are read in detail: each share interval is a piece.
        at_borders = {start_of_hour(at) for job in self.jobs for at in (job.created_at, job.ended_at) if at}
        pieces = defaultdict(list)
        with connection.cursor() as cursor:
            cursor.execute(
                IN_HOURS,
                {"hours": sorted(at_borders), "cluster": self.cluster_id, "tenants": sorted(tenants)},
            )
            for tenant, generation, begins, ends, amount in cursor.fetchall():
                pieces[tenant, generation].append((_seconds(begins), _seconds(ends), amount))
        first, last = self._bounds()
        between = ShareHour.objects.filter(
            cluster=self.cluster_id, tenant__in=tenants, hour__gte=first, hour__lt=last
        ).exclude(hour__in=at_borders)
        for tenant, generation, hour, amount in between.values_list(
            "tenant_id", "generation_id", "hour", "entitled"
        ):
            pieces[tenant, generation].append((_seconds(hour), _seconds(hour + HOUR), amount))
        return pieces


def _running_total(pieces: Iterable[tuple[float, float, float]]) -> tuple[Floats, Floats]:
    """Returns two arrays: the times at which the pieces start and end, in order, and the total GPU-seconds up to each
    time.

    `pieces` are (start, end, GPU-seconds).
    """
    begins, ends, amounts = np.array(sorted(pieces)).T
    totals = np.cumsum(amounts)
    moments = np.maximum.accumulate(np.stack([begins, ends], axis=1).ravel())
    return moments, np.stack([totals - amounts, totals], axis=1).ravel()


def _seconds(moment: datetime | None) -> float:
    return ((moment or EPOCH) - EPOCH).total_seconds()
