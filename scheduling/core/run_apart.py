"""Processes many items so that an item that fails does not block the others. Failures are shown on the cluster's
page."""

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

# Errors of an unavailable database: a later attempt may succeed for all items, so no item is left out.
OUT_OF_REACH = (OperationalError, InterfaceError)
LONGEST_TEXT = 1000
MOST_FAILURES = 20


def apart(cluster_id: int, items: Sequence[T], do: Callable[[Sequence[T]], Iterable[R]]) -> list[R]:
    """Calls `do` with all items, and returns the results. Leaves out each item with which `do` fails.

    `do` is called with a list of items and returns their results. It must open its own transaction. If it fails with
    several items, calls it again with each half of them. If it fails with a single item, leaves the item out and shows
    it on the cluster's page.

    Stops when MOST_FAILURES single items have failed in a row. The remaining items wait for a later call of `apart`.

    If the database is unavailable, immediately raises the database's error.
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
                some = random.sample(some, len(some))  # else each pass would leave the same items to the next
                left += [some[middle:], some[:middle]]
                continue
            failures += 1
            logger.exception("left out: %s", some[0])
            note_failure(
                cluster_id=cluster_id, what=f"{some[0]} could not be processed and was skipped", error=error
            )
            # So many failures in a row probably have a common cause.
            if left and failures == MOST_FAILURES:
                logger.error("%s failed in a row; %s wait for the next pass", failures, sum(map(len, left)))
                break
    return done


@transaction.atomic(durable=True)
def note_failure(*, cluster_id: int, what: str, error: Exception) -> None:
    """Stores a failure and its time in the cluster's row, for the cluster's page. `what` says in a few words what
    failed."""
    text = f"{what[:300]}: {type(error).__name__}: {error}"
    storable = text.replace("\0", "").encode("utf-8", "replace").decode()
    Cluster.objects.filter(pk=cluster_id).update(
        failure=storable[:LONGEST_TEXT], failed_at=now_from_database()
    )
    pubsub.publish(f"cluster:{cluster_id}")
