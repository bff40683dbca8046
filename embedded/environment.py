"""The folder that `make up` works in, and the environment variables that it passes to the portal's programs."""

import fcntl
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embedded.processes import StartError
from embedded.servers import Postgres, Server, Valkey, secret

ROOT = Path(__file__).resolve().parent.parent


class AlreadyRunningError(RuntimeError):
    """Another process holds the folder's lock. `about` is the description that the process stored with `Home.tell`."""

    def __init__(self, about: dict[str, Any]) -> None:
        super().__init__("another process works here")
        self.about = about


@dataclass(frozen=True)
class Home:
    """The folder with all data of one embedded Fairlot: the value of FAIRLOT_VAR, by default `var/`."""

    var: Path

    @classmethod
    def from_environment(cls) -> "Home":
        return cls(Path(os.environ.get("FAIRLOT_VAR") or ROOT / "var").resolve())

    @property
    def logs(self) -> Path:
        return self.var / "log"

    @property
    def demo_passwords(self) -> Path:
        return self.var / "secrets" / "demo-passwords"

    def make(self) -> None:
        for folder in (self.var, self.logs):
            folder.mkdir(parents=True, exist_ok=True)
        (self.var / "secrets").mkdir(mode=0o700, exist_ok=True)

    def servers(self) -> list[Server]:
        """Returns PostgreSQL unless DATABASE_URL is set, and Valkey unless REDIS_URL is set."""
        wanted: list[Server] = []
        if not given("DATABASE_URL"):
            wanted.append(Postgres(self.var))
        if not given("REDIS_URL"):
            wanted.append(Valkey(self.var))
        return wanted

    def environment(self, servers: list[Server], public_url: str | None = None) -> dict[str, str]:
        """Returns this process's environment variables, with defaults for the settings that they lack.

        `servers` must have been started at least once, because their URLs contain their ports.
        """
        urls = {"postgres": "DATABASE_URL", "valkey": "REDIS_URL"}
        completed = {urls[server.name]: server.url for server in servers}
        completed["FAIRLOT_JOBS_DIR"] = str(self.var / "jobs")
        if public_url is not None:
            completed["PUBLIC_URL"] = public_url
        if not given("SECRET_KEY"):
            completed["SECRET_KEY"] = secret(self.var / "secrets" / "secret-key")
        if not given("FAIRLOT_SEALING_KEYS"):
            completed["FAIRLOT_SEALING_KEYS"] = secret(self.var / "secrets" / "sealing-key")
        if not given("FAIRLOT_SIGNING_KEYS"):
            completed["FAIRLOT_SIGNING_KEYS"] = secret(self.var / "secrets" / "signing-key")
        if "DATABASE_URL" in completed:  # the file contains the ledger heads of the embedded database only
            completed["FAIRLOT_HEADS_FILE"] = str(self.var / "secrets" / "ledger-heads")
        return (
            os.environ
            | {name: value for name, value in completed.items() if not given(name)}
            | {"DJANGO_SETTINGS_MODULE": "portal.settings", "FAIRLOT_VAR": str(self.var)}
        )

    @contextmanager
    def locked(self, what: str) -> Iterator[None]:
        """Holds the folder's lock and stores that it is held for `what`. Raises AlreadyRunningError if another process
        holds the lock. The kernel releases the lock however this process ends."""
        self.make()
        with (self.var / "lock").open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise AlreadyRunningError(self.about()) from None
            self.tell({"what": what, "pid": os.getpid()})
            yield

    def tell(self, about: dict[str, Any]) -> None:
        """Stores `about`, a description of this process, where other processes read it with `about()`."""
        (self.var / "running.json").write_text(json.dumps(about))

    def about(self) -> dict[str, Any]:
        try:
            found = json.loads((self.var / "running.json").read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return {}
        return found if isinstance(found, dict) else {}


def given(name: str) -> bool:
    """Returns whether the environment sets the setting `name`: by a variable `NAME`, or by `NAME_FILE`, which names a
    file."""
    return bool(os.environ.get(name) or os.environ.get(f"{name}_FILE"))


@contextmanager
def servers_running(home: Home, patience: float = 120.0) -> Iterator[dict[str, str]]:
    """Yields the environment variables for one command, with the servers running.

    Uses the servers of a running `make up`; otherwise starts the servers and stops them at the end. Waits up to
    `patience` seconds for a `make up` that is still starting or for another command to end, then raises StartError.
    """
    with ExitStack() as stack:
        servers = home.servers()
        deadline = time.monotonic() + patience
        while True:
            try:
                stack.enter_context(home.locked("a command"))
                break
            except AlreadyRunningError as running:
                if url := running.about.get("url"):
                    yield home.environment(servers, url)
                    return
                if time.monotonic() > deadline:
                    raise StartError(
                        f"{running.about.get('what')} is using {home.var}; try again when it has ended"
                    ) from None
            time.sleep(0.1)
        for server in servers:
            stack.callback(server.stop)
            server.start()
        yield home.environment(servers)


def manage(*arguments: str) -> list[str]:
    """Returns the command line that runs `manage.py` with these arguments."""
    return [sys.executable, str(ROOT / "manage.py"), *arguments]


def code_fingerprint() -> str:
    """Returns a digest of the migrations, static files, settings and uv.lock. If it has changed, the database and
    static files must be prepared again."""
    sources = [ROOT / "uv.lock", ROOT / "portal" / "settings.py", *ROOT.glob("*/migrations/*.py")]
    collected = (ROOT / "staticfiles" / "staticfiles.json").exists()
    return fingerprint([*sources, *static_files()], collected)


def static_files() -> list[Path]:
    """Returns the source files below `static/`, from which `collectstatic` copies."""
    return [path for path in (ROOT / "static").rglob("*") if path.is_file()]


def fingerprint(files: Iterable[Path], *facts: object) -> str:
    """Returns a SHA-256 digest, in hex, of the files' paths, sizes and modification times and of `facts`."""
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(f"{path} {path.stat().st_size} {path.stat().st_mtime_ns}\n".encode())
    digest.update(repr(facts).encode())
    return digest.hexdigest()
