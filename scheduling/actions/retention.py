"""Letting go of details that nobody looks at any more. What was held, shared and billed stays."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db import models

from accounting.clock import now_from_database
from scheduling.lifecycle import Event
from scheduling.models import JobEvent, Lease, Operation, RoundRecord

# Few enough for one statement that nobody has to wait for.
AT_ONCE = 1000
# A job under contention has some at every quantum; what remains tells how it began and ended.
TURNS = (Event.PICKED, Event.STARTED, Event.PREEMPTED, Event.RELEASED)


def prune(*, records: timedelta, turns: timedelta) -> int:
    """Deletes inputs of rounds older than `records`, and orders and turns older than `turns`; returns how many.

    A round without its record can no longer be drawn again; its trades, shares and figures stay.
    """
    now = now_from_database()
    old_orders = Operation.objects.filter(done_at__lt=now - turns, lease__state=Lease.State.CLOSED)
    old_turns = JobEvent.objects.filter(at__lt=now - turns, kind__in=[str(kind) for kind in TURNS])
    return (
        _delete(RoundRecord.objects.filter(round__at__lt=now - records))
        + _delete(old_orders)
        + _delete(old_turns)
    )


def _delete(old: models.QuerySet[Any]) -> int:
    """In small portions, each its own transaction: cut short, it is completed the next time."""
    total = 0
    while found := list(old.order_by("pk").values_list("pk", flat=True)[:AT_ONCE]):
        total += old.model.objects.filter(pk__in=found).delete()[0]
    return total
