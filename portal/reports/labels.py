"""Labels as reports name them."""

from __future__ import annotations

from collections.abc import Sequence

from accounting.core.prepared import Prepared
from accounting.reports.usage import UNLABELLED
from scheduling.models import LabelKey


def label_keys(tenants: Sequence[int] | None) -> list[str]:
    """Returns the keys of labels that jobs of these tenants, by id, have had; None means all tenants."""
    return [key for (key,) in (_every_key() if tenants is None else _keys(tenants))]


_every_key = Prepared(lambda: LabelKey.objects.values_list("key").distinct())
_keys = Prepared(lambda tenants: LabelKey.objects.filter(tenant__in=tenants).values_list("key").distinct())


def label_name(value: str | None) -> str:
    """Returns a label's value, or what replaces a missing one in brackets, which no value can have."""
    return UNLABELLED if value is None else value or "(no value)"
