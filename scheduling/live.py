"""Tells open pages that something changed. Redis may lose it all: pages also ask by themselves."""

from __future__ import annotations

import json
import logging
from functools import cache

import redis
from django.conf import settings
from django.db import transaction

logger = logging.getLogger(__name__)

CHANNEL = "fairlot:live"


def publish(*topics: str) -> None:
    """Sends topics such as "job:12", "jobs:<tenant id>", "cluster:<id>" after the transaction commits."""
    if topics:
        transaction.on_commit(lambda: _send(topics), robust=True)


def _send(topics: tuple[str, ...]) -> None:
    try:
        pipeline = _client().pipeline(transaction=False)
        for topic in dict.fromkeys(topics):
            pipeline.publish(CHANNEL, json.dumps({"topic": topic}))
        pipeline.execute()
    except redis.RedisError as error:
        logger.warning("pages were not told of a change: %s", error)


@cache
def _client() -> redis.Redis:
    return redis.Redis.from_url(settings.REDIS_URL, socket_timeout=2, socket_connect_timeout=2)
