"""Runs a function for many items. If one item fails, the others still run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from math import inf
from time import monotonic
from typing import TypeVar

logger = logging.getLogger(__name__)
T = TypeVar("T")


def run_each(items: Iterable[T], do: Callable[[T], object], *, seconds: float = inf) -> None:
    """Calls `do` for each item, and logs each exception. At the end, raises the last exception again.

    `seconds`: the time limit for the whole call. When it has passed, the remaining items are skipped without an error.
    """
    failure: Exception | None = None
    ends = monotonic() + seconds
    for item in items:
        if monotonic() > ends:
            break
        try:
            do(item)
        except Exception as error:
            logger.exception("%s: failed", item)
            failure = error
    if failure:
        raise failure
