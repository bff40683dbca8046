"""Versions of what users change.

A caller that has seen a version can change the row only if it still has this version, so that it overwrites no change
of somebody else. States and other values that Fairlot changes by itself are not part of a version.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from decimal import Decimal

from django.db import models

from accounting.core.errors import Refused
from accounting.models.budgets import Budget
from accounting.models.notifications import NotificationChannel, NotificationRule
from accounting.models.quotas import Quota
from accounting.models.tenants import Membership, Tenant

ANY = "*"
# The fields that make the version of a row; other rooms add their models.
DEFINITIONS: dict[type[models.Model], tuple[str, ...]] = {
    Tenant: ("name", "parent", "tickets", "archived_at"),
    Membership: ("role", "tickets"),
    Quota: ("limit", "at_limit", "by_managers"),
    Budget: ("amount", "percentages", "by_forecast", "webhook_url", "removed_at"),
    NotificationChannel: ("name", "sealed"),
    NotificationRule: ("kinds", "rhythm", "wait_minutes"),
}
# What other rows add to the version of a row, such as the teams of an announcement.
BESIDE: dict[type[models.Model], Callable[[models.Model], object]] = {}


class OtherVersion(Refused):
    """Raised when a row no longer has a version that the caller has seen."""


def version_of(row: models.Model) -> str:
    """Returns the version of a row whose model is in DEFINITIONS: 32 hexadecimal digits."""
    names = [row._meta.get_field(name).attname for name in DEFINITIONS[type(row)]]  # type: ignore[union-attr]
    values: list[object] = [row.pk, *(getattr(row, name) for name in names)]
    if type(row) in BESIDE:
        values.append(BESIDE[type(row)](row))
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=_plain).encode()).hexdigest()[:32]


def _plain(value: object) -> str:
    """Returns the same text for a value that was just set and for the same value as the database has it."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, Decimal):
        return format(value.normalize(), "f")
    if isinstance(value, bytes | memoryview):
        return bytes(value).hex()
    raise TypeError(f"a version has no values of {type(value)}")


def require_version(row: models.Model | None, seen: Collection[str] | None) -> None:
    """Raises OtherVersion unless the row has one of the versions in `seen`. None stands for each version, and for none;
    ANY for each version.

    The caller has locked the row, so that the version stays the same until its transaction ends.
    """
    if seen is None:
        return
    if row is None:
        raise OtherVersion(
            "What you have read does not exist any more. Read it again, and repeat the change."
        )
    if ANY not in seen and version_of(row) not in seen:
        raise OtherVersion(f"{row} has changed since you read it. Read it again, and repeat the change.")
