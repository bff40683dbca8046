"""Schedules in the shape of Chronos' jobs: list, search, create or replace, run now, kill and delete.

Reference: Chronos 2.5, docs/docs/api.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any
from zoneinfo import ZoneInfo

from django.db.models import Count, Max, Q, QuerySet
from django.http import Http404, HttpResponse
from ninja import Router
from ninja.responses import Status

from accounting.core.errors import Refused
from accounting.models import Membership, Tenant
from portal.api.compatible.conversion import asked_place, body_of, converted, resources_of
from portal.user_request import ApiRequest
from scheduling.importers.chronos import for_chronos
from scheduling.importers.report import Work, WorkKind
from scheduling.jobs.actions import cancel_job
from scheduling.jobs.submitting import submit_job
from scheduling.models import Job, Schedule
from scheduling.schedules.actions import (
    Terms,
    change_schedule,
    create_schedule,
    delete_schedule,
    pause_schedule,
    resume_schedule,
)
from scheduling.schedules.schedule_runs import run_schedule_now
from scheduling.spec.job_spec import JobSpec

router = Router()
DONE = Status[Any](204, None)


@router.get("/jobs", url_name="chronos_jobs")
def jobs(request: ApiRequest) -> list[dict[str, Any]]:
    """Returns the schedules of the caller's teams."""
    return [_job(one) for one in _counted(_seen(request))]


@router.get("/jobs/search", url_name="chronos_search")
def search(request: ApiRequest, name: str = "", command: str = "", any: str = "") -> list[dict[str, Any]]:  # noqa: A002
    """Returns the schedules whose name and command contain a text; `any` looks for it in both."""
    found = _seen(request).filter(name__icontains=name, spec__command__icontains=command)
    if any:
        found = found.filter(Q(name__icontains=any) | Q(spec__command__icontains=any))
    return [_job(one) for one in _counted(found)]


@router.post("/iso8601", response={204: None}, url_name="chronos_iso8601")
def create(request: ApiRequest) -> Status[Any]:
    """Creates a schedule, or replaces the newest one of this name. A job that is due once, at once, is submitted.

    `disabled` pauses the schedule, or resumes it.
    """
    body, disabled = _without_disabled(body_of(request))
    work, _ = converted(body, "chronos")
    spec = JobSpec.parse(dict(work.spec))
    own = Tenant.objects.visible_to(request.auth, role=Membership.Role.MEMBER)
    if work.kind is WorkKind.JOB:
        tenant, cluster = asked_place(request, work)
        submit_job(actor=request.auth, tenant=tenant, cluster=cluster, spec=spec)
    elif (earlier := _newest(_seen(request).filter(name=work.name, tenant__in=own))) is not None:
        if disabled:  # first, so that the changed schedule starts nothing
            pause_schedule(actor=request.auth, schedule=earlier)
        change_schedule(
            actor=request.auth, schedule=earlier, cluster=earlier.cluster, spec=spec, terms=_terms(work)
        )
        if disabled is False:
            resume_schedule(actor=request.auth, schedule=earlier)
    else:
        tenant, cluster = asked_place(request, work)
        made = create_schedule(
            actor=request.auth, tenant=tenant, cluster=cluster, spec=spec, terms=_terms(work)
        )
        if disabled:
            pause_schedule(actor=request.auth, schedule=made)
    return DONE


def _without_disabled(body: str) -> tuple[str, bool | None]:
    """Returns the body of a job without its field `disabled`, and the value of this field; None if it has none."""
    try:
        read = json.loads(body)
    except (ValueError, RecursionError):
        return body, None
    disabled = read.pop("disabled", None) if isinstance(read, dict) else None
    return (json.dumps(read), disabled) if isinstance(disabled, bool) else (body, None)


@router.put("/job/{name}", response={204: None}, url_name="chronos_job")
def run(request: ApiRequest, name: str) -> Status[Any]:
    """Starts a run of a schedule now."""
    run_schedule_now(actor=request.auth, schedule=_schedule(request, name))
    return DONE


@router.delete("/job/{name}", response={204: None}, url_name="chronos_job")
def delete(request: ApiRequest, name: str) -> Status[Any]:
    """Deletes a schedule."""
    delete_schedule(actor=request.auth, schedule=_schedule(request, name))
    return DONE


@router.delete("/task/kill/{name}", response={204: None}, url_name="chronos_kill")
def kill(request: ApiRequest, name: str) -> Status[Any]:
    """Cancels the jobs of a schedule that have not ended."""
    for job in Job.objects.unfinished().filter(scheduled_as__schedule=_schedule(request, name)):
        cancel_job(actor=request.auth, job=job)
    return DONE


@router.get("/graph/csv", url_name="chronos_graph")
def graph(request: ApiRequest) -> HttpResponse:
    """Returns a line for each schedule: node, name, how its last run ended, and whether it runs."""
    lines = [f"node,{one['name']},{_last_of(one)},idle\n" for one in map(_job, _counted(_seen(request)))]
    return HttpResponse("".join(lines), content_type="text/csv")


def _terms(work: Work) -> Terms:
    return Terms(**work.options)


def _seen(request: ApiRequest) -> QuerySet[Schedule]:
    seen = Schedule.objects.visible_to(request.auth).kept()
    if team := request.GET.get("team", ""):
        seen = seen.filter(tenant__slug=team)
    return seen.select_related("tenant", "owner", "cluster").order_by("-id")


def _schedule(request: ApiRequest, name: str) -> Schedule:
    found = _newest(_seen(request).filter(name=name))
    if found is None:
        raise Http404
    return found


def _newest(schedules: QuerySet[Schedule]) -> Schedule | None:
    """Returns the newest of some schedules of one name. Raises Refused if they belong to several teams: a call must not
    change the schedule of a team that its caller did not mean."""
    teams = schedules.order_by().values_list("tenant", flat=True).distinct()[:2]
    if len(teams) > 1:
        raise Refused("Several of your teams have a schedule with this name. Name the team: ?team=…", "team")
    return schedules.first()


def _counted(schedules: QuerySet[Schedule]) -> Iterable[Any]:
    """Adds how often the jobs of each schedule have succeeded and failed, and when last."""
    good, bad = (Q(runs__job__state=state) for state in (Job.State.SUCCEEDED, Job.State.FAILED))
    return schedules.annotate(
        successes=Count("runs", filter=good),
        errors=Count("runs", filter=bad),
        last_success=Max("runs__job__ended_at", filter=good),
        last_error=Max("runs__job__ended_at", filter=bad),
    )


def _job(schedule: Any) -> dict[str, Any]:
    """Converts a schedule with the numbers of `_counted` to a job of Chronos. A cron expression stays one."""
    spec = JobSpec.stored(schedule.spec).to_dict()
    image = spec["environment"]
    return resources_of(spec) | {
        "name": schedule.name,
        "command": spec["command"],
        "schedule": for_chronos(schedule.expression, ZoneInfo(schedule.time_zone)),
        "scheduleTimeZone": schedule.time_zone,
        "epsilon": f"PT{schedule.catch_up_seconds}S",
        "owner": schedule.owner.get_username(),
        "disabled": schedule.paused_at is not None,
        "environmentVariables": [{"name": name, "value": value} for name, value in spec["variables"].items()],
        "container": {"type": "DOCKER", "image": image} if image else None,
        "concurrent": schedule.overlap == Schedule.Overlap.ALLOW,
        "successCount": schedule.successes,
        "errorCount": schedule.errors,
        "lastSuccess": schedule.last_success or "",
        "lastError": schedule.last_error or "",
    }


def _last_of(job: dict[str, Any]) -> str:
    """Returns how the last run ended: success, failure or fresh."""
    if not job["lastSuccess"] and not job["lastError"]:
        return "fresh"
    if not job["lastError"] or (job["lastSuccess"] and job["lastSuccess"] >= job["lastError"]):
        return "success"
    return "failure"
