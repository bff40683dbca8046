"""GPUs that are held and not used, as a file."""

from __future__ import annotations

from collections.abc import Sequence

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.utils import timezone
from django.views.decorators.http import require_safe

from accounting.clock import now_from_database
from accounting.idle_report import idle_report
from accounting.models import Tenant, User
from accounting.periods import period_of
from portal.jobs.idle import Told, told_of
from portal.reports.formats import Cell, Column, Document, Kind, Table, answer
from portal.reports.idle import idle_now

NOW = [
    Column("job_id", "Job", Kind.ID),
    Column("job", "Name"),
    Column("team", "Team"),
    Column("owner", "Owner"),
    Column("cluster", "Cluster"),
    Column("generation", "GPU"),
    Column("gpus", "GPUs", Kind.NUMBER),
    Column("idle_since", "Idle since", Kind.MOMENT),
    Column("idle_seconds", "Idle, min", Kind.MINUTES, 1),
    Column("percent", "Use, %", Kind.NUMBER, 1),
    Column("measure", "Measured by"),
    Column("acts_at", "Acts at", Kind.MOMENT),
    Column("then", "Then"),
    Column("snoozed_until", "Put off until", Kind.MOMENT),
    Column("snooze_reason", "Why"),
]
TEAMS = [
    Column("team", "Team"),
    Column("idle_gpu_seconds", "Idle, GPU-h", Kind.GPU_TIME, 4),
    Column("held_gpu_seconds", "Held, GPU-h", Kind.GPU_TIME, 4),
    Column("part", "Part", Kind.NUMBER, 3),
]


@require_safe
def idle_file(request: HttpRequest, form: str) -> HttpResponse:
    """All that the page tells."""
    tenant = None
    if slug := request.GET.get("team", "").replace("\0", ""):
        tenant = get_object_or_404(Tenant.objects.visible_to(request.user), slug=slug)
    now = now_from_database().astimezone(timezone.get_current_timezone())
    return answer(idle_document(request.user, tenant), form, f"fairlot-idle-{now:%Y-%m-%d}")


def idle_document(viewer: User, tenant: Tenant | None = None) -> Document:
    """What `viewer` may see, of a team with all below it, or of all."""
    now, zone = now_from_database(), timezone.get_current_timezone()
    begins, ends = period_of("month", None, now)
    return Document(
        title="Idle GPUs",
        facts=[
            ("As of", f"{now.astimezone(zone):%-d %B %Y, %H:%M %Z}"),
            ("Teams", tenant.name if tenant else "All that you may see"),
        ],
        tables=[
            Table("now", "Idle now", NOW, [_row(told) for told in told_of(idle_now(viewer, tenant))]),
            Table(
                "teams",
                "This month by team",
                TEAMS,
                [
                    (one.tenant, one.idle, one.held, one.part)
                    for one in idle_report(viewer, begins, ends or now, tenant=tenant)
                ],
                note=f"Since {begins:%-d %B %Y} (UTC), as booked; each team without those below it.",
            ),
        ],
        zone=zone,
    )


def _row(told: Told) -> Sequence[Cell]:
    use, job = told.use, told.use.job
    acts = told.terms is not None and told.acts_at is not None
    return (
        job.pk,
        job.name,
        job.tenant.name,
        job.owner.get_username(),
        job.cluster.name,
        use.lease.generation.name,
        use.lease.gpus,
        use.idle_since,
        use.idle_for.total_seconds(),
        use.percent,
        use.get_measure_display(),
        told.acts_at,
        told.terms.then.value if told.terms and acts else None,
        use.snoozed_until if told.is_snoozed else None,
        use.snooze_reason if told.is_snoozed else "",
    )
