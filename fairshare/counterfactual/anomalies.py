"""Sharing anomalies: jobs that waited longer, or ended later, than on their tenant's private cluster.

Each tenant is looked at on its own, so that the work can be divided and taken up again. The same past gives the
same findings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fairshare.counterfactual.causes import Blame, Late, Received, Timeline, blame
from fairshare.counterfactual.past import Cause, Past, PastJob
from fairshare.counterfactual.private import Purchase, fits, replay
from fairshare.simulator.model import Fate

# What part of the jobs compared is found though the live policy shared the cluster without any fault, by its load; as
# `python -m tests.fairshare.bench_false_rate` measures it.
FALSE_RATES = ((0.5, 0.009), (0.8, 0.012), (0.95, 0.015))


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How much later a job may be: so many seconds, or such a part of what it takes on the private cluster."""

    seconds: float = 300.0
    part: float = 0.1

    def of(self, alone: float) -> float:
        return max(self.seconds, self.part * alone)


@dataclass(frozen=True, slots=True)
class Anomaly:
    """A job that fared worse than alone: `late` seconds, at its start or, if `at_end`, at its end.

    Not among them are those for which it waited only for its place among its tenant's own jobs of equal priority.
    `start` and `finish` are what was, None where it had not come to it; `late` is then the least that it can be.
    `causes`: seconds by cause, the most first; `holders`: keys of the jobs in its way, with GPU-seconds.
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
    """Of one tenant. `judged` jobs were compared, `unfinished` of them in their start only; `carried` were not,
    as they came before the period, nor those `too_large` for the private cluster, where they could never run.
    Jobs that took no part in the sharing, `apart`, are in none of the other numbers.
    """

    anomalies: tuple[Anomaly, ...]
    gpus: tuple[int, ...]  # of its private cluster for most of the time, by generation
    judged: int
    unfinished: int
    carried: int
    too_large: int
    apart: int


class Analysis:
    """A period of a cluster, read once; `of` answers for one tenant after the other."""

    def __init__(self, past: Past, tolerance: Tolerance | None = None) -> None:
        self.past, self.tolerance = past, tolerance or Tolerance()
        self.purchase = Purchase.of(past)
        self._of_tenant: list[list[PastJob]] = [[] for _ in past.parts]
        # As their owner wants them: in the order of arrival, like the live rounds.
        for job in sorted(past.jobs, key=lambda job: (job.arrival, job.key)):
            self._of_tenant[job.tenant].append(job)
        self._timeline = Timeline(past, self.purchase)

    def of(self, tenant: int) -> Findings:
        """Replays the tenant's jobs on its private cluster and finds why those that fared worse did."""
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
            apart=len(self._of_tenant[tenant]) - len(own),
        )

    def _worth(self, tenant: int) -> float:
        bought = self.purchase.gpus
        exact = self.past.parts[tenant] * float(bought.sum())
        return min(1.0, exact / float(bought[tenant].sum() or 1))

    def _late(self, job: PastJob, fate: Fate) -> Late | None:
        """The job with what it lost, if that is more than tolerated."""
        if fate.first_start is None:
            return None  # it would not have run there either
        start = next((turn.begins for turn in job.turns if not turn.failed), None)
        # Who has not started has waited until it ended otherwise, or until now.
        started = start if start is not None else self.past.ends if job.ended is None else job.ended
        begun_late = started - fate.first_start
        ended_late = 0.0
        if _has_an_end(job) and job.ended is not None and fate.finish is not None:
            ended_late = job.ended - fate.finish
        alone = (fate.finish if fate.finish is not None else fate.first_start) - job.arrival
        tolerated = self.tolerance.of(alone)
        if max(begun_late, ended_late) <= tolerated:
            return None
        return Late(job, fate, start, max(begun_late, ended_late), ended_late > begun_late, tolerated)


def _has_an_end(job: PastJob) -> bool:
    """Whether it ran until its work was done, so that its end can be compared."""
    return job.ended is not None and job.runs_to_its_end and any(not turn.failed for turn in job.turns)


def _anomaly(late: Late, why: Blame) -> Anomaly:
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
    """Of all tenants, in their order."""
    analysis = Analysis(past, tolerance)
    return [analysis.of(tenant) for tenant in range(len(past.parts))]


def total_late(findings: Sequence[Findings]) -> float:
    """Seconds."""
    return math.fsum(one.late for some in findings for one in some.anomalies)
