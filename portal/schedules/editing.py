"""The pages that create and change a schedule, with its job specification (as form and as YAML) and its timing
fields."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from accounting.core.clock import now_from_database
from accounting.core.errors import NotAllowed, Refused
from accounting.core.numbers import read_key
from portal.schedules.timing import FIELDS, TIMING, Timing
from portal.schedules.views import visible_schedule
from portal.submit.draft import Choices, Draft
from portal.submit.fields import Fields
from portal.submit.keeping import DO, asked_draft, keep_form
from portal.submit.kept import draft_of
from portal.submit.views import form_context
from portal.unstorable import keeps_form
from portal.user_request import UserRequest
from scheduling.models import Draft as KeptDraft
from scheduling.models import Job, Schedule
from scheduling.schedules.actions import change_schedule, create_schedule
from scheduling.spec.job_spec import SpecError
from scheduling.timetable import zone_names


@keeps_form
@never_cache
@require_http_methods(["GET", "POST"])
def new(request: UserRequest) -> HttpResponse:
    """Shows the form for a new schedule. A POST creates the schedule, or with `do=draft` keeps the form as a draft.

    With `?job=`, the form starts with the specification of this job; with `?draft=`, with this draft.
    """
    if request.method == "POST":
        return _kept(request) if request.POST.get("do") == DO else _posted(request, None)
    kept = asked_draft(request, KeptDraft.Kind.SCHEDULE)
    if isinstance(kept, HttpResponse):
        return kept
    if kept:
        stored = Timing.kept(kept.content.get(TIMING)).checked()
        return _page(request, *draft_of(kept, request.user), stored, kept=kept)
    zone = Timing(time_zone=str(timezone.get_current_timezone()))
    key = request.GET.get("job", "")
    if not key:
        choices = Choices.of(request.user)
        return _page(request, choices, Draft.new(choices, fields=Fields()), zone)
    job = get_object_or_404(
        Job.objects.visible_to(request.user).select_related("tenant"),
        pk=read_key(key),
    )
    choices = Choices.of(request.user, str(job.cluster_id))
    draft = Draft.of_stored(choices, spec=job.spec, tenant=job.tenant, user=request.user)
    return _page(request, choices, draft, zone)


@keeps_form
@never_cache
@require_http_methods(["GET", "POST"])
def edit(request: UserRequest, pk: int) -> HttpResponse:
    schedule = visible_schedule(request, pk)
    if schedule.deleted_at:
        messages.error(request, f"The schedule {schedule.name} has been deleted and cannot be edited.")
        return redirect("schedule", pk)
    if not Schedule.objects.changeable_by(request.user).filter(pk=pk).exists():
        raise PermissionDenied
    if request.method == "POST":
        return _posted(request, schedule)
    choices = _choices(request, schedule, str(schedule.cluster_id))
    draft = Draft.of_stored(choices, spec=schedule.spec, tenant=schedule.tenant, user=request.user)
    return _page(request, choices, draft, Timing.of(schedule), schedule=schedule)


@keeps_form
@require_POST
def preview(request: UserRequest) -> HttpResponse:
    """Returns a preview of the next runs, or the problems of the timing fields, while the user edits these fields."""
    timing = Timing.from_post(request.POST).checked()
    context = _timing_context(timing) | {"swap": True, "fields": FIELDS}
    return render(request, "schedules/previewed.html", context)


def _kept(request: UserRequest) -> HttpResponse:
    """Keeps the form as a draft, also if it is incomplete or wrong."""
    choices = Choices.of(request.user, request.POST.get("cluster", ""))
    timing = Timing.from_post(request.POST)
    return keep_form(
        request,
        KeptDraft.Kind.SCHEDULE,
        Draft.from_post(request.POST, choices).with_upload(request),
        more={TIMING: timing.to_dict()},
        page=lambda refused: _page(request, choices, refused, timing.checked(), status=422),
    )


def _posted(request: UserRequest, schedule: Schedule | None) -> HttpResponse:
    choices = _choices(request, schedule, request.POST.get("cluster", ""))
    draft = Draft.from_post(request.POST, choices).with_upload(request)
    timing = Timing.from_post(request.POST, schedule).checked()
    if rewritten := draft.rewritten(request.POST.get("do"), request.user):
        if rewritten.imported and "expression" in rewritten.imported.options:
            timing = Timing.imported(rewritten.imported.options, schedule).checked()
        elif not timing.expression:
            timing = Timing(stored=schedule)
        return _page(request, choices, rewritten, timing, schedule=schedule)
    draft = draft.ready_to_send()
    if draft.spec and draft.cluster and draft.tenant and not timing.problems:
        spec = draft.spec
        where: dict[str, Any] = {"cluster": draft.cluster, "terms": timing.read()}
        try:
            if schedule:
                change_schedule(actor=request.user, schedule=schedule, spec=spec, **where)
                messages.success(request, f"The schedule {spec.name} has been changed.")
            else:
                tenant, key = draft.tenant, draft.request_key
                schedule = create_schedule(
                    actor=request.user,
                    tenant=tenant,
                    spec=spec,
                    paused=bool(timing.paused),
                    request_key=key,
                    **where,
                )
        except SpecError as error:
            draft = draft.with_problems(error)
        except NotAllowed as error:
            draft = draft.with_problems(SpecError({"": str(error)}))
        except Refused as error:
            if error.field in FIELDS:
                timing = timing.with_problem(error)
            else:
                draft = draft.with_problems(SpecError({error.field or "": error.message}))
        else:
            return redirect("schedule", schedule.pk)
    return _page(request, choices, draft, timing, schedule=schedule, status=422)


def _choices(request: UserRequest, schedule: Schedule | None, cluster: str) -> Choices:
    choices = Choices.of(request.user, cluster)
    return replace(choices, tenants=[schedule.tenant]) if schedule else choices


def _page(
    request: UserRequest,
    choices: Choices,
    draft: Draft,
    timing: Timing,
    *,
    schedule: Schedule | None = None,
    kept: KeptDraft | None = None,
    status: int = 200,
) -> HttpResponse:
    context = form_context(draft, choices) | _timing_context(timing)
    context |= {
        "schedule": schedule,
        "kept": kept,
        "scheduling": True,
        "missed_choices": Schedule.Missed.choices,
        "overlap_choices": Schedule.Overlap.choices,
        "time_zones": sorted(zone_names()),
        "takes_over": schedule is not None and schedule.owner != request.user,
    }
    return render(request, "schedules/form.html", context, status=status)


def _timing_context(timing: Timing) -> dict[str, Any]:
    preview = timing.preview(now_from_database(), timezone.get_current_timezone())
    return {"timing": timing, "preview": preview}
