"""Endpoints for the caller's account, for teams, and for members.

A call that changes a team returns the effect of the change on the shares of other teams.
"""

from __future__ import annotations

from typing import Any

from django.shortcuts import get_object_or_404
from ninja import Router
from ninja.responses import Status

from accounting import actions
from accounting.access.permissions import changeable_where
from accounting.actions.memberships import find_user
from accounting.core.errors import Refused
from accounting.core.name_order import by_name
from accounting.models import Invitation, Membership, Tenant
from portal.administration.tree import (
    Effect,
    effect_of_archiving,
    effect_of_move,
    effect_of_new,
    effect_of_restoring,
    effect_of_tickets,
)
from portal.api.auth import require_permission
from portal.api.teams import schemas
from portal.api.versions import IfMatch, versions_in
from portal.user_request import ApiRequest
from scheduling.models.versions import version_of

router = Router(tags=["Administration"])


@router.get("/me", response=schemas.Me, url_name="me", tags=["Reports"], operation_id="portal_api_reports_me")
def me(request: ApiRequest) -> dict[str, Any]:
    """Returns the caller's username, full name, portal role and teams."""
    user = request.auth
    return {
        "username": user.get_username(),
        "name": user.get_full_name(),
        "role": user.portal_role,
        "teams": [
            {"team": one.tenant.slug, "role": one.role, "tickets": one.tickets}
            for one in user.memberships.select_related("tenant").order_by(*by_name("tenant__name"))
        ],
    }


@router.post("/teams", response={200: schemas.TeamChange, 201: schemas.TeamChange}, url_name="teams")
def make(request: ApiRequest, new: schemas.NewTeam) -> Status[Any]:
    """Creates a team (201). For admins.

    With `dry_run`, creates nothing, and returns how the team would change the shares of other teams (200).
    """
    require_permission(request, "tenant.change")
    parent = _parent(new.parent)
    effect = effect_of_new(name=new.name, parent=parent, tickets=new.tickets)
    if new.dry_run:
        return Status(200, _show(None, effect))
    made = actions.create_tenant(actor=request.auth, name=new.name, parent=parent, tickets=new.tickets)
    return Status(201, _show(made, effect))


@router.put("/teams/{team}/tickets", response=schemas.TeamChange, url_name="team_tickets")
def set_tickets(
    request: ApiRequest, team: str, given: schemas.TeamTickets, if_match: IfMatch = None
) -> dict[str, Any]:
    """Sets the tickets of a team, which are its weight among its sibling teams. For admins."""
    tenant = _found(request, team)
    effect = effect_of_tickets(tenant, given.tickets)
    if not given.dry_run:
        tenant = actions.set_tickets(
            actor=request.auth, tenant=tenant, tickets=given.tickets, seen=versions_in(if_match)
        )
    return _show(tenant, effect)


@router.put("/teams/{team}/parent", response=schemas.TeamChange, url_name="team_parent")
def move(
    request: ApiRequest, team: str, given: schemas.TeamParent, if_match: IfMatch = None
) -> dict[str, Any]:
    """Moves a team, including the teams below it, under another team or to the top level. For admins."""
    tenant, parent = _found(request, team), _parent(given.parent)
    effect = effect_of_move(tenant, parent)
    if not given.dry_run:
        tenant = actions.move_tenant(
            actor=request.auth, tenant=tenant, parent=parent, seen=versions_in(if_match)
        )
    return _show(tenant, effect)


@router.put("/teams/{team}/archived", response=schemas.TeamChange, url_name="team_archived")
def set_archived(
    request: ApiRequest, team: str, given: schemas.TeamArchived, if_match: IfMatch = None
) -> dict[str, Any]:
    """Archives a team or, if the field `archived` in the request is false, restores an archived team. For admins."""
    tenant = _found(request, team)
    effect = (effect_of_archiving if given.archived else effect_of_restoring)(tenant)
    act = actions.archive_tenant if given.archived else actions.restore_tenant
    if not given.dry_run:
        tenant = act(actor=request.auth, tenant=tenant, seen=versions_in(if_match))
    return _show(tenant, effect)


@router.get("/teams/{team}/members", response=list[schemas.Member], url_name="team_members")
def members(request: ApiRequest, team: str) -> list[dict[str, Any]]:
    """Returns the direct members of a team. For the team's managers and for admins."""
    found = _managed(request, team).memberships.select_related("user").order_by(*by_name("user__username"))
    return [_member(one) for one in found]


@router.post("/teams/{team}/members", response={201: schemas.Member}, url_name="team_members")
def add_member(request: ApiRequest, team: str, new: schemas.NewMember) -> Status[Any]:
    """Adds an existing user to a team. For the team's managers and for admins."""
    tenant = _managed(request, team)
    user = find_user(new.user)
    made = actions.add_member(
        actor=request.auth, tenant=tenant, user=user, role=new.role, tickets=new.tickets
    )
    return Status(201, _member(made))


@router.patch("/teams/{team}/members/{user}", response=schemas.Member, url_name="team_member")
def change_member(
    request: ApiRequest, team: str, user: str, given: schemas.MemberChange, if_match: IfMatch = None
) -> dict[str, Any]:
    """Changes the role or the tickets of a member. For the team's managers and for admins."""
    membership = _membership(request, team, user)
    changed = actions.change_membership(
        actor=request.auth, membership=membership, seen=versions_in(if_match), **given.dict()
    )
    return _member(changed)


@router.delete("/teams/{team}/members/{user}", response={204: None}, url_name="team_member")
def remove_member(request: ApiRequest, team: str, user: str, if_match: IfMatch = None) -> Status[Any]:
    """Removes a member from a team. The user's work stays in the team. For the team's managers and for admins."""
    membership = _membership(request, team, user)
    actions.remove_member(actor=request.auth, membership=membership, seen=versions_in(if_match))
    return Status(204, None)


@router.get("/teams/{team}/invitations", response=list[schemas.Invitation], url_name="team_invitations")
def invitations(request: ApiRequest, team: str) -> list[dict[str, Any]]:
    """Returns the open invitations to a team, without their links. For the team's managers and for admins."""
    found = _managed(request, team).invitations.usable().select_related("invited_by")
    return [_invitation(one) for one in found]


@router.post(
    "/teams/{team}/invitations", response={201: schemas.NewInvitationLink}, url_name="team_invitations"
)
def invite(request: ApiRequest, team: str, new: schemas.NewInvitation) -> Status[Any]:
    """Creates an invitation to a team, and returns its link. For the team's managers and for admins.

    A user who opens the link can join the team. With `email`, Fairlot also sends the link to this address.
    """
    made = actions.invite(actor=request.auth, tenant=_managed(request, team), **new.dict())
    return Status(201, _invitation(made) | {"link": made.link()})


@router.delete("/teams/{team}/invitations/{invitation_id}", response={204: None}, url_name="team_invitation")
def revoke_invitation(request: ApiRequest, team: str, invitation_id: int) -> Status[Any]:
    """Revokes an invitation, so that its link no longer works. For the team's managers and for admins."""
    found = _managed(request, team).invitations.select_related("tenant")
    actions.revoke_invitation(actor=request.auth, invitation=get_object_or_404(found, pk=invitation_id))
    return Status(204, None)


@router.post("/invitations/accept", response=schemas.Membership, url_name="invitation_accept")
def accept_invitation(request: ApiRequest, given: schemas.AcceptedInvitation) -> dict[str, Any]:
    """Accepts an invitation: the caller becomes a member of its team. If the caller is a member, the role stays."""
    token = given.invitation.rstrip("/").rpartition("/")[2]
    joined = actions.accept_invitation(actor=request.auth, token=token)
    return {"team": joined.tenant.slug, "role": joined.role, "tickets": joined.tickets}


def _invitation(one: Invitation) -> dict[str, Any]:
    return {
        "id": one.pk,
        "email": one.email,
        "role": one.role,
        "tickets": one.tickets,
        "uses": one.uses,
        "most_uses": one.most_uses,
        "created_at": one.created_at,
        "expires_at": one.expires_at,
        "invited_by": one.invited_by.get_username() if one.invited_by else None,
    }


def _managed(request: ApiRequest, slug: str) -> Tenant:
    return get_object_or_404(changeable_where(request.auth, "member.change"), slug=slug)


def _membership(request: ApiRequest, team: str, user: str) -> Membership:
    found = _managed(request, team).memberships.select_related("user", "tenant")
    return get_object_or_404(found, user__username=user)


def _member(membership: Membership) -> dict[str, Any]:
    return {
        "user": membership.user.get_username(),
        "role": membership.role,
        "tickets": membership.tickets,
        "is_active": membership.user.is_active,
        "version": version_of(membership),
    }


def _found(request: ApiRequest, slug: str) -> Tenant:
    require_permission(request, "tenant.change")
    return get_object_or_404(Tenant.objects.select_related("parent"), slug=slug)


def _parent(slug: str | None) -> Tenant | None:
    if slug is None:
        return None
    parent = Tenant.objects.filter(slug=slug).first()
    if parent is None:
        raise Refused(f'There is no team "{slug}". Send the slug of an existing team, or null.', "parent")
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
            "version": version_of(tenant),
        },
        "shares": [{"name": row.name, "before": row.before, "after": row.after} for row in effect],
    }
