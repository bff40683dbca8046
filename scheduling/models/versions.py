"""Versions of what users change in this room: see accounting/models/versions.py."""

from __future__ import annotations

from typing import Any

from accounting.models.versions import (
    ANY,
    BESIDE,
    DEFINITIONS,
    OtherVersion,
    require_version,
    version_of,
)
from scheduling.models.advance import AdvanceReservation
from scheduling.models.announcements import Announcement
from scheduling.models.clusters import Cluster
from scheduling.models.idle import IdleRule
from scheduling.models.jobs import Job
from scheduling.models.schedules import Schedule
from scheduling.models.secrets import Secret
from scheduling.models.services import Service

__all__ = ["ANY", "OtherVersion", "require_version", "version_of"]

DEFINITIONS |= {
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
    Announcement: ("text", "severity", "begins_at", "ends_at", "dismissible", "roles", "withdrawn_at"),
    AdvanceReservation: (
        "cluster", "tenant", "generation", "name", "begins", "ends", "weekly_until", "zone", "lends", "cancelled_at",
    ),
    IdleRule: ("action", "after_minutes", "grace_minutes", "snooze_hours", "services"),
    Cluster: (
        "ordering", "slicing", "trading", "policy", "policy_options", "shadow", "quantum_seconds", "min_hold_seconds",
        "notice_seconds", "overhead_limit", "cpu_per_gpu", "memory_per_gpu", "cpu_limit_per_gpu",
        "memory_limit_per_gpu",
    ),
}  # fmt: skip


def _whom_it_concerns(row: Any) -> object:
    return [sorted(one.pk for one in row.teams.all()), sorted(one.pk for one in row.clusters.all())]


def _its_gpus(row: Any) -> object:
    return sorted((one.node_id, one.gpus) for one in row.nodes.all())


BESIDE |= {Announcement: _whom_it_concerns, AdvanceReservation: _its_gpus}
