"""Checks whether this machine can run real containers: whether it has the programs and allows the system calls.

CI runs as root on Debian and must be able to run containers: missing packages are installed there, and a failure is an
error. On other machines the tests that need containers are skipped with the reason.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.cluster.binaries import cache, locked, say

CNI = Path("/usr/lib/cni")
# Debian packages, each with the programs (in one case a file) that are needed from it.
NEEDED: Mapping[str, tuple[str, ...]] = {
    "containerd": ("containerd", "ctr"),
    "runc": ("runc",),
    "busybox-static": ("busybox",),
    "containernetworking-plugins": (str(CNI / "bridge"), str(CNI / "host-local"), str(CNI / "loopback")),
    "iproute2": ("ip",),
    "util-linux": ("nsenter", "unshare", "mount"),
    "gcc": ("cc",),
    "libc6-dev": ("/usr/include/stdio.h",),
}
PLACES = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"
# Tries the first step of a real node: namespaces with mounts in them.
TRIAL = """
set -e
cd "$1" && mkdir lower upper work both
mount -t tmpfs none upper && mkdir upper/upper upper/work
mount -t overlay none -o lowerdir=lower,upperdir=upper/upper,workdir=upper/work both
if command -v ip >/dev/null; then
	ip link add fairlot0 type bridge
	ip link add fairlot1 type veth peer name fairlot2
fi
"""


class Unfit(Exception):
    """Raised if this machine cannot run a real node. The message gives the reason in one line."""


def prepare() -> None:
    """Checks that this machine can run a real node, and installs missing packages. Raises Unfit if it cannot.

    Raises RuntimeError in CI if packages are still missing.
    """
    if os.geteuid() != 0:
        raise Unfit("a real node needs root")
    if forbidden := forbids():
        raise Unfit(f"this machine lets nobody run containers: {forbidden}")
    if missing := lacking():
        install(missing)
        if forbidden := forbids():
            raise Unfit(f"this machine lets nobody run containers: {forbidden}")
    if missing := lacking():
        if os.environ.get("CI"):
            raise RuntimeError(f"CI has to run the real node: install {' '.join(missing)}")
        raise Unfit(f"a real node needs {' '.join(missing)}")


def found(name: str) -> str | None:
    """Returns the path of a program, or of a file given by its absolute path; None if it does not exist."""
    if name.startswith("/"):
        return name if Path(name).exists() else None
    return shutil.which(name, path=PLACES)


def lacking() -> list[str]:
    """Returns the names of Debian packages whose files are missing."""
    return [package for package, names in NEEDED.items() if not all(map(found, names)) or is_dynamic(package)]


def is_dynamic(package: str) -> bool:
    """Returns whether `package` is busybox-static and the installed busybox still needs shared libraries.

    The images do not contain these libraries.
    """
    path = found("busybox")
    if package != "busybox-static" or not path:
        return False
    told = subprocess.run(["ldd", path], capture_output=True, text=True, check=False)
    return "=>" in told.stdout


def install(packages: list[str]) -> None:
    """Tries to install Debian packages as root. Ignores failures, because the caller checks afterwards which files
    exist."""
    apt = shutil.which("apt-get")
    if not apt:
        return
    cache().mkdir(parents=True, exist_ok=True)
    with locked(cache() / "apt.lock"):
        packages = lacking()  # another process may have installed them meanwhile
        if not packages:
            return
        say(f"installing {' '.join(packages)}, for containers in the tests")
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        wait = ["-o", "DPkg::Lock::Timeout=600"]  # waits for another process that installs packages
        for words in (["update", "-qq"], ["install", "-qq", "-y", "--no-install-recommends", *packages]):
            done = subprocess.run(
                [apt, *wait, *words], capture_output=True, text=True, check=False, env=environment
            )
            if done.returncode:
                say(done.stderr.strip())


def forbids() -> str | None:
    """Returns a text that says what containers need and this machine does not allow, even to root.

    Returns None if the machine allows everything.
    """
    with tempfile.TemporaryDirectory(prefix="fairlot-trial-") as folder:
        argv = [
            "unshare",
            "--pid",
            "--fork",
            "--mount-proc",
            "--mount",
            "--net",
            "--",
            "sh",
            "-c",
            TRIAL,
            "sh",
            folder,
        ]
        tried = subprocess.run(argv, capture_output=True, text=True, check=False)
    if tried.returncode:
        return f"namespaces and mounts in them: {tried.stderr.strip()}"
    if not (hierarchies := cgroups()):
        return "there are no cgroups of memory, CPU and pids at /sys/fs/cgroup"
    for hierarchy in hierarchies:
        trial = hierarchy / f"fairlot-trial-{os.getpid()}"
        try:
            trial.mkdir()
            trial.rmdir()
        except OSError as error:
            return f"cgroups: {error}"
    return None


def cgroups() -> list[Path]:
    """Returns the root folders of the cgroup hierarchies: one for v2, or one per controller for v1."""
    root = Path("/sys/fs/cgroup")
    if (root / "cgroup.controllers").exists():
        controllers = (root / "cgroup.controllers").read_text().split()
        return [root] if {"memory", "cpu", "pids"} <= set(controllers) else []
    if not all((root / name / "cgroup.procs").exists() for name in ("memory", "cpu", "pids")):
        return []
    return [path for path in root.iterdir() if path.is_dir() and not path.is_symlink()]
