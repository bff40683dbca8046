"""Services in the shape of Marathon's groups. Fairlot has none: the id of a group is the beginning of names.

Reference: Marathon 1.5, docs/docs/rest-api/public/api/v2/groups.raml.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from django.http import Http404
from ninja import Router
from ninja.responses import Status

from accounting.core.errors import Refused
from portal.api.compatible.conversion import body_of, mapping_in, told, works_of
from portal.api.compatible.marathon import (
    app_of,
    change_to,
    create_of,
    deployment_of,
    moment,
    seen_services,
    service_of,
    without_jobs,
)
from portal.services.detail import members_by_service
from portal.user_request import ApiRequest
from scheduling.importers.services import service_name
from scheduling.models import Service

router = Router()
NO_GROUPS = "Fairlot has no groups, so this call would change services that only have a similar name."
DELETED = f"{NO_GROUPS} Delete each app by DELETE /v2/apps/…."
SCALED = f"{NO_GROUPS} Change each app by PUT /v2/apps/…."


@router.get("/groups", url_name="marathon_groups")
def root(request: ApiRequest) -> dict[str, Any]:
    """Returns the root group, with all services of the caller's teams."""
    return _group("/", list(seen_services(request).order_by("id")))


@router.post("/groups", response={201: dict[str, Any]}, url_name="marathon_groups")
def create(request: ApiRequest) -> Status[Any]:
    """Creates the services of a group and of the groups in it. Creates none if one exists already."""
    return Status(201, _put(request, mapping_in(body_of(request)), is_new=True))


@router.put("/groups", url_name="marathon_groups")
def change_root(request: ApiRequest) -> dict[str, Any]:
    """Creates or changes the services of a group and of the groups in it. Others stay unchanged."""
    return _put(request, mapping_in(body_of(request)), is_new=False)


@router.get("/groups/{path:group_id}", url_name="marathon_group")
def group(request: ApiRequest, group_id: str) -> dict[str, Any]:
    """Returns the services whose names begin with the id of a group."""
    name = service_name(group_id.strip("/").replace("/", "-"))
    found = list(seen_services(request).filter(name__startswith=f"{name}-").order_by("id"))
    if not found:
        raise Http404
    return _group(f"/{group_id.strip('/')}", found)


@router.put("/groups/{path:group_id}", url_name="marathon_group")
def change(request: ApiRequest, group_id: str) -> dict[str, Any]:
    """Creates or changes the services of a group. Services that the body leaves out stay unchanged."""
    return _put(request, {"id": f"/{group_id.strip('/')}"} | mapping_in(body_of(request)), is_new=False)


@router.delete("/groups/{path:group_id}", url_name="marathon_group")
def delete(request: ApiRequest, group_id: str) -> dict[str, Any]:
    """Refuses to delete a group."""
    raise Refused(DELETED, "group_id")


def _put(request: ApiRequest, body: dict[str, Any], *, is_new: bool) -> dict[str, Any]:
    if {"scaleBy", "version"} & body.keys() and not {"apps", "groups"} & body.keys():
        raise Refused(SCALED, "scaleBy" if "scaleBy" in body else "version")
    works, found = works_of(json.dumps(body), "marathon")
    without_jobs(works)
    own = {work.name: one for work in works if (one := _service(request, work.name))}
    if is_new and own:
        raise Refused(f"The service {min(own)} exists already. Use PUT to change it.", "id")
    made = [
        change_to(request, own[work.name], work) if work.name in own else create_of(request, work)
        for work in works
    ]
    answer = deployment_of(made[-1]) if made else {"version": moment(datetime.now(UTC))}
    return answer | {"fairlot": {"report": told(found)}}


def _service(request: ApiRequest, name: str) -> Service | None:
    try:
        return service_of(request, name)
    except Http404:
        return None


def _group(name: str, services: list[Any]) -> dict[str, Any]:
    members = members_by_service(services)
    apps = [app_of(one, members.get(one.pk, [])) for one in services]
    return {
        "id": name,
        "apps": apps,
        "groups": [],
        "pods": [],
        "dependencies": [],
        "version": max((app["version"] for app in apps), default=moment(datetime.now(UTC))),
    }
