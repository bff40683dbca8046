"""Services in the shape of Marathon's apps: list, read, create, change, scale and delete.

Reference: Marathon 1.5, docs/docs/rest-api/public/api/v2/apps.raml.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
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
from scheduling.importers.report import Fate, Line, WorkKind
from scheduling.importers.services import service_name
from scheduling.models import Service
from scheduling.models.services import ServiceQuerySet
from scheduling.services.actions import change_service, create_service, remove_service
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

    `?label=key` or `?label=key==value` chooses by a label, `?id=` by a part of the id.
    """
    found = list(_seen(request).order_by("id"))
    if part := request.GET.get("id", "").strip("/"):
        found = [one for one in found if service_name(part) in one.name]
    for wanted in filter(None, request.GET.get("label", "").split(",")):
        key, _, value = wanted.partition("==")
        found = [one for one in found if _labels(one).get(key) == (value or _labels(one).get(key, ""))]
    members = members_by_service(found)
    return {"apps": [_app(one, members.get(one.pk, [])) for one in found]}


@router.post("/apps", response={201: dict[str, Any]}, url_name="marathon_apps")
def create(request: ApiRequest) -> Status[Any]:
    """Creates a service. `fairlot` in the answer says which fields were changed or left out."""
    return _create(request, body_of(request))


@router.get("/apps/{path:app_id}/tasks", url_name="marathon_tasks")
def tasks(request: ApiRequest, app_id: str) -> dict[str, Any]:
    """Returns the replicas of a service that have started."""
    service = _service(request, app_id)
    return {"tasks": [_task(service, one) for one in members_of(service) if one.lease]}


@router.get("/apps/{path:app_id}/versions", url_name="marathon_versions")
def versions(request: ApiRequest, app_id: str) -> dict[str, Any]:
    """Returns the times of the revisions of a service, newest first."""
    revisions = _service(request, app_id).revisions.order_by("-number")
    return {"versions": [_moment(at) for at in revisions.values_list("at", flat=True)]}


@router.get("/apps/{path:app_id}", url_name="marathon_app")
def app(request: ApiRequest, app_id: str) -> dict[str, Any]:
    """Returns one service."""
    service = _service(request, app_id)
    return {"app": _app(service, members_of(service))}


@router.put(
    "/apps/{path:app_id}", response={200: dict[str, Any], 201: dict[str, Any]}, url_name="marathon_app"
)
def change(request: ApiRequest, app_id: str) -> Any:
    """Changes the given fields of a service, and leaves the others unchanged. Creates a service that does not exist."""
    given = mapping_in(body_of(request))
    try:
        service = _service(request, app_id)
    except Http404:
        return _create(request, json.dumps({"id": f"/{app_id.strip('/')}"} | given))
    replicas = given.get("instances")
    if given.keys() <= {"id", "instances"} and type(replicas) is int:
        changed = change_service(actor=request.auth, service=service, replicas=replicas)
        return _deployment(changed)
    spec, options = _merged(service, given)
    changed = change_service(actor=request.auth, service=service, spec=spec, **options)
    return _deployment(changed)


@router.delete("/apps/{path:app_id}", url_name="marathon_app")
def delete(request: ApiRequest, app_id: str) -> dict[str, Any]:
    """Removes a service and ends its replicas."""
    return _deployment(remove_service(actor=request.auth, service=_service(request, app_id)))


def _create(request: ApiRequest, body: str) -> Status[Any]:
    work, found = converted(body, "marathon")
    if work.kind is not WorkKind.SERVICE:
        raise NotConverted([Line(Fate.REFUSED, "portDefinitions", "", NO_PORT)])
    tenant, cluster = asked_place(request, work)
    made = create_service(
        actor=request.auth,
        tenant=tenant,
        cluster=cluster,
        spec=JobSpec.parse(dict(work.spec)),
        **work.options,
    )
    return Status(201, _app(_seen(request).get(pk=made.pk), []) | {"fairlot": {"report": told(found)}})


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
    if work.kind is not WorkKind.SERVICE:
        raise NotConverted([Line(Fate.REFUSED, "portDefinitions", "", NO_PORT)])
    from_given = {
        line.target.partition(".")[0]
        for line in found.report
        if line.fate in FATES_TAKEN and line.source.partition(".")[0].partition("[")[0] in given
    }
    changed = dict(target for name, target in EMPTIED.items() if name in given and not given[name])
    changed |= {name: value for name, value in work.spec.items() if name in from_given - {"name"}}
    options = {name: value for name, value in work.options.items() if name in from_given}
    return JobSpec.parse(stored | changed), options


def _seen(request: ApiRequest) -> ServiceQuerySet:
    seen = Service.objects.visible_to(request.auth).kept().with_counts()
    if team := request.GET.get("team", ""):
        seen = seen.filter(tenant__slug=team)
    return seen.select_related("tenant", "owner", "cluster", "current", "good")


def _service(request: ApiRequest, app_id: str) -> Service:
    """Returns the service with the id of an app. Raises Http404 if the caller sees none, and Refused if several teams
    of the caller have one."""
    found = list(_seen(request).filter(name=service_name(app_id.strip("/").replace("/", "-")))[:2])
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


def _app(service: Any, members: list[Member]) -> dict[str, Any]:
    """Converts a service of `_seen` to an app, with the numbers of its replicas."""
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
        "version": _moment(service.current.at if service.current else service.created_at),
        "tasksRunning": service.holding,
        "tasksStaged": max(service.wanted - service.holding, 0),
        "tasksHealthy": service.ready,
        "tasksUnhealthy": unhealthy,
        "deployments": [{"id": str(service.current_id)}] if rolls_out else [],
    }


def _task(service: Service, member: Member) -> dict[str, Any]:
    lease = member.lease
    return {
        "id": f"{service.name}.{member.job.pk}",
        "appId": f"/{service.name}",
        "host": lease.address if lease else "",
        "startedAt": _moment(member.job.first_started_at) if member.job.first_started_at else None,
        "state": "TASK_RUNNING" if member.job.first_started_at else "TASK_STAGING",
        "healthCheckResults": [{"alive": member.is_ready}],
    }


def _deployment(service: Service) -> dict[str, str]:
    return {"version": _moment(datetime.now(UTC)), "deploymentId": str(service.current_id)}


def _moment(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
