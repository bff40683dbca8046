"""The label keys and label values of jobs, for reports."""

from __future__ import annotations

from collections.abc import Sequence

from accounting.core.prepared import Prepared
from accounting.reports.usage import UNLABELLED
from scheduling.models import LabelKey


def label_keys(tenants: Sequence[int] | None) -> list[str]:
    """Returns all label keys that jobs of these tenants have ever had. `tenants` are ids; None means all tenants."""
    return [key for (key,) in (_every_key() if tenants is None else _keys(tenants))]


_every_key = Prepared(lambda: LabelKey.objects.values_list("key").distinct())
_keys = Prepared(lambda tenants: LabelKey.objects.filter(tenant__in=tenants).values_list("key").distinct())


def label_name(value: str | None) -> str:
    """Returns a label's value as text for reports.

    A missing or an empty value becomes a text in brackets, which cannot be confused with a real value.
    """
    return UNLABELLED if value is None else value or "(no value)"
