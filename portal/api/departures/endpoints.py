"""What somebody has in a team, and giving it to another member."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from django.http import Http404, HttpRequest
from django.shortcuts import get_object_or_404
from ninja import Router

from accounting.access.permissions import changeable_where
from accounting.core.errors import Refused
from accounting.models import Tenant, User
from portal.api.departures import schemas
from scheduling.departures.actions import Fate, Work, heirs, settle_work

router = Router(tags=["Teams"])


@router.get("/work/{username}", response=schemas.Work, url_name="work")
def work(request: HttpRequest, username: str, team: str) -> dict[str, int]:
    """What a user has in a team that has not ended, whether still a member or not. For managers and admins."""
    tenant, user = _managed(request, team, username)
    return {f"{kind.replace(' ', '_')}s": count for kind, count in Work(user, [tenant.pk]).counts().items()}


@router.post("/work/{username}/hand-over", response=schemas.HandedOver, url_name="hand_over")
def hand_over(request: HttpRequest, username: str, new: schemas.HandOver) -> dict[str, Any]:
    """Gives all that a user has in a team to another member of it. For managers and admins.

    What names secrets is in `kept`, and stays."""
    tenant, user = _managed(request, new.team, username)
    to = heirs(tenant, request.auth).filter(username=new.to).first()
    if to is None:
        raise Refused(f"{new.to} may not run jobs in {tenant.name}.", "to")
    done = settle_work(actor=request.auth, user=user, fate=Fate.HAND_OVER, to=to, tenant=tenant)
    return {} if done is None else asdict(done)


def _managed(request: HttpRequest, team: str, username: str) -> tuple[Tenant, User]:
    tenant = get_object_or_404(changeable_where(request.auth, "member.change"), slug=team)
    user = get_object_or_404(User, username=username)
    theirs = (user.memberships, user.jobs, user.schedules, user.services)
    if not any(rows.filter(tenant=tenant).exists() for rows in theirs):
        raise Http404
    return tenant, user
