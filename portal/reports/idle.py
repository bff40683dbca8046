"""The report on idle GPUs: the jobs whose GPUs are idle now, and the idle time of each team in a period."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpResponse
from django.views.decorators.http import require_safe

from accounting.access.visibility import tenants_seen
from accounting.core.clock import now_from_database
from accounting.core.name_order import by_name
from accounting.models import ReportSubscription, Tenant, User
from accounting.reports.idle import IdleRow, idle_report
from portal.fragments import render_page
from portal.jobs.idle import idle_uses
from portal.live.topics import topics_of_jobs
from portal.reports.by_mail import by_mail
from portal.reports.periods import LABELS, ReportPeriod, asked_period
from portal.reports.scope import chosen_tenant
from portal.user_request import UserRequest
from scheduling.idle.steps import STALE
from scheduling.models import GpuUse, ProcesslessStretch

ROWS_PER_PAGE = 50
TEAMS = 20
BY_TEAM = (
    "The table contains the time in this period that the ledger has booked. The row of a "
    "team does not include the teams below it. The cost of idle time is the cost of each "
    "hour times the idle fraction of this hour, summed over all hours. GPU-hours without "
    "a process are the part of the idle time in which no process was observed on the GPU."
)


def idle_now(viewer: User, tenant: Tenant | None = None) -> QuerySet[GpuUse]:
    """Returns the GPU use of the jobs whose GPUs are idle now and that `viewer` may see, longest idle time first.

    With `tenant`, returns only jobs of this tenant and the tenants below it. Leaves out jobs whose last measurement is
    older than STALE.
    """
    recent = now_from_database() - STALE
    found = GpuUse.objects.visible_to(viewer).idle().filter(measured_until__gte=recent)
    if tenant is not None:
        found = found.filter(job__tenant__in=Tenant.objects.subtree_of([tenant.pk]))
    related = ("job__tenant", "job__owner", "job__cluster", "lease__generation", "snoozed_by")
    return found.select_related(*related).defer("job__spec").order_by("idle_since", "pk")


@dataclass(frozen=True)
class TeamIdle:
    """A team's idle GPU time in a period, as the ledger has booked it.

    `processless` is the part of the idle time, in GPU-seconds, in which no process was observed on the GPUs.
    """

    booked: IdleRow
    processless: Decimal


def idle_by_team(viewer: User, period: ReportPeriod, tenant: Tenant | None = None) -> list[TeamIdle]:
    """Returns the idle time that the ledger has booked for each team that `viewer` may see, most idle time first.

    The idle time of a team does not include that of the teams below it.
    """
    rows = idle_report(viewer, period.begins, period.ends, tenant=tenant)
    empty = ProcesslessStretch.objects.gpu_seconds_by_tenant(
        period.begins, period.ends, tenants_seen(viewer, tenant)
    )
    # A team with bills in two currencies has two rows. Only the first has the time without a process, so that rows sum
    # up.
    return [TeamIdle(row, empty.pop(row.tenant_id, Decimal(0))) for row in rows]


@require_safe
def idle(request: UserRequest) -> HttpResponse:
    tenant = chosen_tenant(request.user, request.GET)
    period = asked_period(request.GET, is_page=True)
    page = Paginator(idle_now(request.user, tenant), ROWS_PER_PAGE).get_page(request.GET.get("page"))
    rows = idle_by_team(request.user, period, tenant)
    context = {
        "tenants": list(Tenant.objects.visible_to(request.user).order_by(*by_name("name"))),
        "tenant": tenant,
        "page": page,
        "rows": idle_uses(page.object_list),
        "teams": rows[:TEAMS],
        "more": len(rows) - TEAMS,
        "period": period,
        "periods": LABELS,
        "by_team": BY_TEAM,
        "topics": topics_of_jobs(request.user),
        **by_mail(request.user, ReportSubscription.Report.IDLE, tenant),
    }
    return render_page(request, "reports/idle.html", context)
