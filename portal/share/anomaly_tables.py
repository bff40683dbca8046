"""Writes the sharing anomalies of one analysis to a file, with all data that the page shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, tzinfo

from django.http import Http404
from django.http.response import HttpResponseBase
from django.utils import timezone
from django.views.decorators.http import require_safe

from accounting.access.visibility import visible_ids
from accounting.core.name_order import by_name, name_key
from accounting.core.wording import to_the_minute
from accounting.models import Tenant, User
from portal.reports.formats import PERIOD, STATE, Cell, Column, Document, Kind, Table, answer
from portal.reports.periods import Query, ReportPeriod
from portal.reports.scope import chosen_cluster, chosen_tenant
from portal.share.anomalies import EXPECTED, chosen_analysis
from portal.user_request import UserRequest
from scheduling.anomalies.seen import CAUSES, SeenAnomaly, read_analyses, read_anomalies, read_parts, seen
from scheduling.models import Cluster, SharingAnalysis, SharingPart

HOLDERS = [
    Column("anomaly", "Anomaly", Kind.ID),
    Column("job_id", "Job that held the needed GPUs", Kind.ID),
    Column("job", "Name"),
    Column("team", "Team"),
    Column("gpu_seconds", "GPU-hours", Kind.GPU_TIME, 4),
]
PRIVATE = [
    Column("team", "Team"),
    Column("gpus", "GPUs"),
    *(
        Column(name, heading, Kind.NUMBER)
        for name, heading in {
            "judged": "Jobs compared",
            "unfinished": "Unfinished jobs, compared by start time only",
            "carried": "Jobs not compared, because they began before the period",
            "too_large": "Jobs not compared, because they are too large for the private cluster",
        }.items()
    ),
    Column("trouble", "Trouble"),
]


@require_safe
def anomalies_file(request: UserRequest, form: str) -> HttpResponseBase:
    return anomalies_in_format(request.user, request.GET, form)


def anomalies_in_format(user: User, query: Query, form: str) -> HttpResponseBase:
    """Returns a file with the anomalies of the analysis that the URL query chooses. `form` is the file format.

    Raises Http404 if there is no such analysis.
    """
    cluster = chosen_cluster(query, list(Cluster.objects.order_by(*by_name("name"))))
    tenant = chosen_tenant(user, query)
    analysis = chosen_analysis(query.get("analysis", ""), read_analyses(user, cluster))
    if analysis is None:
        raise Http404
    document = anomalies_document(user, analysis, tenant=tenant, cause=query.get("cause", ""))
    return answer(document, form, f"fairlot-anomalies-{analysis.begins:%Y-%m-%d}-{analysis.ends:%Y-%m-%d}")


def anomalies_document(
    user: User,
    analysis: SharingAnalysis,
    *,
    tenant: Tenant | None = None,
    cause: str = "",
    zone: tzinfo | None = None,
) -> Document:
    """Returns a document with those anomalies of an analysis that `user` may see.

    With `tenant` or `cause`, it has only the anomalies of this tenant or with this cause. Times are in `zone`, by
    default in the user's time zone.
    """
    found = read_anomalies(user, analysis, tenant=tenant)
    if cause in CAUSES:
        found = found.filter(cause=cause)
    rows = seen(found, visible_ids(user))
    zone = zone or timezone.get_current_timezone()

    def local(moment: datetime | None) -> str:
        return "not yet" if moment is None else to_the_minute(moment.astimezone(zone))

    return Document(
        title="Sharing anomalies",
        facts=[
            ("Cluster", analysis.cluster.name),
            (PERIOD, f"{local(analysis.begins)} to {local(analysis.ends)}"),
            ("Teams", tenant.name if tenant else "All teams that you may see"),
            ("Finished", local(analysis.finished_at)),
            *([("Cause", CAUSES[cause])] if cause in CAUSES else []),
            ("Expected rate of false anomalies", EXPECTED),
        ],
        tables=[
            Table(
                "anomalies",
                "Anomalies",
                _columns(),
                [_row(one) for one in rows],
                note="If a job has not started, its delay may still grow.",
            ),
            Table("holders", "Jobs that held the needed GPUs", HOLDERS, list(_holders(rows))),
            Table(
                "private",
                "Private clusters of the teams",
                PRIVATE,
                [_private(part) for part in read_parts(user, analysis, tenant) if part.done_at],
            ),
        ],
        zone=zone,
    )


def analyses_ended_in(user: User, begins: datetime, ends: datetime) -> list[SharingAnalysis]:
    """Returns the latest finished analysis of each cluster, sorted by cluster name.

    Considers only analyses whose analysed period ended after `begins` and not later than `ends`.
    """
    found = SharingAnalysis.objects.visible_to(user).filter(
        ends__gt=begins, ends__lte=ends, finished_at__isnull=False
    )
    last = found.order_by("cluster_id", "-ends", "-pk").distinct("cluster_id").select_related("cluster")
    return sorted(last, key=lambda one: name_key(one.cluster.name))


def document_of_analyses(
    user: User, analyses: Sequence[SharingAnalysis], period: ReportPeriod, *, tenant: Tenant | None = None
) -> Document:
    """Returns one document with the tables of several analyses, for a mail about the period.

    If `analyses` is empty, the document has no tables and states that no analysis is finished.
    """
    facts = [(PERIOD, period.in_words)]
    told = [anomalies_document(user, one, tenant=tenant, zone=period.zone) for one in analyses]
    if not told:
        teams = tenant.name if tenant else "All teams that you may see"
        nothing = "No analysis has finished for a time range that ends in this period."
        return Document("Sharing anomalies", [], [*facts, ("Teams", teams), (STATE, nothing)], period.zone)
    if len(told) == 1:
        [only] = told
        analysed = [("Analysed" if label == PERIOD else label, text) for label, text in only.facts]
        return replace(only, facts=[*facts, *analysed])
    tables = [
        replace(table, key=f"{table.key} {one.cluster.name}", title=f"{table.title}, {one.cluster.name}")
        for one, document in zip(analyses, told, strict=True)
        for table in document.tables
    ]
    for one, document in zip(analyses, told, strict=True):
        facts += [(one.cluster.name, text) for label, text in document.facts if label == PERIOD]
    return Document("Sharing anomalies", tables, facts, period.zone)


def _columns() -> list[Column]:
    return [
        Column("id", "Anomaly", Kind.ID),
        Column("job_id", "Job", Kind.ID),
        Column("job", "Name"),
        Column("team", "Team"),
        Column("owner", "Owner"),
        Column("cause", "Cause"),
        Column("late_seconds", "Late, min", Kind.MINUTES, 1),
        *(
            Column(name, heading, Kind.MOMENT)
            for name, heading in {
                "started_at": "Started",
                "private_started_at": "Job's start on private cluster",
                "ended_at": "Ended",
                "private_ended_at": "Job's end on private cluster",
            }.items()
        ),
        *(Column(f"{key}_seconds", f"{word}, min", Kind.MINUTES, 1) for key, word in CAUSES.items()),
    ]


def _row(row: SeenAnomaly) -> Sequence[Cell]:
    one = row.anomaly
    return (
        one.pk,
        one.job_id,
        one.job.name,
        one.part.tenant.name,
        one.job.owner.get_username(),
        CAUSES[one.cause],
        one.late_seconds,
        one.started_at,
        one.private_started_at,
        one.ended_at,
        one.private_ended_at,
        *(float(one.causes.get(key, 0.0)) for key in CAUSES),
    )


def _holders(rows: Iterable[SeenAnomaly]) -> Iterator[Sequence[Cell]]:
    for row in rows:
        for one in row.holders:
            yield row.anomaly.pk, one.job_id, one.job, one.team, one.gpu_seconds


def _private(part: SharingPart) -> Sequence[Cell]:
    gpus = ", ".join(f"{count} {name}" for name, count in part.gpus.items())
    return part.tenant.name, gpus, part.judged, part.unfinished, part.carried, part.too_large, part.trouble
