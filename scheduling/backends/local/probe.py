"""Readiness probes: a separate thread checks repeatedly whether a program on this machine is ready."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from scheduling.backends.local import processes

LONGEST_LINE = 4096  # bytes of a response's first line, which is usually much shorter


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of all probes so far: when the program became ready, or why it is not ready."""

    ready_at: processes.Stamp | None  # when the program became ready; None while it is not ready
    trouble: str  # why the program is not ready, in words for users


class Probe:
    """A thread that checks repeatedly whether a program is ready, and calls `changed` whenever `answer` changes.

    The program becomes ready with its first successful probe. It stays ready until `failures` probes in a row have
    failed.
    """

    def __init__(
        self, *, port: int, path: str, period_seconds: float, timeout_seconds: float, failures: int,
        changed: Callable[[], object],
    ) -> None:  # fmt: skip
        self.answer = Answer(None, "")
        self._port, self._path = port, path
        self._period, self._timeout, self._failures = period_seconds, timeout_seconds, failures
        self._changed = changed
        self._failed = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="probe", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the probing. If a probe is running, its result is dropped."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._note(self._ask())
            self._stopped.wait(self._period)

    def _note(self, trouble: str) -> None:
        before = self.answer
        self._failed = self._failed + 1 if trouble else 0
        if not trouble:
            now = Answer(before.ready_at or processes.stamp(), "")
        elif before.ready_at is not None and self._failed < self._failures:
            now = before
        else:
            now = Answer(None, trouble)
        if now != before and not self._stopped.is_set():
            self.answer = now
            self._changed()

    def _ask(self) -> str:
        """Probes the program once. Returns "" if it is ready, otherwise the reason in words for users."""
        deadline = time.monotonic() + self._timeout
        try:
            with socket.create_connection(("127.0.0.1", self._port), self._timeout) as connection:
                return self._read(connection, deadline) if self._path else ""
        except TimeoutError:
            return f"port {self._port} gave no answer within {self._timeout:g} s"
        except OSError as error:
            return f"port {self._port}: {error.strerror or error}"

    def _read(self, connection: socket.socket, deadline: float) -> str:
        asked = f"GET {self._path} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\nConnection: close\r\n\r\n"
        connection.sendall(asked.encode("ascii"))
        line = b""
        while b"\n" not in line and len(line) < LONGEST_LINE:
            connection.settimeout(max(0.001, deadline - time.monotonic()))
            piece = connection.recv(LONGEST_LINE)
            if not piece:
                break
            line += piece
        words = line.split(b"\n")[0].split()
        if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
            return f"the answer to GET {self._path} is not HTTP"
        code = int(words[1])
        return "" if 200 <= code < 400 else f"the answer to GET {self._path} has HTTP status {code}"
