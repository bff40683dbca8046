"""Runs functions in the threads of a pool without leaving database connections open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import connections


def let_go(work: Callable[[], Any]) -> Any:
    """Calls `work` in this thread of a pool, closes all database connections of the thread, and returns the result of
    `work`."""
    try:
        return work()
    finally:
        for connection in connections.all(initialized_only=True):
            connection.close()
