"""Actions on the limits of tenants and of their users. Admins set all of them, managers those on their members."""

from __future__ import annotations

from collections.abc import Collection
from decimal import Decimal
from typing import Required, TypedDict, Unpack

from django.db import transaction

from accounting.access import audit
from accounting.access.permissions import may, require
from accounting.actions.checks import check_choice, check_fields
from accounting.core.errors import Refused
from accounting.models import Generation, Membership, Quota, Request, Tenant, User
from accounting.models.requests import limit_target
from accounting.models.versions import require_version

LONGEST_DAYS = 366


@transaction.atomic(durable=True)
def set_quota(
    *,
    actor: User | None,
    tenant: Tenant,
    kind: str,
    limit: Decimal | int,
    generation: Generation | None = None,
    user: User | None = None,
    each_user: bool = False,
    period: str = "",
    days: int | None = None,
    at_limit: str = Quota.AtLimit.BLOCK,
) -> Quota:
    """Sets a limit on the total usage of a tenant with its subtree, or on the usage of users in this subtree. Returns
    the limit.

    `kind`: the limited quantity, such as GPUs or GPU-hours. `limit`: the amount. `generation`: None means all
    generations together. `user`: limits only this user. `each_user`: limits each user separately. `period`: for limits
    on GPU-hours and money, a calendar month (default), a calendar quarter, or the last `days` days. `at_limit`: whether
    Fairlot blocks jobs at the limit, makes them preemptible, or only warns.

    If the tenant already has a limit that differs only in the amount, changes the amount of that limit. Managers of the
    tenant set limits on its users only, and change none that an admin set: theirs stand beside those.
    """
    quota = proposed_limit(
        actor=actor,
        tenant=tenant,
        limit=Decimal(limit),
        kind=kind,
        generation=generation,
        user=user,
        each_user=each_user,
        period=period,
        days=days,
        at_limit=at_limit,
    )
    held = set_within(actor=actor, quota=quota, limit=Decimal(limit))
    _overtake_grants(held)
    return held


def proposed_limit(*, actor: User | None, tenant: Tenant, limit: Decimal, **which: Unpack[Which]) -> Quota:
    """Returns the unsaved limit that `set_quota` would set. Raises NotAllowed and Refused where `set_quota` does."""
    quota = limit_of(tenant, **which)
    quota.by_managers = quota.is_of_users and actor is not None and not may(actor, "quota.set")
    _require_settable(actor, quota)
    members = Membership.objects.filter(tenant__path__startswith=tenant.path)
    if quota.by_managers and quota.user and not members.filter(user=quota.user).exists():
        raise Refused("The user is not in this team.", "user")
    check_limit(quota, limit)
    return quota


def _require_settable(actor: User | None, quota: Quota) -> None:
    """Raises NotAllowed unless the actor may set and remove this limit."""
    if quota.by_managers:
        require(actor, "member_limit.set", quota.tenant)
    else:
        require(actor, "quota.set")


def _overtake_grants(quota: Quota) -> None:
    """Ends grants of this limit without effect. Grants are of limits that admins set."""
    if not quota.by_managers:
        Request.objects.overtake(limit_target(quota), tenant=quota.tenant)


class Which(TypedDict, total=False):
    """Represents the arguments that identify a limit of a tenant. The keys have the same meaning as in `set_quota`."""

    kind: Required[str]
    generation: Generation | None
    user: User | None
    each_user: bool
    period: str
    days: int | None
    at_limit: str


def limit_of(tenant: Tenant, **which: Unpack[Which]) -> Quota:
    """Returns an unsaved Quota (limit) of the tenant, identified by `which`.

    Raises Refused, naming the invalid field, if these arguments do not identify a valid limit.
    """
    quota = Quota(tenant=tenant, **which)
    check_choice("kind of limit", quota.kind, Quota.Kind.values, "kind")
    if quota.kind not in Quota.OF_A_PERIOD:
        quota.period, quota.days = "", None
    else:
        quota.period = quota.period or Quota.Period.MONTH
    _check_period(quota)
    check_choice("limit action", quota.at_limit, Quota.AtLimit.values, "at_limit")
    if quota.at_limit == Quota.AtLimit.IDLE and quota.kind not in Quota.MAY_RUN_IDLE:
        raise Refused(
            "This kind of limit can block jobs or warn. It cannot let jobs over the limit run as preemptible jobs.",
            "at_limit",
        )
    if quota.generation and quota.kind in Quota.WITHOUT_GENERATION:
        raise Refused(
            "This kind of limit applies to GPUs of all types together. Choose no GPU type.", "generation"
        )
    if quota.is_of_users and quota.kind == Quota.Kind.BORROWED:
        raise Refused("This kind of limit applies to teams, not to users.", "user")
    if quota.user and quota.each_user:
        raise Refused("Apply the limit either to each user or to one user, not to both.", "user")
    return quota


def _check_period(quota: Quota) -> None:
    if not quota.period:
        return
    check_choice("period", quota.period, Quota.Period.values, "period")
    if quota.period != Quota.Period.ROLLING:
        quota.days = None
    elif quota.days is None or not 1 <= quota.days <= LONGEST_DAYS:
        raise Refused(f"A rolling period must have 1 to {LONGEST_DAYS} days.", "days")


def check_limit(quota: Quota, limit: Decimal) -> None:
    """Sets `quota.limit` to `limit`; raises Refused if this kind of limit does not allow the amount."""
    if not limit.is_finite() or limit < 0:
        raise Refused("A limit must be 0 or more.", "limit")
    if quota.kind in Quota.COUNTED and limit != limit.to_integral_value():
        raise Refused(f"A limit of the kind “{quota.get_kind_display()}” must be a whole number.", "limit")
    quota.limit = limit
    check_fields(quota, "limit")


def set_within(*, actor: User | None, quota: Quota, limit: Decimal) -> Quota:
    """Sets a limit in the caller's transaction. The caller must have checked the permission.

    Unlike `set_quota`, this does not affect grants (approved requests) of the limit: they still restore the former
    limit when they end.
    """
    lock_limits_of(quota.tenant)
    held = find(quota)
    before = audit_values(held) if held else {}
    quota = held or quota
    check_limit(quota, limit)
    quota.save()
    tenant = quota.tenant
    audit.record(
        actor=actor, verb="quota.set", target=tenant, tenant=tenant, before=before, after=audit_values(quota)
    )
    return quota


def remove_within(*, actor: User | None, quota: Quota) -> None:
    """Removes a limit in the caller's transaction. The caller must have checked the permission and locked `quota`.

    Unlike `remove_quota`, this does not affect grants (approved requests) of the limit: they still restore the former
    limit when they end.
    """
    audit.record(
        actor=actor, verb="quota.remove", target=quota.tenant, tenant=quota.tenant, before=audit_values(quota)
    )
    quota.delete()


def lock_limits_of(tenant: Tenant) -> None:
    """Locks the tenant's row until the transaction ends, so that concurrent changes of the tenant's limits wait."""
    Tenant.objects.select_for_update(no_key=True).get(pk=tenant.pk)


def find(quota: Quota) -> Quota | None:
    """Returns the stored limit that equals `quota` in everything but the amount; None if no such limit is stored.

    Limits of managers and of admins are different limits.
    """
    stored = Quota.objects.filter(tenant=quota.tenant_id, by_managers=quota.by_managers)
    found = stored.select_related("tenant", "user", "generation")
    return next((held for held in found if held.key() == quota.key()), None)


@transaction.atomic(durable=True)
def remove_quota(*, actor: User | None, quota: Quota, seen: Collection[str] | None = None) -> None:
    _require_settable(actor, quota)
    lock_limits_of(quota.tenant)
    found = Quota.objects.select_for_update(of=("self",)).select_related("tenant", "generation")
    held = found.filter(pk=quota.pk).first()
    if held is None:
        raise Refused("This limit no longer exists.")
    require_version(held, seen)
    _overtake_grants(held)
    remove_within(actor=actor, quota=held)


def audit_values(quota: Quota) -> dict[str, object]:
    """Returns the values of a limit for the audit trail.

    Leaves out the user and the period if the limit has none. Leaves out the action at the limit if it is the default:
    to block jobs.
    """
    generation = quota.generation.name if quota.generation else None
    said: dict[str, object] = {"kind": quota.kind, "generation": generation, "limit": quota.limit}
    if quota.is_of_users:
        said["user"] = quota.user.get_username() if quota.user else "each"
    if quota.period:
        said["period"] = quota.when()
    if quota.at_limit != Quota.AtLimit.BLOCK:
        said["at_limit"] = quota.at_limit
    return said
