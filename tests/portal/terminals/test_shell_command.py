"""`fairlot shell` in a real terminal, at a real job."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path

import pytest

from portal.models import Scope
from portal.tokens.actions import create_token
from tests.portal.sessions.test_proxy import lab, port  # noqa: F401 - fixtures
from tests.portal.terminals.test_sockets import Desk, desk, job  # noqa: F401 - fixtures
from tests.waiting import wait_for

pytestmark = pytest.mark.django_db(transaction=True)
CLIENT = Path(__file__).resolve().parents[3] / "clients" / "python"


def test_the_command_passes_keys_sizes_and_the_exit_code(desk: Desk) -> None:  # noqa: F811
    _, token = create_token(actor=desk.lab.people.bob, name="cli", scopes=[Scope.WORK], days=1)
    environment = os.environ | {
        "FAIRLOT_URL": f"http://127.0.0.1:{desk.port}", "FAIRLOT_TOKEN": token, "PYTHONPATH": str(CLIENT),
    }  # fmt: skip
    pid, terminal = pty.fork()
    if pid == 0:
        command = [sys.executable, "-m", "fairlot_client", "shell", str(desk.job.pk)]
        os.execve(command[0], command, environment)  # noqa: S606
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 27, 91, 0, 0))
    os.set_blocking(terminal, False)
    shown = ""

    def shows(pattern: str) -> bool:
        nonlocal shown
        with suppress(OSError):
            shown += os.read(terminal, 65536).decode(errors="replace")
        return re.search(pattern, shown) is not None

    def wait_until_shown(pattern: str) -> None:
        wait_for(lambda: shows(pattern), what=lambda: f"{pattern!r}; shown: {shown!r}")

    wait_until_shown("Connecting to worker 0")
    wait_until_shown(r"[$#] ")
    os.write(terminal, b"stty size; sleep 600\r")
    wait_until_shown("27 91")
    os.write(terminal, b"\x03")  # for the job's program, and not for the command
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 22, 66, 0, 0))
    os.write(terminal, b"echo int''errupted; stty size\r")
    wait_until_shown("interrupted")
    os.write(terminal, b"stty size\r")
    wait_until_shown("22 66")
    os.write(terminal, b"exit 9\r")

    def ended() -> tuple[int, int] | None:
        shows("")  # so that the command is never blocked by what it prints
        found = os.waitpid(pid, os.WNOHANG)
        return found if found[0] else None

    _, status = wait_for(ended, what=lambda: f"its end; shown: {shown!r}")
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 9


def test_open_shells_are_listed_and_ended(desk: Desk) -> None:  # noqa: F811
    bob = desk.lab.people.bob
    line = desk.open(bob)
    key = line.key()
    _, token = create_token(actor=bob, name="cli", scopes=[Scope.WORK], days=1)
    environment = os.environ | {
        "FAIRLOT_URL": f"http://127.0.0.1:{desk.port}", "FAIRLOT_TOKEN": token, "PYTHONPATH": str(CLIENT),
    }  # fmt: skip

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "fairlot_client", "shell", str(desk.job.pk), *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    listed = run("--list")
    assert listed.returncode == 0, listed.stderr
    assert key in listed.stdout
    assert "in use" in listed.stdout
    unknown = run("--attach", "zz")
    assert unknown.returncode == 2
    assert "no open shell with such an id" in unknown.stderr
    ended = run("--end", key[:8])
    assert ended.returncode == 0, ended.stderr
    assert "Ended the shell of bob beside worker 0" in ended.stderr
    line.until_closed()
    assert key not in run("--list").stdout
