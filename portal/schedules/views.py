"""The page of a schedule, and its actions. The list is in portal/schedules/listing.py, the form in
portal/schedules/editing.py."""

from __future__ import annotations

import uuid
from typing import Any

from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from accounting.core.clock import now_from_database
from accounting.core.errors import NotAllowed, Refused
from portal.forms.posting import tell
from portal.fragments import render_page
from portal.jobs.detail import yaml_of
from portal.schedules.timing import preview_of
from portal.user_request import UserRequest
from scheduling.models import Schedule
from scheduling.schedules.actions import delete_schedule, pause_schedule, resume_schedule
from scheduling.schedules.schedule_runs import run_schedule_now
from scheduling.spec.job_spec import SpecError
from scheduling.timetable import TimetableError

RUNS_PER_PAGE = 50
REFUSALS = (NotAllowed, Refused, SpecError)


@require_safe
def schedule(request: UserRequest, pk: int) -> HttpResponse:
    """Shows a schedule: its job specification, its next runs, and the outcomes of past runs."""
    shown = visible_schedule(request, pk)
    runs = shown.runs.select_related("job", "asked_by").order_by("-id")
    context = {
        "schedule": shown,
        "page": Paginator(runs, RUNS_PER_PAGE).get_page(request.GET.get("page")),
        "yaml": yaml_of(shown),
        "may_change": Schedule.objects.changeable_by(request.user).filter(pk=pk).exists(),
        "preview": _preview(shown),
        "request_key": uuid.uuid4().hex,
    }
    return render_page(request, "schedules/schedule.html", context)


def _preview(shown: Schedule) -> dict[str, Any] | None:
    try:
        return preview_of(shown.timetable, now_from_database(), timezone.get_current_timezone())
    except TimetableError:  # the run that is due reports the error
        return None


@require_POST
def run(request: UserRequest, pk: int) -> HttpResponse:
    key = request.POST.get("request_key", "")[:64] or None
    shown = visible_schedule(request, pk)
    tell(
        request,
        lambda: run_schedule_now(actor=request.user, schedule=shown, request_key=key),
        f"The schedule {shown.name} has submitted a job.",
        refusals=REFUSALS,
    )
    return redirect("schedule", pk=pk)


@require_POST
def pause(request: UserRequest, pk: int) -> HttpResponse:
    reason = request.POST.get("reason", "")
    shown = visible_schedule(request, pk)
    tell(
        request,
        lambda: pause_schedule(actor=request.user, schedule=shown, reason=reason),
        f"The schedule {shown.name} has been paused.",
        refusals=REFUSALS,
    )
    return redirect("schedule", pk=pk)


@require_POST
def resume(request: UserRequest, pk: int) -> HttpResponse:
    shown = visible_schedule(request, pk)
    tell(
        request,
        lambda: resume_schedule(actor=request.user, schedule=shown),
        f"The schedule {shown.name} has been resumed.",
        refusals=REFUSALS,
    )
    return redirect("schedule", pk=pk)


@require_POST
def delete(request: UserRequest, pk: int) -> HttpResponse:
    shown = visible_schedule(request, pk)
    if tell(
        request,
        lambda: delete_schedule(actor=request.user, schedule=shown),
        f"The schedule {shown.name} has been deleted.",
        refusals=REFUSALS,
    ):
        return redirect("schedules")
    return redirect("schedule", pk=pk)


def visible_schedule(request: UserRequest, pk: int) -> Schedule:
    """Returns the schedule with this key. Raises Http404 if the user may not see the schedule."""
    return get_object_or_404(_seen(request), pk=pk)


def _seen(request: UserRequest) -> QuerySet[Schedule]:
    return Schedule.objects.visible_to(request.user).select_related("tenant", "owner", "cluster")
