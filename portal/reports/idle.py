"""GPUs that are held and not used: now, and this month by team."""

from __future__ import annotations

from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_safe

from accounting.clock import now_from_database
from accounting.idle_report import idle_report
from accounting.models import Tenant, User
from accounting.periods import period_of
from portal.fragments import render_page
from portal.jobs.idle import told_of
from portal.live.topics import topics_of_jobs
from scheduling.idle_gpus import STALE
from scheduling.models import GpuUse

ROWS_PER_PAGE = 50
TEAMS = 20


def idle_now(viewer: User, tenant: Tenant | None = None) -> QuerySet[GpuUse]:
    """What `viewer` may see, of a team with all below it, or of all; idle for longest first."""
    recent = now_from_database() - STALE
    found = GpuUse.objects.visible_to(viewer).idle().filter(measured_until__gte=recent)
    if tenant is not None:
        found = found.filter(job__tenant__in=Tenant.objects.subtree_of([tenant.pk]))
    related = ("job__tenant", "job__owner", "job__cluster", "lease__generation", "snoozed_by")
    return found.select_related(*related).defer("job__spec").order_by("idle_since", "pk")


@require_safe
def idle(request: HttpRequest) -> HttpResponse:
    tenant = None
    if slug := request.GET.get("team", "").replace("\0", ""):
        tenant = get_object_or_404(Tenant.objects.visible_to(request.user), slug=slug)
    now = now_from_database()
    begins, ends = period_of("month", None, now)
    page = Paginator(idle_now(request.user, tenant), ROWS_PER_PAGE).get_page(request.GET.get("page"))
    rows = idle_report(request.user, begins, ends or now, tenant=tenant)
    context = {
        "tenants": list(Tenant.objects.visible_to(request.user).order_by("name")),
        "tenant": tenant,
        "page": page,
        "rows": told_of(page.object_list),
        "teams": rows[:TEAMS],
        "more": len(rows) - TEAMS,
        "most": rows[0].idle if rows else 0,
        "begins": begins,
        "topics": topics_of_jobs(request.user),
    }
    return render_page(request, "reports/idle.html", context, parts=("idle-now",))
