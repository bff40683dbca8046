"""Work on many things at once, none of which holds up the others; what fails is told on its cluster's page."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from django.db import InterfaceError, OperationalError, transaction

from accounting.clock import now_from_database
from scheduling import live
from scheduling.models import Cluster

logger = logging.getLogger(__name__)
T = TypeVar("T")
R = TypeVar("R")

# What the database cannot do now: whoever tries again later may succeed with everything.
OUT_OF_REACH = (OperationalError, InterfaceError)
LONGEST_TEXT = 1000


def apart(cluster_id: int, items: Sequence[T], do: Callable[[Sequence[T]], Iterable[R]]) -> list[R]:
    """Does it for all items at once; where it fails, in halves, so that an item that fails holds up no other.

    `do` is a transaction of its own. Returns what it returned, of all but the items that failed.
    """
    if not items:
        return []
    try:
        return list(do(items))
    except OUT_OF_REACH:
        raise
    except Exception as error:
        if len(items) == 1:
            logger.exception("left out: %s", items[0])
            note_failure(cluster_id=cluster_id, what=f"{items[0]} was left out", error=error)
            return []
    middle = len(items) // 2
    return [*apart(cluster_id, items[:middle], do), *apart(cluster_id, items[middle:], do)]


@transaction.atomic(durable=True)
def note_failure(*, cluster_id: int, what: str, error: Exception) -> None:
    """Has the cluster's page say what went wrong in following it, and when."""
    text = f"{what[:300]}: {type(error).__name__}: {error}"
    storable = text.replace("\0", "").encode("utf-8", "replace").decode()
    Cluster.objects.filter(pk=cluster_id).update(
        failure=storable[:LONGEST_TEXT], failed_at=now_from_database()
    )
    live.publish(f"cluster:{cluster_id}")
