"""A whole portal in a temporary folder, started by `python -m embedded up` as users start it."""

from __future__ import annotations

import fcntl
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from embedded.environment import Home, code_fingerprint
from tests.waiting import PATIENCE, wait_for

ROOT = Path(__file__).resolve().parents[2]
# An environment variable with the folder of a test run. The process that starts the run sets it, and deletes the folder
# at the end.
FOLDER = "FAIRLOT_TEST_FOLDER"
# Variables that the tests set for their own Django, and that must not reach the portal under test.
OWN = (
    "DATABASE_URL",
    "REDIS_URL",
    "SECRET_KEY",
    "FAIRLOT_SEALING_KEYS",
    "FAIRLOT_SIGNING_KEYS",
    "FAIRLOT_JOBS_DIR",
    "FAIRLOT_LOCAL_TRUSTS_ALL",
    "DJANGO_SETTINGS_MODULE",
)


@dataclass
class RunningPortal:
    """A running portal. `start` waits until every service is running, and `stop` waits until the supervisor has
    ended."""

    var: Path
    port: int = 0  # 0: `start` chooses a free port
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[str] | None = None
    lines: list[str] = field(default_factory=list)

    def prepare(self) -> None:
        """Migrates the database and loads the demo, as the first `make up` does before it starts the portal's programs.
        Does nothing if the data folder is already prepared."""
        home, code = Home(self.var), code_fingerprint()
        if home.is_prepared(code):
            return
        command = [*RUN, sys.executable, "-m", "embedded.prepare", "--demo", str(home.demo_passwords)]
        subprocess.run(command, cwd=ROOT, env=self._env(), check=True)
        home.note_prepared(code_fingerprint())  # it has changed if the static files were collected first now

    def start(self) -> RunningPortal:
        self.lines.clear()
        self.port = self.port or free_port()
        self.process = subprocess.Popen(
            # If the tests are killed, the kernel sends SIGTERM to the supervisor, which then stops its services in
            # order.
            ["setpriv", "--pdeathsig", "TERM", sys.executable, "-m", "embedded", "up"],
            cwd=ROOT,
            env=self._env(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        threading.Thread(target=self._read, args=(self.process,), daemon=True).start()
        wait_for(self._serves, what=lambda: "the portal serves:\n" + "\n".join(self.lines))
        return self

    def stop(self) -> None:
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(PATIENCE)

    def kill(self, name: str) -> list[int]:
        """Sends SIGKILL to every process of a service, which acts like a crash; returns the pids."""
        pids = self.service_pids(name)
        assert pids, f"{name} does not run"
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        return pids

    @property
    def url(self) -> str:
        return next(m[1] for line in self.lines if (m := re.search(r"Fairlot: (http\S+)", line)))

    @property
    def passwords(self) -> dict[str, str]:
        """Returns the first passwords of the demo's users, by user name."""
        text = (self.var / "secrets" / "demo-passwords").read_text()
        return dict(
            line.split()[:2] for line in text.splitlines() if line.strip() and not line.startswith("#")
        )

    def scenario(self, name: str, **arguments: Any) -> Any:
        """Runs a scenario of tests/proof/scenarios.py in a separate process, with the portal's settings; returns its
        result.

        Raises AssertionError with the scenario's output if the scenario fails.
        """
        done = subprocess.run(
            [*RUN, sys.executable, "-m", "tests.proof", name, json.dumps(arguments)],
            cwd=ROOT,
            env=self._env(),
            capture_output=True,
            text=True,
            timeout=3 * PATIENCE,
            check=False,
        )
        if done.returncode:
            raise AssertionError(f"{name} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
        return json.loads(done.stdout.strip().splitlines()[-1])

    def service_pids(self, name: str) -> list[int]:
        """Returns the pids of one service's processes, which the supervisor marks by environment variables."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                environ = (entry / "environ").read_bytes().split(b"\0")
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            if (
                f"FAIRLOT_SERVICE={name}".encode() in environ
                and f"FAIRLOT_VAR={self.var}".encode() in environ
            ):
                found.append(int(entry.name))
        return found

    def _serves(self) -> bool:
        if self.process and self.process.poll() is not None:
            raise AssertionError("the portal did not start:\n" + "\n".join(self.lines))
        text = "\n".join(self.lines)
        return all(re.search(rf"^{name} +running", text, re.MULTILINE) for name in SERVICES)

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout
        with process.stdout as output:
            self.lines.extend(line.rstrip("\n") for line in output)

    def _env(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name not in OWN}
        return kept | {"FAIRLOT_VAR": str(self.var), "PORT": str(self.port)} | self.environment


@contextmanager
def running_portal() -> Iterator[RunningPortal]:
    """Starts a portal in a new folder, yields it, stops it, and deletes the folder."""
    folder = Path(tempfile.mkdtemp(prefix="fairlot-portal-", dir="/var/tmp"))
    folder.chmod(0o755)  # PostgreSQL's unprivileged user must be able to enter the folder
    portal = RunningPortal(folder)
    try:
        if run := os.environ.get(FOLDER):
            copy_prepared(Path(run) / "prepared-portal", folder)
        yield portal.start()
    finally:
        portal.stop()
        shutil.rmtree(folder, ignore_errors=True)


def copy_prepared(source: Path, var: Path) -> None:
    """Copies a prepared data folder to `var`, an empty folder. The first call of a test run prepares the folder
    `source`, so that only one portal migrates and loads the demo."""
    with source.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        RunningPortal(source).prepare()
    # cp keeps the owners: the database belongs to PostgreSQL's unprivileged user
    subprocess.run(["cp", "-a", f"{source}/.", str(var)], check=True)
    for port in var.glob("*/port"):
        port.unlink()  # portals that run at the same time must not share the ports of their servers


RUN = (sys.executable, "-m", "embedded", "run", "--")
SERVICES = ("web", "worker", "background", "beat", "watch")


def free_port() -> int:
    """Returns a free port from 20 000 to 29 999.

    The kernel chooses the ports of outgoing connections outside this range. So no connection takes the port while the
    portal restarts.
    """
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port
