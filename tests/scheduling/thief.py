"""A job that tries everything that a job must not be able to do, and prints which attempts worked.

This program runs inside jobs and imports nothing of Fairlot. The environment variable TARGETS contains the attempts
as a JSON list of [row, kind, target]; a row is a line of the table in docs/local-jobs.md.
"""

import ctypes
import json
import os
import socket
import sys
from collections.abc import Callable
from typing import Any

CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MNT_DETACH = 2
PTRACE_SEIZE, PTRACE_DETACH = 0x4206, 17
libc = ctypes.CDLL(None, use_errno=True)


def read(path: str) -> bool:
    """Returns whether the file or folder has content. Raises OSError if it cannot be read."""
    if os.path.isdir(path):
        return any(os.scandir(path))
    with open(path, "rb") as file:
        return file.read(64) != b""


def write(path: str) -> bool:
    """Returns whether the file can be written, or, if `path` is a folder, whether a file can be created in it.

    Returns False if `path` does not exist. Raises OSError if writing fails.
    """
    if os.path.isdir(path):
        os.close(os.open(os.path.join(path, "planted"), os.O_CREAT | os.O_WRONLY, 0o600))
        return True
    if not os.path.exists(path):  # creating a new file would not reach a hidden one
        return False
    os.close(os.open(path, os.O_WRONLY | os.O_APPEND))
    return True


def read_or_write(path: str) -> bool:
    return bool(attempt(read, path) or attempt(write, path))


def see(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def read_environment(mark: str) -> bool:
    """Returns whether this process can read the text `mark` in the environment of any other process."""
    wanted = mark.encode()
    return any(attempt(_has, pid, wanted) for pid in os.listdir("/proc") if pid.isdigit())


def _has(pid: str, wanted: bytes) -> bool:
    with open(f"/proc/{pid}/environ", "rb") as file:
        return int(pid) != os.getpid() and wanted in file.read()


def signal(pid: int) -> bool:
    os.kill(pid, 0)
    return True


def trace(pid: int) -> bool:
    if libc.ptrace(PTRACE_SEIZE, pid, None, None) != 0:
        return False
    libc.ptrace(PTRACE_DETACH, pid, None, None)
    return True


def connect(port: int) -> bool:
    socket.create_connection(("127.0.0.1", port), 5).close()
    return True


def connect_abstract(name: str) -> bool:
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(f"\0{name}")
    return True


def regain(path: str) -> bool:
    """Returns whether this process can get back rights that a job must not have.

    It tries to become root, looks for capabilities, and tries to uncover the hidden path `path` by unmounting what
    hides it, in new user and mount namespaces.
    """
    if os.getuid() != 0 and (attempt(os.setuid, 0) is not False or attempt(os.setgroups, [0]) is not False):
        return True
    with open("/proc/self/status") as file:
        if any(line.startswith(("CapEff", "CapPrm", "CapAmb")) and int(line.split()[1], 16) for line in file):
            return True
    if attempt(read, path):  # the path is not hidden, so it cannot be uncovered
        return False
    child = os.fork()
    if child == 0:
        uncovered = libc.unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0 and _uncover(path)
        os._exit(int(uncovered))
    return os.waitpid(child, 0)[1] != 0


def _uncover(path: str) -> bool:
    with open("/proc/self/mountinfo") as file:
        places = [line.split()[4] for line in file]
    for place in reversed(places):
        if place != "/":
            libc.umount2(place.encode(), MNT_DETACH)
    return bool(attempt(read, path))


def attempt(how: Callable[..., Any], *arguments: Any) -> Any:
    """Calls `how` and returns its result; False if it raises OSError."""
    try:
        return how(*arguments)
    except OSError:
        return False


KINDS: dict[str, Callable[[Any], bool]] = {
    "read": read,
    "write": write,
    "read_or_write": read_or_write,
    "see": see,
    "read_environment": read_environment,
    "signal": signal,
    "trace": trace,
    "connect": connect,
    "connect_abstract": connect_abstract,
    "regain": regain,
}


def main() -> None:
    """Makes all attempts, and prints one line: FOUND and a JSON object.

    The object's `rows` says for each row whether an attempt worked, and `worked` lists the attempts that worked.
    """
    found: dict[str, bool] = {}
    worked: list[str] = []
    for row, kind, target in json.loads(os.environ["TARGETS"]):
        success = bool(attempt(KINDS[kind], target))
        found[row] = found.get(row, False) or success
        if success:
            worked.append(f"{kind} {target}")
    sys.stdout.write(f"FOUND {json.dumps({'rows': found, 'worked': worked})}\n")


if __name__ == "__main__":
    main()
