"""Teams: made, moved, archived, restored and given tickets by admins, with what that does to the shares of others."""

from __future__ import annotations

from typing import Any

from django.http import Http404, HttpRequest
from django.shortcuts import get_object_or_404
from ninja import Router
from ninja.responses import Status

from accounting import actions
from accounting.errors import Refused
from accounting.models import Tenant
from portal.administration.tree import (
    Effect,
    effect_of_archiving,
    effect_of_move,
    effect_of_new,
    effect_of_restoring,
    effect_of_tickets,
)
from portal.api import schemas

router = Router(tags=["Administration"])


@router.post("/teams", response={200: schemas.TeamChange, 201: schemas.TeamChange}, url_name="teams")
def make(request: HttpRequest, new: schemas.NewTeam) -> Status:
    """Makes a team (201), or with `dry_run` says what it would take from the others (200). For admins."""
    _admins_only(request)
    parent = _parent(new.parent)
    effect = effect_of_new(name=new.name, parent=parent, tickets=new.tickets)
    if new.dry_run:
        return Status(200, _show(None, effect))
    made = actions.create_tenant(actor=request.auth, name=new.name, parent=parent, tickets=new.tickets)
    return Status(201, _show(made, effect))


@router.put("/teams/{team}/tickets", response=schemas.TeamChange, url_name="team_tickets")
def set_tickets(request: HttpRequest, team: str, given: schemas.TeamTickets) -> dict[str, Any]:
    """Sets the weight of a team among its siblings. For admins."""
    tenant = _found(request, team)
    effect = effect_of_tickets(tenant, given.tickets)
    if not given.dry_run:
        tenant = actions.set_tickets(actor=request.auth, tenant=tenant, tickets=given.tickets)
    return _show(tenant, effect)


@router.put("/teams/{team}/parent", response=schemas.TeamChange, url_name="team_parent")
def move(request: HttpRequest, team: str, given: schemas.TeamParent) -> dict[str, Any]:
    """Moves a team with all below it under another, or to the top level. For admins."""
    tenant, parent = _found(request, team), _parent(given.parent)
    effect = effect_of_move(tenant, parent)
    if not given.dry_run:
        tenant = actions.move_tenant(actor=request.auth, tenant=tenant, parent=parent)
    return _show(tenant, effect)


@router.put("/teams/{team}/archived", response=schemas.TeamChange, url_name="team_archived")
def set_archived(request: HttpRequest, team: str, given: schemas.TeamArchived) -> dict[str, Any]:
    """Archives a team, or takes it back into use. For admins."""
    tenant = _found(request, team)
    effect = (effect_of_archiving if given.archived else effect_of_restoring)(tenant)
    act = actions.archive_tenant if given.archived else actions.restore_tenant
    if not given.dry_run:
        tenant = act(actor=request.auth, tenant=tenant)
    return _show(tenant, effect)


def _admins_only(request: HttpRequest) -> None:
    if not request.auth.is_admin:
        raise Http404


def _found(request: HttpRequest, slug: str) -> Tenant:
    _admins_only(request)
    return get_object_or_404(Tenant.objects.select_related("parent"), slug=slug)


def _parent(slug: str | None) -> Tenant | None:
    if slug is None:
        return None
    parent = Tenant.objects.filter(slug=slug).first()
    if parent is None:
        raise Refused("There is no such team.", "parent")
    return parent


def _show(tenant: Tenant | None, effect: list[Effect]) -> dict[str, Any]:
    return {
        "team": tenant
        and {
            "team": tenant.slug,
            "name": tenant.name,
            "parent": tenant.parent and tenant.parent.slug,
            "tickets": tenant.tickets,
            "archived_at": tenant.archived_at,
        },
        "shares": [{"name": row.name, "before": row.before, "after": row.after} for row in effect],
    }
