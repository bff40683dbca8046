"""Schedules in the shape of Chronos' jobs: list, search, create or replace, run now, kill, delete and statistics.

Reference: Chronos 2.5, docs/docs/api.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any
from zoneinfo import ZoneInfo

from django.db.models import Count, Max, Q, QuerySet
from django.http import Http404, HttpResponse
from ninja import Router
from ninja.responses import Status
from numpy import percentile

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
DEPENDENT = (
    "A schedule does not wait for other schedules. Make a pipeline, whose steps need each other, or one schedule whose"
    " command runs the programs one after the other."
)
QUANTILES = {
    "median": 50,
    "75thPercentile": 75,
    "95thPercentile": 95,
    "98thPercentile": 98,
    "99thPercentile": 99,
}
MOST_RUNS = 10_000  # of which the times are read for statistics, newest first


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


@router.get("/jobs/summary", url_name="chronos_summary")
def summary(request: ApiRequest) -> dict[str, Any]:
    """Returns the names of the schedules, how their last runs ended and whether runs go on."""
    return {
        "jobs": [
            {"name": one["name"], "status": _last_of(one), "state": one["state"], "schedule": one["schedule"],
             "parents": [], "disabled": one["disabled"]}
            for one in map(_job, _counted(_seen(request)))
        ]
    }  # fmt: skip


@router.api_operation(["POST", "PUT"], "/dependency", response={204: None}, url_name="chronos_dependency")
def depend(request: ApiRequest) -> Status[Any]:
    """Refuses a job that waits for others."""
    raise Refused(DEPENDENT, "parents")


@router.api_operation(["POST", "PUT"], "/iso8601", response={204: None}, url_name="chronos_iso8601")
def create(request: ApiRequest) -> Status[Any]:
    """Creates a schedule, or replaces the newest one of this name. A job that is due once, at once, is submitted.

    `disabled` pauses the schedule, or resumes it.
    """
    work, _ = converted(body_of(request), "chronos")
    paused = work.options.get("paused")
    spec = JobSpec.parse(dict(work.spec))
    own = Tenant.objects.visible_to(request.auth, role=Membership.Role.MEMBER)
    if work.kind is WorkKind.JOB:
        tenant, cluster = asked_place(request, work)
        submit_job(actor=request.auth, tenant=tenant, cluster=cluster, spec=spec)
    elif (earlier := _newest(_seen(request).filter(name=work.name, tenant__in=own))) is not None:
        if paused:  # first, so that the changed schedule starts nothing
            pause_schedule(actor=request.auth, schedule=earlier)
        change_schedule(
            actor=request.auth, schedule=earlier, cluster=earlier.cluster, spec=spec, terms=_terms(work)
        )
        if paused is False:
            resume_schedule(actor=request.auth, schedule=earlier)
    else:
        tenant, cluster = asked_place(request, work)
        create_schedule(
            actor=request.auth,
            tenant=tenant,
            cluster=cluster,
            spec=spec,
            terms=_terms(work),
            paused=bool(paused),
        )
    return DONE


@router.get("/job/stat/{name}", url_name="chronos_stat")
def stat(request: ApiRequest, name: str) -> dict[str, Any]:
    """Returns how long the runs of a schedule that succeeded took, in seconds."""
    schedule = _schedule(request, name)
    return {"histogram": _histogram(_seconds([schedule]).get(schedule.pk, [])), "taskStatHistory": []}


@router.get("/stats/{which}", url_name="chronos_stats")
def stats(request: ApiRequest, which: str) -> list[dict[str, Any]]:
    """Returns a statistic of the times of all schedules with runs that succeeded, the longest first: median, mean,
    75thPercentile, 95thPercentile, 98thPercentile or 99thPercentile."""
    if which not in {"mean", *QUANTILES}:
        raise Http404
    schedules = list(_seen(request))
    times = _seconds(schedules)
    found = [
        {"jobNameLabel": one.name, "time": _histogram(times[one.pk])[which]}
        for one in schedules
        if one.pk in times
    ]
    return sorted(found, key=lambda one: -one["time"])


@router.get("/job/{name}", url_name="chronos_job")
def job(request: ApiRequest, name: str) -> dict[str, Any]:
    """Returns one schedule."""
    schedule = _schedule(request, name)
    return next(_job(one) for one in _counted(_seen(request).filter(pk=schedule.pk)))


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


@router.get("/graph/dot", url_name="chronos_dot")
def dot(request: ApiRequest) -> HttpResponse:
    """Returns a graph in the language of Graphviz, with a node for each schedule. None waits for another one."""
    nodes = "".join(f"  {json.dumps(name)};\n" for name in _seen(request).values_list("name", flat=True))
    return HttpResponse(f"digraph jobs {{\n{nodes}}}\n", content_type="text/vnd.graphviz")


@router.get("/graph/csv", url_name="chronos_graph")
def graph(request: ApiRequest) -> HttpResponse:
    """Returns a line for each schedule: node, name, how its last run ended, and whether it runs."""
    found = map(_job, _counted(_seen(request)))
    lines = [f"node,{one['name']},{_last_of(one)},{one['state']}\n" for one in found]
    return HttpResponse("".join(lines), content_type="text/csv")


def _terms(work: Work) -> Terms:
    return Terms(**{name: value for name, value in work.options.items() if name != "paused"})


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
    """Adds how often the jobs of each schedule have succeeded and failed, and when last; and how many go on."""
    good, bad = (Q(runs__job__state=state) for state in (Job.State.SUCCEEDED, Job.State.FAILED))
    return schedules.annotate(
        successes=Count("runs", filter=good),
        errors=Count("runs", filter=bad),
        ongoing=Count("runs", filter=Q(runs__job__isnull=False, runs__job__ended_at=None)),
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
        "state": f"{schedule.ongoing} running" if schedule.ongoing else "idle",
    }


def _seconds(schedules: Sequence[Schedule]) -> dict[int, list[float]]:
    """Returns how long the newest successful runs of each schedule took, in seconds, by the schedule's id."""
    runs = Job.objects.filter(scheduled_as__schedule__in=schedules, state=Job.State.SUCCEEDED)
    times = runs.order_by("-id")
    found: dict[int, list[float]] = {}
    for schedule, began, ended in times.values_list("scheduled_as__schedule", "first_started_at", "ended_at")[
        :MOST_RUNS
    ]:
        if began and ended:
            found.setdefault(schedule, []).append((ended - began).total_seconds())
    return found


def _histogram(seconds: list[float]) -> dict[str, float]:
    """Returns the number, the mean and the quantiles of some times; all are 0 without any."""
    if not seconds:
        return {"count": 0, "mean": 0, **dict.fromkeys(QUANTILES, 0)}
    values = percentile(seconds, list(QUANTILES.values()))
    return {
        "count": len(seconds),
        "mean": sum(seconds) / len(seconds),
        **{name: float(value) for name, value in zip(QUANTILES, values, strict=True)},
    }


def _last_of(job: dict[str, Any]) -> str:
    """Returns how the last run ended: success, failure or fresh."""
    if not job["lastSuccess"] and not job["lastError"]:
        return "fresh"
    if not job["lastError"] or (job["lastSuccess"] and job["lastSuccess"] >= job["lastError"]):
        return "success"
    return "failure"
