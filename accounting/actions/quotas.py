"""Limits of tenants and of their users: only admins set them."""

from __future__ import annotations

from decimal import Decimal
from typing import Required, TypedDict, Unpack

from django.db import transaction

from accounting.access import audit
from accounting.access.permissions import require
from accounting.actions.checks import check_fields
from accounting.core.errors import Refused
from accounting.models import Generation, Quota, Request, Tenant, User
from accounting.models.requests import limit_target

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
    """Limits `tenant` with all below it, or users of it; what is set again gets another limit.

    Of GPU-hours and money a calendar month unless `period` says otherwise.
    """
    require(actor, "quota.set")
    quota = limit_of(
        tenant,
        kind=kind,
        generation=generation,
        user=user,
        each_user=each_user,
        period=period,
        days=days,
        at_limit=at_limit,
    )
    held = set_within(actor=actor, quota=quota, limit=Decimal(limit))
    Request.objects.overtake(limit_target(held), tenant=held.tenant)
    return held


class Which(TypedDict, total=False):
    """Which limit of a tenant, as in set_quota."""

    kind: Required[str]
    generation: Generation | None
    user: User | None
    each_user: bool
    period: str
    days: int | None
    at_limit: str


def limit_of(tenant: Tenant, **which: Unpack[Which]) -> Quota:
    """A limit that is not stored; Refused naming the field that makes no sense."""
    quota = Quota(tenant=tenant, **which)
    if quota.kind not in Quota.Kind.values:
        raise Refused(f"A limit is one of {', '.join(Quota.Kind.values)}.", "kind")
    if quota.kind not in Quota.OF_A_PERIOD:
        quota.period, quota.days = "", None
    else:
        quota.period = quota.period or Quota.Period.MONTH
    _check_period(quota)
    if quota.at_limit not in Quota.AtLimit.values:
        raise Refused(f"At a limit is one of {', '.join(Quota.AtLimit.values)}.", "at_limit")
    if quota.at_limit == Quota.AtLimit.IDLE and quota.kind not in Quota.MAY_RUN_IDLE:
        raise Refused("This limit blocks or warns; it cannot leave jobs to idle GPUs.", "at_limit")
    if quota.generation and quota.kind in Quota.WITHOUT_GENERATION:
        raise Refused("This limit is of all GPUs together.", "generation")
    if quota.is_of_users and quota.kind == Quota.Kind.BORROWED:
        raise Refused("Teams borrow, not users.", "user")
    if quota.user and quota.each_user:
        raise Refused("A limit is of each user or of one.", "user")
    return quota


def _check_period(quota: Quota) -> None:
    if not quota.period:
        return
    if quota.period not in Quota.Period.values:
        raise Refused(f"A period is one of {', '.join(Quota.Period.values)}.", "period")
    if quota.period != Quota.Period.ROLLING:
        quota.days = None
    elif quota.days is None or not 1 <= quota.days <= LONGEST_DAYS:
        raise Refused(f"A rolling period has 1 to {LONGEST_DAYS} days.", "days")


def check_limit(quota: Quota, limit: Decimal) -> None:
    """Refused for a limit that cannot be of the quota's kind."""
    if not limit.is_finite() or limit < 0:
        raise Refused("A limit is zero or more.", "limit")
    if quota.kind in Quota.COUNTED and limit != limit.to_integral_value():
        raise Refused(f"{quota.get_kind_display()} are a whole number.", "limit")
    quota.limit = limit
    check_fields(quota, "limit")


def set_within(*, actor: User | None, quota: Quota, limit: Decimal) -> Quota:
    """The same inside a transaction of the caller's, who has seen to it that `actor` may."""
    lock_limits_of(quota.tenant)
    held = find(quota)
    before = told(held) if held else {}
    quota = held or quota
    check_limit(quota, limit)
    quota.save()
    tenant = quota.tenant
    audit.record(
        actor=actor, verb="quota.set", target=tenant, tenant=tenant, before=before, after=told(quota)
    )
    return quota


def remove_within(*, actor: User | None, quota: Quota) -> None:
    """The same as remove_quota inside a transaction of the caller's; `quota` is stored and locked."""
    audit.record(
        actor=actor, verb="quota.remove", target=quota.tenant, tenant=quota.tenant, before=told(quota)
    )
    quota.delete()


def lock_limits_of(tenant: Tenant) -> None:
    """Who changes limits of a tenant does so one after the other."""
    Tenant.objects.select_for_update(no_key=True).get(pk=tenant.pk)


def find(quota: Quota) -> Quota | None:
    """The stored limit that is set anew when `quota` is set."""
    found = Quota.objects.filter(tenant=quota.tenant_id).select_related("tenant", "user", "generation")
    return next((held for held in found if held.key() == quota.key()), None)


@transaction.atomic(durable=True)
def remove_quota(*, actor: User | None, quota: Quota) -> None:
    require(actor, "quota.set")
    lock_limits_of(quota.tenant)
    found = Quota.objects.select_for_update(of=("self",)).select_related("tenant", "generation")
    held = found.filter(pk=quota.pk).first()
    if held is None:
        raise Refused("This limit does not exist any more.")
    Request.objects.overtake(limit_target(held), tenant=held.tenant)
    remove_within(actor=actor, quota=held)


def told(quota: Quota) -> dict[str, object]:
    """A limit as the audit trail keeps it; without what is as usual."""
    generation = quota.generation.name if quota.generation else None
    said: dict[str, object] = {"kind": quota.kind, "generation": generation, "limit": quota.limit}
    if quota.is_of_users:
        said["user"] = quota.user.get_username() if quota.user else "each"
    if quota.period:
        said["period"] = quota.when()
    if quota.at_limit != Quota.AtLimit.BLOCK:
        said["at_limit"] = quota.at_limit
    return said
