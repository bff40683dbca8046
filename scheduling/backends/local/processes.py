"""Functions that read processes and clocks from Linux' /proc.

A process is identified by its pid and its start time. This pair is unique within one boot, so a process is never
mistaken for an earlier process with the same pid.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

MARKER = "FAIRLOT_RUN"  # environment variable by which the processes of a dead supervisor are found
Stamp = tuple[str, float, float]  # boot id, CLOCK_BOOTTIME, wall clock; both in seconds


@dataclass(frozen=True, slots=True)
class Process:
    """A process and its parent, as one entry of Linux' process table shows them."""

    pid: int
    start: int  # clock ticks since boot
    state: str  # a letter such as R, S, D, T or Z (see proc(5))
    parent: int
    group: int

    @property
    def is_stopped(self) -> bool:
        return self.state in "TtZX"


@lru_cache(maxsize=1)
def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def stamp() -> Stamp:
    """Returns the current time in a form that can be stored. `age` computes how long ago it was, even after a
    reboot."""
    return (boot_id(), time.clock_gettime(time.CLOCK_BOOTTIME), time.time())


def age(then: Stamp) -> float:
    """Returns the seconds that have passed since `then`, a result of `stamp`.

    Uses the boot clock or, if the machine has rebooted since `then`, the wall clock.
    """
    boot, at, wall = then
    uptime = time.clock_gettime(time.CLOCK_BOOTTIME)
    if boot == boot_id():
        return max(0.0, uptime - at)
    return max(uptime, time.time() - wall)  # `then` was before this boot, even if the wall clock disagrees


def look(pid: int) -> Process | None:
    """Returns the process with this pid, or None if no such process exists."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            line = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # Skips the program's name, which may contain any character.
    fields = line[line.rindex(b")") + 2 :].split()
    return Process(pid, int(fields[19]), fields[0].decode(), int(fields[1]), int(fields[2]))


def usage(counted: Iterable[Process]) -> tuple[float, int]:
    """Returns what these processes use: the CPU time in seconds, and the resident memory in bytes.

    The CPU time includes that of their children that have been reaped. Memory that several processes share counts for
    each of them.
    """
    ticks = pages = 0
    for process in counted:
        try:
            with open(f"/proc/{process.pid}/stat", "rb") as file:
                line = file.read()
        except (FileNotFoundError, ProcessLookupError):
            continue
        fields = line[line.rindex(b")") + 2 :].split()
        ticks += sum(map(int, fields[11:15]))
        pages += int(fields[21])
    return ticks / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE")


def is_namespace_init(pid: int) -> bool:
    """Returns whether the process is the first process of its own PID namespace."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            numbers = next((line.split()[1:] for line in file if line.startswith(b"NSpid:")), [])
    except (FileNotFoundError, ProcessLookupError):
        return False
    return len(numbers) > 1 and numbers[-1] == b"1"


def is_alive(pid: int, start: int) -> bool:
    """Returns whether the process with this pid and start time exists and is not a zombie."""
    process = look(pid)
    return process is not None and process.start == start and process.state not in "ZX"


def descendants(root: int) -> list[Process]:
    """Returns all descendants of the process with pid `root`, parents first. May miss a process that is forked during
    the call."""
    children: Callable[[int], list[int]] = _children
    # The file needs a kernel option that most kernels have.
    if not os.path.exists(f"/proc/{root}/task/{root}/children"):
        table = _child_table()
        children = lambda pid: table.get(pid, [])  # noqa: E731
    found: list[Process] = []
    todo = [root]
    seen = {root}
    while todo:
        for pid in children(todo.pop()):
            process = look(pid)
            if process is not None and pid not in seen:
                seen.add(pid)
                found.append(process)
                todo.append(pid)
    return found


def _children(pid: int) -> list[int]:
    pids: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                pids += map(int, file.read().split())
    except (FileNotFoundError, ProcessLookupError):
        return pids  # the process ended meanwhile, and the subreaper adopted its children
    return pids


def _child_table() -> dict[int, list[int]]:
    table: dict[int, list[int]] = {}
    for process in _all():
        table.setdefault(process.parent, []).append(process.pid)
    return table


def _all() -> list[Process]:
    found = (look(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return [process for process in found if process is not None]


def marked(marker: str, known: Iterable[tuple[int, int]] = ()) -> list[Process]:
    """Returns the living processes of a gang and all their descendants.

    A process belongs to the gang if its environment contains `marker`, a text that only this gang's processes have.
    Processes in `known`, given as pairs of pid and start time, also belong to the gang.
    """
    wanted = f"{MARKER}={marker}".encode()
    known = {(int(pid), int(start)) for pid, start in known}
    found: dict[int, Process] = {}
    for process in _all():
        if (process.pid, process.start) in known or wanted in _environment(process.pid):
            found[process.pid] = process
            found.update((below.pid, below) for below in descendants(process.pid))
    return [process for process in found.values() if process.state not in "ZX"]


def with_arguments(program: str, modes: Iterable[str], *arguments: str) -> list[Process]:
    """Returns this user's living processes that run `program` with one of `modes` as the first argument, followed by
    `arguments`."""
    wanted = {(mode, *arguments) for mode in modes}
    found = []
    for process in _all():
        try:
            line = Path(f"/proc/{process.pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            is_ours = os.stat(f"/proc/{process.pid}").st_uid == os.geteuid()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        at = next((i for i, word in enumerate(line) if os.path.basename(word) == program), None)
        is_wanted = at is not None and tuple(line[at + 1 : at + 2 + len(arguments)]) in wanted
        if is_ours and is_wanted and process.state not in "ZX":
            found.append(process)
    return found


def _environment(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []  # the process is gone, or belongs to another user and therefore to no job


def send(process: Process, number: signal.Signals) -> None:
    """Sends the signal `number` to the process if it still has this pid and this start time.

    Does nothing if the process has ended or belongs to another user.
    """
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        now = look(process.pid)
        if now is not None and now.start == process.start:
            signal.pidfd_send_signal(handle, number)
    except (ProcessLookupError, PermissionError):
        return  # the process is gone, or now runs as another user
    finally:
        os.close(handle)


def kill(processes: Iterable[Process]) -> None:
    """Sends SIGKILL to each process and to its whole process group, including children that it forks during the
    call."""
    processes = list(processes)
    for group in {process.group for process in processes} - {os.getpgrp(), 0, 1}:
        try:
            os.killpg(group, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue
    for process in processes:
        send(process, signal.SIGKILL)


def wait_for_end(waited: Iterable[Process], seconds: float) -> None:
    """Waits until all processes in `waited` have ended, but at most `seconds`. They need not be children of this
    process."""
    deadline = time.monotonic() + seconds
    for process in waited:
        try:
            handle = os.pidfd_open(process.pid)
        except ProcessLookupError:
            continue
        try:
            now = look(process.pid)
            if now is not None and now.start == process.start:
                select.select([handle], [], [], max(0.0, deadline - time.monotonic()))
        finally:
            os.close(handle)


def oom_kills() -> int:
    """Returns how many processes the kernel's out-of-memory killer has killed since boot; 0 if the kernel does not
    report it."""
    for line in Path("/proc/vmstat").read_text().splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return 0


def parent_of_this_process() -> int:
    """Returns the pid of this process's parent, as /proc shows it.

    os.getppid() is not used, because it returns 0 if the parent is in another PID namespace.
    """
    fields = Path("/proc/self/stat").read_bytes().rpartition(b") ")[2].split()
    return int(fields[1])


def own_identity() -> tuple[int, int]:
    """Returns the pid and the start time of this process."""
    process = look(os.getpid())
    if process is None:
        raise OSError("/proc does not show this process")
    return process.pid, process.start
