"""Simulates `kill -9` of a Fairlot process before or after any API request or database statement.

The simulated process runs in the test's process. The exception Killed takes the place of the signal. The test catches
it and then uses new objects, as a new process would.
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
    """Simulates the death of a process. Derives from BaseException, so that no `except Exception` in Fairlot catches
    it."""


def raise_killed() -> None:
    raise Killed


class Fate:
    """Counts steps and kills the process after `left` more steps, or never if `left` is None."""

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
        """Within the block, counts two steps for each statement of this thread's database connection: before and after
        it."""

        def run(execute: Any, sql: str, parameters: Any, many: bool, context: Mapping[str, Any]) -> Any:
            self.step()
            answer = execute(sql, parameters, many, context)
            self.step()
            return answer

        with connection.execute_wrapper(run):
            yield


class MortalApi(Limited):
    """An API client that counts two steps for each request: before and after it. It waits `patience` seconds for a
    response."""

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
