"""The page that shows how much disk space the files of jobs take, and deletes files."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from functools import partial
from typing import Any

from django.core.paginator import Paginator
from django.db.models import Count, F, Q, Sum
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.http import require_POST, require_safe

from accounting.core.clock import now_from_database
from accounting.core.wording import data_size
from accounting.limits.quotas import LimitUsage
from accounting.models import Quota, Tenant, User
from portal.forms.posting import tell
from portal.fragments import render_page
from portal.jobs.files import deleted_at
from portal.jobs.views import visible_job
from portal.user_request import UserRequest
from scheduling.limits.usage import used_by_account
from scheduling.models import Job, JobStorage
from scheduling.models.storage import JobStorageQuerySet
from scheduling.storage import delete_files

JOBS_PER_PAGE = 50


@require_safe
def storage(request: UserRequest) -> HttpResponse:
    """Shows the space that the jobs of the user's teams take, biggest first.

    `?team=` shows the jobs of one team, and `?mine=1` those of the user. The totals are always of all.
    """
    user, query = request.user, request.GET
    measured = JobStorage.objects.visible_to(user).present()
    team = (
        get_object_or_404(Tenant.objects.visible_to(user), slug=query["team"]) if query.get("team") else None
    )
    mine = query.get("mine") == "1"
    chosen = measured
    if team is not None:
        chosen = chosen.filter(job__tenant=team)
    if mine:
        chosen = chosen.filter(job__owner=user)
    rows = chosen.select_related("job__tenant", "job__owner").order_by("-size", "pk")
    page = Paginator(rows, JOBS_PER_PAGE).get_page(query.get("page"))
    deletable = _deletable(request, [row.pk for row in page])
    context = {
        "page": page,
        "rows": [(row, deleted_at(row.job), row.pk in deletable) for row in page],
        "teams": _by_team(measured),
        "limits": _limits(user),
        "own": measured.aggregate(
            total=Sum("size", filter=Q(job__owner=user), default=0),
            jobs=Count("pk", filter=Q(job__owner=user)),
        ),
        "team": team,
        "mine": mine,
    }
    return render_page(request, "jobs/storage.html", context)


def _limits(user: User) -> list[LimitUsage]:
    """Returns the limits on files of the teams that the user may see, and of the user, with their usage.

    Those with the least space left come first.
    """
    quotas = (
        Quota.objects.filter(kind=Quota.Kind.STORAGE, tenant__in=Tenant.objects.visible_to(user))
        .filter(Q(user=None) | Q(user=user))
        .select_related("tenant", "user", "generation")
    )
    found = []
    for quota, used in used_by_account(quotas, now=now_from_database()):
        own = user if quota.is_of_users else None
        amounts = [amount for (_, whose), amount in used.items() if whose == (own.pk if own else None)]
        found.append(LimitUsage(quota, max(amounts, default=Decimal(0)), quota.tenant, own))
    return sorted(found, key=lambda one: (one.quota.limit - one.used, one.quota.pk))


def _by_team(measured: JobStorageQuerySet) -> list[dict[str, Any]]:
    """Returns for each team its slug, its name, the number of its jobs with files, and the bytes that these and the
    ended ones among them take. The team that takes most comes first."""
    found: Iterable[Any] = (
        measured.values(slug=F("job__tenant__slug"), name=F("job__tenant__name"))
        .annotate(
            jobs=Count("pk"),
            total=Sum("size"),
            ended=Sum("size", filter=Q(job__state__in=Job.ENDED), default=0),
        )
        .order_by("-total", "name")
    )
    return list(found)


def _deletable(request: UserRequest, jobs: list[int]) -> set[int]:
    """Returns the ids of those of the jobs whose files the user may have deleted."""
    ended = Job.objects.changeable_by(request.user).filter(pk__in=jobs, state__in=Job.ENDED)
    return set(ended.filter(storage__deletion_wanted_at=None).values_list("pk", flat=True))


@require_POST
def delete(request: UserRequest, pk: int) -> HttpResponse:
    """Has the files of an ended job deleted."""
    job = visible_job(request, pk)
    tell(request, lambda: delete_files(actor=request.user, job=job), partial(_deleted, job))
    return redirect("storage")


def _deleted(job: Job, wanted: JobStorage) -> str:
    size = f" ({data_size(wanted.size)})" if wanted.measured_at else ""
    return f"The files of {job.name}{size} will be deleted in a moment."
