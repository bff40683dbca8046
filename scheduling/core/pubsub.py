"""Notifies open pages of changes through Redis. Pages also poll, because Redis may lose notifications.

Each message goes to a channel, for pages that are listening, and to a stream of recent messages, for pages that are not
listening yet. `position` returns the end of that stream.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from functools import cache
from typing import Any

import redis
from django.conf import settings
from django.db import transaction
from redis.backoff import NoBackoff
from redis.retry import Retry

from scheduling.core.redis_sender import outgoing

logger = logging.getLogger(__name__)

NEWS = "fairlot:news"
KEPT = 10_000  # approximate number of recent messages in the stream
NOTHING_YET = "0-0"
SEND_SECONDS = 2.0
# How many seconds a page waits for a connection to Redis, and then for the answer.
POSITION_SECONDS = (0.03, 0.06)
SILENT_SECONDS = 2.0
_silent_until = float("-inf")
RECENT_SECONDS = 0.5
_recent = (float("-inf"), "")
# Adds and publishes in one step, so that a page that reads the stream and then listens gets all messages in order.
SEND = f"""
for _, topic in ipairs(ARGV) do
  local at = redis.call('XADD', KEYS[1], 'MAXLEN', '~', {KEPT}, '*', 'topic', topic)
  redis.call('PUBLISH', KEYS[2], at .. ' ' .. topic)
end
"""


def channel() -> str:
    """Returns the channel's name. It contains the number of the Redis database, because channels are not separated by
    database."""
    database = redis.ConnectionPool.from_url(settings.REDIS_URL).connection_kwargs.get("db", 0)
    return f"fairlot:live:{database}"


def publish(*topics: str) -> None:
    """Notifies open pages of changes, after the transaction commits.

    Each topic names what changed, such as "job:12", "jobs:<tenant id>" or "cluster:<id>".
    """
    if topics:
        transaction.on_commit(lambda: outgoing.put(("live", topics), lambda: _send(topics)), robust=True)


def publish_unread(users: Iterable[int]) -> None:
    """Informs the open pages of users, after the transaction commits, that their unread notifications changed."""
    publish(*(f"bell:{user}" for user in users))


def position() -> str:
    """Returns the ID of the latest message in the stream of recent messages; "0-0" if the stream is empty.

    A page calls this before it reads the database, and later reads the stream from this position. It then misses no
    change.

    Returns "" if Redis does not answer within a fraction of a second. For SILENT_SECONDS after that, returns "" without
    asking Redis.
    """
    global _silent_until  # noqa: PLW0603 - one for the process
    if time.monotonic() < _silent_until:
        return ""
    try:
        latest: Any = _client(settings.REDIS_URL, *POSITION_SECONDS).xrevrange(NEWS, count=1)
    except redis.RedisError as error:
        _silent_until = time.monotonic() + SILENT_SECONDS
        logger.warning("where the news stand is not known: %s", error)
        return ""
    return latest[0][0].decode() if latest else NOTHING_YET


def recent_position() -> str:
    """Returns the ID of a recent message in the stream, like `position`, but asks Redis at most once per
    RECENT_SECONDS.

    The ID may be a little old. A page that starts at this position may receive messages about changes that it already
    shows.
    """
    global _recent  # noqa: PLW0603 - as above
    at, found = _recent
    if time.monotonic() - at > RECENT_SECONDS:
        at = time.monotonic()
        _recent = (at, found := position())
    return found


def _send(topics: tuple[str, ...]) -> None:
    try:
        _client(settings.REDIS_URL, SEND_SECONDS, SEND_SECONDS).eval(
            SEND, 2, NEWS, channel(), *dict.fromkeys(topics)
        )
    except redis.RedisError as error:
        logger.warning("pages were not told of a change: %s", error)


@cache
def _client(url: str, connect_seconds: float, seconds: float) -> redis.Redis:
    return redis.Redis.from_url(
        url, socket_connect_timeout=connect_seconds, socket_timeout=seconds, retry=Retry(NoBackoff(), 0)
    )
