"""Work on many items in which no failing item blocks the others; failures appear on the cluster's page."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from django.db import InterfaceError, OperationalError, transaction

from accounting.core.clock import now_from_database
from scheduling.core import pubsub
from scheduling.models import Cluster

logger = logging.getLogger(__name__)
T = TypeVar("T")
R = TypeVar("R")

# The database is unavailable: a later attempt may succeed for all items.
OUT_OF_REACH = (OperationalError, InterfaceError)
LONGEST_TEXT = 1000
MOST_FAILURES = 20


def apart(cluster_id: int, items: Sequence[T], do: Callable[[Sequence[T]], Iterable[R]]) -> list[R]:
    """Calls `do` with all items at once; if that fails, with halves of them, so that a failing item blocks no other.

    `do` is a transaction. Returns the results for all items except those that failed and those that were left for
    the next pass after MOST_FAILURES failures in a row, which have one common cause.
    """
    left: list[Sequence[T]] = [items] if items else []
    done: list[R] = []
    failures = 0
    while left:
        some = left.pop()
        try:
            done += do(some)
            failures = 0
        except OUT_OF_REACH:
            raise
        except Exception as error:
            if len(some) > 1:
                middle = len(some) // 2
                some = random.sample(some, len(some))  # otherwise the same items would wait in each pass
                left += [some[middle:], some[:middle]]
                continue
            failures += 1
            logger.exception("left out: %s", some[0])
            note_failure(cluster_id=cluster_id, what=f"{some[0]} was left out", error=error)
            if left and failures == MOST_FAILURES:
                logger.error("%s failed in a row; %s wait for the next pass", failures, sum(map(len, left)))
                break
    return done


@transaction.atomic(durable=True)
def note_failure(*, cluster_id: int, what: str, error: Exception) -> None:
    """Shows on the cluster's page what failed, and when."""
    text = f"{what[:300]}: {type(error).__name__}: {error}"
    storable = text.replace("\0", "").encode("utf-8", "replace").decode()
    Cluster.objects.filter(pk=cluster_id).update(
        failure=storable[:LONGEST_TEXT], failed_at=now_from_database()
    )
    pubsub.publish(f"cluster:{cluster_id}")
