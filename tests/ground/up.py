"""Runs `make up` as a user does: the real command and the real services, in a folder of the caller."""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import psycopg2

from embedded.environment import Home
from embedded.leftovers import marked_processes
from embedded.processes import working_in
from embedded.servers import Postgres
from tests.ground.settings_read import ROOT, settings_names
from tests.waiting import PATIENCE, wait_for

SERVICES = ("postgres", "valkey", "web", "worker", "background", "beat", "watch")


class Up:
    """A running `python -m embedded up`, whose output goes to a file."""

    def __init__(self, var: Path) -> None:
        self.var = var
        self.home = Home(var.resolve())
        self.output = var / "output"
        with self.output.open("ab") as sink:
            self.offset = sink.tell()
            self.process = subprocess.Popen(
                [sys.executable, "-m", "embedded", "up"],
                env=environment(var), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink,
            )  # fmt: skip

    def said(self) -> str:
        return self.output.read_bytes()[self.offset :].decode()

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Waits until the regular expression `pattern` matches the output; returns the first match.

        Fails if the process ends without a match.
        """

        def found() -> re.Match[str] | None:
            said = self.said()
            match = re.search(pattern, said, re.MULTILINE)
            assert match or self.process.poll() is None, said
            return match

        match = wait_for(found, what=lambda: f"{pattern} in:\n{self.said()}")
        assert match is not None
        return match

    def wait_until_running(self) -> None:
        for name in SERVICES:
            self.wait_for(rf"^{name} +running")

    def pid(self, name: str) -> int:
        """Returns the pid of the service `name` from its last status line."""
        return int(re.findall(rf"^{name} +\w+ +pid (\d+)", self.said(), re.MULTILINE)[-1])

    def get(self, path: str) -> int:
        """Returns the HTTP status of the answer to GET `path`."""
        url = urlsplit(self.wait_for(r"^Fairlot: (\S+)")[1])
        assert url.hostname is not None
        link = http.client.HTTPConnection(url.hostname, url.port, timeout=PATIENCE)
        try:
            link.request("GET", path)
            return link.getresponse().status
        finally:
            link.close()

    def left(self) -> dict[int, str]:
        """Returns {pid: command line} of the services and servers that still run in this folder, without the jobs."""
        data = [self.home.var / name / "data" for name in ("postgres", "valkey")]
        pids = [*marked_processes(self.home), *(pid for folder in data for pid in working_in(folder))]
        return {pid: command for pid in pids if (command := command_line(pid))}

    def jobs(self) -> dict[int, str]:
        """Returns the command lines of the processes that run or supervise a job of this folder, by pid."""
        found = ((int(entry.name), command_line(entry.name)) for entry in Path("/proc").glob("[0-9]*"))
        return {pid: command for pid, command in found if f"{self.home.var}/jobs/" in command}

    def kill(self, *names: str) -> None:
        """Sends SIGKILL to the services `names`, and waits until each service runs again under another pid."""
        pids = {name: self.pid(name) for name in names}
        for pid in pids.values():
            os.kill(pid, signal.SIGKILL)
        for name in names:
            self.wait_for(rf"{name} was killed by SIGKILL")
        for name, pid in pids.items():
            self.wait_for(rf"^{name} +running +pid (?!{pid}\b)\d+ +since \S+ +restarted \d×")

    def stop(self, number: int = signal.SIGINT) -> int:
        """Sends the signal `number`, waits for the end, and returns the exit status."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)


def command_line(pid: int | str) -> str:
    """Returns the command line of the process, with spaces between the arguments; "" if the process has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
    except OSError:
        return ""


def environment(var: Path) -> dict[str, str]:
    """Returns the environment variables for a `make up` in the folder `var`.

    Removes the variables that Fairlot's settings read, so that the caller's environment does not affect the test.
    """
    ours = {name: value for name, value in os.environ.items() if name not in settings_names()}
    return {**ours, "FAIRLOT_VAR": str(var)}


def wait_until_gone(left: Callable[[], dict[int, str]]) -> None:
    wait_for(lambda: not left(), what=lambda: f"still there: {left()}")


def accounts(var: Path) -> list[tuple[str, str]]:
    """Returns (user name, password hash) of every account."""
    connection = psycopg2.connect(Postgres(var).url)
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT username, password FROM accounting_user ORDER BY username")
            return list(cursor.fetchall())
    finally:
        connection.close()
