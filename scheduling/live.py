"""Tells open pages that something changed. Redis may lose it all: pages also ask by themselves.

News go out on a channel, for who listens, and into a stream of the latest, for who was not listening yet
when they came; `position` is where the stream ends.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

import redis
from django.conf import settings
from django.db import transaction

logger = logging.getLogger(__name__)

NEWS = "fairlot:news"
KEPT = 10_000  # of the latest news, about
NOTHING_YET = "0-0"
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
        transaction.on_commit(lambda: _send(topics), robust=True)


def position() -> str:
    """Where the news stand now; what is read from the database afterwards has all of them in it.

    Empty when Redis does not answer.
    """
    try:
        latest: Any = _client(settings.REDIS_URL).xrevrange(NEWS, count=1)
    except redis.RedisError as error:
        logger.warning("where the news stand is not known: %s", error)
        return ""
    return latest[0][0].decode() if latest else NOTHING_YET


def _send(topics: tuple[str, ...]) -> None:
    try:
        _client(settings.REDIS_URL).eval(SEND, 2, NEWS, channel(), *dict.fromkeys(topics))
    except redis.RedisError as error:
        logger.warning("pages were not told of a change: %s", error)


@cache
def _client(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, socket_timeout=2, socket_connect_timeout=2)
