"""Doing the same for many, none of which is to wait for the trouble of another."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TypeVar

logger = logging.getLogger(__name__)
T = TypeVar("T")


def each(items: Iterable[T], do: Callable[[T], object]) -> None:
    """Does it for all; the trouble of one does not keep the others waiting, and is raised in the end."""
    trouble: Exception | None = None
    for item in items:
        try:
            do(item)
        except Exception as error:
            logger.exception("%s: trouble", item)
            trouble = error
    if trouble:
        raise trouble
