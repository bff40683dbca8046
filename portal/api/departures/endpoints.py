"""Endpoints for a user's unfinished work in a team: count it, and hand it over to another member."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from django.http import Http404
from django.shortcuts import get_object_or_404
from ninja import Router

from accounting.access.permissions import changeable_where
from accounting.core.errors import Refused
from accounting.models import Tenant, User
from portal.api.departures import schemas
from portal.user_request import ApiRequest
from scheduling.departures.actions import Fate, Work, heirs, settle_work

router = Router(tags=["Teams"])


@router.get("/work/{username}", response=schemas.Work, url_name="work")
def work(request: ApiRequest, username: str, team: str) -> dict[str, int]:
    """Returns how many unfinished jobs, sweeps, pipelines, sessions, services and schedules a user has in a team.

    The user may already have left the team. For managers and admins.
    """
    tenant, user = _managed(request, team, username)
    return {f"{kind.replace(' ', '_')}s": count for kind, count in Work(user, [tenant.pk]).counts().items()}


@router.post("/work/{username}/hand-over", response=schemas.HandedOver, url_name="hand_over")
def hand_over(request: ApiRequest, username: str, new: schemas.HandOver) -> dict[str, Any]:
    """Hands over a user's unfinished work in a team to another member. For managers and admins.

    Work that uses secrets stays with the user. The response lists this work in `kept`.
    """
    tenant, user = _managed(request, new.team, username)
    to = heirs(tenant, request.auth).filter(username=new.to).first()
    if to is None:
        raise Refused(
            f"{new.to} may not submit jobs in {tenant.name}. Choose a member who may submit jobs there.", "to"
        )
    done = settle_work(actor=request.auth, user=user, fate=Fate.HAND_OVER, to=to, tenant=tenant)
    return {} if done is None else asdict(done)


def _managed(request: ApiRequest, team: str, username: str) -> tuple[Tenant, User]:
    tenant = get_object_or_404(changeable_where(request.auth, "member.change"), slug=team)
    user = get_object_or_404(User, username=username)
    theirs = (user.memberships, user.jobs, user.schedules, user.services, user.sweeps, user.pipelines)
    if not any(rows.filter(tenant=tenant).exists() for rows in theirs):
        raise Http404
    return tenant, user
