"""Work in threads of a pool, without leaving database connections behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import connections


def let_go(work: Callable[[], Any]) -> Any:
    """Does `work` and closes the connections that it opened in this thread."""
    try:
        return work()
    finally:
        for connection in connections.all(initialized_only=True):
            connection.close()
