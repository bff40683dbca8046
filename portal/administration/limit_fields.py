"""Limits on pages: what a form says of one, and how much of each is used."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from django.http import QueryDict

from accounting.actions.quotas import Which
from accounting.core.clock import now_from_database
from accounting.core.name_order import by_name
from accounting.limits.quotas import is_reached
from accounting.models import Generation, Quota, Tenant, User
from portal.administration.forms import chosen, decimal, whole
from scheduling.limits.usage import used_by_account

EACH = "each"


@dataclass(frozen=True)
class ShownLimit:
    """A limit, and how much of it is used; of each user's limit, by who has used most. None: not read."""

    quota: Quota
    used: Decimal | None

    @property
    def is_reached(self) -> bool:
        return self.used is not None and is_reached(self.quota, self.used)


def limits_of(tenant: Tenant) -> list[ShownLimit]:
    """Its own, without those of tenants above."""
    quotas = list(tenant.quotas.select_related("tenant", "generation", "user"))
    return [
        ShownLimit(quota, max(used.values(), default=Decimal(0)))
        for quota, used in used_by_account(quotas, now=now_from_database())
    ]


def limit_fields(tenant: Tenant) -> dict[str, Any]:
    """What the fields of a limit's form offer."""
    return {
        "kinds": Quota.Kind.choices,
        "periods": [("month", "month"), ("quarter", "quarter"), ("rolling", "last days")],
        "at_limits": Quota.AtLimit.choices,
        "generations": Generation.objects.all(),
        "users": User.objects.filter(is_active=True, memberships__tenant__path__startswith=tenant.path)
        .order_by(*by_name("username"))
        .distinct(),
    }


def read_which(post: QueryDict) -> Which:
    """Which limit a form is about; what is left out is as usual."""
    kind, period = post.get("kind", ""), post.get("period", "")
    whose = post.get("user", "")
    has_days = kind in Quota.OF_A_PERIOD and period == Quota.Period.ROLLING
    return Which(
        kind=kind,
        generation=chosen(post, "generation", Generation.objects, optional=True),
        user=None if whose == EACH else chosen(post, "user", User.objects, optional=True),
        each_user=whose == EACH,
        period=period,
        days=whole(post, "days") if has_days else None,
        at_limit=post.get("at_limit") or Quota.AtLimit.BLOCK,
    )


def read_limit(post: QueryDict) -> Decimal:
    """GPUs and jobs are counted, the others measured."""
    counted = post.get("kind") in Quota.COUNTED
    return Decimal(whole(post, "limit")) if counted else decimal(post, "limit")
