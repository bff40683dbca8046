"""Versions of what users change.

A caller that has seen a version can change the row only if it still has this version, so that it overwrites no change
of somebody else. States and other values that Fairlot changes by itself are not part of a version.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from datetime import UTC, datetime

from django.db import models

from accounting.core.errors import Refused
from scheduling.models.jobs import Job
from scheduling.models.schedules import Schedule
from scheduling.models.secrets import Secret
from scheduling.models.services import Service

DEFINITIONS: dict[type[models.Model], tuple[str, ...]] = {
    Job: ("spec", "preemptible", "owner"),
    Schedule: (
        "spec", "cluster", "owner", "expression", "time_zone", "begins", "ends", "missed", "catch_up_seconds",
        "overlap", "paused_at", "deleted_at",
    ),
    Service: (
        "current", "owner", "replicas", "max_surge", "max_unavailable", "progress_deadline_seconds", "auto_rollback",
        "stopped_at", "removed_at",
    ),
    Secret: ("changed_at",),
}  # fmt: skip
ANY = "*"


class OtherVersion(Refused):
    """Raised when a row no longer has a version that the caller has seen."""


def version_of(row: models.Model) -> str:
    """Returns the version of a job, schedule, service or secret: 32 hexadecimal digits."""
    names = [row._meta.get_field(name).attname for name in DEFINITIONS[type(row)]]  # type: ignore[union-attr]
    values = [row.pk, *(getattr(row, name) for name in names)]
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=_in_utc).encode()).hexdigest()[:32]


def _in_utc(at: datetime) -> str:
    return at.astimezone(UTC).isoformat()


def require_version(row: models.Model, seen: Collection[str] | None) -> None:
    """Raises OtherVersion unless the row has one of the versions in `seen`. None and ANY stand for each version.

    The caller has locked the row, so that the version stays the same until its transaction ends.
    """
    if seen is not None and ANY not in seen and version_of(row) not in seen:
        raise OtherVersion(f"{row} has changed since you read it. Read it again, and repeat the change.")
