"""Sets the value that an approved request grants (tickets, a limit or a team), and later restores the former value.

The caller must have locked the tenant's row.

Each grant stores the value that it replaced (its former value). Several grants may change the same value. For example,
a tenant has 100 tickets, grant A sets them to 150, and then grant B sets them to 200.

- If B ends first, the tenant gets 150 tickets. When A ends, it gets 100.
- If A ends first, the tenant keeps 200 tickets. B takes over the former value of A. When B ends, the tenant gets 100.
- If a user sets the tickets by hand, even to 200, the ends of A and B no longer change them.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from accounting.access import audit
from accounting.actions.checks import check_name
from accounting.actions.quotas import Which, check_limit, find, limit_of, remove_within, set_within
from accounting.actions.quotas import audit_values as limit_values
from accounting.actions.tenants import archive_within, check_tickets, create_within, set_tickets_within
from accounting.core.errors import Refused
from accounting.models import Generation, Membership, Quota, Request, Tenant, User
from accounting.models.requests import TICKETS, limit_target, team_target

Kind = Request.Kind
CHANGED_SINCE = "the granted value was not reset, because somebody has changed it since the grant"


class NotYet(Refused):
    """Raised when a grant cannot end yet. Fairlot tries again later."""


def checked(kind: str, tenant: Tenant, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Validates the values that a request asks for, and returns them in the form in which the database stores them.

    `kind`: the kind of the request, such as tickets or a limit. `wanted`: the values by field name. Raises Refused,
    naming the invalid field.
    """
    match kind:
        case Kind.TICKETS:
            check_tickets(_whole(wanted, "tickets"))
            return {"tickets": wanted["tickets"]}
        case Kind.TEAM:
            name = str(wanted.get("name", "")).strip()
            if not 1 <= len(name) <= 80:
                raise Refused("A team needs a name of 1 to 80 characters.", "name")
            check_name(name)
            check_tickets(_whole(wanted, "tickets"))
            return {"name": name, "tickets": wanted["tickets"]}
        case Kind.LIMIT:
            quota = quota_of(tenant, wanted)
            return {"limit": str(quota.limit)} | quota.key()
        case _:
            return {}


def audit_values(request: Request, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `values` for the audit trail. For a limit, replaces the ids of the user and the GPU type by their names.

    If the user or the GPU type has been deleted, the ids stay. Values of other kinds of requests are copied unchanged.
    """
    if request.kind != Kind.LIMIT:
        return dict(values)
    try:
        return limit_values(quota_of(request.tenant, values))
    except Refused:
        return dict(values)


def grant(actor: User | None, request: Request, until: datetime | None) -> None:
    """Sets the granted value until `until` (None: no end), and stores the former value in `request`.

    If the request asks for an extension, moves the end of the extended grant instead.
    """
    granted: dict[str, Any] = request.granted or {}
    tenant = request.tenant
    match request.kind:
        case Kind.TICKETS:
            request.target, request.former = TICKETS, str(tenant.tickets)
            set_tickets_within(actor=actor, tenant=tenant, tickets=granted["tickets"])
        case Kind.LIMIT:
            quota = quota_of(tenant, granted)
            before = find(quota)
            request.target = limit_target(quota)
            request.former = str(before.limit) if before else ""
            set_within(actor=actor, quota=quota, limit=quota.limit)
        case Kind.TEAM:
            made = create_within(actor=actor, name=granted["name"], parent=tenant, tickets=granted["tickets"])
            request.target = team_target(made)
            _let_manage(actor, made, request.asked_by)
        case _:
            _extend(request, until)
            return
    request.ends_at = until


def _let_manage(actor: User | None, team: Tenant, user: User) -> None:
    role = Membership.Role.MANAGER
    made = Membership.objects.create(tenant=team, user=user, role=role)
    after = {"role": role, "tickets": made.tickets}
    audit.record(actor=actor, verb="member.add", target=user, tenant=team, after=after)


def _extend(request: Request, until: datetime | None) -> None:
    assert request.extends_id is not None  # noqa: S101 - of an extension, as the database knows
    extended = Request.objects.select_for_update().get(pk=request.extends_id)
    if not extended.is_in_force:
        raise Refused("The grant has already ended and cannot be extended.")
    check_longer(extended, until)
    # the reason why the grant could not end at its former time no longer matters
    extended.ends_at, extended.ending = until, ""
    extended.save(update_fields=["ends_at", "ending"])


def check_longer(extended: Request, until: datetime | None) -> None:
    """Raises Refused unless the new end `until` (None: no end) makes the grant `extended` last longer."""
    if extended.overtaken_at is not None:
        raise Refused(
            "This grant cannot be extended, because somebody has changed the granted value. The new value does not end"
            " with the grant."
        )
    if extended.ends_at is None:
        raise Refused("The grant has no end, so it cannot be extended.")
    if until is not None and until <= extended.ends_at:
        raise Refused(
            "The new end must be later than the present end of the grant that the request extends.", "until"
        )


def end(request: Request) -> str:
    """Ends the grant and returns the outcome as a phrase for the audit trail and the mail.

    If the grant created a team, archives the team. Raises NotYet, without changing anything, if the team cannot be
    archived yet, for example because it has teams below it.
    """
    if request.kind == Kind.TEAM:
        return _end_team(request)
    if request.kind not in {Kind.TICKETS, Kind.LIMIT}:
        return "over"
    if request.overtaken_at is not None:
        return CHANGED_SINCE
    value = _value(request)
    later = _next_stacked_grant(request, value)
    if later is not None:
        later.former = request.former
        later.save(update_fields=["former"])
        return f"the granted value was not reset, because request {later.pk} has granted a newer value"
    if _present_value(request) != value:
        return CHANGED_SINCE
    _put_back(request)
    return f"the former value {request.former} was restored" if request.former else "the limit was removed"


def _next_stacked_grant(request: Request, value: str) -> Request | None:
    """Locks and returns the next newer grant of the same tickets or limit; None if no newer grant is in force.

    `value`: the value that `request` granted, as text. Also returns None if this is not the former value of the newer
    grant: somebody has then changed the tickets or the limit between the two grants.
    """
    pile = Request.objects.in_force().filter(
        tenant=request.tenant_id, target=request.target, decided_at__gt=request.decided_at
    )
    following = pile.select_for_update().order_by("decided_at", "pk").first()
    return following if following is not None and _same(following.former, value) else None


def _value(request: Request) -> str:
    granted: dict[str, Any] = request.granted or {}
    return str(granted["tickets" if request.kind == Kind.TICKETS else "limit"])


def _present_value(request: Request) -> str | None:
    """Returns the present value, as text, of the tickets or the limit that the grant changed; None if the limit is
    gone.

    If the present value equals the granted value, it is written like the granted value: 2.5 and 2.50 are equal. So the
    caller can compare the texts.
    """
    if request.kind == Kind.TICKETS:
        return str(request.tenant.tickets)
    try:
        held = find(quota_of(request.tenant, request.granted or {}))
    except Refused:  # the limit was deleted together with its user or generation
        return None
    if held is None:
        return None
    value = _value(request)
    return value if _same(str(held.limit), value) else str(held.limit)


def _same(one: str, other: str) -> bool:
    return bool(one) and Decimal(one) == Decimal(other)


def _put_back(request: Request) -> None:
    if request.kind == Kind.TICKETS:
        set_tickets_within(actor=None, tenant=request.tenant, tickets=int(request.former))
        return
    quota = quota_of(request.tenant, request.granted or {})
    if request.former:
        set_within(actor=None, quota=quota, limit=Decimal(request.former))
    elif (held := find(quota)) is not None:
        remove_within(actor=None, quota=held)


def teams_of(request: Request) -> list[int]:
    """Returns the id of the tenant that got the grant and, if the grant created a team, also the id of that team."""
    kind, _, team = request.target.partition(":")
    return [request.tenant_id, *([int(team)] if kind == "team" else [])]


def _end_team(request: Request) -> str:
    team = Tenant.objects.select_for_update(no_key=True).filter(pk=teams_of(request)[-1]).first()
    if team is None:
        return "the team had already been deleted"
    if request.overtaken_at is not None:
        return f"team {team} was not archived again, because somebody had restored it from the archive"
    if team.archived_at:
        return f"team {team} had already been archived"
    try:
        archive_within(actor=None, tenant=team)
    except Refused as refusal:
        raise NotYet(f"the team cannot be archived yet: {refusal}"[:200]) from refusal
    return f"team {team} was archived"


def quota_of(tenant: Tenant, values: Mapping[str, Any]) -> Quota:
    """Returns an unsaved limit of `tenant` with the given `values`; raises Refused, naming the invalid field.

    In `values`, the user and the GPU type are given by their primary keys.
    """
    user, generation = values.get("user_id"), values.get("generation_id")
    which = Which(
        kind=values.get("kind", ""),
        user=User.objects.filter(pk=user).first() if user else None,
        generation=Generation.objects.filter(pk=generation).first() if generation else None,
        each_user=bool(values.get("each_user")),
        period=values.get("period", ""),
        days=values.get("days"),
        at_limit=values.get("at_limit") or Quota.AtLimit.BLOCK,
    )
    if (user and not which["user"]) or (generation and not which["generation"]):
        raise Refused("The user or GPU type no longer exists.")
    quota = limit_of(tenant, **which)
    try:
        limit = Decimal(str(values.get("limit", "")))
    except InvalidOperation:
        raise Refused("Enter a number, such as 2.50.", "limit") from None
    check_limit(quota, limit)
    return quota


def _whole(wanted: Mapping[str, Any], field: str) -> int:
    number = wanted.get(field)
    if isinstance(number, bool) or not isinstance(number, int):
        raise Refused("Enter a whole number.", field)
    return number
