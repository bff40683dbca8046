"""The tables of the report on idle GPUs, and the views that return the report as a file."""

from __future__ import annotations

from collections.abc import Sequence

from django.http.response import HttpResponseBase
from django.views.decorators.http import require_safe

from accounting.core.clock import now_from_database
from accounting.core.wording import to_the_minute
from accounting.models import Tenant, User
from portal.jobs.idle import IdleUse, idle_uses
from portal.reports.formats import PERIOD, Cell, Column, Document, Kind, Table, answer
from portal.reports.idle import BY_TEAM, TeamIdle, idle_by_team, idle_now
from portal.reports.periods import Query, ReportPeriod, asked_period
from portal.reports.scope import chosen_tenant
from portal.user_request import UserRequest

NOW = [
    Column("job_id", "Job", Kind.ID),
    Column("job", "Name"),
    Column("team", "Team"),
    Column("owner", "Owner"),
    Column("cluster", "Cluster"),
    Column("generation", "GPU type"),
    Column("gpus", "GPUs", Kind.NUMBER),
    Column("idle_since", "Idle since", Kind.MOMENT),
    Column("idle_seconds", "Idle, min", Kind.MINUTES, 1),
    Column("processless_since", "No process on the GPUs since", Kind.MOMENT),
    Column("percent", "Use, %", Kind.NUMBER, 1),
    Column("measure", "Measured by"),
    Column("acts_at", "Next step at", Kind.MOMENT),
    Column("then", "Next step"),
    Column("snoozed_until", "Snoozed until", Kind.MOMENT),
    Column("snooze_reason", "Reason for the snooze"),
]
TEAMS = [
    Column("team", "Team"),
    Column("idle_gpu_seconds", "Idle, GPU-h", Kind.GPU_TIME, 4),
    Column("processless_gpu_seconds", "GPU-hours without a process", Kind.GPU_TIME, 4),
    Column("held_gpu_seconds", "Held, GPU-h", Kind.GPU_TIME, 4),
    Column("part", "Idle ÷ held GPU time", Kind.NUMBER, 3),
    Column("idle_cost", "Cost of idle time", Kind.MONEY, 6),
    Column("cost", "Cost", Kind.MONEY, 6),
    Column("currency", "Currency"),
]


@require_safe
def idle_file(request: UserRequest, form: str) -> HttpResponseBase:
    return idle_in_format(request.user, request.GET, form)


def idle_in_format(user: User, query: Query, form: str) -> HttpResponseBase:
    """Returns the report on idle GPUs as a file, with all rows. `form` is the file format."""
    tenant = chosen_tenant(user, query)
    period = asked_period(query)
    return answer(idle_document(user, period, tenant), form, file_name(period))


def file_name(period: ReportPeriod) -> str:
    """Returns the name of the report's file, without extension."""
    return f"fairlot-idle-{period.in_a_name}"


def idle_document(viewer: User, period: ReportPeriod, tenant: Tenant | None = None) -> Document:
    """Returns a document with the GPUs that are idle now, and with the idle time in the period, as far as `viewer` may
    see them.

    With `tenant`, it covers only this tenant and the tenants below it.
    """
    now, zone = now_from_database(), period.zone
    return Document(
        title="Idle GPUs",
        facts=[
            ("As of", to_the_minute(now.astimezone(zone))),
            (PERIOD, period.in_words),
            ("Teams", tenant.name if tenant else "All teams that you may see"),
        ],
        tables=[
            Table("now", "Idle now", NOW, [_row(told) for told in idle_uses(idle_now(viewer, tenant))]),
            Table(
                "teams",
                "By team",
                TEAMS,
                [_team(one) for one in idle_by_team(viewer, period, tenant)],
                note=BY_TEAM,
            ),
        ],
        zone=zone,
    )


def _team(one: TeamIdle) -> Sequence[Cell]:
    row = one.booked
    return row.tenant, row.idle, one.processless, row.held, row.part, row.idle_cost, row.cost, row.currency


def _row(told: IdleUse) -> Sequence[Cell]:
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
        use.processless_since,
        use.percent,
        use.get_measure_display(),
        told.acts_at,
        told.terms.then.value if told.terms and acts else None,
        use.snoozed_until if told.is_snoozed else None,
        use.snooze_reason if told.is_snoozed else "",
    )
