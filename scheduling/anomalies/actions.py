"""Requests analyses of sharing anomalies, and runs the analyses. Each step of an analysis handles one team.

A sharing anomaly is a job that started or ended later than it would have on its team's private cluster, that is, on the
share of the cluster that the team's tickets are worth. Each step is one transaction, so a worker that dies loses at
most one step.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from time import monotonic

from django.db import InterfaceError, OperationalError, connection, transaction
from django.db.models import Exists, OuterRef
from django.db.models.functions import Now

from accounting.access import audit
from accounting.access.permissions import require
from accounting.core.bulk import insert_rows
from accounting.core.calendar import start_of_day, start_of_hour
from accounting.core.clock import now_from_database
from accounting.core.errors import Refused
from accounting.core.wording import counted
from accounting.models import User
from fairshare.counterfactual.anomalies import Analysis, Anomaly, Findings, Tolerance
from scheduling.anomalies.history_reader import Seen, jobs_of_period, read_past
from scheduling.core import pubsub
from scheduling.core.enqueue import wake_analyses
from scheduling.core.locks import Lock
from scheduling.models import (
    AnomalyHolder,
    Cluster,
    SharingAnalysis,
    SharingAnomaly,
    SharingPart,
)

logger = logging.getLogger(__name__)

WEEK = timedelta(days=7)
LONGEST = timedelta(days=31)


def analyse_last_days(*, actor: User, cluster: Cluster, days: int) -> SharingAnalysis:
    """Requests an analysis of the last `days` days, up to the last full hour, and returns it.

    Raises Refused and NotAllowed like `request_analysis`, and Refused if `days` is below 1.
    """
    if days < 1:
        raise Refused("The period must be at least one day.", "days")
    ends = start_of_hour(now_from_database())
    begins = ends - timedelta(days=min(days, LONGEST.days + 1))
    return request_analysis(actor=actor, cluster=cluster, begins=begins, ends=ends)


@transaction.atomic(durable=True)
def request_analysis(
    *, actor: User | None, cluster: Cluster, begins: datetime, ends: datetime
) -> SharingAnalysis:
    """Requests the analysis of a past period, and returns it. `actor`: None means that Fairlot makes the request.

    If this period of the cluster was requested before, returns the existing analysis, and analyses again only its teams
    without a result.

    Raises NotAllowed if the actor is a user who is not an operator. Raises Refused if the period is empty, longer than
    31 days, or not over yet.
    """
    require(actor, "anomalies.analyse")
    if ends <= begins:
        raise Refused("The period ends before it begins.", "ends")
    if ends - begins > LONGEST:
        raise Refused(f"An analysis covers at most {LONGEST.days} days. Choose a shorter period.", "begins")
    if ends > now_from_database():
        raise Refused("The period must end in the past.", "ends")
    analysis, is_new = SharingAnalysis.objects.get_or_create(
        cluster=cluster, begins=begins, ends=ends, defaults={"asked_by": actor}
    )
    if not is_new:
        _analyse_again(analysis, actor)
    else:
        tenants = jobs_of_period(cluster, begins, ends).order_by().values_list("tenant_id", flat=True)
        insert_rows(SharingPart(analysis=analysis, tenant_id=pk) for pk in sorted(set(tenants)))
        audit.record(
            actor=actor,
            verb="sharing.analyse",
            target=cluster,
            after={"begins": begins, "ends": ends},
        )
        wake_analyses()
    return analysis


@transaction.atomic(durable=True)
def repeat_analysis(*, actor: User, analysis: SharingAnalysis) -> SharingAnalysis:
    """Queues those teams of the analysis that have no result, so that they are analysed again. Returns the analysis.

    Raises NotAllowed unless the actor is an operator, and Refused if every team has a result.
    """
    require(actor, "anomalies.analyse")
    if not _analyse_again(analysis, actor):
        raise Refused("There is nothing to repeat: all teams of this analysis have a result.")
    return analysis


def _analyse_again(analysis: SharingAnalysis, actor: User | None) -> int:
    """Queues those teams of the analysis that have no result, so that they are analysed again. Returns the number of
    these teams."""
    # Locked, so that no worker marks the analysis finished meanwhile.
    SharingAnalysis.objects.select_for_update().get(pk=analysis.pk)
    parts = analysis.parts.troubled()
    count = parts.update(done_at=None, trouble="", gpus={}, judged=0, unfinished=0, carried=0, too_large=0)
    if count:
        SharingAnalysis.objects.filter(pk=analysis.pk).update(finished_at=None)
        analysis.finished_at = None
        period = {"begins": analysis.begins, "ends": analysis.ends}
        audit.record(actor=actor, verb="sharing.analyse_again", target=analysis.cluster, after=period)
        wake_analyses()
    return count


def is_tried_again(analysis: SharingAnalysis) -> bool:
    """Returns whether the next nightly request will retry the teams of this analysis that have no result."""
    return analysis.cluster.detached_at is None and analysis.ends >= start_of_day(now_from_database())


def request_nightly() -> list[SharingAnalysis]:
    """Requests an analysis of the seven days before the last midnight (UTC) for every attached cluster.

    Returns these analyses. Also retries the teams without a result in earlier analyses of attached clusters, if their
    period ended at most one day before the last midnight.
    """
    ends = start_of_day(now_from_database())
    recent = SharingAnalysis.objects.filter(cluster__detached_at=None, ends__gte=ends - timedelta(days=1))
    for analysis in recent.filter(Exists(SharingPart.objects.troubled().filter(analysis=OuterRef("pk")))):
        with transaction.atomic(durable=True):
            _analyse_again(analysis, None)
    return [
        request_analysis(actor=None, cluster=cluster, begins=ends - WEEK, ends=ends)
        for cluster in Cluster.objects.attached().order_by("pk")
    ]


def continue_analyses(*, seconds: float, at_once: int) -> bool:
    """Runs steps of unfinished analyses, oldest first, for about `seconds` seconds. Returns True if the time ran out
    before all steps were done.

    At most `at_once` processes run analyses at a time, so that the other workers stay free for reports and forecasts.
    Returns False immediately if `at_once` processes are already running analyses.
    """
    until = monotonic() + seconds
    with _slot(at_once) as mine:
        if not mine:
            return False
        for analysis in SharingAnalysis.objects.unfinished().order_by("asked_at", "id"):
            steps = AnalysisSteps(analysis)
            while steps.next():
                if monotonic() >= until:
                    return True
            finish_analysis(analysis)
    return False


class AnalysisSteps:
    """Runs the steps of one analysis; each step analyses one team. Reads the cluster's history once for all steps."""

    def __init__(self, analysis: SharingAnalysis) -> None:
        self.analysis = analysis
        self._read: tuple[Seen, Analysis] | Exception | None = None

    def next(self) -> bool:
        """Analyses the next waiting team that no other worker has locked, in one transaction.

        Returns False if no such team is left.
        """
        with transaction.atomic(durable=True):
            waiting = SharingPart.objects.filter(analysis=self.analysis, done_at=None)
            part = waiting.order_by("pk").select_for_update(skip_locked=True).first()
            if part is None:
                return False
            self._do(part)
        return True

    def _do(self, part: SharingPart) -> None:
        try:
            with transaction.atomic():
                seen, analysis = self._past()
                _write(part, analysis.of(seen.tenants.index(part.tenant_id)), seen)
        except (OperationalError, InterfaceError):
            raise  # the database failed, not the team: the step is repeated once the database answers
        except Exception as error:
            # The page shows the error, and the team is not retried forever; the other teams get their results.
            logger.exception("%s could not be analysed", part)
            part.refresh_from_db()
            part.trouble = f"{type(error).__name__}: {error}"[:300]
        part.done_at = now_from_database()
        part.save()
        pubsub.publish(f"cluster:{self.analysis.cluster_id}")

    def _past(self) -> tuple[Seen, Analysis]:
        if self._read is None:
            one = self.analysis
            tolerance = Tolerance(one.tolerance_seconds, one.tolerance_part)
            try:
                seen = read_past(one.cluster, one.begins, one.ends)
                self._read = seen, Analysis(seen.past, tolerance)
            except Exception as error:
                self._read = error  # kept, so that the history is not read again for each team
                raise
        if isinstance(self._read, Exception):
            raise self._read
        return self._read


@transaction.atomic(durable=True)
def finish_analysis(analysis: SharingAnalysis) -> bool:
    """Marks the analysis as finished if all its teams are done. Returns False if a team is still waiting."""
    # Locked, so that nobody queues teams again meanwhile.
    SharingAnalysis.objects.select_for_update().get(pk=analysis.pk)
    left = SharingPart.objects.filter(analysis=analysis, done_at=None)
    if left.exists():
        return False
    SharingAnalysis.objects.filter(pk=analysis.pk, finished_at=None).update(finished_at=Now())
    pubsub.publish(f"cluster:{analysis.cluster_id}")
    return True


def _write(part: SharingPart, found: Findings, seen: Seen) -> None:
    part.gpus = dict(zip(seen.generations, found.gpus, strict=True))
    part.judged, part.unfinished = found.judged, found.unfinished
    part.carried, part.too_large = found.carried, found.too_large
    part.trouble = _why_nothing(found, seen)
    rows = [_anomaly(part, one) for one in found.anomalies]
    SharingAnomaly.objects.bulk_create(rows)
    AnomalyHolder.objects.bulk_create(
        AnomalyHolder(anomaly=row, job_id=job, gpu_seconds=seconds)
        for row, one in zip(rows, found.anomalies, strict=True)
        for job, seconds in one.holders
    )


def _why_nothing(found: Findings, seen: Seen) -> str:
    """Returns why the team has no result, as a text for users; an empty text if it has one.

    - `found`: the result of the analysis for the team.
    - `seen`: the cluster's history that was analysed.
    """
    if not seen.generations:
        return "it is unknown which nodes the cluster had in this period"
    if found.judged:
        return ""
    reasons = [
        why.format(jobs=counted(count, "job"))
        for count, why in (
            (found.carried, "{jobs} submitted before the period (a longer period may help)"),
            (found.too_large, "{jobs} larger than the team's private cluster"),
            (found.preemptible, "{jobs} in preemptible mode"),
        )
        if count
    ]
    return f"none of the team's jobs can be compared with its private cluster: {', '.join(reasons)}"


def _anomaly(part: SharingPart, one: Anomaly) -> SharingAnomaly:
    def moment(seconds: float) -> datetime:
        return part.analysis.begins + timedelta(seconds=seconds)

    return SharingAnomaly(
        part=part,
        job_id=one.key,
        cause=str(one.cause),
        causes={str(cause): round(seconds, 3) for cause, seconds in one.causes},
        late_seconds=one.late,
        at_end=one.at_end,
        started_at=None if one.start is None else moment(one.start),
        ended_at=None if one.finish is None else moment(one.finish),
        private_started_at=moment(one.private_start),
        private_ended_at=None if one.private_finish is None else moment(one.private_finish),
    )


@contextmanager
def _slot(at_once: int) -> Iterator[bool]:
    """Context manager that tries to take one of `at_once` advisory locks. Yields True if it got a lock, and False if
    all are taken.

    The lock is released when the block ends or the database connection is lost.
    """
    with connection.cursor() as cursor:
        mine = next((slot for slot in range(at_once) if _try_lock(slot)), None)
        try:
            yield mine is not None
        finally:
            if mine is not None:
                cursor.execute("SELECT pg_advisory_unlock(%s, %s)", [Lock.ANALYSIS, mine])


def _try_lock(slot: int) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s, %s)", [Lock.ANALYSIS, slot])
        return bool(cursor.fetchone()[0])
