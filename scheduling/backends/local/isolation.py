"""The isolation of local jobs from each other and from the portal. A probe determines which isolation a machine allows.

There are two kinds of isolation:

- Separate users: each team's jobs run as a separate user. This needs a portal that runs as root. Otherwise all jobs run
  as the portal's user.
- Namespaces: jobs have mounts that hide other data, and their own process table (PID namespace). If the portal does not
  run as root, the machine must let ordinary users create namespaces.

Jobs get both kinds, one of them or none, as the machine allows. If the portal runs as root, jobs get namespaces only
together with separate users.
"""

from __future__ import annotations

import errno
import json
import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from scheduling.backends.local import devices, mounts
from scheduling.backends.local.files import OWN, read_json, write_json
from scheduling.backends.local.sandbox import PASSING, REFUSED, Bind, Confinement, View

SHIM = Path(__file__).with_name("shim.py")
WRITTEN = "isolation.json"
FOUND = ("exposed", "unreachable", "closed_devices")  # fields of Isolation that the probe fills
PROBE_SECONDS = 30.0
# Far above the UIDs of people, subordinate UIDs (/etc/subuid) and UIDs that systemd gives to containers.
USUAL_UIDS = range(2_010_000_000, 2_010_065_536)
TEMPORARY = ("/tmp", "/var/tmp")  # noqa: S108 - hidden from jobs, which get folders of their own there
# Home folders, and the sockets and secrets of the machine's services.
NOT_FOR_JOBS = ("/home", "/root", "/run")
# Mounted as a volume, these folders would show what the namespaces of jobs hide.
NO_VOLUMES = ("/run", "/proc", "/sys", "/dev")
# Exceptions from NOT_FOR_JOBS: name resolution, and the daemon that keeps NVIDIA's driver initialised.
FOR_JOBS = ("/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager", "/run/nvidia-persistenced")


@dataclass(frozen=True, slots=True)
class Isolation:
    """The isolation that jobs have on this machine, and the reasons why some of it is missing."""

    users: bool  # each team's jobs run as a separate user
    namespaces: bool  # jobs have their own mounts and process table (PID namespace)
    why_no_users: str = ""
    why_no_namespaces: str = ""
    exposed: tuple[str, ...] = ()  # the portal's paths that jobs can read or write nevertheless
    unreachable: tuple[str, ...] = ()  # paths that jobs need but cannot read
    closed_devices: tuple[str, ...] = ()  # device files of GPUs that jobs cannot open

    @property
    def keeps_apart(self) -> bool:
        """Returns whether jobs are isolated from the portal's data and from each other, so that users need not trust
        each other."""
        return (self.users or self.namespaces) and not self.exposed

    @property
    def short(self) -> str:
        """Describes the isolation in one or two sentences, for all users who may submit jobs to this machine."""
        if not self.keeps_apart:
            return "Jobs here run with the portal's rights and can read and change everything that the portal can."
        if not self.users:
            return (
                "Jobs here cannot see the files and processes of other jobs or of the portal. All jobs run as the"
                " same user."
            )
        if self.namespaces:
            return "Each team's jobs run as a separate user and cannot see other teams' files and processes."
        return (
            "Each team's jobs run as a separate user. Jobs cannot read the files of other teams, but can see that"
            " other processes and folders exist."
        )

    @property
    def kept(self) -> list[str]:
        """Describes the isolation that jobs have, in sentences for admins."""
        found = []
        if self.users:
            found += [
                "Each team's jobs run as a separate user, without groups, capabilities or setuid programs."
            ]
        if self.namespaces:
            found += [
                "Jobs cannot see the portal's folders, home folders, /run, or the folders and temporary files of"
                " other jobs.",
                "Jobs cannot open the devices of NVIDIA GPUs that they do not hold.",
                "Jobs see and signal only their own processes. Jobs share no memory and no message queues with"
                " other jobs.",
            ]
        return found

    @property
    def not_kept(self) -> list[str]:
        """Describes the isolation that jobs lack, in sentences for admins."""
        found = [
            "Jobs can reach every address that the machine can reach, including loopback ports of other jobs."
        ]
        found += [
            "Jobs may use any amount of processors, memory and disk space, and start any number of processes."
        ]
        if self.users:
            found += [
                "Jobs of one team run as the same user. They can access each other's files, except files that are"
                " hidden from jobs."
            ]
        found += self.why_not
        if not self.namespaces:
            found += ["Jobs can use GPUs of this machine that they do not hold."]
        if not self.users and self.namespaces:
            found += [
                "Jobs can read every file that the portal's user can read, except in folders that are hidden from jobs."
            ]
        found += [f"Jobs can read or change {path}." for path in self.exposed]
        found += [
            f"Jobs need {path} but cannot read it. Move it, or let all users enter the folders above it."
            for path in self.unreachable
        ]
        found += [
            f"Jobs cannot open {path}, which programs need to compute on GPUs. Load the device's driver at boot. "
            "Let all users read and write the device, by NVIDIA's option NVreg_DeviceFileMode=0666 or by a udev rule."
            for path in self.closed_devices
        ]
        return found

    @property
    def why_not(self) -> list[str]:
        """Returns the reasons, in sentences, why jobs have no separate users or namespaces."""
        found = [] if self.users else [f"Jobs do not run as separate users: {self.why_no_users}."]
        if not self.namespaces:
            found += [f"Jobs do not run in separate namespaces: {self.why_no_namespaces}."]
        return found

    @property
    def refusal(self) -> str:
        """Explains why only admins may submit jobs to a machine without isolation, and how an admin can change that."""
        return (
            "Jobs here run with the portal's own rights, so only admins may submit them. An admin can start "
            "Fairlot as root, which runs each team's jobs as a separate user. If everyone who may submit jobs"
            " may also control the portal, set FAIRLOT_LOCAL_TRUSTS_ALL=true instead."
        )


@dataclass(frozen=True)
class HostPaths:
    """The folders and files of this machine that matter for the isolation of jobs. No path contains a symbolic link."""

    jobs: Path  # the folder that contains the folders of all jobs
    hidden: Sequence[Path] = ()  # the portal's paths, which jobs must not see
    secret: Sequence[Path] = ()  # paths in `hidden` that no job may read or write
    code: Sequence[Path] = ()  # paths that no job may write
    readable: Sequence[Path] = ()  # paths in hidden folders that jobs need nevertheless
    needed: Sequence[Path] = ()  # paths in `readable` that the probe tries to read
    dev: Path = devices.DEV  # the folder with the device files of GPUs
    uids: range = field(default=USUAL_UIDS)  # UIDs for teams; the probe uses the last of them

    def confinement(
        self,
        isolation: Isolation,
        folder: Path,
        uid: int | None,
        binds: Sequence[Bind] = (),
        *,
        closed: Sequence[str] = (),
    ) -> Confinement:
        """Returns the confinement (the user and the mounts) of the processes of the job whose folder is `folder`.

        - `uid`: the UID of the team's user; not used if the isolation has no separate users.
        - `binds`: paths that the job may see in addition to its own folders.
        - `closed`: device files that the job must not open. They take effect only if the isolation includes namespaces.
        """
        uid = uid if isolation.users else None
        view = self._view(folder, binds, uid) if isolation.namespaces else None
        if view is not None:
            view["devices"] = list(closed)
        return Confinement(uid=uid, view=view)

    def why_no_volume(self, folder: Path) -> str:
        """Explains to users why jobs may not mount `folder`. Returns "" if they may. Follows symbolic links."""
        folder = folder.resolve()
        private = {
            "the portal's own folders, the portal's keys or the folders of jobs": [self.jobs, *self.hidden],
            "the home folder of the portal's user": [home for home in _own_home() if home != Path("/")],
            "folders that show processes, devices or services of the machine": list(map(Path, NO_VOLUMES)),
        }
        for what, places in private.items():
            if any(place.is_relative_to(folder) or folder.is_relative_to(place) for place in places):
                return f"{folder} overlaps with {what}. Choose a folder that contains only data."
        try:  # another mount in the folder may show private data
            shown = mounts.parts([folder])
            found = [(list(private)[-1], one) for one in shown if one.kind in mounts.OF_THE_KERNEL]
            for what, places in private.items():
                theirs = mounts.parts(place for place in places if place.exists() and not place.is_symlink())
                found += [(what, one) for one in shown if any(map(one.overlaps, theirs))]
            for what, one in found:
                return (
                    f"The mount {one.point} gives access to {what}. Choose a folder that contains only data."
                )
        except (OSError, LookupError, ValueError) as error:
            return f"The mounts in {folder} cannot be listed ({error})."
        return ""

    def _view(self, folder: Path, binds: Sequence[Bind], uid: int | None) -> View:
        own = [Bind(path=str(folder / name), writable=True) for name in OWN]
        more = [*map(Path, FOR_JOBS), *self.readable]
        shown = [
            Bind(path=str(path), writable=False) for path in more if path.exists() and not path.is_symlink()
        ]
        every = [*shown, *own, *binds]
        hidden = {self.jobs, *self.hidden, *map(Path, NOT_FOR_JOBS), *_own_home()}
        if uid is not None:  # a team's user cannot pass through folders that are closed to others
            hidden |= {
                closed for bind in every if (closed := closed_ancestor(Path(bind["path"]))) is not None
            }
        return View(
            hidden=[str(path) for path in _outermost(hidden)],
            temporary=[place for place in TEMPORARY if os.path.isdir(place) and not os.path.islink(place)],
            tmp=str(folder / "tmp"),
            binds=every,
            read_only=uid is None,
        )


def _own_home() -> list[Path]:
    """Returns a list with the home folder of the portal's user, as a path without symbolic links.

    Returns an empty list if that folder must stay visible to jobs, for example because it is /bin, or if it does not
    exist.
    """
    try:
        home = Path(pwd.getpwuid(os.geteuid()).pw_dir).resolve()
        return [home] if home.stat().st_uid == os.geteuid() and home.name not in {"bin", "sbin"} else []
    except (KeyError, OSError):
        return []


def closed_ancestor(path: Path) -> Path | None:
    """Returns the outermost folder above `path` that other users may not enter; None if all folders are open to them.

    "Other users" are those who are neither the folder's owner nor in its group. Folders that do not exist yet count as
    open.
    """
    for folder in reversed(path.parents):
        try:
            is_open = folder.stat().st_mode & stat.S_IXOTH
        except FileNotFoundError:
            return None
        if not is_open:
            return folder
    return None


def _outermost(places: Iterable[Path]) -> list[Path]:
    """Returns the paths in `places` that exist and are outermost, that is, not inside another path of `places`.

    Leaves out symbolic links, the root folder, and paths inside a folder for temporary files.
    """
    found: list[Path] = []
    for place in sorted(places):
        around = (*found, *map(Path, TEMPORARY))
        if place.exists() and not place.is_symlink() and not any(place.is_relative_to(one) for one in around):
            found.append(place)
    return [place for place in found if place != Path("/")]


# --- probing the machine -------------------------------------------------------------------------

_known: dict[Path, Isolation] = {}  # results of this process, by the folder of all jobs


def probe_again(places: HostPaths) -> Isolation:
    """Probes how this machine can isolate jobs, stores the result for other processes, and returns it.

    Raises OSError if no job could run, or if a probe gives no answer. The next call probes again.
    """
    places.jobs.mkdir(mode=0o711, parents=True, exist_ok=True)
    if os.geteuid() == 0:
        places.jobs.chmod(0o711)  # the users of teams must be able to pass through it
    _known[places.jobs] = found = _find(places)
    write_json(places.jobs / WRITTEN, asdict(found))
    return found


def force(places: HostPaths, isolation: Isolation) -> None:
    """Sets the isolation that this process uses, without a probe. Tests use it on machines that allow a stronger
    isolation."""
    _known[places.jobs] = isolation


def known(places: HostPaths) -> Isolation:
    """Returns how jobs that this process starts are isolated. Probes the machine on the first call.

    Raises OSError if no job could run.
    """
    return _known.get(places.jobs) or probe_again(places)


def last(places: HostPaths) -> Isolation:
    """Returns the isolation that was stored by the last probe of this machine, possibly in another process.

    Probes the machine if nothing valid is stored. Raises OSError if no job could run.
    """
    try:
        written = read_json(places.jobs / WRITTEN)
    except ValueError:  # the file was damaged by a power cut
        written = None
    return known(places) if written is None else _read(written) or known(places)


def _read(written: dict[str, Any]) -> Isolation | None:
    """Converts the stored mapping `written` to an Isolation. Returns None if another version of Fairlot stored it in a
    different format."""
    try:
        lists = {name: tuple(written[name]) for name in FOUND}
        return Isolation(**{**written, **lists})
    except (KeyError, TypeError):
        return None


def _find(places: HostPaths) -> Isolation:
    """Probes the possible kinds of isolation, the strongest first, and returns the first that works.

    Raises OSError if none works.
    """
    if os.geteuid() != 0:
        why_no_users = "Fairlot runs as an ordinary user, which cannot start programs as another user"
        found, why = _try(places, Isolation(users=False, namespaces=True, why_no_users=why_no_users))
        return found or _shared(places, why_no_users, why)
    if not _is_mapped(uid := places.uids[-1]):
        why_no_users = (
            f"Fairlot's container has no user ID {uid}; set FAIRLOT_LOCAL_UIDS to user IDs that exist there"
        )
        return _shared(
            places,
            why_no_users,
            "if Fairlot runs as root, jobs have separate namespaces only if they also run as separate users",
        )
    found, why_no_namespaces = _try(places, Isolation(users=True, namespaces=True))
    if found is not None:
        return found
    found, why = _try(places, Isolation(users=True, namespaces=False, why_no_namespaces=why_no_namespaces))
    if found is not None:
        return found
    # no mount can help, because jobs have no namespaces here
    if (closed := closed_ancestor(places.jobs / "job")) is not None:
        why = (
            f"the folder {closed} contains the folders of jobs, but is closed to other users; let all users enter it,"
            " or move the folders of jobs"
        )
    else:
        why = f"root on this machine cannot run programs as another user: {why}"
    return _shared(places, why, why_no_namespaces)


def _is_mapped(uid: int) -> bool:
    """Returns whether the UID is mapped in this process's user namespace, so that processes can run under it."""
    lines = (line.split() for line in Path("/proc/self/uid_map").read_text().splitlines())
    return any(int(first) <= uid < int(first) + int(count) for first, _, count in lines)


def _shared(places: HostPaths, why_no_users: str, why_no_namespaces: str) -> Isolation:
    none = Isolation(False, False, why_no_users, why_no_namespaces)
    found, why = _try(places, none)
    if found is None:
        raise OSError(why)
    return found


def _try(places: HostPaths, isolation: Isolation) -> tuple[Isolation | None, str]:
    """Probes one kind of isolation. If it works, returns a copy of `isolation` with the probe's findings, and "". If
    the machine refuses it, returns None and the reason.

    Raises OSError if the probe gives no answer, for example because it was killed or took too long.
    """
    try:
        prefix = launcher(isolation)
    except FileNotFoundError as error:
        return None, str(error)
    folder = Path(tempfile.mkdtemp(prefix=".probe-", dir=places.jobs))
    try:
        confinement = places.confinement(isolation, folder, places.uids[-1])
        kept_apart = isolation.users or isolation.namespaces
        asked = {
            "confinement": confinement,
            "folder": str(folder),
            "secret": [str(path) for path in places.secret] if kept_apart else [],
            "code": [str(path) for path in places.code] if kept_apart else [],
            "needed": [str(path) for path in places.needed],
            "devices": devices.needed(places.dev),
        }
        done = subprocess.run(
            [*prefix, sys.executable, "-I", str(SHIM), "check"],
            input=json.dumps(asked),
            capture_output=True,
            timeout=PROBE_SECONDS,
            env={"LANG": "C.UTF-8"},
            text=True,
            check=False,
        )
        if done.returncode == 0:
            found: dict[str, list[str]] = json.loads(done.stdout)  # sandbox.Findings
            exposed, unreachable, closed_devices = (tuple(found[name]) for name in FOUND)
            found_too = replace(
                isolation, exposed=exposed, unreachable=unreachable, closed_devices=closed_devices
            )
            return found_too, ""
        why = (done.stderr.strip().splitlines() or ["the program that checks the isolation was killed"])[-1]
        if done.returncode == REFUSED or _is_refused_by(why):
            return None, why
        # Weaker isolation is not tried, because the machine may allow this one.
        raise OSError(f"the isolation of jobs could not be checked: {why}")
    except subprocess.TimeoutExpired:
        why = f"the check did not end within {PROBE_SECONDS:g} s"
        raise OSError(f"the isolation of jobs could not be checked: {why}") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _is_refused_by(why: str) -> bool:
    """Returns whether `why`, the error of the program `unshare`, means that the machine forbids user namespaces.

    Returns False for temporary errors, such as a shortage of memory.
    """
    # ENOSPC means that a limit of user namespaces is reached.
    short_of = map(os.strerror, PASSING - {errno.ENOSPC})
    return why.startswith("unshare: ") and not why.endswith(tuple(short_of))


def launcher(isolation: Isolation) -> list[str]:
    """Returns the prefix for the command that starts a supervisor: empty, or `unshare` with a new user namespace.

    The prefix is needed if Fairlot does not run as root and jobs get namespaces. An ordinary user can create other
    namespaces only inside a user namespace. Raises FileNotFoundError if the program `unshare` is missing.
    """
    if isolation.users or not isolation.namespaces:
        return []
    program = shutil.which("unshare", path="/usr/bin:/bin:/usr/sbin:/sbin")
    if program is None:
        raise FileNotFoundError("the program unshare is missing; install the package util-linux")
    return [program, "--user", "--map-current-user", "--keep-caps", "--"]
