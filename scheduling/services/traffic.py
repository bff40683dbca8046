"""What the requests to a service add up to: how they ended, and how long the replicas took to begin their answers.

Sums of parts add up to the sum of the whole, whatever their order is, because times are counted in buckets that are the
same everywhere. So sums of several web servers and of several windows of time give the percentiles of all requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import ceil, log2
from typing import Any, Self

# The first bucket has times up to this; each further one ends BUCKETS_A_DOUBLING-th root of 2 later.
SHORTEST_SECONDS = 0.001
BUCKETS_A_DOUBLING = 4
LAST_BUCKET = 22 * BUCKETS_A_DOUBLING  # it also has all times beyond, of more than an hour


class Outcome(StrEnum):
    """How a request to a service ended. The values are stored."""

    OK = "ok"  # the replica answered with a status below 400, or opened the WebSocket
    CLIENT_ERROR = "client_error"  # 400 to 499, also if the portal refused the body
    SERVER_ERROR = "server_error"  # 500 to 599, sent by the replica
    NO_REPLICA = "no_replica"  # no replica was ready, so the portal answered 503
    NO_ANSWER = "no_answer"  # the replica could not be reached or broke off, so the portal answered 502
    TIMED_OUT = "timed_out"  # the replica did not answer in time, so the portal answered 504
    LEFT = "left"  # the client left before the answer began


# Requests that failed and not by their sender's fault.
FAILURES = (Outcome.SERVER_ERROR, Outcome.NO_REPLICA, Outcome.NO_ANSWER, Outcome.TIMED_OUT)
ANSWERED = frozenset({Outcome.OK, Outcome.CLIENT_ERROR, Outcome.SERVER_ERROR})


def outcome_of(status: int) -> Outcome:
    """Returns the outcome of a request that a replica answered with this HTTP status."""
    if status >= 500:
        return Outcome.SERVER_ERROR
    return Outcome.CLIENT_ERROR if status >= 400 else Outcome.OK


@dataclass
class Traffic:
    """The sum of some requests. `outcomes` counts them by how they ended, `buckets` by the time that the replica took
    until its answer began, and `seconds` is the sum of these times."""

    outcomes: dict[str, int] = field(default_factory=dict)
    buckets: dict[int, int] = field(default_factory=dict)
    seconds: float = 0.0

    @classmethod
    def restored(cls, stored: Mapping[str, Any]) -> Self:
        buckets = {int(bucket): count for bucket, count in stored["buckets"].items()}
        return cls(dict(stored["outcomes"]), buckets, stored["seconds"])

    @property
    def stored(self) -> dict[str, Any]:
        """Returns the form in which the database keeps the sum, as JSON."""
        return {"outcomes": self.outcomes, "buckets": self.buckets, "seconds": round(self.seconds, 6)}

    @property
    def requests(self) -> int:
        return sum(self.outcomes.values())

    @property
    def is_empty(self) -> bool:
        return not self.outcomes

    def count(self, outcome: Outcome) -> int:
        return self.outcomes.get(outcome, 0)

    def note(self, outcome: Outcome, seconds: float | None) -> None:
        """Adds one request. `seconds` is the time until its answer began; None if there was no answer of a replica."""
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        if seconds is not None:
            bucket = bucket_of(seconds)
            self.buckets[bucket] = self.buckets.get(bucket, 0) + 1
            self.seconds += max(seconds, 0.0)

    def add(self, other: Traffic) -> None:
        for outcome, count in other.outcomes.items():
            self.outcomes[outcome] = self.outcomes.get(outcome, 0) + count
        for bucket, count in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + count
        self.seconds += other.seconds

    def percentile(self, part: float) -> float | None:
        """Returns the time in seconds that this part of the answers took at most; None if there were no answers.

        It lies in the same bucket as the exact percentile, so it differs from it by less than a fifth.
        """
        rank = part * sum(self.buckets.values())
        before = 0
        for bucket in sorted(self.buckets):
            inside = self.buckets[bucket]
            if before + inside >= rank:
                low, high = bounds_of(bucket)
                return low + (high - low) * max(rank - before, 0.0) / inside
            before += inside
        return None


def bucket_of(seconds: float) -> int:
    """Returns the number of the bucket for a time."""
    if seconds <= SHORTEST_SECONDS:
        return 0
    return min(ceil(log2(seconds / SHORTEST_SECONDS) * BUCKETS_A_DOUBLING), LAST_BUCKET)


def bounds_of(bucket: int) -> tuple[float, float]:
    """Returns the times in seconds between which a bucket is."""
    high = SHORTEST_SECONDS * 2 ** (bucket / BUCKETS_A_DOUBLING)
    return (0.0 if bucket == 0 else SHORTEST_SECONDS * 2 ** ((bucket - 1) / BUCKETS_A_DOUBLING)), high
