"""Simulates kill -9 at any step: a process of Fairlot dies before or after a request or a database statement.

Within the tests' own process, the death is an exception that Fairlot's code does not catch. The test that finally
catches it drops all objects of the "process". Transactions roll back, as PostgreSQL does when a connection is lost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from django.db import connection

from scheduling.backends.kubernetes.api import READ_SECONDS, Object
from scheduling.backends.kubernetes.backend import Limited


class Killed(BaseException):
    """The death of a process. It is a BaseException, so that no `except Exception` in Fairlot catches it."""


def raise_killed() -> None:
    raise Killed


class Fate:
    """Counts the steps until a process dies: after `left` more steps, or never if `left` is None."""

    def __init__(self, die: Callable[[], None] = raise_killed) -> None:
        self.left: int | None = None
        self.deaths = 0
        self._die = die

    def step(self) -> None:
        # The threads of reflectors, which are named after API paths, do not count: they end with the watcher.
        if self.left is None or threading.current_thread().name.startswith("/api"):
            return
        self.left -= 1
        if self.left < 0:
            self.left = None
            self.deaths += 1
            self._die()

    @contextmanager
    def over_statements(self) -> Iterator[None]:
        """Counts each statement on this thread's database connection as two steps, during the block: before and after
        it."""

        def run(execute: Any, sql: str, parameters: Any, many: bool, context: Mapping[str, Any]) -> Any:
            self.step()
            answer = execute(sql, parameters, many, context)
            self.step()
            return answer

        with connection.execute_wrapper(run):
            yield


class MortalApi(Limited):
    """A client for which each request counts as two steps. It waits only `patience` seconds for an answer."""

    fate = Fate()
    patience = READ_SECONDS

    def get(self, path: str, **query: Any) -> Object:
        self.fate.step()
        answer = super().get(path, **query)
        self.fate.step()
        return answer

    def _write(self, *args: Any, **kwargs: Any) -> Object:
        self.fate.step()
        answer = super()._write(*args, **kwargs)
        self.fate.step()
        return answer

    @contextmanager
    def _answer(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        kwargs.setdefault("read_seconds", self.patience)
        with super()._answer(*args, **kwargs) as answer:
            yield answer
