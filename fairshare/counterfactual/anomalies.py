"""Finds sharing anomalies: jobs that started or ended later than they would have on their tenant's private cluster.

Each tenant is analysed separately, so that the work can be divided and resumed. The result depends only on the recorded
past.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fairshare.counterfactual.causes import Blame, LateJob, Received, Timeline, blame
from fairshare.counterfactual.past import Cause, Past, PastJob
from fairshare.counterfactual.private import Purchase, fits, replay
from fairshare.simulator.model import JobOutcome

# Pairs (load, fraction of compared jobs that are reported although the live policy shared the cluster without fault),
# as measured by `python -m tests.fairshare.bench_false_rate`.
FALSE_RATES = ((0.5, 0.009), (0.8, 0.012), (0.95, 0.015))


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How late a job may be without being reported: the larger of two times.

    - `seconds`: a fixed time.
    - `part`: a fraction of the time from the job's arrival to its end on the private cluster. If the job does not end
      there, it is a fraction of the time from arrival to start.
    """

    seconds: float = 300.0
    part: float = 0.1

    def of(self, alone: float) -> float:
        return max(self.seconds, self.part * alone)


@dataclass(frozen=True, slots=True)
class Anomaly:
    """A job that was late: it started or ended later than on its tenant's private cluster.

    - `late`: seconds by which the job's end (if `at_end`) or start was late. Time in which the job waited only for its
      tenant's other jobs of equal priority does not count.
    - `start` and `finish`: actual times, None if the job had not started or ended. `late` is then a lower bound.
    - `private_start` and `private_finish`: the times on the private cluster.
    - `causes`: pairs (cause, seconds), largest first.
    - `holders`: pairs (key of a job that was in the way, GPU-seconds that it held while this job waited), largest
      first.
    """

    key: int
    late: float
    at_end: bool
    private_start: float
    private_finish: float | None
    start: float | None
    finish: float | None
    causes: tuple[tuple[Cause, float], ...]
    holders: tuple[tuple[int, float], ...]

    @property
    def cause(self) -> Cause:
        return self.causes[0][0]


@dataclass(frozen=True, slots=True)
class Findings:
    """The anomalies of one tenant, with counts of its jobs.

    - `judged`: jobs that were compared with the private cluster.
    - `unfinished`: judged jobs of which only the start was compared, because they did not end by completing their work.
    - `carried`: jobs that arrived before the period and are not judged.
    - `too_large`: jobs that never fit on the private cluster and are not judged.
    - `preemptible`: preemptible jobs, which are not included in any other count.
    """

    anomalies: tuple[Anomaly, ...]
    gpus: tuple[int, ...]  # GPUs of the private cluster for most of the period, by generation
    judged: int
    unfinished: int
    carried: int
    too_large: int
    preemptible: int


class Analysis:
    """The search for sharing anomalies in one period of a cluster. Call `of` for the findings of each tenant.

    The recorded period is prepared once and used for all tenants.
    """

    def __init__(self, past: Past, tolerance: Tolerance | None = None) -> None:
        self.past, self.tolerance = past, tolerance or Tolerance()
        self.purchase = Purchase.of(past)
        self._of_tenant: list[list[PastJob]] = [[] for _ in past.parts]
        # Owners want their jobs in the order of arrival, as in live rounds.
        for job in sorted(past.jobs, key=lambda job: (job.arrival, job.key)):
            self._of_tenant[job.tenant].append(job)
        self._timeline = Timeline(past, self.purchase)

    def of(self, tenant: int) -> Findings:
        """Replays the tenant's jobs on its private cluster and returns which of them were late in reality, and why."""
        owned = self.purchase.machines(tenant)
        own = [job for job in self._of_tenant[tenant] if not job.preemptible]
        jobs = [job for job in own if fits(job, owned)]
        fates = replay(self.past, jobs, owned, self.past.user_tickets[tenant]) if jobs else []
        late = [
            one
            for job, fate in zip(jobs, fates, strict=True)
            if not job.carried and (one := self._late(job, fate))
        ]
        judged = [job for job in jobs if not job.carried]
        found = zip(
            late, blame(self._timeline, late, Received.of(own, jobs, fates, self._worth(tenant))), strict=True
        )
        return Findings(
            anomalies=tuple(
                _anomaly(one, why) for one, why in found if one.seconds - why.own_order > one.tolerated
            ),
            gpus=tuple(self.purchase.gpus[tenant].tolist()),
            judged=len(judged),
            unfinished=sum(not _has_an_end(job) for job in judged),
            carried=sum(job.carried for job in jobs),
            too_large=len(own) - len(jobs),
            preemptible=len(self._of_tenant[tenant]) - len(own),
        )

    def _worth(self, tenant: int) -> float:
        bought = self.purchase.gpus
        exact = self.past.parts[tenant] * float(bought.sum())
        return min(1.0, exact / float(bought[tenant].sum() or 1))

    def _late(self, job: PastJob, fate: JobOutcome) -> LateJob | None:
        """Compares a job with its replay. Returns the late job, or None if it was late by no more than the tolerance.

        `fate` is the outcome of the job on the private cluster. A job that would not have run there is never late.
        """
        if fate.first_start is None:
            return None  # would not have run on the private cluster either
        start = next((attempt.begins for attempt in job.attempts if not attempt.failed), None)
        # A job that never started waited until it ended without running, or until the period ended.
        started = start if start is not None else self.past.ends if job.ended is None else job.ended
        begun_late = started - fate.first_start
        ended_late = 0.0
        if _has_an_end(job) and job.ended is not None and fate.finish is not None:
            ended_late = job.ended - fate.finish
        alone = (fate.finish if fate.finish is not None else fate.first_start) - job.arrival
        tolerated = self.tolerance.of(alone)
        if max(begun_late, ended_late) <= tolerated:
            return None
        return LateJob(job, fate, start, max(begun_late, ended_late), ended_late > begun_late, tolerated)


def _has_an_end(job: PastJob) -> bool:
    """Returns whether the job ended because its work was done, so that its end can be compared with the replay."""
    return (
        job.ended is not None and job.runs_to_its_end and any(not attempt.failed for attempt in job.attempts)
    )


def _anomaly(late: LateJob, why: Blame) -> Anomaly:
    job, fate = late.job, late.fate
    assert fate.first_start is not None  # noqa: S101 - else it is not late
    return Anomaly(
        key=job.key,
        late=late.seconds - why.own_order,
        at_end=late.at_end,
        private_start=fate.first_start,
        private_finish=fate.finish,
        start=late.start,
        finish=job.ended,
        causes=why.causes,
        holders=why.holders,
    )


def analyse(past: Past, tolerance: Tolerance | None = None) -> Sequence[Findings]:
    """Returns the findings for all tenants of a recorded period, in the order of tenants."""
    analysis = Analysis(past, tolerance)
    return [analysis.of(tenant) for tenant in range(len(past.parts))]


def total_late(findings: Sequence[Findings]) -> float:
    """Returns the total lateness of all late jobs in the findings, in seconds: the sum of `Anomaly.late`."""
    return math.fsum(one.late for some in findings for one in some.anomalies)
