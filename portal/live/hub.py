"""Passes messages about changes from Redis to the open pages, with one Redis subscription for each web process.

The hub keeps a list of changed topics, such as "jobs:7", for each open page until the page reads it. A topic is in a
list only once, so that the list stays short even if the page reads slowly. While Redis is unavailable, the hub informs
the pages, and they poll instead.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakKeyDictionary

import redis.asyncio
from django.conf import settings
from redis.exceptions import RedisError

from scheduling.core.pubsub import NEWS, NOTHING_YET, channel

logger = logging.getLogger(__name__)
POSITION = re.compile(r"\d{1,20}-\d{1,20}", re.ASCII)
LONGEST_PAUSE = 10.0  # seconds between two attempts to reach Redis


class Subscription:
    """The subscription of one open page: its topics, and the changes that have not been sent to the page yet."""

    def __init__(self, topics: Iterable[str]) -> None:
        self.topics = frozenset(topics)
        self.position = ""  # position in the Redis stream of the latest message
        self._changed: dict[str, None] = {}
        self._relay: str | None = None
        self._news = asyncio.Event()

    def wants(self, topic: str) -> list[str]:
        """Returns those topics of this subscription that a change of `topic` concerns.

        These can be `topic` itself, and the wildcard for all topics of the same kind. For example, a change of "jobs:7"
        concerns "jobs:7" and "jobs:*".
        """
        kind = f"{topic.partition(':')[0]}:*"
        return [name for name in (topic, kind) if name in self.topics]

    def among(self, missed: Iterable[str] | None, changed: Iterable[str]) -> list[str]:
        """Returns the topics of this subscription that changed, without duplicates.

        - `missed`: the topics of all messages that the page may have missed, also topics of other pages. None means
          that they are unknown; all topics of this subscription are then returned.
        - `changed`: topics of this subscription that are known to have changed.
        """
        if missed is None:
            return sorted(self.topics)
        return list(dict.fromkeys([name for topic in missed for name in self.wants(topic)] + [*changed]))

    def tell(self, topic: str) -> None:
        for name in self.wants(topic):
            self._changed[name] = None
            self._news.set()

    def tell_relay(self, state: str) -> None:
        self._relay = state
        self._news.set()

    async def news(self, within: float) -> tuple[str | None, list[str]]:
        """Waits for changes and returns a pair (state, topics), or (None, []) after `within` seconds without a change.

        `state` is "live" if the connection to Redis was established, "away" if it was lost, and None if neither
        happened. `topics` are the changed topics.
        """
        try:
            async with asyncio.timeout(within):
                await self._news.wait()
        except TimeoutError:
            return None, []
        self._news.clear()
        relay, self._relay = self._relay, None
        changed, self._changed = list(self._changed), {}
        return relay, changed


class Hub:
    """Passes changes from Redis to the open pages of one event loop.

    The hub has one subscription to Redis, and a subscription for each open page. The subscription to Redis exists only
    while pages are open.
    """

    def __init__(self) -> None:
        self._subscriptions: set[Subscription] = set()
        self._listener: asyncio.Task[None] | None = None
        self._state = "away"

    @asynccontextmanager
    async def subscribe(self, topics: Iterable[str]) -> AsyncIterator[Subscription]:
        subscription = Subscription(topics)
        self._subscriptions.add(subscription)
        if self._listener is None or self._listener.done():
            self._state = "away"
            self._listener = asyncio.create_task(self._listen(), name="live hub")
        if self._state == "live":
            subscription.tell_relay(self._state)
        try:
            yield subscription
        finally:
            self._subscriptions.discard(subscription)
            if not self._subscriptions and self._listener is not None:
                self._listener.cancel()
                self._listener = None

    async def _listen(self) -> None:
        pause = 0.2
        while True:
            try:
                await self._relay()
            except (RedisError, OSError) as error:
                if self._state == "live":
                    logger.warning("lost Redis, open pages refresh by themselves: %s", error)
                    pause = 0.2
            self._set_state("away")
            await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - spreads reconnections
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _relay(self) -> None:
        client = redis.asyncio.Redis.from_url(
            settings.REDIS_URL, socket_connect_timeout=2, health_check_interval=15
        )
        async with client, client.pubsub(ignore_subscribe_messages=True) as pubsub:
            await pubsub.subscribe(channel())
            # The answer to the subscription proves that it exists, before pages rely on it.
            await pubsub.get_message(ignore_subscribe_messages=False, timeout=5)
            self._set_state("live")
            while True:
                message = await pubsub.get_message(timeout=15)
                if message is not None:
                    self._deliver(message["data"])

    def _deliver(self, data: bytes) -> None:
        position, _, topic = data.decode().partition(" ")
        for subscription in self._subscriptions:
            subscription.position = position
            subscription.tell(topic)

    def _set_state(self, state: str) -> None:
        if state != self._state:
            self._state = state
            for subscription in self._subscriptions:
                subscription.tell_relay(state)


async def missed(since: str) -> tuple[str, list[str] | None]:
    """Returns the latest position in the Redis stream, and the topics of all messages after position `since`.

    The topics are None if it is unknown what was missed: if `since` is invalid, if its message is no longer stored, or
    if Redis is unavailable.
    """
    client = redis.asyncio.Redis.from_url(settings.REDIS_URL, socket_connect_timeout=2, socket_timeout=2)
    try:
        async with client:
            if not POSITION.fullmatch(since):
                latest: Any = await client.xrevrange(NEWS, count=1)
                return (latest[0][0].decode() if latest else NOTHING_YET), None
            found: Any = await client.xrange(NEWS, min=since)
    except (RedisError, OSError) as error:
        logger.warning("what a page has missed is not known: %s", error)
        return "", None
    if not found:
        return NOTHING_YET, [] if since == NOTHING_YET else None
    # The stream drops the oldest messages first: if the message at `since` is kept, so are all later ones.
    whole = found[0][0].decode() == since
    return found[-1][0].decode(), [fields[b"topic"].decode() for _, fields in found[1:]] if whole else None


_hubs: WeakKeyDictionary[asyncio.AbstractEventLoop, Hub] = WeakKeyDictionary()


def hub() -> Hub:
    """Returns the hub of the running event loop. Each web process has one event loop, and so one hub."""
    loop = asyncio.get_running_loop()
    if loop not in _hubs:
        _hubs[loop] = Hub()
    return _hubs[loop]
