"""Reads sharing anomalies for one user. Shows the names of jobs only in teams that this user may see."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from django.db.models import QuerySet

from accounting.access.visibility import ANOTHER
from accounting.core.name_order import by_name
from accounting.models import Tenant, User
from scheduling.models import AnomalyHolder, Cluster, SharingAnalysis, SharingAnomaly, SharingPart
from scheduling.models.anomalies import SharingAnalysisQuerySet, SharingPartQuerySet

CAUSES = dict(SharingAnomaly.Cause.choices)


@dataclass(frozen=True)
class SeenHolder:
    """A job that held GPUs during an anomaly, or the sum of all such jobs that the reader may not see.

    For this sum, `job_id` is None, `job` is empty, and `team` is "another team".
    """

    job_id: int | None
    job: str
    team: str
    gpu_seconds: float


@dataclass(frozen=True)
class SeenAnomaly:
    """An anomaly as one reader may see it.

    - `causes`: pairs of a cause in words and the seconds of delay that it explains, longest first.
    - `holders`: the jobs that held the GPUs while the anomaly's job waited, most GPU-seconds first.
    """

    anomaly: SharingAnomaly
    causes: list[tuple[str, float]]
    holders: list[SeenHolder]


def read_analyses(user: User, cluster: Cluster | None) -> SharingAnalysisQuerySet:
    """Returns the analyses that `user` may see, with their progress, latest period first.

    If `cluster` is given, returns only analyses of this cluster.
    """
    return SharingAnalysis.objects.visible_to(user).filter(cluster=cluster).with_progress()


def read_parts(user: User, analysis: SharingAnalysis, tenant: Tenant | None = None) -> SharingPartQuerySet:
    """Returns the results of an analysis that `user` may see, one for each team, ordered by team name.

    If `tenant` is given, returns only results of teams in its subtree.
    """
    parts = SharingPart.objects.visible_to(user).filter(analysis=analysis).select_related("tenant")
    if tenant:
        parts = parts.filter(tenant__in=Tenant.objects.within(tenant))
    return parts.order_by(*by_name("tenant__name"))


def read_anomalies(
    user: User, analysis: SharingAnalysis, *, tenant: Tenant | None = None
) -> QuerySet[SharingAnomaly]:
    """Returns the anomalies of an analysis that `user` may see, latest job first.

    If `tenant` is given, returns only anomalies of teams in its subtree.
    """
    found = SharingAnomaly.objects.visible_to(user).filter(part__analysis=analysis)
    if tenant:
        found = found.filter(part__tenant__in=Tenant.objects.within(tenant))
    return found.select_related("job", "job__owner", "part__tenant").defer("job__spec")


def seen(anomalies: Iterable[SharingAnomaly], mine: Collection[int]) -> list[SeenAnomaly]:
    """Returns the anomalies as SeenAnomaly objects, which hide the names of jobs that the reader may not see.

    `mine` are the ids of the teams whose jobs the reader may see.
    """
    listed = list(anomalies)
    held: dict[int, list[AnomalyHolder]] = {one.pk: [] for one in listed}
    holders = AnomalyHolder.objects.filter(anomaly__in=listed).select_related("job__tenant")
    for holder in holders.defer("job__spec"):
        held[holder.anomaly_id].append(holder)
    return [
        SeenAnomaly(
            one,
            sorted(((CAUSES[c], seconds) for c, seconds in one.causes.items()), key=lambda c: -c[1]),
            _holders(held[one.pk], mine),
        )
        for one in listed
    ]


def _holders(holders: Iterable[AnomalyHolder], mine: Collection[int]) -> list[SeenHolder]:
    """Returns one row for each holder that is a job of a team in `mine`, and one row for the sum of all other holders.

    The row for the others has no names. The row with the most GPU-seconds comes first.
    """
    shown: list[SeenHolder] = []
    hidden = 0.0
    for one in holders:
        if one.job.tenant_id in mine:
            shown.append(SeenHolder(one.job_id, one.job.name, one.job.tenant.name, one.gpu_seconds))
        else:
            hidden += one.gpu_seconds
    if hidden:
        shown.append(SeenHolder(None, "", ANOTHER, hidden))
    return sorted(shown, key=lambda one: -one.gpu_seconds)
