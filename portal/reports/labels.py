"""Labels as reports name them."""

from __future__ import annotations

from accounting.models import Tenant, User
from accounting.reports import UNLABELLED
from scheduling.models import LabelKey


def label_keys(user: User, tenant: Tenant | None) -> list[str]:
    """Keys that jobs of the tenant and of those below it, or of all that `user` may see, have had."""
    keys = LabelKey.objects.visible_to(user)
    if tenant is not None:
        keys = keys.filter(tenant__path__startswith=tenant.path)
    return list(keys.values_list("key", flat=True).distinct())


def label_name(value: str | None) -> str:
    """A label's value, or what there is instead; no value can have brackets."""
    return UNLABELLED if value is None else value or "(no value)"
