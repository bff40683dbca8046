"""What Marathon says about itself, in the terms of services: deployments, the queue, tasks and the server.

Reference: Marathon 1.5, docs/docs/rest-api/public/api/v2/deployments.raml, queue.raml, tasks.raml and info.raml.
"""

from __future__ import annotations

from typing import Any

from django.http import Http404, HttpResponse
from ninja import Router

from accounting.core.errors import Refused
from portal.api.compatible.marathon import app_of, deployment_of, moment, seen_services, task_of
from portal.services.detail import members_by_service
from portal.user_request import ApiRequest
from scheduling.models import Service
from scheduling.services.actions import roll_back_service

router = Router()


@router.get("/deployments", url_name="marathon_deployments")
def deployments(request: ApiRequest) -> list[dict[str, Any]]:
    """Returns the rollouts that go on. Each affects one service."""
    return [_deployment(one) for one in _rolling_out(request)]


@router.delete("/deployments/{deployment_id}", url_name="marathon_deployment")
def revert(request: ApiRequest, deployment_id: str) -> dict[str, str]:
    """Rolls a service back to the revision before the rollout."""
    service = next((one for one in _rolling_out(request) if str(one.current_id) == deployment_id), None)
    if service is None:
        raise Http404
    if request.GET.get("force", "").lower() == "true":
        raise Refused(
            "A rollout does not stop half-way. Leave out force: the service is then rolled back.", "force"
        )
    if service.good is None:
        raise Refused(
            "This is the first revision of the service. Change the app, or delete it.", "deployment_id"
        )
    return deployment_of(roll_back_service(actor=request.auth, service=service, number=service.good.number))


@router.get("/queue", url_name="marathon_queue")
def queue(request: ApiRequest) -> dict[str, Any]:
    """Returns the services of which replicas wait for GPUs, with the number of these replicas."""
    services: list[Any] = list(seen_services(request).order_by("id"))  # with the numbers of their replicas
    waiting = [one for one in services if one.wanted > one.holding]
    return {
        "queue": [
            {
                "app": app_of(one, []),
                "count": one.wanted - one.holding,
                "delay": {"timeLeftSeconds": 0, "overdue": True},
                "since": moment(one.current.at if one.current else one.created_at),
            }
            for one in waiting
        ]
    }


@router.get("/tasks", url_name="marathon_all_tasks")
def tasks(request: ApiRequest) -> dict[str, Any]:
    """Returns the replicas of all services that have started."""
    services = list(seen_services(request).order_by("id"))
    members = members_by_service(services)
    return {"tasks": [task_of(one, two) for one in services for two in members.get(one.pk, []) if two.lease]}


@router.get("/info", url_name="marathon_info")
def info(request: ApiRequest) -> dict[str, Any]:
    """Returns the name of the server, which needs no leader, and the version of Marathon whose calls it answers."""
    return {"name": "fairlot", "version": "1.5.0", "elected": True, "leader": request.get_host()}


def ping(request: ApiRequest) -> HttpResponse:
    """Answers that the server can be reached."""
    return HttpResponse("pong", content_type="text/plain")


def _rolling_out(request: ApiRequest) -> list[Service]:
    found = seen_services(request).filter(stopped_at=None).order_by("id")
    return [one for one in found if one.current_id != one.good_id]


def _deployment(service: Service) -> dict[str, Any]:
    app = f"/{service.name}"
    action = {"action": "RestartApplication" if service.good_id else "StartApplication", "app": app}
    return {
        "id": str(service.current_id),
        "version": moment(service.current.at if service.current else service.created_at),
        "affectedApps": [app],
        "affectedPods": [],
        "steps": [{"actions": [action]}],
        "currentActions": [action],
        "currentStep": 1,
        "totalSteps": 1,
    }
