"""The page of the top consumers: who holds the most GPUs now, and who used the most GPU time in the last day and
week."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.core.paginator import Page, Paginator
from django.http import HttpResponse, QueryDict
from django.urls import reverse
from django.views.decorators.http import require_safe

from accounting.core.clock import now_from_database
from accounting.core.name_order import in_order
from accounting.models import Generation
from accounting.reports.consumers import Consumer, top_consumers
from portal.cluster.choice import Choice, holders_of
from portal.fragments import render_page
from portal.live.topics import topics_of_jobs
from portal.user_request import UserRequest
from scheduling.models import Cluster

ROWS_PER_PAGE = 50
NOW = "now"
PERIODS = {"day": ("Last 24 hours", timedelta(days=1)), "week": ("Last 7 days", timedelta(days=7))}


def period_of(key: str) -> tuple[datetime, datetime]:
    """Returns the period with this name, "day" or "week", which ends now."""
    now = now_from_database()
    return now - PERIODS[key][1], now


@require_safe
def consumers(request: UserRequest) -> HttpResponse:
    """Shows who holds the most GPUs now or, with `?period=day` or `?period=week`, who used the most GPU time."""
    choice = Choice.read(request)
    period = request.GET.get("period", NOW)
    context: dict[str, Any] = {
        "choice": choice,
        "generations": [one.name for one in in_order(Generation.objects.all())],
        "period": period if period in PERIODS else NOW,
        "periods": {NOW: "Now", **{key: label for key, (label, _) in PERIODS.items()}},
        "topics": " ".join(f"cluster:{pk}" for pk in Cluster.objects.attached().values_list("pk", flat=True))
        + f" {topics_of_jobs(request.user)}",
    }
    number = request.GET.get("page")
    if period in PERIODS:
        begins, ends = period_of(period)
        found = top_consumers(
            request.user,
            begins,
            ends,
            by_user=choice.by_user,
            tenant=choice.tenant,
            generation=choice.generation,
        )
        page: Page[Any] = Paginator(found, ROWS_PER_PAGE).get_page(number)
        most = max((one.held for one in found), default=0)
        context |= {
            "page": page,
            "rows": [(one, _jobs_of(one, begins, ends)) for one in page],
            "most": most,
            "begins": begins,
            "ends": ends,
        }
    else:
        held = holders_of(request.user, choice)
        page = Paginator(held.holders, ROWS_PER_PAGE).get_page(number)
        context |= {
            "page": page,
            "holders": page.object_list,
            "totals": held.totals,
        }
    return render_page(request, "cluster/consumers.html", context)


def _jobs_of(one: Consumer, begins: datetime, ends: datetime) -> str:
    """Returns the address of the page with the jobs behind a row: the team's usage by job, or the user's jobs."""
    query = QueryDict(mutable=True)
    query["team"] = one.slug
    if one.user is not None:
        query.update({"owner": one.user, "kind": "all"})
        return f"{reverse('jobs')}?{query.urlencode()}"
    query.update({"by": "job", "period": "dates", "from": f"{begins:%Y-%m-%d}", "to": f"{ends:%Y-%m-%d}"})
    return f"{reverse('usage')}?{query.urlencode()}"
