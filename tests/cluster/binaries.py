"""Builds the Kubernetes programs for the tests from Go modules, once, and keeps them outside the checkout.

    python -m tests.cluster.binaries    # builds what is missing and lists the path of each program

- A program in KUBEBUILDER_ASSETS is used unchanged.
- A program on PATH is used if it has the release of go/*/go.mod.
- All other programs are built below `$XDG_CACHE_HOME/fairlot/cluster`, in a folder named after a hash of all inputs of
  the build. So checkouts can share them.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.toolchain import go
from tests.waiting import PATIENCE

SOURCES = Path(__file__).resolve().parent / "go"


@dataclass(frozen=True)
class Module:
    """A folder below go/ with one Go module: the source of a program, and the names under which the program can be
    called."""

    name: str
    programs: tuple[str, ...]
    dependency: str  # the module in go.mod whose version is that of the program

    @property
    def source(self) -> Path:
        return SOURCES / self.name

    @functools.cached_property
    def version(self) -> str:
        """Returns the version that go.mod pins, such as "v1.36.3"."""
        pinned = re.search(
            rf"^(?:require)?\s+{re.escape(self.dependency)} (v\S+)",
            (self.source / "go.mod").read_text(),
            re.MULTILINE,
        )
        assert pinned, f"{self.source}/go.mod does not require {self.dependency}"
        return pinned[1]

    @property
    def release(self) -> str:
        """Returns the major and minor version, such as "1.36"."""
        return ".".join(self.version.removeprefix("v").split(".")[:2])

    @property
    def flags(self) -> tuple[str, ...]:
        """Returns the flags for `go build`. They set the version, because Kubernetes would otherwise report 0.0.0."""
        linker = ["-s", "-w"]
        if self.dependency == "k8s.io/kubernetes":
            major, minor = self.release.split(".")
            said = {"gitVersion": self.version, "gitMajor": major, "gitMinor": minor}
            linker += [f"-X k8s.io/component-base/version.{name}={value}" for name, value in said.items()]
        return ("-trimpath", f"-ldflags={' '.join(linker)}")


KUBERNETES = Module(
    "controlplane", ("kube-apiserver", "kube-controller-manager", "kube-scheduler"), "k8s.io/kubernetes"
)
MODULES = (
    Module("etcd", ("etcd",), "go.etcd.io/etcd/server/v3"),
    KUBERNETES,
    Module("kwok", ("kwok",), "sigs.k8s.io/kwok"),
    Module("kubelet", ("kubelet", "gpu-device-plugin", "cluster-dns"), "k8s.io/kubernetes"),
)


def program(name: str) -> Path:
    """Returns the path of a program. Builds the program if the environment provides none."""
    module = next(module for module in MODULES if name in module.programs)
    return provided(name, module) or built(module) / name


def provided(name: str, module: Module) -> Path | None:
    """Returns the path of the program that the environment provides, or None."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets and os.access(Path(assets, name), os.X_OK):
        return Path(assets, name).resolve()
    if found := shutil.which(name):
        if said_release(found) == module.release:
            return Path(found)
        say(f"{found} is not {name} {module.release}: left alone")
    return None


def said_release(path: str) -> str | None:
    """Runs the program at `path` with `--version`. Returns the major and minor version that it prints, such as "1.36".

    Returns None if the program prints no version.
    """
    answer = subprocess.run(
        [path, "--version"], capture_output=True, text=True, check=False, timeout=PATIENCE
    ).stdout
    version = re.search(r"(\d+\.\d+)\.\d+", answer)
    return version[1] if version else None


def built(module: Module) -> Path:
    """Returns the folder with the module's programs. Builds them if they are missing.

    If two processes need the programs, one builds and the other waits. The folder gets its final name only after a
    complete build.
    """
    tool = go()
    folder = cache() / f"{module.name}-{key(module, tool)}"
    if folder.exists():
        return folder
    cache().mkdir(parents=True, exist_ok=True)
    with locked(cache() / f"{module.name}.lock"):
        if not folder.exists():
            build(module, tool, folder)
    return folder


def build(module: Module, tool: Path, folder: Path) -> None:
    say(f"building {module.name} {module.version} ({', '.join(module.programs)}); this is done once")
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{module.name}-") as scratch:
        unfinished = Path(scratch, "programs")
        unfinished.mkdir(mode=0o755)
        binary = unfinished / module.name
        # `nice` gives other work on a shared machine priority. `-mod=readonly` keeps the checkout's go.mod unchanged.
        argv: list[str | Path] = [
            "nice",
            "-n",
            "19",
            tool,
            "build",
            "-mod=readonly",
            *module.flags,
            "-o",
            binary,
            ".",
        ]
        done = subprocess.run(argv, cwd=module.source, env=environment(), check=False)
        if done.returncode:
            raise RuntimeError(f"{module.name} could not be built: go says why above")
        for name in module.programs:
            if name != module.name:
                # the program acts according to the name by which it is called
                (unfinished / name).symlink_to(module.name)
        unfinished.rename(folder)
    say(f"built {module.name} in {time.monotonic() - begun:.0f} s: {folder}")


def key(module: Module, tool: Path) -> str:
    """Returns a hash of all inputs of the build: sources, module versions and their hashes, the Go version, and
    flags."""
    digest = hashlib.sha256()
    for path in [module.source / "go.mod", module.source / "go.sum", *sorted(module.source.glob("*.go"))]:
        digest.update(path.read_bytes())
    version = subprocess.run([tool, "version"], capture_output=True, check=True, env=environment()).stdout
    digest.update(version + "\0".join(module.flags).encode())
    return digest.hexdigest()[:16]


def environment() -> Mapping[str, str]:
    """Returns the environment variables for a build: those of this process, and settings that make Go use only what is
    installed."""
    return os.environ | {"GOTOOLCHAIN": "local", "GOWORK": "off"}


def cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fairlot" / "cluster"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Locks the file `path` for the block. The kernel releases the lock if this process is killed."""
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process that makes {path.stem}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)  # noqa: T201 - a build takes minutes: say so


def main() -> None:
    for module in MODULES:
        for name in module.programs:
            say(f"{name}: {program(name)}")


if __name__ == "__main__":
    main()
