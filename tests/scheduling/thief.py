"""A job that tries whatever it must not be able to do, and prints what worked.

It runs alone inside jobs and imports nothing of Fairlot. TARGETS lists in JSON what to try: rows of the table in
docs/local-jobs.md, each with a kind of attempt and a target.
"""

import ctypes
import json
import os
import socket
import sys

CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MNT_DETACH = 2
PTRACE_SEIZE, PTRACE_DETACH = 0x4206, 17
libc = ctypes.CDLL(None, use_errno=True)


def read(path):
    """Returns whether the file or folder can be read and has content."""
    if os.path.isdir(path):
        return any(os.scandir(path))
    with open(path, "rb") as file:
        return file.read(64) != b""


def write(path):
    """Returns whether the file can be written, or a file created in the folder."""
    if os.path.isdir(path):
        os.close(os.open(os.path.join(path, "planted"), os.O_CREAT | os.O_WRONLY, 0o600))
        return True
    if not os.path.exists(path):  # a hidden file could be recreated under its own name
        return False
    os.close(os.open(path, os.O_WRONLY | os.O_APPEND))
    return True


def read_or_write(path):
    return attempt(read, path) or attempt(write, path)


def see(pid):
    return os.path.exists(f"/proc/{pid}")


def read_environment(mark):
    """Returns whether any process shows an environment that contains the mark."""
    wanted = mark.encode()
    return any(attempt(_has, pid, wanted) for pid in os.listdir("/proc") if pid.isdigit())


def _has(pid, wanted):
    with open(f"/proc/{pid}/environ", "rb") as file:
        return int(pid) != os.getpid() and wanted in file.read()


def signal(pid):
    os.kill(pid, 0)
    return True


def trace(pid):
    if libc.ptrace(PTRACE_SEIZE, pid, None, None) != 0:
        return False
    libc.ptrace(PTRACE_DETACH, pid, None, None)
    return True


def connect(port):
    socket.create_connection(("127.0.0.1", port), 5).close()
    return True


def connect_abstract(name):
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(f"\0{name}")
    return True


def regain(path):
    """Returns whether it can become root, or uncover the path by its own namespaces."""
    if os.getuid() != 0 and (attempt(os.setuid, 0) is not False or attempt(os.setgroups, [0]) is not False):
        return True
    with open("/proc/self/status") as file:
        if any(line.startswith(("CapEff", "CapPrm", "CapAmb")) and int(line.split()[1], 16) for line in file):
            return True
    if attempt(read, path):  # nothing hides it
        return False
    child = os.fork()
    if child == 0:
        uncovered = libc.unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0 and _uncover(path)
        os._exit(int(uncovered))
    return os.waitpid(child, 0)[1] != 0


def _uncover(path):
    with open("/proc/self/mountinfo") as file:
        places = [line.split()[4] for line in file]
    for place in reversed(places):
        if place != "/":
            libc.umount2(place.encode(), MNT_DETACH)
    return attempt(read, path)


def attempt(how, *arguments):
    """Returns the result of an attempt; False when it is refused."""
    try:
        return how(*arguments)
    except OSError:
        return False


KINDS = {
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


def main():
    """Prints one line: for each row, whether an attempt worked, and which."""
    found = {}
    worked = []
    for row, kind, target in json.loads(os.environ["TARGETS"]):
        success = bool(attempt(KINDS[kind], target))
        found[row] = found.get(row, False) or success
        if success:
            worked.append(f"{kind} {target}")
    sys.stdout.write(f"FOUND {json.dumps({'rows': found, 'worked': worked})}\n")


if __name__ == "__main__":
    sys.exit(main())
