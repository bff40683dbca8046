"""Runs a program of the control plane as a process that tests can start, stop, kill, freeze and restart."""

from __future__ import annotations

import random
import signal
import socket
import ssl
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from embedded.processes import spawn, stop
from tests.cluster.binaries import program
from tests.waiting import PATIENCE, wait_for

Flags = Mapping[str, str | int | bool | Path]
given_out: set[int] = set()


@dataclass
class Component:
    """A process of the test cluster, such as the API server. `start` returns once the process serves requests.

    The process is killed when the process that started it ends.
    """

    name: str
    folder: Path
    flags: dict[str, str | int | bool | Path]
    ready: Callable[[], bool]
    wrapper: tuple[str, ...] = ()  # command that executes the program, such as nsenter
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        assert not self.running, f"{self.name} runs already"
        argv = [*self.wrapper, program(self.name), *as_arguments(self.flags)]
        self.process = spawn([str(word) for word in argv], log=self.log, cwd=self.folder)
        wait_for(self._serves, what=lambda: f"{self.name} serves:\n{self.last_lines()}")

    def stop(self, patience: float = PATIENCE) -> None:
        """Sends SIGTERM, as a rolling update does. Sends SIGKILL if the process has not ended after `patience`
        seconds."""
        if self.process:
            self.thaw()
            stop(self.process, signal.SIGTERM, patience)

    def kill(self) -> None:
        """Sends SIGKILL, which simulates a crash or a power failure. Returns once the process has ended."""
        assert self.process
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        self.stop()
        self.start()

    def freeze(self) -> None:
        """Sends SIGSTOP. Connections stay open but get no answers, as in a network failure."""
        assert self.process
        self.process.send_signal(signal.SIGSTOP)
        threads = Path(f"/proc/{self.process.pid}/task")
        # On a busy machine some threads continue for a while.
        wait_for(lambda: all(map(is_stopped, threads.iterdir())), what=f"{self.name} is frozen")

    def thaw(self) -> None:
        assert self.process
        self.process.send_signal(signal.SIGCONT)

    def last_lines(self, size: int = 3000) -> str:
        return self.log.read_text(errors="replace")[-size:]

    def _serves(self) -> bool:
        if not self.running:
            raise AssertionError(f"{self.name} ended at its start:\n{self.last_lines()}")
        return self.ready()


def is_stopped(thread: Path) -> bool:
    return (thread / "stat").read_text().rsplit(")", 1)[1].split()[0] == "T"


def as_arguments(flags: Flags) -> list[str]:
    """Converts flags to arguments, such as `{"leader-elect": False}` to `["--leader-elect=false"]`."""
    words = {True: "true", False: "false"}
    return [f"--{name}={words[value] if isinstance(value, bool) else value}" for name, value in flags.items()]


def answers(url: str, says: str, *, authority: Path | None = None) -> Callable[[], bool]:
    """Returns a function that checks whether a GET of `url` gets HTTP status 200 with exactly the text `says`.

    `authority` is the path of the certificate that must have signed the server's certificate.
    """

    def probe() -> bool:
        if authority and not authority.exists():
            return False  # the server creates the certificate at its start
        try:
            trusted = ssl.create_default_context(cafile=str(authority)) if authority else False
            answer = httpx.get(url, verify=trusted, timeout=5, trust_env=False)
        except (httpx.TransportError, ssl.SSLError):
            return False  # the server does not answer yet
        return answer.status_code == 200 and answer.text.strip() == says

    return probe


def free_port() -> int:
    """Returns a free port that the kernel does not assign to outgoing connections.

    So no other program takes the port while a component restarts.
    """
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as probe:
            if port not in given_out and probe.connect_ex(("127.0.0.1", port)):
                given_out.add(port)
                return port
