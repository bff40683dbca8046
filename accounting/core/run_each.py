"""Runs a function for many items; the failure of one item does not stop the others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from math import inf
from time import monotonic
from typing import TypeVar

logger = logging.getLogger(__name__)
T = TypeVar("T")


def run_each(items: Iterable[T], do: Callable[[T], object], *, seconds: float = inf) -> None:
    """Calls `do` for each item; logs each exception, and raises the last exception after all items.

    Starts no further item once `seconds` have passed.
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
