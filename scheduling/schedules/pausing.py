"""Pauses schedules, and notes changes of schedules in the audit trail, within the transaction of a caller."""

from __future__ import annotations

from typing import Any

from accounting.access import audit
from accounting.core.clock import now_from_database
from accounting.models import User
from scheduling.core import pubsub
from scheduling.models import Schedule


def pause(actor: User | None, schedule: Schedule, reason: str) -> None:
    """Pauses a schedule, within the transaction of a caller that has locked the schedule's row.

    `actor` None means that Fairlot pauses the schedule.
    """
    schedule.paused_at, schedule.paused_reason = now_from_database(), reason[:500]
    schedule.save(update_fields=["paused_at", "paused_reason"])
    note(actor, schedule, verb="schedule.pause", after={"reason": schedule.paused_reason})


def note(actor: User | None, schedule: Schedule, *, verb: str, **changes: dict[str, Any]) -> None:
    """Writes the audit event of a change, and tells open pages of the team about it."""
    audit.record(actor=actor, verb=verb, target=schedule, tenant=schedule.tenant, **changes)
    pubsub.publish(f"jobs:{schedule.tenant_id}")
