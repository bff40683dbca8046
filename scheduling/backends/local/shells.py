"""Terminals in a running gang: interactive shells beside its workers.

The portal asks for a shell through a socket in the job's folder, which belongs to the portal. The supervisor starts the
shell as it starts workers: in the gang's namespaces, as its user, with the worker's variables and without rights of the
portal. So the shell is a process of the job: it is frozen with the gang, counted with it, and ends with it.

The supervisor gives the portal the master side of the shell's pseudoterminal, and keeps a copy. So it carries no bytes
itself, and output that nobody reads makes only the shell wait. If the portal's connection is lost, the shell lives for
KEPT_SECONDS, within which the portal can ask for the same shell again.

Messages are JSON objects, one a packet:

    portal      {"key": …, "rank": 0, "rows": 24, "columns": 80}    opens the shell, or returns the one with this key
    portal      {"key": …}                                          returns the shell with this key
    supervisor  {"new": true}       with the file descriptor of the master side
    supervisor  {"refused": …}      a message for users
    portal      {"end": true}       ends the shell
    supervisor  {"exit": 0}         the shell has ended, with this code
    supervisor  {"replaced": true}  another connection now has the shell
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import selectors
import signal
import socket
import struct
import termios
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Any

from scheduling.backends import opening
from scheduling.backends.local import processes, sandbox
from scheduling.backends.local.files import JobFiles
from scheduling.backends.local.worker import Worker, exit_code

logger = logging.getLogger(__name__)
SOCKET = "terminals"  # the socket's name in the job's folder
MOST_SHELLS = 16
MOST_LINKS = 64  # connections of the portal
LARGEST_MESSAGE = 4096
KEPT_SECONDS = 120.0  # how long a shell lives without a connection
HANGUP_SECONDS = 2.0  # between SIGHUP and SIGKILL
START_SECONDS = 10.0  # the longest time for the start of a shell
MOST_CELLS = 1000  # rows or columns of a terminal
PROGRAMS = ("/bin/bash", "/bin/sh")  # the first that exists is the shell, unless the job sets SHELL
TERM = "xterm-256color"
CREDENTIALS = struct.Struct("3i")  # of SO_PEERCRED: pid, uid, gid


class NoShell(Exception):
    """Raised when there can be no shell. The message gives users the reason."""


Find = Callable[[int], tuple[Worker, "sandbox.Namespaces | None"]]


@dataclass(eq=False)
class Shell:
    """An interactive shell of the gang."""

    key: str
    pid: int
    master: int  # file descriptor of the pseudoterminal's master side
    link: socket.socket | None  # the connection of the portal that has the shell
    left_at: float = inf  # monotonic time at which the connection was lost
    kill_at: float = inf  # monotonic time of SIGKILL; set once the shell must end


class Shells:
    """All shells of one gang, and the socket through which the portal asks for them."""

    def __init__(self, files: JobFiles, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._shells: dict[str, Shell] = {}
        self._links: set[socket.socket] = set()
        self._listener: socket.socket | None = None
        try:
            self._listener = _listen(files)
        except OSError as error:
            logger.warning("nobody can open a terminal in this job: %s", opening.why(error))
            return
        selector.register(self._listener, selectors.EVENT_READ, self)

    def handle(self, ready: object, find: Find) -> None:
        """Handles an event of the socket or of a connection. `find` returns the worker of a rank, or raises NoShell."""
        if ready is self._listener:
            self._accept()
        elif isinstance(ready, socket.socket):
            self._read(ready, find)

    def note_end(self, pid: int, status: int) -> None:
        """Tells the portal that the process `pid`, if it was a shell, has ended. `status` is its wait status."""
        shell = next((each for each in self._shells.values() if each.pid == pid), None)
        if shell is None:
            return
        del self._shells[shell.key]
        os.close(shell.master)
        if shell.link is not None:
            link, shell.link = shell.link, None
            _send(link, {"exit": exit_code(status)})
            self._drop(link)

    def end_abandoned(self) -> None:
        """Ends the shells whose connection was lost too long ago, and kills those that did not end after a signal."""
        now = time.monotonic()
        for shell in list(self._shells.values()):
            if now > shell.left_at + KEPT_SECONDS:
                self._hang_up(shell)
            if now > shell.kill_at:
                processes.kill(_tree(shell))

    def hang_up_all(self) -> None:
        """Tells all shells to end, as a terminal does that is closed. They are killed soon if they do not."""
        for shell in list(self._shells.values()):
            self._hang_up(shell)

    def close(self) -> None:
        """Closes all connections and the socket. Called when no process of the gang is left."""
        for shell in self._shells.values():
            os.close(shell.master)
        self._shells = {}
        for link in list(self._links):
            self._drop(link)
        if self._listener is not None:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None

    # --- connections -----------------------------------------------------------------------------

    def _accept(self) -> None:
        if self._listener is None:
            return
        try:
            link, _ = self._listener.accept()
        except OSError:  # the portal has gone away again
            return
        if len(self._links) >= MOST_LINKS or not _is_of_portal(link):
            link.close()
            return
        link.setblocking(False)
        self._links.add(link)
        self._selector.register(link, selectors.EVENT_READ, self)

    def _read(self, link: socket.socket, find: Find) -> None:
        try:
            data = link.recv(LARGEST_MESSAGE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(link)
            return
        try:
            asked = json.loads(data)
            if asked.get("end"):
                for shell in [each for each in self._shells.values() if each.link is link]:
                    self._hang_up(shell)
                return
            shell, is_new = self._shell(asked, find)
        except NoShell as refused:
            _send(link, {"refused": str(refused)})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            _send(link, {"refused": f"The message is not understood: {error!r}"})
        else:
            self._give(shell, link, is_new=is_new)

    def _give(self, shell: Shell, link: socket.socket, *, is_new: bool) -> None:
        if shell.link is not None and shell.link is not link:
            _send(shell.link, {"replaced": True})
            self._drop(shell.link)
        shell.link, shell.left_at = link, inf
        _send(link, {"new": is_new}, shell.master)

    def _drop(self, link: socket.socket) -> None:
        """Closes a connection. Its shell lives on for a while."""
        for shell in self._shells.values():
            if shell.link is link:
                shell.link, shell.left_at = None, time.monotonic()
        if link in self._links:
            self._links.remove(link)
            self._selector.unregister(link)
            link.close()

    # --- shells ----------------------------------------------------------------------------------

    def _shell(self, asked: dict[str, Any], find: Find) -> tuple[Shell, bool]:
        """Returns the shell that a message asks for, and whether it was started now. Raises NoShell."""
        key = str(asked["key"])
        known = self._shells.get(key)
        if known is not None and known.kill_at == inf:
            return known, False
        if known is not None or "rank" not in asked:
            raise NoShell("The terminal has ended.")
        if len(self._shells) >= MOST_SHELLS:
            raise NoShell(f"The job has {MOST_SHELLS} terminals. Close one of them first.")
        rows, columns = int(asked["rows"]), int(asked["columns"])
        worker, namespaces = find(int(asked["rank"]))
        pid, master = start(worker, namespaces, rows=rows, columns=columns)
        shell = self._shells[key] = Shell(key, pid, master, link=None)
        return shell, True

    def _hang_up(self, shell: Shell) -> None:
        if shell.kill_at < inf:
            return
        shell.kill_at = time.monotonic() + HANGUP_SECONDS
        for process in _tree(shell):
            processes.send(process, signal.SIGHUP)


def set_size(terminal: int, *, rows: int, columns: int) -> None:
    """Sets the size of a terminal, given as the file descriptor of its master side. Its programs get SIGWINCH."""
    size = (max(1, min(number, MOST_CELLS)) for number in (rows, columns))
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", *size, 0, 0))


def start(
    worker: Worker, namespaces: sandbox.Namespaces | None, *, rows: int, columns: int
) -> tuple[int, int]:
    """Starts a shell beside a worker. Returns its pid, and the file descriptor of its terminal's master side.

    Raises NoShell if it cannot be started.
    """
    ours, theirs = socket.socketpair()
    us = os.getpid()
    with ours, theirs:
        try:
            pid = namespaces.fork() if namespaces is not None else os.fork()
        except OSError as error:
            raise NoShell(f"The shell cannot be started: {sandbox.in_words(error)}") from None
        if pid == 0:
            _become(worker, namespaces, us, theirs, rows=rows, columns=columns)
        theirs.close()
        ours.settimeout(START_SECONDS)
        master = -1
        try:
            _, passed, _, _ = socket.recv_fds(ours, 1, 1, socket.MSG_CMSG_CLOEXEC)
            master = passed[0] if passed else -1
            problem = b"" if master >= 0 else b"the process ended"
            while piece := ours.recv(LARGEST_MESSAGE):  # ends when exec closes the other end
                problem += piece
        except OSError as error:  # it took too long
            problem = sandbox.in_words(error).encode()
    if problem:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        if master >= 0:
            os.close(master)
        raise NoShell(f"The shell cannot be started: {problem.decode(errors='replace')}")
    os.set_blocking(master, False)
    return pid, master


def _become(
    worker: Worker,
    namespaces: sandbox.Namespaces | None,
    supervisor: int,
    answer: socket.socket,
    *,
    rows: int,
    columns: int,
) -> None:
    """Runs in the forked child: confines it, makes its terminal, and executes the shell. Never returns.

    `answer`: the socket through which the child passes the master side of its terminal, and why it cannot go on.
    """
    try:
        worker.confine_child(namespaces, supervisor, kept=answer.fileno())
        # Made in the gang's namespaces and as its user, who therefore owns the terminal.
        master, terminal = os.openpty()
        set_size(master, rows=rows, columns=columns)
        socket.send_fds(answer, [b"\n"], [master])
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
        for target in (0, 1, 2):
            os.dup2(terminal, target)
        for fd in (master, terminal):
            os.close(fd)
        environment = worker.environment | {"TERM": TERM}
        _enter_folder(environment.get("FAIRLOT_CODE_DIR", ""), worker.folder)
        own = environment.get("SHELL", "")
        for program in [own] * own.startswith("/") + list(PROGRAMS):
            environment["SHELL"] = program
            with suppress(FileNotFoundError, PermissionError):
                os.execve(program, [program], environment)  # noqa: S606
        raise FileNotFoundError("there is no shell")
    except BaseException as error:
        with suppress(OSError):
            answer.send(sandbox.in_words(error).encode())
    finally:
        os._exit(127)


def _enter_folder(*folders: str) -> None:
    """Changes to the first of the folders that can be entered."""
    for folder in filter(None, folders):
        with suppress(OSError):
            os.chdir(folder)
            return


def _tree(shell: Shell) -> list[processes.Process]:
    """Returns the shell and the processes that it started, unless these have detached themselves."""
    found = processes.look(shell.pid)
    return [found, *processes.descendants(shell.pid)] if found is not None else []


def _listen(files: JobFiles) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with files.opened(files.folder) as folder:
        opening.remove_file(SOCKET, folder=folder)
        # The path of a socket must be short, and the job's folder may be deep.
        listener.bind(f"/proc/self/fd/{folder}/{SOCKET}")
        os.chmod(SOCKET, 0o600, dir_fd=folder)
    listener.listen(MOST_LINKS)
    listener.setblocking(False)
    return listener


def _is_of_portal(link: socket.socket) -> bool:
    """Returns whether a connection comes from the portal's user, and from no process of the job."""
    pid, uid, _ = CREDENTIALS.unpack(link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
    return uid == os.geteuid() and pid not in {each.pid for each in processes.descendants(os.getpid())}


def _send(link: socket.socket, message: dict[str, Any], fd: int | None = None) -> None:
    """Sends a message, with a file descriptor if one is given. If the portal is gone or does not read, nothing
    arrives."""
    with suppress(OSError):
        socket.send_fds(link, [json.dumps(message).encode()], [] if fd is None else [fd])
