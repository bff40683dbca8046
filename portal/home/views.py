"""The view of the home page."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from django.db.models import Count, F, QuerySet
from django.http import HttpResponse
from django.views.decorators.http import require_safe

from accounting.core.prepared import Prepared
from accounting.models import User
from accounting.models.tenants import ids_with_role
from portal.fragments import render_page, wanted_part
from portal.home import dashboard
from portal.home.cards import groups_for
from portal.jobs.filters import with_generation
from portal.live.topics import topics_of_jobs
from portal.user_request import UserRequest
from scheduling.models import Cluster, Job

SHOWN_JOBS = 6


@require_safe
def home(request: UserRequest) -> HttpResponse:
    """Shows what waits for the user, the user's jobs, the shares of the user's teams, and the use of the GPUs, all at
    the current time.

    A refresh reads only the part that it shows.
    """
    part, clusters = wanted_part(request), _clusters()
    context: dict[str, Any] = {
        "topics": f"{topics_of_jobs(request.user)} " + " ".join(f"cluster:{c.pk}" for c in clusters),
    }
    attached = [one for one in clusters if one.detached_at is None]
    if part in {"", "home-cards"}:
        context["groups"] = groups_for(request.user, attached)
    if part in {"", "home-body"}:
        context |= _body(request.user, attached)
    return render_page(request, "home/home.html", context)


def _body(user: User, attached: list[Cluster]) -> dict[str, Any]:
    """Returns the context of the lists of jobs, the shares and the use of the GPUs."""
    everybodys = (
        user.is_operator and not Job.objects.filter(owner=user).exists()
    )  # an operator without jobs sees everybody's
    states: Iterable[tuple[str, int]]
    unfinished: Iterable[Job]
    ended: Iterable[Job]
    if user.is_operator:
        jobs = Job.objects.all() if everybodys else Job.objects.filter(owner=user)
        states, unfinished, ended = _states(jobs), _unfinished(jobs), _ended(jobs)
        seen = None
    else:
        seen = ids_with_role(user)
        states, unfinished, ended = (ask(user.pk, seen) for ask in _OWN)
    teams = dashboard.own_teams(user.pk)
    gpu_totals = dashboard.GpuTotals.read()
    return {
        "counts": dashboard.counts(states, gpu_totals.held_by(None if everybodys else user.pk, seen)),
        "unfinished": unfinished,
        "ended": ended,
        "everybodys": everybodys,
        "teams": teams,
        "share": dashboard.share_now(set(ids_with_role(user)), gpu_totals, attached) if teams else [],
        "machines": dashboard.machines_now(gpu_totals),
    }


def _states(jobs: QuerySet[Job]) -> QuerySet[Job, tuple[str, int]]:
    return jobs.order_by().values_list("state").annotate(Count("pk"))


def _unfinished(jobs: QuerySet[Job]) -> QuerySet[Job]:
    starts = {"earliest": F("forecast__earliest"), "starts_by": F("forecast__starts_by")}
    return with_generation(jobs).annotate(**starts).exclude(state__in=Job.ENDED).order_by("-id")[:SHOWN_JOBS]


def _ended(jobs: QuerySet[Job]) -> QuerySet[Job]:
    return with_generation(jobs).filter(state__in=Job.ENDED).order_by("-ended_at", "-id")[:SHOWN_JOBS]


def _prepared(of: Callable[[QuerySet[Job]], QuerySet[Job, Any]]) -> Prepared[Job]:
    """Returns a prepared query for the jobs of one owner in certain teams. It is run with the owner and the list of
    teams.

    `of` is called with the QuerySet of these jobs, and returns it with columns and an order added.
    """
    return Prepared(lambda owner, teams: of(Job.objects.filter(owner=owner, tenant__in=teams)))


_OWN = (_prepared(_states), _prepared(_unfinished), _prepared(_ended))
_clusters = Prepared(Cluster.objects.all)
