"""The portal's side of a terminal in a running gang. shells.py has the supervisor's side, and the messages."""

from __future__ import annotations

import json
import os
import socket
import weakref
from contextlib import suppress
from typing import Any

from scheduling.backends.base import BackendError, NoSuchTerminal
from scheduling.backends.local.files import JobFiles
from scheduling.backends.local.scrollback import Scrollback
from scheduling.backends.local.shells import LARGEST_MESSAGE, SOCKET, START_SECONDS, set_size

ANSWER_SECONDS = START_SECONDS + 2.0


class LocalTerminal:
    """An open terminal. See OpenTerminal in base.py."""

    def __init__(self, link: socket.socket, master: int, kept: int | None, *, is_new: bool) -> None:
        """`kept`: the file descriptor of the scrollback; None in gangs that an earlier release started."""
        self.is_new = is_new
        self.link = link
        self._master = master
        self._scrollback = Scrollback(kept) if kept is not None else None
        self.earlier = b"" if is_new or self._scrollback is None else self._scrollback.read()
        # Also closed if the caller is gone before it gets this object.
        self._close = weakref.finalize(self, _close, master, link, self._scrollback)
        link.setblocking(False)

    def read(self, limit: int) -> bytes:
        data = os.read(self._master, limit)
        if self._scrollback is not None:
            self._scrollback.add(data)
        return data

    def fileno(self) -> int:
        return self._master

    def resize(self, *, rows: int, columns: int) -> None:
        with suppress(OSError):  # the shell has just ended
            set_size(self._master, rows=rows, columns=columns)

    def exit_code(self, message: bytes) -> int | None:
        try:
            code = json.loads(message).get("exit")
        except (ValueError, AttributeError):  # the supervisor is gone
            return None
        return code if isinstance(code, int) else None

    def end(self) -> None:
        with suppress(OSError):
            self.link.send(json.dumps({"end": True}).encode())

    def close(self) -> None:
        self._close()
        self._master = -1


def _close(master: int, link: socket.socket, scrollback: Scrollback | None) -> None:
    os.close(master)
    link.close()
    if scrollback is not None:
        scrollback.close()


def end_terminal(files: JobFiles, *, key: str) -> None:
    """Ends a shell. See Backend.end_terminal."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
        link.settimeout(ANSWER_SECONDS)
        try:
            _connect(link, files)
            link.send(json.dumps({"key": key, "end": True}).encode())
        except (FileNotFoundError, ConnectionError):
            return  # the gang has ended, and its shells with it
        except OSError as error:
            raise BackendError(f"The terminal cannot be ended: {error}") from error


def _connect(link: socket.socket, files: JobFiles) -> None:
    with files.opened(files.folder) as folder:
        link.connect(f"/proc/self/fd/{folder}/{SOCKET}")


def open_terminal(
    files: JobFiles, *, key: str, rows: int, columns: int, rank: int | None, is_trusted: bool = False
) -> LocalTerminal:
    """Opens a terminal. See Backend.open_terminal."""
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        link.settimeout(ANSWER_SECONDS)
        _connect(link, files)
        asked: dict[str, Any] = {"key": key}
        if rank is not None:
            asked |= {"rank": rank, "rows": rows, "columns": columns, "trusted": is_trusted}
        link.send(json.dumps(asked).encode())
        data, passed, _, _ = socket.recv_fds(link, LARGEST_MESSAGE, 2, socket.MSG_CMSG_CLOEXEC)
        answer = json.loads(data) if data else {}
    except (FileNotFoundError, ConnectionError):
        link.close()
        raise NoSuchTerminal("The job is not running.") from None
    except (OSError, ValueError) as error:
        link.close()
        raise BackendError(f"The terminal cannot be opened: {error}") from error
    if passed:
        kept = passed[1] if len(passed) > 1 else None
        terminal = LocalTerminal(link, passed[0], kept, is_new=bool(answer.get("new")))
        if not terminal.is_new:
            # Programs draw their screen again when its size changes.
            terminal.resize(rows=rows, columns=max(1, columns - 1))
            terminal.resize(rows=rows, columns=columns)
        return terminal
    link.close()
    raise NoSuchTerminal(str(answer.get("refused") or "The job is not running."))
