"""The data folder of `make up`, and the environment variables that it passes to the portal's programs."""

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
from embedded.servers import Postgres, Server, Valkey, replace_text, secret

ROOT = Path(__file__).resolve().parent.parent


class AlreadyRunningError(RuntimeError):
    """Raised when another process holds the lock of the data folder.

    `about`: the description that the other process stored with `Home.tell`.
    """

    def __init__(self, about: dict[str, Any]) -> None:
        super().__init__("another process uses the data folder")
        self.about = about


@dataclass(frozen=True)
class Home:
    """Represents the folder with all data of one embedded Fairlot: FAIRLOT_VAR, or `var/` by default."""

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

    @property
    def demo_loaded(self) -> bool:
        return (self.var / "demo-loaded").exists()

    def is_prepared(self, code: str) -> bool:
        """Returns whether the embedded database was prepared with this code; `code` is a `code_fingerprint`."""
        stamp = self.var / "prepared"
        return self.demo_loaded and stamp.exists() and stamp.read_text() == code

    def note_prepared(self, code: str) -> None:
        """Notes that the embedded database has the demo data, and that it was prepared with this code."""
        (self.var / "demo-loaded").touch()
        replace_text(self.var / "prepared", code)

    def make(self) -> None:
        for folder in (self.var, self.logs):
            folder.mkdir(parents=True, exist_ok=True)
        (self.var / "secrets").mkdir(mode=0o700, exist_ok=True)

    def servers(self) -> list[Server]:
        """Returns the servers that Fairlot runs itself: PostgreSQL unless DATABASE_URL is set, Valkey unless REDIS_URL
        is set."""
        wanted: list[Server] = []
        if not given("DATABASE_URL"):
            wanted.append(Postgres(self.var))
        if not given("REDIS_URL"):
            wanted.append(Valkey(self.var))
        return wanted

    def environment(self, servers: list[Server], public_url: str | None = None) -> dict[str, str]:
        """Returns this process's environment variables, plus defaults for settings that are not set.

        Each server in `servers` must have been started at least once, because its URL contains its port.
        """
        urls = {"postgres": "DATABASE_URL", "valkey": "REDIS_URL"}
        completed = {urls[server.name]: server.url for server in servers}
        completed["FAIRLOT_JOBS_DIR"] = str(self.var / "jobs")
        completed["FAIRLOT_ACCOUNTS_BY_INVITATION"] = "true"  # people try the portal without an admin
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
        """Context manager that holds the lock of the data folder, and stores `what` as the description of this process.

        Raises AlreadyRunningError if another process holds the lock. The kernel releases the lock even if this process
        is killed.
        """
        self.make()
        with (self.var / "lock").open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise AlreadyRunningError(self.about()) from None
            self.tell({"what": what, "pid": os.getpid()})
            yield

    def tell(self, about: dict[str, Any]) -> None:
        """Stores `about`, a description of this process, in a file. Other processes read it with `Home.about`."""
        (self.var / "running.json").write_text(json.dumps(about))

    def about(self) -> dict[str, Any]:
        try:
            found = json.loads((self.var / "running.json").read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return {}
        return found if isinstance(found, dict) else {}


def given(name: str) -> bool:
    """Returns whether the environment variable `name` or the variable NAME_FILE is set and not empty.

    NAME_FILE contains the path of a file with the value of `name`.
    """
    return bool(os.environ.get(name) or os.environ.get(f"{name}_FILE"))


@contextmanager
def servers_running(home: Home, patience: float = 120.0) -> Iterator[dict[str, str]]:
    """Context manager during which the servers run. Yields the environment variables for one command.

    - If `make up` runs, the command uses its servers.
    - If nothing uses the data folder, starts the servers, and stops them at the end of the block.
    - If another command uses the data folder, or `make up` is still starting, waits up to `patience` seconds, and then
      raises StartError.
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
                    program = running.about.get("what")
                    raise StartError(
                        f"{program} is using the data folder {home.var}; "
                        "try again when that process has ended"
                    ) from None
            time.sleep(0.1)
        for server in servers:
            stack.callback(server.stop)
            server.start()
        yield home.environment(servers)


def manage(*arguments: str) -> list[str]:
    """Returns the command line (argv) that runs `manage.py` with these arguments."""
    return [sys.executable, str(ROOT / "manage.py"), *arguments]


def code_fingerprint() -> str:
    """Returns a digest that changes when the database or the static files must be prepared again.

    It covers the migrations, the static files, the settings and uv.lock. It also covers whether static files were
    already collected.
    """
    sources = [ROOT / "uv.lock", ROOT / "portal" / "settings.py", *ROOT.glob("*/migrations/*.py")]
    collected = (ROOT / "staticfiles" / "staticfiles.json").exists()
    return fingerprint([*sources, *static_files()], collected)


def static_files() -> list[Path]:
    """Returns the source files, ours and those of `bin/browser-packages`, which `collectstatic` copies."""
    folders = (ROOT / "static", ROOT / ".browser-packages" / "static")
    return [path for folder in folders for path in folder.rglob("*") if path.is_file()]


def fingerprint(files: Iterable[Path], *facts: object) -> str:
    """Returns a hexadecimal SHA-256 digest of the paths, sizes and modification times of `files`, and of `facts`."""
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(f"{path} {path.stat().st_size} {path.stat().st_mtime_ns}\n".encode())
    digest.update(repr(facts).encode())
    return digest.hexdigest()
