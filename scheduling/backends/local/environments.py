"""The store of environments: folders with the packages of a job's requirements, which the jobs of a team share.

    <jobs>/.environments/<key>/packages     the installed packages; nobody but the portal may write there
    <jobs>/.environments/<key>/about.json   how long the installation took, and its size; its mtime is the last use
    <jobs>/.environments/<key>/failed.json  the last installation that failed
    <jobs>/.environments/<key>/build.lock   held while the environment is installed
    <jobs>/.environments/<key>/building     the folder of the installation, the only place where it may write
    <jobs>/.environments/salt               a secret of the portal, so that nobody can guess passwords by keys

The key is a digest of everything that decides what pip installs: the normalised requirements, Python's version, the
platform, the job's settings of pip, and the user who installs. This is the user of the job's team: an installation
runs programs of the packages, and may do what the team's jobs may do. So teams share no environments.

Every attempt that uses an environment holds a shared lock on the folder <key>. Only a process with the exclusive lock
deletes it.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import hmac
import json
import os
import secrets
import shutil
import stat
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from scheduling.backends import opening
from scheduling.backends.local import removal
from scheduling.backends.local.files import try_lock
from scheduling.backends.opening import read_json

STORE = ".environments"
PACKAGES, ABOUT, FAILED, BUILD_LOCK, BUILDING, SEALING = (
    "packages", "about.json", "failed.json", "build.lock", "building", "sealing"
)  # fmt: skip
# Variables of a job that decide what pip installs and how it reaches its index. An installation gets no others.
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
OF_PIP = {*PROXIES, *map(str.lower, PROXIES), "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"}
# Settings of pip that would put the packages elsewhere.
NOT_OF_PIP = {"PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_REQUIREMENT", "PIP_LOG", "PIP_PYTHON"}
UNFINISHED_SECONDS = 86_400.0  # after which a folder without packages is deleted
ABOUT_PYTHON = """
import sys, sysconfig
print("Python %d.%d for" % sys.version_info[:2], sysconfig.get_platform())
print(sys.version, sys.prefix)
"""

_libc = ctypes.CDLL(None, use_errno=True)


class Unsuitable(Exception):
    """Raised when installed packages cannot be shared. The message gives users the reason."""


def for_pip(variables: Mapping[str, str]) -> dict[str, str]:
    """Returns those of a job's environment variables that its installation gets."""
    return {
        name: value
        for name, value in variables.items()
        if (name.startswith("PIP_") or name in OF_PIP) and name not in NOT_OF_PIP
    }


def python_in(path: str) -> str:
    """Returns the name of the Python interpreter in the folders of `path`, a value of PATH. Raises ValueError if it
    is missing."""
    for name in ("python", "python3"):
        if shutil.which(name, path=path) is not None:
            return name
    raise ValueError("the environment has no Python, so the requirements cannot be installed")


def compatibility(path: str) -> str:
    """Returns the Python in the folders of `path`, as far as packages must be made for it: "Python 3.11 for
    linux-x86_64". Raises ValueError if there is none."""
    return _version(path).split("\n")[0]


def _version(path: str) -> str:
    program = shutil.which(python_in(path), path=path) or ""
    real = os.stat(program)
    return _version_of(program, real.st_ino, real.st_mtime_ns)


@lru_cache(maxsize=64)
def _version_of(program: str, inode: int, changed: int) -> str:
    """Returns the version and the platform of a Python interpreter. The other arguments say which file it is."""
    try:
        done = subprocess.run(
            [program, "-I", "-c", ABOUT_PYTHON],
            capture_output=True, text=True, check=True, timeout=60, env={"LANG": "C.UTF-8"},
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        raise ValueError(f"the environment's Python does not start: {error}") from None
    return done.stdout.strip()


def folder_for(
    jobs: Path, *, requirements: str, path: str, variables: Mapping[str, str], uid: int | None
) -> Path:
    """Returns the folder of the environment with the normalised `requirements`.

    - `path`: the PATH that decides which Python the job has.
    - `variables`: the job's settings of pip (`for_pip`), secrets included.
    - `uid`: the user who installs; None: the portal's user.

    Raises ValueError, with a message for users, if the PATH leads to no Python.
    """
    content = [requirements, _version(path), os.uname().machine, sorted(variables.items()), uid]
    digest = hmac.new(_salt(jobs / STORE), json.dumps(content).encode(), hashlib.sha256)
    return jobs / STORE / digest.hexdigest()[:40]


def _salt(store: Path) -> bytes:
    store.mkdir(mode=0o711, exist_ok=True)
    store.chmod(0o711)  # teams' users must be able to pass through it
    with opening.folder(store.parent, store.name) as folder:
        with suppress(FileNotFoundError):
            return opening.read_file("salt", folder=folder, limit=64)
        # A link makes it appear complete, and never replaces that of another process.
        mine = f"salt.{secrets.token_hex(8)}"
        opening.replace_file(mine, secrets.token_bytes(32), folder=folder, durable=True)
        with suppress(FileExistsError):
            os.link(mine, "salt", src_dir_fd=folder, dst_dir_fd=folder)
        os.unlink(mine, dir_fd=folder)
        return opening.read_file("salt", folder=folder, limit=64)


# --- use -------------------------------------------------------------------------------------------


def open_for_use(place: Path, gid: int | None) -> int:
    """Opens the folder of an environment, creating it if it is missing, and returns its file descriptor.

    Holds a shared lock until the descriptor is closed. Waits while the folder is being deleted. `gid` is the group that
    may enter the folder. Raises OSError.
    """
    while True:
        with opening.folder(place.parent) as store:
            with suppress(FileExistsError):
                os.mkdir(place.name, 0o700, dir_fd=store)
            try:
                fd = os.open(place.name, opening.FOLDER, dir_fd=store)
            except FileNotFoundError:  # deleted in this moment
                continue
        try:
            fcntl.flock(fd, fcntl.LOCK_SH)
            if _is_at(fd, place):
                if gid is not None:
                    os.fchown(fd, -1, gid)
                    os.fchmod(fd, 0o710)
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _is_at(fd: int, place: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(place))
    except FileNotFoundError:
        return False


def is_ready(place: Path) -> bool:
    """Returns whether the environment is installed. The caller holds the lock of `open_for_use`."""
    return (place / PACKAGES).is_dir()


def note_use(place: Path) -> None:
    """Records that the environment is used now, for the order in which environments are deleted."""
    with suppress(OSError):
        os.utime(place / ABOUT, follow_symlinks=False)


# --- completion ------------------------------------------------------------------------------------


def seal(folder: Path, gid: int | None) -> int:
    """Makes the packages in `folder` unchangeable for jobs, and returns their size in bytes.

    No process of the installation may run any more. All files come to belong to the portal; the group `gid` may read
    them. Follows no links. Raises Unsuitable for files that other names may lead to, and OSError.
    """
    owner, group, size = os.geteuid(), -1 if gid is None else gid, 0
    try:
        for _, folders, names, fd in os.fwalk(folder):
            os.fchown(fd, owner, group)  # first, so that no new files appear in it
            os.fchmod(fd, 0o750)
            for name in (*folders, *names):
                found = os.stat(name, dir_fd=fd, follow_symlinks=False)
                size += found.st_blocks * 512
                if stat.S_ISLNK(found.st_mode):
                    os.chown(name, owner, group, dir_fd=fd, follow_symlinks=False)
                elif not stat.S_ISDIR(found.st_mode):
                    with opening.opened(opening.open_file(name, os.O_RDONLY, folder=fd)) as file:
                        os.fchown(file, owner, group)
                        os.fchmod(file, 0o750 if found.st_mode & 0o111 else 0o640)
    except opening.NotPlain as error:
        raise Unsuitable(f"{error.filename}: {error.strerror}") from None
    except RecursionError:
        raise Unsuitable("their folders are nested too deeply") from None
    return size


def publish(place: Path, about: dict[str, Any], gid: int | None) -> None:
    """Makes the packages that the installation left in its folder the environment at `place`.

    Needs the build lock. An interrupted call leaves no environment. Raises Unsuitable and OSError.
    """
    with opening.folder(place.parent, place.name) as folder:
        # There, processes of the team cannot reach it by its path.
        os.rename(f"{BUILDING}/work/{PACKAGES}", SEALING, src_dir_fd=folder, dst_dir_fd=folder)
        if not stat.S_ISDIR(os.stat(SEALING, dir_fd=folder, follow_symlinks=False).st_mode):
            raise Unsuitable("their folder was replaced by something else")
        size = seal(place / SEALING, gid)
        opening.replace_file(ABOUT, json.dumps(about | {"size": size}).encode(), folder=folder)
        _libc.syncfs(folder)  # so that a power cut after the next step leaves no empty files
        os.rename(SEALING, PACKAGES, src_dir_fd=folder, dst_dir_fd=folder)
        with suppress(OSError):
            os.fsync(folder)


def clear(place: Path) -> None:
    """Deletes what an installation left. Needs the build lock. Raises OSError."""
    with opening.folder(place.parent, place.name) as folder:
        for name in (BUILDING, SEALING):
            removal.clear(name, folder, seconds=removal.REMOVE_SECONDS)


def evict(store: Path, limit: int) -> list[str]:
    """Deletes environments until the rest takes at most `limit` bytes, those that were not used for longest first.

    Never deletes one that an attempt uses. Returns the keys of the deleted ones. Does nothing if another process is
    doing the same.
    """
    with opening.folder(store) as folder, opening.folder(store, removal.REMOVED, make=True) as aside:
        if not try_lock(aside):
            return []
        for name in opening.names_in(aside):  # an interrupted call left them
            removal.clear(name, aside, seconds=removal.REMOVE_SECONDS)
        found = sorted(_unused_since(store))
        total = sum(size for _, _, size in found)
        gone = []
        for used, name, size in found:
            is_abandoned = not size and time.time() - used > UNFINISHED_SECONDS
            if (total > limit or is_abandoned) and _take_away(name, folder, aside):
                removal.clear(name, aside, seconds=removal.REMOVE_SECONDS)
                total -= size
                gone.append(name)
        return gone


def _unused_since(store: Path) -> list[tuple[float, str, int]]:
    """Returns for each environment the time of its last use, its name and its size in bytes. The size is 0 if it is
    not installed."""
    found = []
    for place in store.iterdir():
        if place.name.startswith((".", "salt")):
            continue
        with suppress(OSError, ValueError):
            about = read_json(place / ABOUT) if is_ready(place) else None
            used = (place / ABOUT if about else place).stat().st_mtime
            found.append((used, place.name, int(about["size"]) if about else 0))
    return found


def _take_away(name: str, store: int, aside: int) -> bool:
    """Moves an environment to the open folder `aside`, unless it is in use. Returns whether it was moved."""
    with suppress(FileNotFoundError), opening.opened(os.open(name, opening.FOLDER, dir_fd=store)) as fd:
        if try_lock(fd):
            os.rename(name, name, src_dir_fd=store, dst_dir_fd=aside)
            return True
    return False
