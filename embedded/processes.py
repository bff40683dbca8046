"""Starts and stops processes so that none outlives this one, however it ends."""

import functools
import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

# PostgreSQL refuses to run as root. Every Unix has this account, so none has to be created.
UNPRIVILEGED = "nobody"


class StartError(RuntimeError):
    """A process could not be started. The message says which one and why."""


def spawn(
    argv: Sequence[str | Path],
    *,
    log: Path,
    env: Mapping[str, str] | None = None,
    cwd: Path = Path("/"),
    at_our_death: str = "KILL",
    wrapper: Sequence[str] = (),
    stdin: int | IO[bytes] = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """Starts `argv` in its own session, so that a terminal's Ctrl-C does not reach it. Writes its output to `log`.

    The kernel sends it `at_our_death` when the calling *thread* ends, even by SIGKILL; so call this from the main
    thread. Every wrapper uses exec, so the pid is the program's.
    """
    # This process may have died before the kernel was asked. The child then has another parent and must not start.
    unless_orphaned = ["sh", "-c", '[ "$PPID" = "$0" ] && exec "$@"', str(os.getpid())]
    setpriv = [_program("setpriv"), *wrapper, "--pdeathsig", at_our_death, *unless_orphaned]
    with log.open("ab") as sink:
        return subprocess.Popen(
            [*setpriv, *map(str, argv)],
            stdin=stdin,
            stdout=sink,
            stderr=sink,
            cwd=cwd,
            env=env,
            start_new_session=True,
        )


def run(
    argv: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    wrapper: Sequence[str] = (),
    stdin: str = "",
) -> None:
    """Runs `argv` until it ends. Raises StartError with its output when it fails."""
    done = subprocess.run(
        [_program("setpriv"), *wrapper, "--pdeathsig", "KILL", *map(str, argv)],
        input=stdin,
        capture_output=True,
        text=True,
        cwd="/",
        env=env,
        check=False,
        start_new_session=True,
    )
    if done.returncode:
        raise StartError(f"{argv[0]} failed:\n{(done.stderr or done.stdout).strip()}")


def stop(process: subprocess.Popen[bytes], how: signal.Signals, patience: float) -> bool:
    """Sends `how`, waits `patience` seconds, then kills the whole group. Returns whether the signal was enough."""
    if process.poll() is None:
        process.send_signal(how)
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            kill_group(process.pid)
            process.wait()
            return False
    kill_group(process.pid)  # ends processes that it left behind
    return True


def kill_group(pgid: int) -> None:
    """Sends SIGKILL to every process of the group, if there is one."""
    try:
        os.killpg(pgid, signal.SIGKILL)
    except ProcessLookupError:
        return


@functools.cache
def shedding_root(*must_reach: Path) -> tuple[str, ...]:
    """Returns the `setpriv` options with which a child of root runs as nobody and can still reach the folders.

    Empty when this process is not root. Below a folder that only root may enter (a checkout in /root) the
    child keeps the capability to bypass permissions; the portal itself runs as root there anyway.
    Raises StartError when the host permits neither.
    """
    if os.geteuid() != 0:
        return ()
    account = pwd.getpwnam(UNPRIVILEGED)
    plain = (f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups")
    # initdb checks its own programs with access(2), which heeds the capability only with this secure bit.
    capable = (
        *plain, "--inh-caps=+dac_override", "--ambient-caps=+dac_override", "--securebits=+no_setuid_fixup"
    )  # fmt: skip
    probe = "import os, sys; sys.exit(not all(os.access(path, os.R_OK | os.X_OK) for path in sys.argv[1:]))"
    for options in (plain, capable):
        argv = [_program("setpriv"), *options, sys.executable, "-I", "-c", probe, *map(str, must_reach)]
        if subprocess.run(argv, cwd="/", capture_output=True, check=False).returncode == 0:
            return options
    raise StartError(
        f"PostgreSQL refuses to run as root, and the user {UNPRIVILEGED!r} may not enter "
        f"{' or '.join(map(str, must_reach))}: run as another user, or from a folder that all users may enter"
    )


def give_to_unprivileged(path: Path) -> None:
    """Changes the owner of `path` to nobody if this process is root."""
    if os.geteuid() == 0:
        account = pwd.getpwnam(UNPRIVILEGED)
        os.chown(path, account.pw_uid, account.pw_gid)


def working_in(folder: Path) -> Iterator[int]:
    """Yields the pids of living processes (no zombies) whose working folder is `folder`."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state = (entry / "stat").read_text().rpartition(") ")[2][:1]
            if state not in "ZX" and Path(os.readlink(entry / "cwd")) == folder:
                yield int(entry.name)
        except OSError:
            continue  # it ended meanwhile, or belongs to another user


def wait_until_left(folder: Path, patience: float) -> None:
    """Waits until no process works in `folder`, because servers of a killed supervisor take a moment to end.

    Kills what is still there after `patience` seconds.
    """
    deadline = time.monotonic() + patience
    while pids := list(working_in(folder)):
        if time.monotonic() > deadline:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            deadline += 5
        time.sleep(0.02)


def _program(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin")
    if found is None:
        raise StartError(f"{name} is missing: install the package util-linux")
    return found
