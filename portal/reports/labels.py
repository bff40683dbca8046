"""Labels as reports name them."""

from __future__ import annotations

from accounting.access.visibility import tenants_seen
from accounting.core.prepared import Prepared
from accounting.models import Tenant, User
from accounting.reports.usage import UNLABELLED
from scheduling.models import LabelKey


def label_keys(user: User, tenant: Tenant | None) -> list[str]:
    """Keys that jobs of the tenant and of those below it, or of all that `user` may see, have had."""
    tenants = tenants_seen(user, tenant)
    return [key for (key,) in (_every_key() if tenants is None else _keys(tenants))]


_every_key = Prepared(lambda: LabelKey.objects.values_list("key").distinct())
_keys = Prepared(lambda tenants: LabelKey.objects.filter(tenant__in=tenants).values_list("key").distinct())


def label_name(value: str | None) -> str:
    """A label's value, or what there is instead; no value can have brackets."""
    return UNLABELLED if value is None else value or "(no value)"
