"""Terminals in a running gang: interactive shells beside its workers.

The portal asks for a shell through a socket in the job's folder, which belongs to the portal. The supervisor starts the
shell as it starts workers: in the gang's namespaces, as its user, with the worker's variables and without rights of the
portal. So the shell is a process of the job: it is frozen with the gang, counted with it, and ends with it.

The supervisor gives the portal the master side of the shell's pseudoterminal, and keeps a copy. So it carries no bytes
while the portal does. If the portal's connection is lost, the shell lives for KEPT_SECONDS, within which the portal can
ask for the same shell again. Meanwhile the supervisor reads the output, until the scrollback is full of unseen output;
more makes only the shell wait.

The supervisor never waits for a shell to start, because programs of the job can stop the new process with a signal.

Messages are JSON objects, one a packet:

    portal      {"key": …}          returns the shell with this key
    portal      {"key": …, "rank": 0, "rows": 24, "columns": 80, "trusted": false}
                                    opens the shell, or returns the one with this key
    portal      {"key": …, "end": true}    ends the shell with this key, on a connection of its own
    supervisor  {"new": true}       with the file descriptors of the master side and of the scrollback
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
from scheduling.backends.local import processes, sandbox, scrollback
from scheduling.backends.local.files import JobFiles
from scheduling.backends.local.scrollback import Scrollback
from scheduling.backends.local.worker import Worker, exit_code

logger = logging.getLogger(__name__)
SOCKET = "terminals"  # the socket's name in the job's folder
MOST_SHELLS = 16
MOST_LINKS = 64  # connections of the portal
LARGEST_MESSAGE = 4096
KEPT_SECONDS = 900.0  # how long a shell lives without a connection
CHUNK = 16 * 1024  # bytes of output that are read at once
HANGUP_SECONDS = 2.0  # between SIGHUP and SIGKILL
START_SECONDS = 5.0  # the longest time for the start of a shell
MOST_CELLS = 1000  # rows or columns of a terminal
# Bash runs this before its first prompt, after its startup files have set PS1. Users of teams have no account on the
# machine, and bash would call them “I have no name!”.
NAME_IN_PROMPT = "unset PROMPT_COMMAND; id -un >/dev/null 2>&1 || PS1=${PS1//\\\\u/job-$FAIRLOT_JOB_ID}"
PROGRAMS = ("/bin/bash", "/bin/sh")  # the first that exists is the shell, unless the job sets SHELL
TERM = "xterm-256color"
CREDENTIALS = struct.Struct("3i")  # of SO_PEERCRED: pid, uid, gid


class NoShell(Exception):
    """Raised when there can be no shell. The message gives users the reason."""


# Called with a rank, and whether the user has all rights of the portal.
Find = Callable[[int, bool], tuple[Worker, "sandbox.Namespaces | None"]]


@dataclass(eq=False)
class Shell:
    """An interactive shell of the gang."""

    key: str
    pid: int
    master: int  # file descriptor of the pseudoterminal's master side
    link: socket.socket | None  # the connection of the portal that has the shell
    scrollback: Scrollback
    unseen: int = 0  # bytes of output that nobody has seen; meanwhile the supervisor reads
    is_read: bool = False  # by the supervisor
    left_at: float = inf  # monotonic time at which the connection was lost
    kill_at: float = inf  # monotonic time of SIGKILL; set once the shell must end


@dataclass(eq=False)
class Start:
    """A process that is about to become a shell. It says through `answer` how far it is: see `_become`."""

    key: str
    pid: int
    answer: socket.socket
    link: socket.socket | None  # the connection of the portal that waits for the shell
    until: float  # monotonic time at which the start has taken too long
    master: int = -1


class Shells:
    """All shells of one gang, and the socket through which the portal asks for them."""

    def __init__(self, files: JobFiles, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._shells: dict[str, Shell] = {}
        self._starts: dict[str, Start] = {}
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
        elif start := next((each for each in self._starts.values() if each.answer is ready), None):
            self._go_on(start)
        elif shell := next((each for each in self._shells.values() if each.master == ready), None):
            self._read_output(shell)
        elif isinstance(ready, socket.socket) and ready in self._links:
            self._read(ready, find)

    def note_end(self, pid: int, status: int) -> None:
        """Tells the portal that the process `pid`, if it was a shell, has ended. `status` is its wait status."""
        for start in [each for each in self._starts.values() if each.pid == pid]:
            while self._go_on(start):  # it has already said all
                continue
        shell = next((each for each in self._shells.values() if each.pid == pid), None)
        if shell is None:
            return
        del self._shells[shell.key]
        self._let_go(shell)
        if shell.link is not None:
            link, shell.link = shell.link, None
            _send(link, {"exit": exit_code(status)})
            self._drop(link)

    def end_abandoned(self) -> None:
        """Ends the shells whose connection was lost too long ago, and kills those that did not end after a signal, or
        do not start."""
        now = time.monotonic()
        for start in list(self._starts.values()):
            if now > start.until:
                self._give_up(start, "it took too long")
        for shell in list(self._shells.values()):
            if now > shell.left_at + KEPT_SECONDS:
                self._hang_up(shell)
            if now > shell.kill_at:
                processes.kill(_tree(shell))

    def hang_up_all(self) -> None:
        """Tells all shells to end, as a terminal does that is closed. They are killed soon if they do not."""
        for start in list(self._starts.values()):
            self._give_up(start, "the job ends")
        for shell in list(self._shells.values()):
            self._hang_up(shell)

    def close(self) -> None:
        """Closes all connections and the socket. Called when no process of the gang is left."""
        for start in list(self._starts.values()):
            self._forget(start)
        for shell in self._shells.values():
            self._let_go(shell)
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
            self._follow(json.loads(data), link, find)
        except NoShell as refused:
            _send(link, {"refused": str(refused)})
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            _send(link, {"refused": f"The message is not understood: {error!r}"})

    def _follow(self, asked: dict[str, Any], link: socket.socket, find: Find) -> None:
        """Does what a message asks for. Raises NoShell."""
        if asked.get("end"):
            for shell in self._shells.values():
                if shell.key == asked["key"] if "key" in asked else shell.link is link:
                    self._hang_up(shell)
            for begun in [each for each in self._starts.values() if each.key == asked.get("key")]:
                self._give_up(begun, "it was ended")
            return
        key = str(asked["key"])
        known, start = self._shells.get(key), self._starts.get(key)
        if known is not None and known.kill_at == inf:
            self._give(known, link, is_new=False)
        elif start is not None:
            self._replace(start, link)
        elif known is not None or "rank" not in asked:
            raise NoShell("The terminal has ended.")
        else:
            self._start(key, asked, link, find)

    def _give(self, shell: Shell, link: socket.socket, *, is_new: bool) -> None:
        self._replace(shell, link)
        shell.left_at = inf
        self._stop_reading(shell)
        _send(link, {"new": is_new}, shell.master, shell.scrollback.fd)

    def _replace(self, had: Shell | Start, link: socket.socket) -> None:
        """Lets `link` have what another connection had until now."""
        if had.link is not None and had.link is not link:
            _send(had.link, {"replaced": True})
            self._drop(had.link)
        had.link = link

    def _drop(self, link: socket.socket) -> None:
        """Closes a connection. Its shell lives on for a while."""
        for shell in self._shells.values():
            if shell.link is link:
                shell.link = None
                self._leave(shell)
        for start in self._starts.values():
            start.link = None if start.link is link else start.link
        if link in self._links:
            self._links.remove(link)
            self._selector.unregister(link)
            link.close()

    # --- shells ----------------------------------------------------------------------------------

    def _start(self, key: str, asked: dict[str, Any], link: socket.socket, find: Find) -> None:
        """Begins to start the shell that a message asks for. Raises NoShell."""
        if len(self._shells) + len(self._starts) >= MOST_SHELLS:
            raise NoShell(f"The job has {MOST_SHELLS} terminals. Close one of them first.")
        rows, columns = int(asked["rows"]), int(asked["columns"])
        worker, namespaces = find(int(asked["rank"]), asked.get("trusted") is True)
        pid, answer = fork(worker, namespaces, rows=rows, columns=columns)
        self._starts[key] = Start(key, pid, answer, link, until=time.monotonic() + START_SECONDS)
        self._selector.register(answer, selectors.EVENT_READ, self)

    def _go_on(self, start: Start) -> bool:
        """Reads what a process says that is about to become a shell. Returns whether it may have said more."""
        try:
            said, passed, _, _ = socket.recv_fds(start.answer, LARGEST_MESSAGE, 1, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return False
        except OSError as error:
            said, passed = sandbox.in_words(error).encode(), []
        if passed:
            start.master = passed[0]
            return True
        if said:
            self._give_up(start, said.decode(errors="replace"))
        elif start.master < 0:
            self._give_up(start, "the process ended")
        else:  # exec has closed the other end
            os.set_blocking(start.master, False)
            shell = Shell(start.key, start.pid, start.master, None, scrollback.create())
            self._shells[start.key] = shell
            start.master, link = -1, start.link
            self._forget(start)
            if link is None:
                self._leave(shell)
            else:
                self._give(shell, link, is_new=True)
        return False

    def _give_up(self, start: Start, why: str) -> None:
        for process in filter(None, [processes.look(start.pid)]):
            if process.parent == os.getpid():  # otherwise it was reaped, and this is another one
                processes.send(process, signal.SIGKILL)
        if start.link is not None:
            _send(start.link, {"refused": f"The shell cannot be started: {why}"})
        self._forget(start)

    def _forget(self, start: Start) -> None:
        del self._starts[start.key]
        self._selector.unregister(start.answer)
        start.answer.close()
        if start.master >= 0:
            os.close(start.master)

    def _leave(self, shell: Shell) -> None:
        """Notes that nobody has the shell, and reads its output from now on."""
        shell.left_at, shell.unseen = time.monotonic(), 0
        if not shell.is_read:
            shell.is_read = True
            self._selector.register(shell.master, selectors.EVENT_READ, self)

    def _read_output(self, shell: Shell) -> None:
        """Keeps a piece of the output of a shell that nobody has. Stops once more would be lost."""
        try:
            data = os.read(shell.master, CHUNK)
        except BlockingIOError:
            return
        except OSError:  # the shell has just ended
            data = b""
        shell.scrollback.add(data)
        shell.unseen += len(data)
        if not data or shell.unseen > scrollback.KEPT - 2 * CHUNK:
            self._stop_reading(shell)

    def _stop_reading(self, shell: Shell) -> None:
        if shell.is_read:
            shell.is_read = False
            self._selector.unregister(shell.master)

    def _let_go(self, shell: Shell) -> None:
        self._stop_reading(shell)
        os.close(shell.master)
        shell.scrollback.close()

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


def fork(
    worker: Worker, namespaces: sandbox.Namespaces | None, *, rows: int, columns: int
) -> tuple[int, socket.socket]:
    """Forks a process beside a worker that becomes a shell. Returns its pid, and the socket through which it passes
    the master side of its terminal (see `_become`).

    Raises NoShell if it cannot be forked.
    """
    us = os.getpid()
    try:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                pid = namespaces.fork() if namespaces is not None else os.fork()
            except OSError:
                ours.close()
                raise
            if pid == 0:
                _become(worker, namespaces, us, theirs, rows=rows, columns=columns)
    except OSError as error:
        raise NoShell(f"The shell cannot be started: {sandbox.in_words(error)}") from None
    ours.setblocking(False)
    return pid, ours


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

    `answer`: the socket through which the child passes the master side of its terminal, and then, if it cannot go on,
    the reason. If it can, exec closes the socket.
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
        environment = (
            {"PROMPT_COMMAND": NAME_IN_PROMPT, "PROMPT_DIRTRIM": "2"} | worker.environment | {"TERM": TERM}
        )
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
    try:
        with files.opened(files.folder) as folder:
            opening.remove_file(SOCKET, folder=folder)
            # The path of a socket must be short, and the job's folder may be deep.
            listener.bind(f"/proc/self/fd/{folder}/{SOCKET}")
            os.chmod(SOCKET, 0o600, dir_fd=folder)
        listener.listen(MOST_LINKS)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def _is_of_portal(link: socket.socket) -> bool:
    """Returns whether a connection comes from the portal's user, and from no process of the job."""
    pid, uid, _ = CREDENTIALS.unpack(link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
    return uid == os.geteuid() and pid not in {each.pid for each in processes.descendants(os.getpid())}


def _send(link: socket.socket, message: dict[str, Any], *fds: int) -> None:
    """Sends a message with the file descriptors that are given. If the portal is gone or does not read, nothing
    arrives."""
    with suppress(OSError):
        socket.send_fds(link, [json.dumps(message).encode()], list(fds))
