"""Doing the same for many, none of which is to wait for the trouble of another."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from math import inf
from time import monotonic
from typing import TypeVar

logger = logging.getLogger(__name__)
T = TypeVar("T")


def each(items: Iterable[T], do: Callable[[T], object], *, seconds: float = inf) -> None:
    """Does it for all; the trouble of one does not keep the others waiting, and is raised in the end.

    After so many seconds none is begun.
    """
    trouble: Exception | None = None
    ends = monotonic() + seconds
    for item in items:
        if monotonic() > ends:
            break
        try:
            do(item)
        except Exception as error:
            logger.exception("%s: trouble", item)
            trouble = error
    if trouble:
        raise trouble
