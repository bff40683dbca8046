"""Endpoints for services: list, create, read, change, roll back and remove."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any

from ninja import Query, Router
from ninja.errors import HttpError
from ninja.responses import Status

from accounting.core.clock import now_from_database
from portal import interruptions
from portal.api.fields import AskedFlag, AskedKey, PageSize
from portal.api.jobs.endpoints import place_of, read_spec
from portal.api.metrics.endpoints import LAST, within
from portal.api.pages import ListFilters, page_of
from portal.api.seen import seen_or_404
from portal.api.services import schemas
from portal.api.versions import IfMatch, versions_in
from portal.jobs.failure import log_end_of
from portal.services.detail import (
    Member,
    members_by_service,
    members_of,
    sentences_of,
    status_of,
    troubles_of,
)
from portal.services.failures import failed_replicas, latest_failure
from portal.services.listing import SERVICES
from portal.services.replica_logs import MOST_REPLICAS, replica_logs, time_of
from portal.services.traffic import counted_until, not_counted
from portal.sessions import hosts
from portal.user_request import ApiRequest
from scheduling.advance.ahead import windows_over
from scheduling.core.event_texts import end_text_of
from scheduling.core.service_texts import service_text_of
from scheduling.leases.interruptions import back_by, of_service
from scheduling.models import Job, Service, ServiceRevision
from scheduling.models.versions import version_of
from scheduling.services.actions import change_service, create_service, remove_service, roll_back_service
from scheduling.services.replicas import next_steps_of
from scheduling.services.traffic import Outcome, Traffic
from scheduling.services.traffic_samples import read_traffic

router = Router(tags=["Services"])
# A position has the id of a job and an offset for each replica.
Place = Annotated[str, Query(max_length=40 * MOST_REPLICAS)]
RULES = ("replicas", "max_surge", "max_unavailable", "progress_deadline_seconds", "auto_rollback")


def visible_service(request: ApiRequest, service_id: int) -> Service:
    """Returns the service with this id. Raises NotSeen if there is no such service or the caller may not see the
    service."""
    seen = Service.objects.visible_to(request.auth).with_counts()
    related = seen.select_related("tenant", "owner", "cluster", "current", "good")
    return seen_or_404(related, "service", service_id)


@router.get("/services", response=schemas.ServicePage, url_name="services")
def list_services(
    request: ApiRequest,
    filters: Query[ListFilters],
    before: AskedKey | None = None,
    limit: PageSize = 50,
) -> dict[str, Any]:
    """Returns one page of the services of the caller's teams, newest first or in the order of `sort`.

    Removed services are left out.
    """
    found, following = page_of(SERVICES, request.auth, filters, before, limit)
    members = members_by_service(found)
    items = [show(service, members.get(service.pk, [])) for service in found]
    return {"items": items, "next": following}


@router.post("/services", response={201: schemas.Service}, url_name="services")
def create(request: ApiRequest, new: schemas.NewService) -> Status[Any]:
    """Creates a service that the caller owns.

    The service gets the name in the field `name` of the specification. The name must be unique in the team (otherwise
    409).
    """
    tenant, cluster = place_of(request.auth, new)
    made = create_service(
        actor=request.auth,
        tenant=tenant,
        cluster=cluster,
        spec=read_spec(new.spec),
        even_if_never=new.even_if_never,
        **_rules(new),
    )
    return Status(201, _shown(request, made.pk))


@router.get("/services/{int:service_id}", response=schemas.ServiceInFull, url_name="service")
def get_service(request: ApiRequest, service_id: int) -> dict[str, Any]:
    """Returns a service with its revisions and its current replicas."""
    service = visible_service(request, service_id)
    revisions = service.revisions.select_related("author")
    replicas = failed_replicas(service)
    members = members_of(service)
    steps = next_steps_of(service, at=now_from_database())
    return show(service, members) | {
        "last_failure": _show_failure(latest_failure(service, members)),
        "sentences": sentences_of(service, members, reader=request.auth),
        "revisions": [show_revision(revision, replicas.get(revision.pk)) for revision in revisions],
        "members": [show_member(member) for member in members],
        "interruptions": interruptions.as_json(interruptions.shown(of_service(service))),
        "expected_back_at": back_by(member.job for member in members),
        "reserved_ahead": interruptions.ahead_as_json(
            windows_over((member.lease for member in members), request.auth)
        ),
        "next_try_at": steps.next_try_at,
        "gives_up_at": steps.gives_up_at,
        "rolls_back_to": steps.back_to and steps.back_to.number,
    }


@router.patch("/services/{int:service_id}", response=schemas.Service, url_name="service")
def change(
    request: ApiRequest, service_id: int, wanted: schemas.ServiceChange, if_match: IfMatch = None
) -> dict[str, Any]:
    """Changes the given fields of a service, and leaves the others unchanged.

    The fields are the number of replicas, the rollout rules, the specification, and whether the service is stopped.
    """
    service = visible_service(request, service_id)
    spec = read_spec(wanted.spec) if wanted.spec is not None else None
    change_service(
        actor=request.auth,
        service=service,
        spec=spec,
        stopped=wanted.stopped,
        seen=versions_in(if_match),
        **_rules(wanted),
    )
    return _shown(request, service_id)


@router.delete("/services/{int:service_id}", response={204: None}, url_name="service")
def remove(request: ApiRequest, service_id: int) -> Status[Any]:
    """Removes a service and ends its replicas. The records and bills of the replicas are kept.

    Has no effect on a service that is already removed.
    """
    remove_service(actor=request.auth, service=visible_service(request, service_id))
    return Status(204, None)


@router.post("/services/{int:service_id}/rollback", response=schemas.Service, url_name="service_rollback")
def roll_back(request: ApiRequest, service_id: int, to: schemas.Rollback) -> dict[str, Any]:
    """Rolls a service back: an earlier revision is rolled out again."""
    service = visible_service(request, service_id)
    roll_back_service(actor=request.auth, service=service, number=to.revision)
    return _shown(request, service_id)


@router.get("/services/{int:service_id}/events", response=schemas.ServiceEventPage, url_name="service_events")
def events(
    request: ApiRequest, service_id: int, before: AskedKey | None = None, limit: PageSize = 50
) -> dict[str, Any]:
    """Returns one page of the events of a service, newest first."""
    seen = visible_service(request, service_id).events.all()
    found = list((seen.filter(pk__lt=before) if before else seen)[: limit + 1])
    items = [
        {"id": event.pk, "at": event.at, "kind": event.kind, "text": service_text_of(event)}
        for event in found[:limit]
    ]
    return {"items": items, "next": found[limit - 1].pk if len(found) > limit else None}


@router.get("/services/{int:service_id}/traffic", response=schemas.Traffic, url_name="service_traffic")
def traffic(request: ApiRequest, service_id: int, period: Query[schemas.TrafficPeriod]) -> dict[str, Any]:
    """Returns how many requests a service got over time, how long answers took to begin, and how many requests
    failed."""
    service = visible_service(request, service_id)
    ends = min(within(period.ends) or LAST, service.removed_at or counted_until())
    begins = within(period.begins) or ends - timedelta(hours=1)
    found = read_traffic(service, begins=begins, ends=ends, most_points=period.most_points)
    covered = (found.ends - found.begins).total_seconds()
    whole = found.whole
    return {
        "service": service.pk,
        "seconds": found.seconds,
        "begins": found.begins,
        "ends": found.ends,
        "whole": _show_traffic(found.begins, whole, whole.requests / covered if covered else 0.0),
        "points": [
            _show_traffic(found.time_of(place), point, found.rate_of(place))
            for place, point in sorted(found.points.items())
        ],
        "not_counted": not_counted(service),
    }


@router.get(
    "/services/{int:service_id}/log/lines", response=schemas.ReplicaLogLines, url_name="service_log_lines"
)
def log_lines(
    request: ApiRequest, service_id: int, *, after: Place = "", recent: AskedFlag = False
) -> dict[str, Any]:
    """Returns the next lines of the logs of a service's replicas, merged by time.

    Replicas that ended in the last 24 hours belong to them. Begins with the oldest lines, or with `recent` at about the
    last 64 KiB. Pass `next` as `after` to continue; an answer without lines means that there are no new ones yet.
    """
    service = visible_service(request, service_id)
    logs = replica_logs(service)
    begin = logs.position_from(after)
    if begin is None:
        raise HttpError(422, "after: this is not the `next` of an answer for this service.")
    if recent and not after:
        lines, position = logs.recent()
    else:
        found = logs.look(begin)
        lines, position = found.lines, found.position
    has_ended = service.removed_at is not None and not service.living  # type: ignore[attr-defined]  # annotated
    names = logs.names
    return {
        "items": [
            {
                "job_id": line.rank,
                "replica": names[line.rank],
                "offset": line.offset,
                "at": time_of(line),
                "text": line.text,
            }
            for line in lines
        ],
        "next": logs.text_of(position),
        "complete": has_ended and not lines,
        "problems": [f"{names[job]}: {problem}" for job, problem in logs.problems.items()],
    }


def _show_traffic(at: datetime, traffic: Traffic, rate: float) -> dict[str, Any]:
    return {
        "at": at,
        "requests": traffic.requests,
        "requests_per_second": rate,
        "client_errors": traffic.count(Outcome.CLIENT_ERROR),
        "server_errors": traffic.count(Outcome.SERVER_ERROR),
        "no_replica": traffic.count(Outcome.NO_REPLICA),
        "no_answer": traffic.count(Outcome.NO_ANSWER),
        "timed_out": traffic.count(Outcome.TIMED_OUT),
        "left": traffic.count(Outcome.LEFT),
    } | {f"p{percent}_seconds": traffic.percentile(percent / 100) for percent in (50, 95, 99)}


def _rules(given: schemas.ServiceRules) -> dict[str, Any]:
    return {name: value for name in RULES if (value := getattr(given, name)) is not None}


def _shown(request: ApiRequest, service_id: int) -> dict[str, Any]:
    service = visible_service(request, service_id)
    return show(service, members_of(service))


def show(service: Service, members: Sequence[Member]) -> dict[str, Any]:
    """Converts a service to the fields of the API's response.

    `service` must come from a query with `with_counts`, which counts its replicas. `members` are its replicas that have
    not ended.
    """
    same = ("id", "name", "ready", "living", "stopped_at", "removed_at", "created_at", *RULES)
    return {name: getattr(service, name) for name in same} | {
        "status": status_of(service).text,
        "url": hosts.origin_of_service(service.pk),
        "trouble": " ".join(troubles_of(service, members)),
        "version": version_of(service),
        "team": service.tenant.slug,
        "owner": service.owner.get_username(),
        "cluster": service.cluster.name,
        "revision": service.current and service.current.number,
        "good_revision": service.good.number if service.good else None,
    }


def _show_failure(job: Job | None) -> dict[str, Any] | None:
    if job is None:
        return None
    end = log_end_of(job)
    return {
        "job_id": job.pk,
        "name": job.name,
        "revision": job.revision and job.revision.number,
        "ended_at": job.ended_at,
        "end_message": end_text_of(job),
        "exit_meaning": end.meaning,
        "last_lines": end.lines,
    }


def show_revision(revision: ServiceRevision, failed: Job | None) -> dict[str, Any]:
    same = ("number", "spec", "at", "proved_at", "failed_at", "why_failed")
    return {name: getattr(revision, name) for name in same} | {
        "author": revision.author.get_username(),
        "failed_job_id": failed.pk if failed else None,
    }


def show_member(member: Member) -> dict[str, Any]:
    job, lease = member.job, member.lease
    same = ("name", "slot", "attempt", "state")
    return {name: getattr(job, name) for name in same} | {
        "job_id": job.pk,
        "revision": job.revision and job.revision.number,
        "reason": member.reason,
        "ready": member.is_ready,
        "address": lease.address if lease else "",
        "why_not_ready": lease.why_not_ready if lease else "",
        "claimable_from": member.claimable_from,
    }
