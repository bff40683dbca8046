"""The long-running programs of an embedded Fairlot. The supervisor restarts each program that ends."""

import http.client
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from embedded.display import Line
from embedded.environment import ROOT
from embedded.leftovers import service_mark
from embedded.processes import kill_group, spawn
from embedded.servers import Server

# shortest and longest delay before a restart, in seconds, for a service that ends repeatedly
FIRST_DELAY, LONGEST_DELAY = 0.5, 30.0
STEADY_AFTER = 20.0  # seconds after which a service counts as stable: its next restart is immediate again
# Celery's workers and beat print a banner once they have loaded the code, at every LOG_LEVEL; `ready_message` matches
# that banner.
CELERY = ("-m", "celery", "-A", "portal")


class Service:
    """Represents a program that should always run.

    Its state is waiting, starting, running, restarting, stopping or stopped.
    """

    stop_signal = signal.SIGTERM

    def __init__(self, name: str, patience: float) -> None:
        self.name = name
        self.patience = patience
        self.state = "waiting"
        self.process: subprocess.Popen[bytes] | None = None
        self.restart_at: float | None = None
        self._started_at = 0.0
        self._deaths_in_a_row = 0
        self._restarts = 0
        self._since = ""

    def start(self) -> None:
        """Starts the service; raises StartError if it cannot be started.

        Does not wait until the service is ready. Call `check` repeatedly to find out.
        """
        self._restarts += self._started_at > 0
        self.restart_at = None
        self._started_at = time.monotonic()
        self.process = self._launch()
        self.state = "starting"

    def check(self) -> bool:
        """Changes the state from starting to running if the service is ready. Returns whether this call changed the
        state."""
        if self.state != "starting" or not self._is_ready():
            return False
        self.state = "running"
        self._since = time.strftime("%H:%M:%S")
        return True

    def notices(self) -> list[str]:
        """Returns messages from the service for the user, to be shown once the service is running."""
        return []

    def note_death(self) -> str:
        """Records that the process has ended, kills its remaining child processes, and schedules a restart.

        Returns a message for the user; an empty string if the service has no process.
        """
        if self.process is None:
            return ""
        code = self.process.wait()
        kill_group(self.process.pid)  # kills children that the process left behind
        self.process = None
        ending = (
            f"{self.name} was killed by {signal.Signals(-code).name}"
            if code < 0
            else f"{self.name} exited with code {code}"
        )
        delay = self.plan_restart()
        restart = "restarting now" if delay == 0 else f"restarting in {delay:g} s"
        return f"{ending}; {restart}. {self._last_line()}".rstrip()

    def plan_restart(self) -> float:
        """Schedules a restart and returns the delay in seconds.

        The first restart has no delay. If the service ends again soon, the delay doubles each time, up to
        LONGEST_DELAY. After a longer run, the next restart has no delay again.
        """
        if time.monotonic() - self._started_at > STEADY_AFTER:
            self._deaths_in_a_row = 0
        doubled = FIRST_DELAY * 2.0 ** (self._deaths_in_a_row - 1)
        delay = 0.0 if self._deaths_in_a_row == 0 else min(doubled, LONGEST_DELAY)
        self._deaths_in_a_row += 1
        self.state = "restarting"
        self.restart_at = time.monotonic() + delay
        return delay

    def line(self) -> Line:
        facts = []
        if self.process is not None:
            facts.append(f"pid {self.process.pid}")
        if self.state == "running":
            facts.append(f"since {self._since}")
        if self._restarts:
            facts.append(f"restarted {self._restarts}×")
        return Line(self.name, self.state, "  ".join([*facts, *self._facts()]))

    def _launch(self) -> subprocess.Popen[bytes]:
        raise NotImplementedError

    def _is_ready(self) -> bool:
        return True

    def _facts(self) -> list[str]:
        return []

    def _last_line(self) -> str:
        return ""


class ServerService(Service):
    """Represents PostgreSQL or Valkey as a service of the supervisor."""

    def __init__(self, server: Server) -> None:
        super().__init__(server.name, patience=15)
        self.server = server
        self.stop_signal = server.stop_signal

    def _launch(self) -> subprocess.Popen[bytes]:
        self.server.start()
        if self.server.process is None:
            raise RuntimeError(f"the server {self.name} was started, but its process does not exist")
        return self.server.process

    def _facts(self) -> list[str]:
        return [f"127.0.0.1:{self.server.port}"] if self.process is not None else []


class Program(Service):
    """Represents a Python program of the portal, which runs in the root of the repository.

    The program is ready once its log contains `ready_message`.
    """

    def __init__(
        self,
        name: str,
        arguments: list[str],
        *,
        log: Path,
        environment: Mapping[str, str],
        patience: float,
        ready_message: bytes = b"",
        at_our_death: str = "TERM",
    ) -> None:
        super().__init__(name, patience)
        self.arguments = arguments
        self.log = log
        self.environment = {**environment, **service_mark(name), "PYTHONUNBUFFERED": "1"}
        self.ready_message = ready_message
        self.at_our_death = at_our_death
        self._log_offset = 0

    def _launch(self) -> subprocess.Popen[bytes]:
        self._log_offset = self.log.stat().st_size if self.log.exists() else 0
        return spawn(
            [sys.executable, *self.arguments],
            log=self.log,
            env=self.environment,
            cwd=ROOT,
            at_our_death=self.at_our_death,
        )

    def _is_ready(self) -> bool:
        return self.ready_message in self._output()

    def _facts(self) -> list[str]:
        return [str(self.log)]

    def _output(self) -> bytes:
        with self.log.open("rb") as log:
            log.seek(self._log_offset)
            return log.read(1_000_000)

    def notices(self) -> list[str]:
        """Returns the lines of the program's output that begin with "NAME: ", without this prefix.

        Leaves out the line "NAME: ready". NAME is the name of the program.
        """
        prefix = f"{self.name}: "
        lines = [
            line for line in self._output().decode(errors="replace").splitlines() if line.startswith(prefix)
        ]
        return [line.removeprefix(prefix) for line in lines if line != f"{prefix}ready"]

    def _last_line(self) -> str:
        lines = self._output().decode(errors="replace").strip().splitlines()
        return f"Last line of the log of {self.name}: {lines[-1].strip()[:200]}" if lines else ""


class Web(Program):
    """Represents the web server. It is ready when its page /healthz answers with HTTP status 200."""

    def __init__(self, host: str, port: int, *, log: Path, environment: Mapping[str, str]) -> None:
        arguments = ["-m", "granian", "--interface", "asginl", "--host", host, "--port", str(port)]
        # The web server has timeouts for headers and for idle connections only with HTTP/1.
        arguments += ["--http", "1", "--http1-header-read-timeout", "15000"]
        # Limits the connections, including event streams, that may be open at once.
        arguments += ["--backlog", "2048", "--backpressure", "2048"]
        # Without this timeout, open event streams would keep the web server from ever stopping.
        arguments += ["--workers", "2", "--workers-kill-timeout", "3", "portal.asgi:application"]
        super().__init__("web", arguments, log=log, environment=environment, patience=10)
        self.host, self.port = host, port
        # the portal answers only requests with a host name that it knows
        self.public_host = urlsplit(environment["PUBLIC_URL"]).netloc

    def _is_ready(self) -> bool:
        link = http.client.HTTPConnection(self.host, self.port, timeout=0.5)
        try:
            link.request("GET", "/healthz", headers={"Host": self.public_host})
            return link.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            link.close()

    def _facts(self) -> list[str]:
        return [f"{self.host}:{self.port}", *super()._facts()]


def worker(name: str, queues: str, logs: Path, environment: Mapping[str, str]) -> Program:
    """Returns a Celery worker with the name `name` and two processes.

    `queues`: the names of its queues, joined by commas.
    """
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    options = ["--queues", queues, "--concurrency", "2", "--hostname", f"{name}@%h", "--loglevel", "INFO"]
    return Program(
        name,
        [*CELERY, "worker", *options, *quiet],
        log=logs / f"{name}.log",
        environment=environment,
        patience=15,
        ready_message=b"[tasks]",
        at_our_death="QUIT",  # after SIGTERM it would wait for its tasks, and no supervisor would be left to kill it
    )


def portal_programs(host: str, port: int, logs: Path, environment: Mapping[str, str]) -> list[Program]:
    """Returns the web server, two Celery workers, Celery beat and `manage.py watch`, in the order in which they are
    started."""
    return [
        Web(host, port, log=logs / "web.log", environment=environment),
        worker("worker", "rounds,operations", logs, environment),
        worker("background", "books,mail,analysis", logs, environment),
        Program(
            "beat",
            [*CELERY, "beat", "--pidfile=", "--loglevel", "INFO"],
            log=logs / "beat.log",
            environment=environment,
            patience=5,
            ready_message=b"celery beat v",
        ),
        Program(
            "watch",
            [str(ROOT / "manage.py"), "watch"],
            log=logs / "watch.log",
            environment=environment,
            patience=10,
            ready_message=b"watch: ready",
        ),
    ]
