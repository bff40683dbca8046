"""The folder that `make up` works in, and the environment of the portal's programs there."""

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
    """Another process works in the same folder. `about` is what it wrote about itself."""

    def __init__(self, about: dict[str, Any]) -> None:
        super().__init__("another process works here")
        self.about = about


@dataclass(frozen=True)
class Home:
    """The folder with all data of one embedded Fairlot: `var/`, or the value of FAIRLOT_VAR."""

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
        """Returns the servers that must be started here because the environment names no others."""
        wanted: list[Server] = []
        if not given("DATABASE_URL"):
            wanted.append(Postgres(self.var))
        if not given("REDIS_URL"):
            wanted.append(Valkey(self.var))
        return wanted

    def environment(self, servers: list[Server], public_url: str | None = None) -> dict[str, str]:
        """Returns this process's environment with the missing settings added. `servers` must have been started."""
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
        if "DATABASE_URL" in completed:  # the file contains the heads of this database only
            completed["FAIRLOT_HEADS_FILE"] = str(self.var / "secrets" / "ledger-heads")
        return (
            os.environ
            | {name: value for name, value in completed.items() if not given(name)}
            | {"DJANGO_SETTINGS_MODULE": "portal.settings", "FAIRLOT_VAR": str(self.var)}
        )

    @contextmanager
    def locked(self, what: str) -> Iterator[None]:
        """Locks this folder for `what`. Raises AlreadyRunningError. The kernel unlocks it however this process ends."""
        self.make()
        with (self.var / "lock").open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise AlreadyRunningError(self.about()) from None
            self.tell({"what": what, "pid": os.getpid()})
            yield

    def tell(self, about: dict[str, Any]) -> None:
        """Stores a description of this process for other commands."""
        (self.var / "running.json").write_text(json.dumps(about))

    def about(self) -> dict[str, Any]:
        try:
            found = json.loads((self.var / "running.json").read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return {}
        return found if isinstance(found, dict) else {}


def given(name: str) -> bool:
    """Returns whether the environment sets `name`, directly or as a file (`NAME_FILE`), as the settings read it."""
    return bool(os.environ.get(name) or os.environ.get(f"{name}_FILE"))


@contextmanager
def servers_running(home: Home, patience: float = 120.0) -> Iterator[dict[str, str]]:
    """Yields the environment for one command: that of a running `make up`, otherwise one with servers started here.

    Waits for a `make up` that is still starting, and for another command to end.
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
    """Returns the command line of `manage.py` with these arguments."""
    return [sys.executable, str(ROOT / "manage.py"), *arguments]


def code_fingerprint() -> str:
    """Returns a value that changes when migrations, static files, settings or dependencies need preparation."""
    sources = [ROOT / "uv.lock", ROOT / "portal" / "settings.py", *ROOT.glob("*/migrations/*.py")]
    collected = (ROOT / "staticfiles" / "staticfiles.json").exists()
    return fingerprint([*sources, *static_files()], collected)


def static_files() -> list[Path]:
    """Returns the portal's static files before they are collected."""
    return [path for path in (ROOT / "static").rglob("*") if path.is_file()]


def fingerprint(files: Iterable[Path], *facts: object) -> str:
    """Returns a value that changes when one of the files or facts does."""
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(f"{path} {path.stat().st_size} {path.stat().st_mtime_ns}\n".encode())
    digest.update(repr(facts).encode())
    return digest.hexdigest()
