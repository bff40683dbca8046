"""Endpoints for limits of teams, and for previews of how a change of tickets or limits would change the shares."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.shortcuts import get_object_or_404
from ninja import Router
from ninja.responses import Status

from accounting import actions
from accounting.access.permissions import may, require, tenants_where
from accounting.actions.quotas import Which, check_limit, find, limit_of
from accounting.actions.tenants import check_tickets
from accounting.core.clock import now_from_database
from accounting.core.errors import NotAllowed, Refused
from accounting.core.name_order import by_name
from accounting.core.wording import unknown_choice
from accounting.models import Generation, Quota, Tenant, User
from portal.administration.limit_usage import ShownLimit, limits_of
from portal.api.auth import require_permission
from portal.api.limits import schemas
from portal.api.seen import Hidden, NoSuch
from portal.api.versions import IfMatch, versions_in
from portal.user_request import ApiRequest
from scheduling.limits.usage import limits_on
from scheduling.models.versions import version_of
from scheduling.shares.preview import ShareChange, preview
from scheduling.shares.snapshot import Change

router = Router(tags=["Administration"])


@router.get("/limits", response=list[schemas.Limit], url_name="limits")
def limits(request: ApiRequest, team: str) -> list[dict[str, Any]]:
    """Returns the limits of a team and their current usage. For the team's managers and for operators."""
    return [_show(shown) for shown in limits_of(readable(request.auth, team))]


@router.get("/limits/own", response=list[schemas.OwnLimit], url_name="own_limits")
def own_limits(request: ApiRequest) -> list[dict[str, Any]]:
    """Returns the limits that bind the caller, with their usage.

    Limits on users have a row for each of the caller's teams, with the caller's usage there. Limits on a team as a
    whole have the usage of the team.
    """
    found = limits_on(request.auth, now=now_from_database())
    return [_show(ShownLimit(one.quota, one.used)) | {"used_in": one.tenant.slug} for one in found]


@router.post("/limits", response={201: schemas.Limit}, url_name="limits")
def set_limit(request: ApiRequest, new: schemas.NewLimit) -> Status[Any]:
    """Sets a limit. If a limit of the same kind and scope exists, its amount is replaced.

    For admins. Managers of the team set limits on its members, which stand beside those that admins set.
    """
    tenant = get_object_or_404(tenants_where(request.auth, "member_limit.set"), slug=new.team)
    quota = actions.set_quota(actor=request.auth, tenant=tenant, limit=new.limit, **which_of(new))
    return Status(201, _show(ShownLimit(quota, None)))


@router.delete("/limits/{int:limit_id}", response={204: None}, url_name="limit")
def remove_limit(request: ApiRequest, limit_id: int, if_match: IfMatch = None) -> Status[Any]:
    """Removes a limit. For admins; managers of the team remove limits that managers set."""
    where = tenants_where(request.auth, "member_limit.set")
    quota = get_object_or_404(Quota.objects.filter(tenant__in=where).select_related("tenant"), pk=limit_id)
    actions.remove_quota(actor=request.auth, quota=quota, seen=versions_in(if_match))
    return Status(204, None)


@router.post("/limits/preview", response=list[schemas.ShareChange], url_name="limits_preview")
def preview_limit(request: ApiRequest, new: schemas.NewLimit) -> list[dict[str, Any]]:
    """Returns how the current shares would change if the given limit were set. Nothing is saved.

    Operators get the shares of all teams, managers of the team those of their team.
    """
    tenant, own = _previewable_team(request, new.team)
    quota = limit_of(tenant, **which_of(new))
    check_limit(quota, new.limit)
    return _changes(Change(tenant, quota=quota, removed=find(quota)), own=own)


@router.post(
    "/limits/{int:limit_id}/removal/preview",
    response=list[schemas.ShareChange],
    url_name="limit_removal_preview",
)
def preview_removal(request: ApiRequest, limit_id: int) -> list[dict[str, Any]]:
    """Returns how the current shares would change if the given limit were removed. Nothing is removed. For
    operators."""
    require_permission(request, "share.preview")
    quota = get_object_or_404(Quota.objects.select_related("tenant"), pk=limit_id)
    return _changes(Change(quota.tenant, removed=quota))


@router.post("/tickets/preview", response=list[schemas.ShareChange], url_name="tickets_preview")
def preview_tickets(request: ApiRequest, new: schemas.NewTickets) -> list[dict[str, Any]]:
    """Returns how the current shares would change if a team, or a member of a team, had the given number of tickets.

    Nothing is saved. Operators get the shares of all teams. Managers get those of their team, and of its members if a
    member is given.
    """
    user, own = None, False
    if new.user is None:
        tenant, own = _previewable_team(request, new.team)
    else:
        tenant = get_object_or_404(tenants_where(request.auth, "member.preview").active(), slug=new.team)
        user = _user_named(new.user, User.objects.filter(memberships__tenant=tenant))
    check_tickets(new.tickets)
    return _changes(Change(tenant, tickets=new.tickets, user=user), own=own)


def _changes(change: Change, *, own: bool = False) -> list[dict[str, Any]]:
    return [in_api(row) for row in preview(change, own=own)]


def in_api(row: ShareChange) -> dict[str, Any]:
    return {
        "cluster": row.cluster,
        "team": row.tenant.slug,
        "user": row.user.get_username() if row.user else None,
        "generation": row.generation,
        "entitled_before": row.entitled[0],
        "entitled_after": row.entitled[1],
        "share_before": row.share[0],
        "share_after": row.share[1],
    }


def which_of(new: schemas.LimitTerms) -> Which:
    return Which(
        kind=new.kind,
        generation=generation_named(new.generation),
        user=_user_named(new.user, User.objects.all()),
        each_user=new.each_user,
        period=new.period,
        days=new.days,
        at_limit=new.at_limit,
    )


def generation_named(name: str | None) -> Generation | None:
    """Returns the generation with this name, or None for an empty name.

    Raises Refused for an unknown name, and lists all generations in the message.
    """
    known = {one.name: one for one in Generation.objects.order_by(*by_name("name"))}
    if name and name not in known:
        raise Refused(unknown_choice("generation", name, known), "generation")
    return known[name] if name else None


def _user_named(name: str | None, among: QuerySet[User]) -> User | None:
    """Returns the user in `among` with this name, or None if `name` is None. Raises Refused if no user in `among` has
    this name."""
    if name is None:
        return None
    found = among.filter(username=name).first()
    # the same text as in the action, so that callers cannot find out whether users of other teams exist
    if found is None:
        raise Refused("The user is not in this team.", "user")
    return found


def readable(user: User, slug: str) -> Tenant:
    """Returns the team with this slug, if the user may read its limits and budgets.

    Raises Hidden otherwise: for a team that the user sees, it says who may.
    """
    tenant = Tenant.objects.visible_to(user).filter(slug=slug).first()
    if tenant is None:
        raise NoSuch("team")
    try:
        require(user, "team.read", tenant)
    except NotAllowed as error:
        raise Hidden(f"{error} GET /limits/own lists the limits that bind you.") from None
    return tenant


def _previewable_team(request: ApiRequest, slug: str) -> tuple[Tenant, bool]:
    """Returns the team with this slug, for the endpoints that preview shares, and whether the caller may only see the
    shares of this team.

    Raises Http404 for an unknown slug, and if the caller may not preview shares.
    """
    if may(request.auth, "share.preview"):
        return get_object_or_404(Tenant, slug=slug), False
    return get_object_or_404(tenants_where(request.auth, "request.ask").active(), slug=slug), True


def _show(shown: ShownLimit) -> dict[str, Any]:
    quota = shown.quota
    return {
        "id": quota.pk,
        "version": version_of(quota),
        "team": quota.tenant.slug,
        "user": quota.user.get_username() if quota.user else None,
        "each_user": quota.each_user,
        "generation": quota.generation.name if quota.generation else None,
        "kind": quota.kind,
        "period": quota.period,
        "days": quota.days,
        "limit": quota.limit,
        "at_limit": quota.at_limit,
        "by_managers": quota.by_managers,
        "used": shown.used,
        "of_former_member": shown.of_former_member,
    }
