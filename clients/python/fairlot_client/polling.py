"""Decides when to look again at a job that goes on. It sends nothing itself.

Each function is a generator that yields calls and pauses, and receives the answers of the calls. The sync and the async
client drive it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import Any

from fairlot_client import operations
from fairlot_client.answers import JobInFull
from fairlot_client.calls import Call
from fairlot_client.errors import TimedOut
from fairlot_client.exchange import Pause

ENDED = frozenset({"succeeded", "failed", "cancelled"})
SHORTEST, LONGEST, GROWTH = 0.5, 5.0, 1.5  # seconds between two looks
Steps = Generator[Call[Any] | Pause, Any, JobInFull]


class End:
    """The last step of a log that is complete."""


LogSteps = Generator[Call[Any] | Pause | str | End, Any, None]


def until_ended(job_id: int, timeout: float | None, *, clock: Callable[[], float] = time.monotonic) -> Steps:
    """Returns the job once it has ended. Raises TimedOut if it goes on after `timeout` seconds."""
    until = None if timeout is None else clock() + timeout
    pause = SHORTEST
    while True:
        job: JobInFull = yield operations.get_job(job_id)
        if job["state"] in ENDED:
            return job
        left = LONGEST if until is None else until - clock()
        if left <= 0:
            raise TimedOut(f"Job {job_id} has not ended after {timeout:g} seconds: it is {job['state']}.")
        yield Pause(min(pause, left))
        pause = min(LONGEST, pause * GROWTH)


def pieces_of_log(job_id: int, rank: int) -> LogSteps:
    """Yields the log of a worker as texts, besides calls and pauses, and End once the job has ended and the log is
    complete."""
    offset, pause = 0, SHORTEST
    while True:
        piece = yield operations.read_job_log(job_id, rank=rank, offset=offset)
        if piece["text"]:
            yield piece["text"]
        if piece["complete"]:
            yield End()
        if piece["next_offset"] > offset:
            offset, pause = piece["next_offset"], SHORTEST
            continue
        yield Pause(pause)
        pause = min(LONGEST, pause * GROWTH)
