"""Endpoints for requests to operators. Managers request tickets, limits or new teams.

Operators can grant such a request for a limited time. Managers can then request that the grant ends later.
"""

from __future__ import annotations

from typing import Any, Literal

from django.shortcuts import get_object_or_404
from ninja import Router
from ninja.responses import Status

from accounting.access.permissions import tenants_where
from accounting.actions.quotas import limit_of
from accounting.actions.requests import ask, decline_request, withdraw_request
from accounting.models import Request, Tenant
from portal.api.auth import require_permission
from portal.api.fields import AskedKey, PageSize
from portal.api.limits.endpoints import which_of
from portal.api.requests import schemas
from portal.user_request import ApiRequest
from scheduling.grants import approve_request

router = Router(tags=["Requests"])


@router.get("/requests", response=schemas.RequestPage, url_name="requests")
def requests(
    request: ApiRequest,
    state: Literal["", "open", "approved", "declined", "withdrawn"] = "",
    before: AskedKey | None = None,
    limit: PageSize = 50,
) -> dict[str, Any]:
    """Returns one page of the requests of the teams that the caller manages, newest first. Operators get all teams'
    requests.

    To get the next page, with older requests, set `before` to this page's `next`, which is null on the last page.
    """
    found = _seen(request)
    if state:
        found = found.filter(state=state)
    if before is not None:
        found = found.filter(pk__lt=before)
    some = list(found[: limit + 1])
    return {
        "items": [_show(one) for one in some[:limit]],
        "next": some[limit - 1].pk if len(some) > limit else None,
    }


@router.post("/requests", response={201: schemas.Request}, url_name="requests")
def ask_for(request: ApiRequest, new: schemas.NewRequest) -> Status[Any]:
    """Makes a request to the operators, for a team that the caller manages."""
    teams = tenants_where(request.auth, "request.ask")
    tenant = get_object_or_404(teams, slug=new.team)
    extends = None if new.extends is None else get_object_or_404(_seen(request), pk=new.extends)
    made = ask(
        actor=request.auth,
        tenant=tenant,
        kind=new.kind,
        reason=new.reason,
        wanted=_wanted(tenant, new),
        until=new.until,
        extends=extends,
    )
    return Status(201, _show(made))


@router.get("/requests/{int:request_id}", response=schemas.Request, url_name="request")
def one(request: ApiRequest, request_id: int) -> dict[str, Any]:
    """Returns a request and the operators' answer to it, if there is one."""
    return _show(_found(request, request_id))


@router.post("/requests/{int:request_id}/approve", response=schemas.Request, url_name="request_approve")
def approve(request: ApiRequest, request_id: int, answer: schemas.Approval) -> dict[str, Any]:
    """Approves a request, which takes effect immediately. For fields that are left out, the requested values are
    granted. For operators."""
    asked = _found(request, request_id)
    require_permission(request, "request.answer")
    given = answer.dict(exclude_unset=True)
    granted = {name: given[name] for name in ("tickets", "name") if given.get(name) is not None}
    if answer.limit is not None:
        granted["limit"] = str(answer.limit)
    until = given.get("until", asked.until)
    made = approve_request(
        actor=request.auth, request=asked, answer=answer.answer, granted=asked.wanted | granted, until=until
    )
    return _show(made)


@router.post("/requests/{int:request_id}/decline", response=schemas.Request, url_name="request_decline")
def decline(request: ApiRequest, request_id: int, answer: schemas.Refusal) -> dict[str, Any]:
    """Declines a request with a reason. For operators."""
    asked = _found(request, request_id)
    require_permission(request, "request.answer")
    return _show(decline_request(actor=request.auth, request=asked, answer=answer.answer))


@router.post("/requests/{int:request_id}/withdraw", response=schemas.Request, url_name="request_withdraw")
def withdraw(request: ApiRequest, request_id: int) -> dict[str, Any]:
    """Withdraws a request that the operators have not answered yet. For managers of the team."""
    return _show(withdraw_request(actor=request.auth, request=_found(request, request_id)))


def _wanted(tenant: Tenant, new: schemas.NewRequest) -> dict[str, Any]:
    if new.kind != Request.Kind.LIMIT.value:
        return {"tickets": new.tickets, "name": new.name or ""}
    if new.limit is None:
        return {}
    return limit_of(tenant, **which_of(new.limit)).key() | {"limit": str(new.limit.limit)}


def _seen(request: ApiRequest) -> Any:
    found = Request.objects.visible_to(request.auth)
    return found.select_related("tenant", "asked_by", "decided_by")


def _found(request: ApiRequest, request_id: int) -> Request:
    found: Request = get_object_or_404(_seen(request), pk=request_id)
    return found


def _show(asked: Request) -> dict[str, Any]:
    same = (
        "id", "kind", "state", "reason", "wanted", "until", "answer", "granted", "ends_at", "ended_at",
        "overtaken_at", "ending", "asked_at", "decided_at",
    )  # fmt: skip
    return {name: getattr(asked, name) for name in same} | {
        "team": asked.tenant.slug,
        "extends": asked.extends_id,
        "asked_by": asked.asked_by.get_username(),
        "decided_by": asked.decided_by.get_username() if asked.decided_by else None,
    }
