"""Streams the notifications of a user as they arrive."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from asgiref.sync import sync_to_async
from django.db import Error

from accounting.core.clock import now_from_database
from accounting.models import Notification, User
from portal.edge.turns import Full
from portal.live.hub import hub
from portal.live.streams import COMMENT, HEARTBEAT, LONGEST_STREAM, Rights, event

logger = logging.getLogger(__name__)
AT_ONCE = 200
# A transaction may commit a notification after another one with a greater key. So long, smaller keys are looked for.
LATE = timedelta(minutes=1)


@dataclass
class News:
    """Reads the notifications of `user` after the key `after`, each once."""

    user: User
    after: int
    position: int = 0  # the greatest key that was returned
    _seen: dict[int, Any] = field(default_factory=dict)

    @classmethod
    def begin(cls, user: User, asked: str) -> News:
        """Begins after the notification `asked`, or with those to come if `asked` is no key."""
        if asked.isascii() and asked.isdecimal() and len(asked) < 19:
            return cls(user, int(asked), int(asked))
        newest = (
            Notification.objects.filter(user=user).order_by("-pk").values_list("pk", flat=True).first() or 0
        )
        return cls(user, newest, newest)

    def read(self) -> list[Notification]:
        """Returns at most AT_ONCE notifications that were not returned before, oldest first."""
        unseen = (
            Notification.objects.visible_to(self.user).filter(pk__gt=self.after).exclude(pk__in=self._seen)
        )
        found = list(unseen.select_related("event__tenant").order_by("pk")[:AT_ONCE])
        settled = now_from_database() - LATE
        for one in found:
            self._seen[one.pk] = one.at
            self.position = max(self.position, one.pk)
        self.after = max([self.after, *(pk for pk, at in self._seen.items() if at < settled)])
        self._seen = {pk: at for pk, at in self._seen.items() if pk > self.after}
        return found


async def notifications_of(
    user: User, asked: str, rights: Rights, show: Callable[[Notification], dict[str, Any]]
) -> AsyncIterator[str]:
    """Yields an event for each notification after the one with the key `asked`, and for each that arrives."""
    until = time.monotonic() + LONGEST_STREAM
    async with hub().subscribe({f"bell:{user.pk}"}) as subscription:
        news = await sync_to_async(News.begin)(user, asked)
        yield event("start", name="start", event_id=news.position)
        while time.monotonic() < until and await rights.hold():
            more = True
            while more:
                try:
                    found = await sync_to_async(news.read)()
                except (Error, Full) as error:  # they are read at the next look
                    logger.warning("the notifications of %s could not be read: %s", user.pk, error)
                    break
                for one in found:
                    yield event(show(one), event_id=news.position)
                more = len(found) == AT_ONCE
            _, changed = await subscription.news(within=min(HEARTBEAT, rights.due_in()))
            if not changed:
                yield COMMENT
    yield event("again", name="bye")
