"""Stores events that users may want to know, in the transaction of the change that they are about."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from accounting.core.bulk import insert_rows
from accounting.models import NotificationEvent

# Called in the transaction that stores events, so that scheduling can wake a worker after the commit.
listeners: list[Callable[[], None]] = []


def announce(kind: str, key: str, **fields: Any) -> None:
    """Stores an event. Does nothing if an event with this key is stored already.

    `kind`: an EventKind. `key`: names the event, so that a repeated change stores it once. `fields`: the other fields
    of NotificationEvent.
    """
    announce_all([NotificationEvent.about(kind, key, **fields)])


def announce_all(events: Iterable[NotificationEvent]) -> None:
    """Stores unsaved events, except those whose keys are stored already."""
    events = list(events)
    if not events:
        return
    insert_rows(events, ignore_conflicts=True)
    for listen in listeners:
        listen()
