"""Services in the shape of Marathon's apps: list, read, create, change, scale, restart, roll back and delete.

Reference: Marathon 1.5, docs/docs/rest-api/public/api/v2/apps.raml.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from django.http import Http404
from ninja import Router
from ninja.responses import Status

from accounting.core.errors import Refused
from portal.api.compatible.conversion import (
    NotConverted,
    asked_place,
    body_of,
    converted,
    mapping_in,
    resources_of,
    told,
)
from portal.services.detail import Member, members_by_service, members_of
from portal.user_request import ApiRequest
from scheduling.importers.report import Fate, Line, Work, WorkKind
from scheduling.importers.services import service_name
from scheduling.jobs.actions import cancel_job
from scheduling.models import Service, ServiceRevision
from scheduling.models.services import ServiceQuerySet
from scheduling.services.actions import (
    change_service,
    create_service,
    remove_service,
    roll_back_service,
)
from scheduling.spec.job_spec import JobSpec

router = Router()
NO_PORT = "The app has no port, so it is a job. Submit it with POST /api/v1/jobs, or add portDefinitions."
# The field of a specification that an empty field of an app empties, and its empty value.
EMPTIED: dict[str, tuple[str, Any]] = {
    "env": ("variables", {}),
    "labels": ("labels", {}),
    "healthChecks": ("readiness_path", ""),
}
FATES_TAKEN = {Fate.MAPPED, Fate.APPROXIMATED}


@router.get("/apps", url_name="marathon_apps")
def apps(request: ApiRequest) -> dict[str, Any]:
    """Returns the services of the caller's teams.

    `?label=key` or `?label=key==value` chooses by a label, `?id=` by a part of the id, `?cmd=` by a part of the
    command. `?embed=apps.tasks` adds the replicas.
    """
    found = list(seen_services(request).order_by("id"))
    if part := request.GET.get("id", "").strip("/"):
        found = [one for one in found if service_name(part) in one.name]
    if part := request.GET.get("cmd", ""):
        found = [one for one in found if part in _spec(one).get("command", "")]
    for wanted in filter(None, request.GET.get("label", "").split(",")):
        key, _, value = wanted.partition("==")
        found = [one for one in found if _labels(one).get(key) == (value or _labels(one).get(key, ""))]
    members = members_by_service(found)
    return {"apps": [_embedding(request, one, members.get(one.pk, [])) for one in found]}


@router.post("/apps", response={201: dict[str, Any]}, url_name="marathon_apps")
def create(request: ApiRequest) -> Status[Any]:
    """Creates a service. `fairlot` in the answer says which fields were changed or left out."""
    return _create(request, body_of(request))


@router.get("/apps/{path:app_id}/tasks", url_name="marathon_tasks")
def tasks(request: ApiRequest, app_id: str) -> dict[str, Any]:
    """Returns the replicas of a service that have started."""
    service = service_of(request, app_id)
    return {"tasks": [task_of(service, one) for one in members_of(service) if one.lease]}


@router.delete("/apps/{path:app_id}/tasks", url_name="marathon_tasks")
def kill(request: ApiRequest, app_id: str) -> dict[str, Any]:
    """Ends the replicas of a service that have started. Fairlot starts others in their place."""
    service = service_of(request, app_id)
    if request.GET.get("scale", "").lower() == "true":
        raise Refused("Fairlot chooses which replicas end. Change instances instead of scale=true.", "scale")
    started = [one for one in members_of(service) if one.lease]
    for one in started:
        cancel_job(actor=request.auth, job=one.job)
    return {"tasks": [task_of(service, one) for one in started]}


@router.post("/apps/{path:app_id}/restart", url_name="marathon_restart")
def restart(request: ApiRequest, app_id: str) -> dict[str, str]:
    """Replaces all replicas of a service, as a rollout does. `force` changes nothing: a rollout never stops another one
    from beginning."""
    service = service_of(request, app_id)
    return deployment_of(change_service(actor=request.auth, service=service, again=True))


@router.get("/apps/{path:app_id}/versions/{version}", url_name="marathon_version")
def version_of(request: ApiRequest, app_id: str, version: str) -> dict[str, Any]:
    """Returns a service as it was in the revision of this time."""
    service = service_of(request, app_id)
    service.current = _revision(service, version)
    return app_of(service, [])


@router.get("/apps/{path:app_id}/versions", url_name="marathon_versions")
def versions(request: ApiRequest, app_id: str) -> dict[str, Any]:
    """Returns the times of the revisions of a service, newest first."""
    revisions = service_of(request, app_id).revisions.order_by("-number")
    return {"versions": [moment(at) for at in revisions.values_list("at", flat=True)]}


@router.get("/apps/{path:app_id}", url_name="marathon_app")
def app(request: ApiRequest, app_id: str) -> dict[str, Any]:
    """Returns one service."""
    service = service_of(request, app_id)
    return {"app": _embedding(request, service, members_of(service))}


@router.put(
    "/apps/{path:app_id}", response={200: dict[str, Any], 201: dict[str, Any]}, url_name="marathon_app"
)
def change(request: ApiRequest, app_id: str) -> Any:
    """Changes the given fields of a service, and leaves the others unchanged. Creates a service that does not exist.

    If `version` is the only field, rolls back to the revision of this time.
    """
    given = mapping_in(body_of(request))
    try:
        service = service_of(request, app_id)
    except Http404:
        return _create(request, json.dumps({"id": f"/{app_id.strip('/')}"} | given))
    if given.keys() <= {"id", "version"} and isinstance(given.get("version"), str):
        number = _revision(service, given["version"]).number
        return deployment_of(roll_back_service(actor=request.auth, service=service, number=number))
    replicas = given.get("instances")
    if given.keys() <= {"id", "instances"} and type(replicas) is int:
        changed = change_service(actor=request.auth, service=service, replicas=replicas)
        return deployment_of(changed)
    spec, options = _merged(service, given)
    changed = change_service(actor=request.auth, service=service, spec=spec, **options)
    return deployment_of(changed)


@router.delete("/apps/{path:app_id}", url_name="marathon_app")
def delete(request: ApiRequest, app_id: str) -> dict[str, Any]:
    """Removes a service and ends its replicas."""
    return deployment_of(remove_service(actor=request.auth, service=service_of(request, app_id)))


def _create(request: ApiRequest, body: str) -> Status[Any]:
    work, found = converted(body, "marathon")
    made = create_of(request, work)
    return Status(
        201, app_of(seen_services(request).get(pk=made.pk), []) | {"fairlot": {"report": told(found)}}
    )


def without_jobs(works: Sequence[Work]) -> None:
    """Raises NotConverted if one of the apps has become a job."""
    jobs = [work for work in works if work.kind is not WorkKind.SERVICE]
    if jobs:
        lines = [Line(Fate.REFUSED, "portDefinitions", "", f"{work.name}: {NO_PORT}") for work in jobs]
        raise NotConverted(lines)


def change_to(request: ApiRequest, service: Service, work: Work) -> Service:
    """Gives a service the specification and the rules that an app has become."""
    spec = JobSpec.parse(dict(work.spec))
    return change_service(actor=request.auth, service=service, spec=spec, **work.options)


def create_of(request: ApiRequest, work: Work) -> Service:
    """Creates the service that an app has become. Raises NotConverted if it has become a job."""
    without_jobs([work])
    tenant, cluster = asked_place(request, work)
    spec = JobSpec.parse(dict(work.spec))
    return create_service(actor=request.auth, tenant=tenant, cluster=cluster, spec=spec, **work.options)


def _revision(service: Service, version: str) -> ServiceRevision:
    """Returns the newest revision with this time. Raises Http404 if the service has none."""
    for revision in service.revisions.order_by("-number"):
        if moment(revision.at) == version:
            return revision
    raise Http404


def _embedding(request: ApiRequest, service: Service, members: list[Member]) -> dict[str, Any]:
    """Returns an app, with its tasks if the call asks for these."""
    app = app_of(service, members)
    if {"apps.tasks", "app.tasks", "apps.failures"} & set(request.GET.getlist("embed")):
        app["tasks"] = [task_of(service, one) for one in members if one.lease]
    return app


def _merged(service: Service, given: Mapping[str, Any]) -> tuple[JobSpec, dict[str, Any]]:
    """Returns the specification with the given fields of an app, and the number of replicas and rules that they name.

    Only fields of the specification that come from a given field are replaced, so that those which Marathon does not
    know stay.
    """
    stored = _spec(service)
    whole = {"id": service.name, "portDefinitions": [{"port": stored["port"]}], "instances": service.replicas}
    if not {"cmd", "args", "container"} & given.keys():
        whole["cmd"] = "true"
    if "container" in given:
        del whole["portDefinitions"]
    work, found = converted(json.dumps(whole | dict(given)), "marathon")
    without_jobs([work])
    from_given = {
        line.target.partition(".")[0]
        for line in found.report
        if line.fate in FATES_TAKEN and line.source.partition(".")[0].partition("[")[0] in given
    }
    changed = dict(target for name, target in EMPTIED.items() if name in given and not given[name])
    changed |= {name: value for name, value in work.spec.items() if name in from_given - {"name"}}
    options = {name: value for name, value in work.options.items() if name in from_given}
    return JobSpec.parse(stored | changed), options


def seen_services(request: ApiRequest) -> ServiceQuerySet:
    """Returns the services of the caller's teams, or of the team that the call names."""
    seen = Service.objects.visible_to(request.auth).kept().with_counts()
    if team := request.GET.get("team", ""):
        seen = seen.filter(tenant__slug=team)
    return seen.select_related("tenant", "owner", "cluster", "current", "good")


def service_of(request: ApiRequest, app_id: str) -> Service:
    """Returns the service with the id of an app. Raises Http404 if the caller sees none, and Refused if several teams
    of the caller have one."""
    found = list(seen_services(request).filter(name=service_name(app_id.strip("/").replace("/", "-")))[:2])
    if not found:
        raise Http404
    if len(found) > 1:
        raise Refused("Several of your teams have a service with this name. Name the team: ?team=…", "team")
    return found[0]


def _spec(service: Service) -> dict[str, Any]:
    return JobSpec.stored(service.current.spec).to_dict() if service.current else {}


def _labels(service: Service) -> dict[str, str]:
    labels: dict[str, str] = _spec(service).get("labels", {})
    return labels


def app_of(service: Any, members: list[Member]) -> dict[str, Any]:
    """Converts a service of `seen_services` to an app, with the numbers of its replicas."""
    spec = _spec(service)
    spec = {"command": "", "environment": "", "port": None} | spec
    unhealthy = sum(1 for one in members if one.lease and not one.is_ready and one.lease.why_not_ready)
    rolls_out = service.current_id != service.good_id and not service.stopped_at
    image = spec["environment"]
    check = {"protocol": "HTTP", "path": spec.get("readiness_path", ""), "portIndex": 0}
    return resources_of(spec) | {
        "id": f"/{service.name}",
        "cmd": spec["command"],
        "instances": service.wanted,
        "env": spec.get("variables", {}),
        "labels": spec.get("labels", {}),
        "container": {"type": "DOCKER", "docker": {"image": image}} if image else None,
        "portDefinitions": [{"port": spec["port"], "protocol": "tcp"}],
        "healthChecks": [check] if check["path"] else [],
        "version": moment(service.current.at if service.current else service.created_at),
        "tasksRunning": service.holding,
        "tasksStaged": max(service.wanted - service.holding, 0),
        "tasksHealthy": service.ready,
        "tasksUnhealthy": unhealthy,
        "deployments": [{"id": str(service.current_id)}] if rolls_out else [],
    }


def task_of(service: Service, member: Member) -> dict[str, Any]:
    """Converts a replica to a task."""
    lease = member.lease
    return {
        "id": f"{service.name}.{member.job.pk}",
        "appId": f"/{service.name}",
        "host": lease.address if lease else "",
        "ports": [_spec(service).get("port")],
        "version": moment(service.current.at if service.current else service.created_at),
        "startedAt": moment(member.job.first_started_at) if member.job.first_started_at else None,
        "state": "TASK_RUNNING" if member.job.first_started_at else "TASK_STAGING",
        "healthCheckResults": [{"alive": member.is_ready}],
    }


def deployment_of(service: Service) -> dict[str, str]:
    """Returns the answer to a change."""
    return {"version": moment(datetime.now(UTC)), "deploymentId": str(service.current_id)}


def moment(at: datetime) -> str:
    """Returns a time as Marathon writes it."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
