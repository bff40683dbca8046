"""Endpoints for schedules: list, create, read, change, pause, resume, run now and delete."""

from __future__ import annotations

from typing import Annotated, Any

from django.shortcuts import get_object_or_404
from ninja import Header, Query, Router
from ninja.responses import Status

from accounting.core.clock import now_from_database
from portal.api.fields import AskedKey, IdempotencyKey, PageSize
from portal.api.jobs.endpoints import place_of, read_spec
from portal.api.pages import ListFilters, page_of
from portal.api.schedules import schemas
from portal.api.seen import seen_or_404
from portal.api.versions import IfMatch, versions_in
from portal.schedules.listing import SCHEDULES
from portal.user_request import ApiRequest
from scheduling.core.run_texts import run_text_of
from scheduling.models import Cluster, Schedule, ScheduleRun
from scheduling.models.versions import version_of
from scheduling.schedules.actions import (
    Terms,
    change_schedule,
    create_schedule,
    delete_schedule,
    pause_schedule,
    resume_schedule,
)
from scheduling.schedules.schedule_runs import run_schedule_now
from scheduling.spec.job_spec import SpecError
from scheduling.timetable import TimetableError

router = Router(tags=["Schedules"])
NEXT_RUNS = 10


def visible_schedule(request: ApiRequest, schedule_id: int) -> Schedule:
    """Returns the schedule with this id. Raises NotSeen if there is no such schedule or the caller may not see the
    schedule."""
    seen = Schedule.objects.visible_to(request.auth).select_related("tenant", "owner", "cluster")
    return seen_or_404(seen, "schedule", schedule_id)


@router.get("/schedules", response=schemas.SchedulePage, url_name="schedules")
def list_schedules(
    request: ApiRequest,
    filters: Query[ListFilters],
    before: AskedKey | None = None,
    limit: PageSize = 50,
) -> dict[str, Any]:
    """Returns one page of the schedules of the caller's teams, newest first or in the order of `sort`.

    Deleted schedules are left out.
    """
    found, following = page_of(SCHEDULES, request.auth, filters, before, limit)
    return {"items": [show(schedule) for schedule in found], "next": following}


@router.post("/schedules", response={201: schemas.Schedule}, url_name="schedules")
def create(
    request: ApiRequest,
    new: schemas.NewSchedule,
    idempotency_key: IdempotencyKey = "",
) -> Any:
    """Creates a schedule that the caller owns. A call that repeats an Idempotency-Key returns the schedule of the first
    call."""
    tenant, cluster = place_of(request.auth, new)
    made = create_schedule(
        actor=request.auth,
        tenant=tenant,
        cluster=cluster,
        spec=read_spec(new.spec),
        terms=_terms(new),
        paused=new.paused,
        request_key=idempotency_key or None,
    )
    return Status(201, show(made))


@router.get("/schedules/{int:schedule_id}", response=schemas.ScheduleInFull, url_name="schedule")
def get_schedule(request: ApiRequest, schedule_id: int) -> dict[str, Any]:
    """Returns a schedule and the times of its next ten runs."""
    schedule = visible_schedule(request, schedule_id)
    try:
        table = schedule.timetable
    except TimetableError:  # at the next due time the schedule is paused with this reason
        return show(schedule) | {"words": "", "notes": [], "next_runs": []}
    coming = list(table.next_ones(now_from_database(), NEXT_RUNS))
    return show(schedule) | {"words": table.rule.in_words(), "notes": table.rule.notes(), "next_runs": coming}


@router.put("/schedules/{int:schedule_id}", response=schemas.Schedule, url_name="schedule")
def change(
    request: ApiRequest, schedule_id: int, new: schemas.ScheduleTerms, if_match: IfMatch = None
) -> dict[str, Any]:
    """Replaces the specification, timetable and rules of a schedule. The team does not change, but the caller becomes
    the owner."""
    schedule = visible_schedule(request, schedule_id)
    if new.team not in {"", schedule.tenant.slug}:
        raise SpecError(
            {
                "team": f'The team of a schedule cannot change. Send "{schedule.tenant.slug}" or leave the field out. '
                f'For the team "{new.team[:40]}", create another schedule.'
            }
        )
    cluster = schedule.cluster
    if new.cluster and new.cluster != cluster.name:
        cluster = get_object_or_404(Cluster.objects.attached(), name=new.cluster)
    changed = change_schedule(
        actor=request.auth,
        schedule=schedule,
        cluster=cluster,
        spec=read_spec(new.spec),
        terms=_terms(new),
        seen=versions_in(if_match),
    )
    return show(changed)


@router.delete("/schedules/{int:schedule_id}", response={204: None}, url_name="schedule")
def delete(request: ApiRequest, schedule_id: int, if_match: IfMatch = None) -> Status[Any]:
    """Deletes a schedule. The records of its runs and the jobs that it submitted are kept."""
    schedule = visible_schedule(request, schedule_id)
    delete_schedule(actor=request.auth, schedule=schedule, seen=versions_in(if_match))
    return Status(204, None)


@router.post("/schedules/{int:schedule_id}/pause", response=schemas.Schedule, url_name="schedule_pause")
def pause(request: ApiRequest, schedule_id: int) -> dict[str, Any]:
    """Pauses a schedule until it is resumed. Pausing a paused schedule has no effect."""
    schedule = visible_schedule(request, schedule_id)
    return show(pause_schedule(actor=request.auth, schedule=schedule))


@router.post("/schedules/{int:schedule_id}/resume", response=schemas.Schedule, url_name="schedule_resume")
def resume(request: ApiRequest, schedule_id: int) -> dict[str, Any]:
    """Resumes a paused schedule. Its rule `missed` decides what happens to the runs that were missed during the
    pause."""
    schedule = visible_schedule(request, schedule_id)
    return show(resume_schedule(actor=request.auth, schedule=schedule))


@router.post("/schedules/{int:schedule_id}/run", response={201: schemas.ScheduleRun}, url_name="schedule_run")
def run(
    request: ApiRequest,
    schedule_id: int,
    idempotency_key: Annotated[str, Header(alias="Idempotency-Key", max_length=64)] = "",
) -> Status[Any]:
    """Submits the job of a schedule now. A call that repeats an Idempotency-Key returns the run of the first call."""
    schedule = visible_schedule(request, schedule_id)
    made = run_schedule_now(actor=request.auth, schedule=schedule, request_key=idempotency_key or None)
    return Status(201, show_run(made))


@router.get("/schedules/{int:schedule_id}/runs", response=schemas.ScheduleRunPage, url_name="schedule_runs")
def runs(
    request: ApiRequest, schedule_id: int, before: AskedKey | None = None, limit: PageSize = 50
) -> dict[str, Any]:
    """Returns one page of the runs of a schedule, newest first."""
    seen = visible_schedule(request, schedule_id).runs.select_related("asked_by").order_by("-id")
    found = list((seen.filter(pk__lt=before) if before else seen)[: limit + 1])
    return {
        "items": [show_run(one) for one in found[:limit]],
        "next": found[limit - 1].pk if len(found) > limit else None,
    }


def _terms(new: schemas.ScheduleTerms) -> Terms:
    names = ("expression", "time_zone", "begins", "ends", "missed", "catch_up_seconds", "overlap")
    return Terms(**{name: getattr(new, name) for name in names})


def show(schedule: Schedule) -> dict[str, Any]:
    same = (
        "id", "name", "spec", "expression", "time_zone", "begins", "ends", "missed", "catch_up_seconds", "overlap",
        "next_due_at", "refusals", "paused_at", "paused_reason", "deleted_at", "created_at",
    )  # fmt: skip
    return {name: getattr(schedule, name) for name in same} | {
        "version": version_of(schedule),
        "team": schedule.tenant.slug,
        "owner": schedule.owner.get_username(),
        "cluster": schedule.cluster.name,
    }


def show_run(run: ScheduleRun) -> dict[str, Any]:
    same = ("id", "due_from", "due_at", "outcome", "at", "job_id")
    return {name: getattr(run, name) for name in same} | {
        "text": run_text_of(run),
        "asked_by": run.asked_by.get_username() if run.asked_by else None,
    }
