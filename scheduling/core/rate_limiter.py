"""A rate limit that all processes share through Redis, by the generic cell rate algorithm.

Source: ATM Forum, Traffic Management Specification 4.1 (1999), section 4.4.2: the virtual scheduling algorithm.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import redis
from django.conf import settings

logger = logging.getLogger(__name__)

# KEYS[1]: the time at which the next request would be due if requests came evenly. ARGV: seconds between two requests,
# the number of requests that may come at once, and seconds for which to hold back all requests. Returns the seconds to
# wait, as text because Redis truncates numbers.
TAKE = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local due = math.max(tonumber(redis.call('GET', KEYS[1]) or '0'), now)
local every, burst, pause = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
if pause > 0 then
  due = math.max(due, now + pause + (burst - 1) * every)
else
  due = due + every
end
redis.call('SET', KEYS[1], string.format('%.6f', due), 'EX', math.ceil(due - now) + 60)
return string.format('%.6f', math.max(0, due - now - burst * every))
"""
# While Redis does not answer, each process limits itself to this fraction of the rate.
ALONE = 0.1


@dataclass(frozen=True)
class Limit:
    """A maximum number of requests per second. `take` waits until one more request may be sent.

    If Redis does not answer, the processes cannot share the limit. Each process then limits its own requests, and no
    method raises an error.
    """

    name: str
    per_second: float
    at_once: int
    sleep: Callable[[float], None] = time.sleep

    def take(self) -> None:
        self.sleep(self._ask(0.0))

    def hold(self, seconds: float) -> None:
        """Makes all processes pause their requests for `seconds`. Called when the server has asked for a pause."""
        self._ask(seconds)

    def _ask(self, pause: float) -> float:
        every = 1 / self.per_second
        try:
            return float(
                _script(settings.REDIS_URL)([f"fairlot:limit:{self.name}"], [every, self.at_once, pause])
            )
        except redis.RedisError as error:
            logger.warning("the limit of %s is kept by each process alone: %s", self.name, error)
            return max(pause, every / ALONE)


@cache
def _script(url: str) -> Callable[[list[str], list[float]], bytes]:
    client = redis.Redis.from_url(url, socket_timeout=2, socket_connect_timeout=2)
    registered: Callable[[list[str], list[float]], bytes] = client.register_script(TAKE)
    return registered
