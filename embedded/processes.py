"""Starts and stops processes so that no child process outlives this process, even if this process is killed."""

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

# PostgreSQL refuses to run as root. Every Unix has this account, so Fairlot need not create an account.
UNPRIVILEGED = "nobody"


class StartError(RuntimeError):
    """Raised when a process cannot be started or fails. The message names the process and the reason."""


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
    """Starts `argv` in a new session, so that Ctrl-C in the terminal does not reach the new process.

    Appends the output of the process to the file `log`. When the calling *thread* ends, even by SIGKILL, the kernel
    sends the signal `at_our_death` to the process. So call this function from the main thread.

    `wrapper`: additional options for the program `setpriv`, which starts `argv`. The returned pid is that of `argv`.
    """
    # This process may die before setpriv has asked the kernel for the signal. The child then has another parent, and
    # must not start the program.
    unless_orphaned = ["sh", "-c", '[ "$PPID" = "$0" ] && exec "$@"', str(os.getpid())]
    setpriv = [_program("setpriv"), *wrapper, "--pdeathsig", at_our_death, *unless_orphaned]
    with log.open("ab") as sink:
        # setpriv and sh replace themselves by exec, so this is the pid of `argv`.
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
    """Runs `argv` and waits for it to end. Raises StartError with the output of `argv` if the exit status is not 0.

    `wrapper`: additional options for `setpriv`, the program that starts `argv`. `stdin`: the text that `argv` reads
    from its standard input.
    """
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
        raise StartError(f"the command {argv[0]} failed:\n{(done.stderr or done.stdout).strip()}")


def stop(process: subprocess.Popen[bytes], how: signal.Signals, patience: float) -> bool:
    """Sends the signal `how` to the process, and waits up to `patience` seconds for it to end.

    Then kills its process group, which may contain child processes that are still running. Returns whether the process
    ended before it was killed.
    """
    if process.poll() is None:
        process.send_signal(how)
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            kill_group(process.pid)
            process.wait()
            return False
    kill_group(process.pid)  # kills children that the process left behind
    return True


def kill_group(pgid: int) -> None:
    """Sends SIGKILL to every process of the process group `pgid`. Does nothing if the group does not exist."""
    try:
        os.killpg(pgid, signal.SIGKILL)
    except ProcessLookupError:
        return


@functools.cache
def drop_root_options(*must_reach: Path) -> tuple[str, ...]:
    """Returns the `setpriv` options with which root starts a child process as the unprivileged user `nobody`.

    `must_reach`: folders that the child must be able to enter and read. The result is the first of these that applies:

    - If this process does not run as root: (), no options.
    - If `nobody` can read the folders: options without any special capability.
    - Otherwise (for example, in a checkout below /root): options that keep the capability to bypass file permissions.
      This is acceptable, because the portal itself runs as root in that case.

    Raises StartError if the child cannot read the folders even with this capability.
    """
    if os.geteuid() != 0:
        return ()
    account = pwd.getpwnam(UNPRIVILEGED)
    plain = (f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups")
    # initdb checks the files of PostgreSQL with access(2), which heeds the capability only with this secure bit.
    capable = (
        *plain, "--inh-caps=+dac_override", "--ambient-caps=+dac_override", "--securebits=+no_setuid_fixup"
    )  # fmt: skip
    probe = "import os, sys; sys.exit(not all(os.access(path, os.R_OK | os.X_OK) for path in sys.argv[1:]))"
    for options in (plain, capable):
        argv = [_program("setpriv"), *options, sys.executable, "-I", "-c", probe, *map(str, must_reach)]
        if subprocess.run(argv, cwd="/", capture_output=True, check=False).returncode == 0:
            return options
    folders = " and ".join(map(str, must_reach))
    raise StartError(
        f"PostgreSQL and Valkey run as the user {UNPRIVILEGED!r} instead of root, but this user cannot read at least "
        f"one of the folders {folders}. Start Fairlot as another user than root, or make these folders readable"
    )


def give_to_unprivileged(path: Path) -> None:
    """Makes the user nobody the owner of `path` if this process runs as root."""
    if os.geteuid() == 0:
        account = pwd.getpwnam(UNPRIVILEGED)
        os.chown(path, account.pw_uid, account.pw_gid)


def working_in(folder: Path) -> Iterator[int]:
    """Yields the pids of the processes whose working folder is `folder`. Ignores zombies."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state = (entry / "stat").read_text().rpartition(") ")[2][:1]
            if state not in "ZX" and Path(os.readlink(entry / "cwd")) == folder:
                yield int(entry.name)
        except OSError:
            continue  # the process ended meanwhile, or belongs to another user


def wait_until_left(folder: Path, patience: float) -> None:
    """Waits until no process has `folder` as its working folder.

    Kills the processes that remain after `patience` seconds. The wait is needed because the servers of a killed
    supervisor take a moment to end.
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
        raise StartError(f"the program {name} is missing: install the system package util-linux")
    return found
