"""Tells open pages that something changed. Redis may lose it all: pages also ask by themselves.

News go out on a channel, for who listens, and into a stream of the latest, for who was not listening yet
when they came; `position` is where the stream ends.
"""

from __future__ import annotations

import logging
import time
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
KEPT = 10_000  # of the latest news, about
NOTHING_YET = "0-0"
SEND_SECONDS = 2.0
# How long a page waits for the connection, if there is none yet, and for the answer.
POSITION_SECONDS = (0.03, 0.06)
SILENT_SECONDS = 2.0
_silent_until = float("-inf")
RECENT_SECONDS = 0.5
_recent = (float("-inf"), "")
# Both in one step: who has read the stream up to a piece of news hears of the next ones in their order.
SEND = f"""
for _, topic in ipairs(ARGV) do
  local at = redis.call('XADD', KEYS[1], 'MAXLEN', '~', {KEPT}, '*', 'topic', topic)
  redis.call('PUBLISH', KEYS[2], at .. ' ' .. topic)
end
"""


def channel() -> str:
    """Channels know no databases, so that several portals on one Redis would hear each other."""
    database = redis.ConnectionPool.from_url(settings.REDIS_URL).connection_kwargs.get("db", 0)
    return f"fairlot:live:{database}"


def publish(*topics: str) -> None:
    """Sends topics such as "job:12", "jobs:<tenant id>", "cluster:<id>" after the transaction commits."""
    if topics:
        transaction.on_commit(lambda: outgoing.put(("live", topics), lambda: _send(topics)), robust=True)


def position() -> str:
    """Where the news stand now; what is read from the database afterwards has all of them in it.

    Empty when Redis does not answer at once. It is left alone for a while then, so that no page waits for it again.
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
    """Where the news stood a moment ago, for many pages at once: what came since is told to them once more."""
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
