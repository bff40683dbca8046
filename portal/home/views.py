"""The first page."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from accounting.models.tenants import ids_with_role
from portal.fragments import render_page
from portal.home import glance
from portal.jobs.filters import with_generation
from portal.live.topics import topics_of_jobs
from scheduling.models import Cluster, Job

SHOWN_JOBS = 6


@require_safe
def home(request: HttpRequest) -> HttpResponse:
    """My jobs, my teams' share and the machines, as they are now."""
    user = request.user
    visible = Job.objects.visible_to(user)
    own = visible.filter(owner=user)
    everybodys = user.is_operator and not own.exists()  # who runs the portal sees how it goes
    jobs = visible if everybodys else own
    shown = with_generation(jobs)
    teams = glance.own_teams(user)
    clusters = list(Cluster.objects.all())
    floor = glance.Floor.read()
    seen = None if user.is_operator else ids_with_role(user)
    context = {
        "counts": glance.count_jobs(jobs, floor.held_by(None if everybodys else user.pk, seen)),
        "unfinished": shown.unfinished().order_by("-id")[:SHOWN_JOBS],
        "ended": shown.filter(state__in=Job.ENDED).order_by("-ended_at", "-id")[:SHOWN_JOBS],
        "everybodys": everybodys,
        "teams": teams,
        "share": (
            glance.share_now(teams, floor, [one for one in clusters if one.detached_at is None])
            if teams
            else []
        ),
        "machines": glance.machines_now(floor),
        "topics": f"{topics_of_jobs(user)} " + " ".join(f"cluster:{c.pk}" for c in clusters),
    }
    return render_page(request, "home/home.html", context, parts=("home-body",))
