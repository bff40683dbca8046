"""Confines a gang's processes: they run as a separate user without privileges, and have their own mount, PID and IPC
namespaces.

Only supervisors and the probe of `isolation.py` use this module. Both are new processes with a single thread. They may
therefore run Python between fork and exec. They may also create PID namespaces, which the kernel refuses to processes
with several threads.

The mounts hide some folders; everything else stays visible. A job finds the machine's programs and libraries in their
usual places, but not the portal's folders, home folders or other jobs' files in /tmp.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn, NotRequired, TypedDict

from scheduling.backends.local import processes
from scheduling.backends.local.files import OWN

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWPID = 0x00020000, 0x08000000, 0x20000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV = 1, 2, 4
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
SYS_MOUNT_SETATTR = 442  # the same on all architectures except Alpha; Linux 5.12
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_READ, PR_CAPBSET_DROP = 1, 4, 23, 24
PR_SET_CHILD_SUBREAPER = 36
KEYCTL_JOIN_SESSION_KEYRING = 1
PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 38, 47, 4
CAPABILITY_VERSION_3 = 0x20080522
SHARED = ("/dev/shm", "/dev/mqueue")  # noqa: S108 - memory and message queues, of which jobs get their own
READY = b"ready\n"
# Exit code of a probe that the machine refuses. Other codes except 0 mean that the probe gave no answer.
REFUSED = 3
# Errors that do not show what the machine allows: a resource was short, or a process was killed.
PASSING = {
    0, errno.EINTR, errno.EIO, errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT
}  # fmt: skip
MOST_TERMINALS = 256  # of a gang; the kernel has a few thousand for all jobs together
MOST_FILES = 65536  # highest file descriptor that a library may have left open

_libc = ctypes.CDLL(None, use_errno=True)


class Bind(TypedDict):
    """A folder or file that jobs can see although it lies inside a hidden folder."""

    path: str
    writable: bool


class View(TypedDict):
    """The parts of the machine's file system that a gang's processes can see."""

    hidden: list[str]  # folders and files, none of them inside another
    temporary: list[str]  # folders in whose place the gang sees its own temporary folder
    tmp: str  # the gang's own temporary folder
    binds: list[Bind]
    # Device files of GPUs that the gang does not hold. Earlier releases did not write this key.
    devices: NotRequired[list[str]]
    # Files that the gang sees in place of others, by the path of those others (accounts.py).
    replaced: NotRequired[dict[str, str]]
    # Makes everything except writable binds read-only. Used for jobs that run as the portal's user.
    read_only: bool


class Confinement(TypedDict):
    """The user and the mounts of a gang's processes.

    If `uid` is None, the processes run as the supervisor's user. If `view` is None, they have the supervisor's mounts.
    """

    uid: int | None
    view: View | None


def _call(what: str, result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def prctl(option: int, value: int = 0) -> None:
    _call(f"prctl {option}", _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0))


# --- users and privileges ------------------------------------------------------------------------


def drop_privileges(uid: int | None) -> None:
    """Removes the privileges of this process. Raises OSError if the kernel refuses a step.

    - Changes the user and the group to `uid`, and leaves all other groups. If `uid` is None, keeps user and groups.
    - Removes all capabilities. Programs that the process executes later cannot gain any.
    - Hides the process's memory and open files from other processes of the same user, until it executes another
      program.
    """
    for capability in range(int(Path("/proc/sys/kernel/cap_last_cap").read_text()) + 1):
        # Refused without CAP_SETPCAP. Then no_new_privs still keeps exec from granting capabilities.
        with suppress(PermissionError):
            if _libc.prctl(PR_CAPBSET_READ, ctypes.c_ulong(capability), 0, 0, 0) == 1:
                prctl(PR_CAPBSET_DROP, capability)
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    _leave_keyring()
    _call("prctl", _libc.prctl(PR_CAP_AMBIENT, ctypes.c_ulong(PR_CAP_AMBIENT_CLEAR_ALL), 0, 0, 0))
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    _call("capset", _libc.capset(header, (ctypes.c_uint32 * 6)()))
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    prctl(PR_SET_DUMPABLE, 0)  # comes last, because a change of user would undo it


def raise_oom_score() -> None:
    """Raises the OOM score of this process and its later children. If memory runs out, the kernel kills them before the
    portal.

    Must be called before the process becomes non-dumpable (see prctl). Afterwards an ordinary user's process cannot set
    its OOM score.
    """
    score = Path("/proc/self/oom_score_adj")
    if int(score.read_text()) < 500:  # lowering the score would need a capability that few processes have
        score.write_text("500")


def _leave_keyring() -> None:
    """Joins a new session keyring, because the inherited keyring may hold keys of the user who started Fairlot."""
    number = {"x86_64": 250, "aarch64": 219}.get(os.uname().machine)
    if number is None:
        return
    if _libc.syscall(number, KEYCTL_JOIN_SESSION_KEYRING, None) < 0:
        # Containers often forbid this call, also to jobs, and some kernels lack it.
        _call("keyctl", 0 if ctypes.get_errno() in {errno.EPERM, errno.ENOSYS} else -1)


def prepare_folders(folder: Path, uid: int | None, go_on: Callable[[], None] = lambda: None) -> None:
    """Creates the folders that a job may write, inside the job's folder `folder`. If `uid` is not None, makes that user
    their owner.

    `folder` must belong to the portal, and no process of the job may run during the call. `go_on` is called repeatedly
    while owners are changed, so that the caller can write its heartbeat. Raises OSError if a folder cannot be created
    or changed.
    """
    for name in OWN:
        path = folder / name
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
        found = path.lstat()  # the job cannot replace this folder, because `folder` belongs to the portal
        if not stat.S_ISDIR(found.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        if uid is not None and found.st_uid != uid:
            _give(path, found.st_uid, uid, go_on)
    if uid is not None:  # only after that may the team's other jobs enter
        os.chown(folder, -1, uid, follow_symlinks=False)
        folder.chmod(0o710)


def grant_read(folder: Path, *, below: Path, gid: int) -> None:
    """Lets the group `gid` read all files and folders in `folder`, and enter each folder between `below` and `folder`.

    Use this only for folders that the portal has just created. Does nothing if `folder` does not exist.
    """
    if not folder.exists():
        return
    for above in folder.parents:
        if above == below:
            break
        os.chown(above, -1, gid, follow_symlinks=False)
        above.chmod(0o710)
    for _, _, names, fd in os.fwalk(folder):
        os.chown(fd, -1, gid)
        os.chmod(fd, 0o750)  # noqa: S103 - the group is the team's
        for name in names:
            # The name may be a link, which may lead elsewhere.
            if stat.S_ISREG(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
                os.chown(name, -1, gid, dir_fd=fd, follow_symlinks=False)
                os.chmod(name, 0o640, dir_fd=fd)


def _give(path: Path, owner: int, uid: int, go_on: Callable[[], None]) -> None:
    """Changes the owner of a folder tree from `owner` to `uid`. Calls `go_on` for each entry.

    Leaves out files with several hard links, because another link may lie outside the tree.
    """
    try:
        for _, folders, files, fd in os.fwalk(path):
            for name in (*folders, *files):
                go_on()
                found = os.stat(name, dir_fd=fd, follow_symlinks=False)
                if found.st_uid == owner and (stat.S_ISDIR(found.st_mode) or found.st_nlink == 1):
                    os.chown(name, uid, uid, dir_fd=fd, follow_symlinks=False)
    except RecursionError:
        raise OSError(
            errno.ELOOP,
            "the folder is nested too deeply, so Fairlot cannot make the team's user its owner",
            str(path),
        ) from None
    os.chown(path, uid, uid, follow_symlinks=False)


# --- namespaces ----------------------------------------------------------------------------------


class Namespaces:
    """The PID, mount and IPC namespaces of one gang. They exist while `init`, their first process, lives.

    The supervisor forks each process of the gang through a short-lived helper process. The helper selects the PID
    namespace for its children, forks the process, and ends. The supervisor then becomes the parent of the process,
    because it is a subreaper.

    The supervisor does not select the PID namespace itself, because all its later children would be in that namespace.
    """

    def __init__(self, view: View) -> None:
        """Creates the namespaces. The calling process must be a subreaper. Raises OSError if a step fails."""
        self.emptied, writer = os.pipe()  # a readable byte means that only `init` is left
        waiting, go = os.pipe()
        us = os.getpid()
        self.init = _fork_by_helper(lambda: _unshare("a PID namespace", CLONE_NEWPID))
        if self.init == 0:
            os.close(go)
            _run_init(view, writer, waiting, us)
        os.close(writer)
        os.close(waiting)
        os.write(go, b"\n")  # tells `init` that this process is now its parent
        os.close(go)
        answer = _read_line(self.emptied)
        if not answer.startswith(READY):  # `init` may also have written already that no process is left
            os.kill(self.init, signal.SIGKILL)
            os.waitpid(self.init, 0)
            raise _decoded(answer)
        os.set_blocking(self.emptied, False)
        flags = os.O_RDONLY | os.O_CLOEXEC
        self._spaces = {
            kind: os.open(f"/proc/{self.init}/ns/{name}", flags)
            for name, kind in (("pid", CLONE_NEWPID), ("ipc", CLONE_NEWIPC), ("mnt", CLONE_NEWNS))
        }

    def fork(self) -> int:
        """Forks a child into the gang's PID namespace. Returns the child's pid, or 0 in the child. Raises OSError if
        this fails.

        The child must call `enter` to join the gang's mount and IPC namespaces too.
        """
        return _fork_by_helper(self._join)

    def _join(self) -> None:
        """Prepares a helper process so that the next child that it forks is in the gang's PID namespace.

        Also makes the helper and this child non-dumpable (see prctl), so that the job's processes cannot read the
        child's memory and files.
        """
        raise_oom_score()
        # otherwise processes of the same user could reach hidden files through /proc/<pid> of the child
        prctl(PR_SET_DUMPABLE, 0)
        self._enter(CLONE_NEWPID)

    def enter(self) -> None:
        """Moves this process, a child that `fork` created, into the gang's mount and IPC namespaces."""
        self._enter(CLONE_NEWIPC)
        self._enter(CLONE_NEWNS)

    def _enter(self, kind: int) -> None:
        _call("setns", _libc.setns(self._spaces[kind], kind))

    def end(self) -> None:
        """Kills all processes in the gang's namespaces, by killing the first process of the PID namespace."""
        os.kill(self.init, signal.SIGKILL)


def _fork_by_helper(choose: Callable[[], None]) -> int:
    """Forks a helper process that calls `choose` to select a PID namespace and then forks a child into it.

    Returns the child's pid, or 0 in the child. Raises OSError.
    """
    reader, writer = os.pipe()
    helper = os.fork()
    if helper == 0:
        try:
            choose()
            child = os.fork()
        except OSError as error:
            os.write(writer, _encoded(error))
            os._exit(0)
        if child == 0:
            os.close(reader)
            os.close(writer)
            return 0
        os.write(writer, str(child).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        content = file.read()
    os.waitpid(helper, 0)  # when the helper has ended, this process is the parent of the child
    if not content.isdigit():
        raise _decoded(content)
    return int(content)


def _read_line(fd: int) -> bytes:
    content = b""
    while b"\n" not in content and (piece := os.read(fd, 4096)):
        content += piece
    return content


def _run_init(view: View, writer: int, waiting: int, supervisor: int) -> NoReturn:
    """Runs as the first process of new namespaces: makes the mounts of `view`, then reaps orphans until it is killed.

    - `writer`: the pipe through which this process reports that it is ready, or its error.
    - `waiting`: a pipe from which this process first reads one byte. The supervisor writes the byte as soon as it is
      the parent of this process.
    - `supervisor`: the pid of the supervisor. This process ends together with the supervisor.

    When this process ends, for any reason, the kernel kills all other processes in its PID namespace.
    """
    try:
        # waits until the helper has ended, because the kernel would take the helper's end for the parent's
        os.read(waiting, 1)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if processes.parent_of_this_process() != supervisor:
            os._exit(125)  # the supervisor ended before the prctl above
        os.setsid()
        os.umask(0o022)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        _unshare("mount and IPC namespaces", CLONE_NEWNS | CLONE_NEWIPC)
        _arrange(view)
        os.closerange(3, writer)
        os.closerange(writer + 1, MOST_FILES)
        drop_privileges(None)
        os.write(writer, READY)
        while True:
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                os.write(writer, b"\n")
                signal.sigwait({signal.SIGCHLD})
    except BaseException as error:
        os.write(writer, _encoded(error) + b"\n")
    finally:
        os._exit(1)


def _unshare(what: str, kinds: int) -> None:
    try:
        _call(f"cannot create {what}", _libc.unshare(kinds))
    except OSError as error:
        if error.errno == errno.ENOSPC:  # here the error does not mean a full disk
            raise OSError(
                errno.EUSERS,
                f"cannot create {what}, because a limit in /proc/sys/user is reached",
            ) from None
        raise


def _encoded(error: BaseException) -> bytes:
    """Encodes an error as bytes, to send it to another process. `_decoded` restores the error there."""
    number = error.errno if isinstance(error, OSError) and error.errno else 0
    return f"{number} {in_words(error)}".encode()


def _decoded(content: bytes) -> OSError:
    number, _, words = content.decode(errors="replace").strip().partition(" ")
    return OSError(int(number), words) if words else OSError(errno.EINTR, "the process was killed")


def in_words(error: BaseException) -> str:
    """Describes an error in words for users. Includes the file name if the error has one."""
    if not isinstance(error, OSError) or not error.strerror:
        return repr(error)
    return f"{os.fsdecode(error.filename)}: {error.strerror}" if error.filename else error.strerror


# --- mounts --------------------------------------------------------------------------------------


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    arguments = (os.fsencode(text) for text in (source, target, kind))
    _call(f"mount {target}", _libc.mount(*arguments, ctypes.c_ulong(flags), os.fsencode(options)))


def _set_flags(path: str, *, add: int = 0, remove: int = 0, recursive: bool = False) -> None:
    attributes = (ctypes.c_uint64 * 4)(add, remove, 0, 0)
    flags = AT_RECURSIVE if recursive else 0
    arguments = (ctypes.c_long(SYS_MOUNT_SETATTR), AT_FDCWD, os.fsencode(path), ctypes.c_uint(flags))
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    _call(f"mount_setattr {path}", _libc.syscall(*arguments, attributes, size))


def _arrange(view: View) -> None:
    """Makes the mounts that `view` describes, in the mount namespace of this process. Raises OSError."""
    _mount("none", "/", "", MS_REC | MS_PRIVATE)
    replaced = {place: own for place, own in view.get("replaced", {}).items() if os.path.isfile(place)}
    with _opened([view["tmp"], *replaced.values(), *(bind["path"] for bind in view["binds"])]) as (
        tmp,
        *rest,
    ):
        copies, sources = rest[: len(replaced)], rest[len(replaced) :]
        if view["read_only"]:
            _set_flags("/", add=MOUNT_ATTR_RDONLY, recursive=True)
        for place in view["temporary"]:
            _bind(tmp, place, writable=True)
        covers = [path for path in view["hidden"] if os.path.isdir(path)]
        files = [path for path in view["hidden"] if os.path.isfile(path)]
        for path in covers:
            _mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=16m")
        for path in files:
            _mount("/dev/null", path, "", MS_BIND)
        for path in filter(os.path.exists, view.get("devices", ())):
            _mount("/dev/null", path, "", MS_BIND)
            # so that opening the device fails, as with a device that cgroups forbid
            _set_flags(path, add=MOUNT_ATTR_NODEV)
        for copy, place in zip(copies, replaced, strict=True):
            _bind(copy, place, writable=False)
        for source, bind in zip(sources, view["binds"], strict=True):
            _make_place(bind["path"], is_folder=stat.S_ISDIR(os.fstat(source).st_mode))
            _bind(source, bind["path"], writable=bind["writable"])
    for path in covers:
        _set_flags(path, add=MOUNT_ATTR_RDONLY)
    for path in filter(os.path.isdir, SHARED):
        _mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")
    # Terminals of its own: jobs of the same user could otherwise read what is typed in those of each other.
    options = f"newinstance,ptmxmode=0666,mode=620,max={MOST_TERMINALS}"
    _mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, options)
    _mount("/dev/pts/ptmx", "/dev/ptmx", "", MS_BIND)
    _mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)


@contextmanager
def _opened(paths: Sequence[str]) -> Iterator[list[int]]:
    """Opens the paths, so that they can be used after mounts have hidden them. Yields their file descriptors.

    Raises OSError if a path contains a symbolic link.
    """
    opened: list[int] = []
    try:
        for path in paths:
            opened.append(os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW))
            is_link = stat.S_ISLNK(os.fstat(opened[-1]).st_mode)
            if is_link or os.readlink(f"/proc/self/fd/{opened[-1]}") != path:
                raise OSError(errno.ELOOP, f"the path {path} contains a symbolic link")
        yield opened
    finally:
        for fd in opened:
            os.close(fd)


def _make_place(path: str, *, is_folder: bool) -> None:
    """Creates the mount point `path` (a folder or an empty file) inside a hidden folder, if it does not exist."""
    if os.path.exists(path):
        return
    os.makedirs(path if is_folder else os.path.dirname(path), exist_ok=True)
    if not is_folder:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))


def _bind(source: int, path: str, *, writable: bool) -> None:
    _mount(f"/proc/self/fd/{source}", path, "", MS_BIND | MS_REC)
    kept = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | (0 if writable else MOUNT_ATTR_RDONLY)
    _set_flags(path, add=kept, recursive=True)  # also of file systems mounted below
    if writable:
        _set_flags(path, remove=MOUNT_ATTR_RDONLY)


# --- the probe -----------------------------------------------------------------------------------


class Findings(TypedDict):
    """The result of a probe: the forbidden paths that the confined process could use, the needed paths that it could
    not use, and the device files that it could not open."""

    exposed: list[str]  # paths that the process must not read or write, but could
    unreachable: list[str]  # paths that jobs need, but the process could not read
    closed_devices: list[str]  # device files that the process could not open


class Question(TypedDict):
    """The input of a probe: a confinement, and the paths that the confined process tries to read, write or open."""

    confinement: Confinement
    folder: str  # an empty folder in the role of a job's folder
    secret: list[str]  # paths that must be neither readable nor writable
    code: list[str]  # paths that must not be writable
    needed: list[str]  # paths that must be readable
    devices: list[str]  # device files that must be readable and writable


def probe(asked: Question) -> Findings:
    """Confines a child process in the way a supervisor does, and returns what the child could do.

    Raises OSError, with the step that failed, if the child cannot be confined.
    """
    confinement, folder = asked["confinement"], Path(asked["folder"])
    prepare_folders(folder, confinement["uid"])
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    namespaces = Namespaces(confinement["view"]) if confinement["view"] is not None else None
    reader, writer = os.pipe()
    child = namespaces.fork() if namespaces is not None else os.fork()
    if child == 0:
        try:
            if namespaces is not None:
                namespaces.enter()
            drop_privileges(confinement["uid"])
            for name in OWN:
                (folder / name / "probe").write_text("")
            found = Findings(
                exposed=[path for path in asked["secret"] if _is_readable(path) or _is_writable(path)]
                + [path for path in asked["code"] if _is_writable(path)],
                unreachable=[path for path in asked["needed"] if not os.access(path, os.R_OK | os.X_OK)],
                closed_devices=[path for path in asked["devices"] if not os.access(path, os.R_OK | os.W_OK)],
            )
            os.write(writer, json.dumps(found).encode())
        except BaseException as error:
            os.write(writer, _encoded(error))
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        content = file.read()
    os.waitpid(child, 0)
    if namespaces is not None:
        namespaces.end()
        os.waitpid(namespaces.init, 0)
    if not content.startswith(b"{"):
        raise _decoded(content)
    answer: Findings = json.loads(content)
    return answer


def _is_writable(path: str) -> bool:
    # A hidden file is covered by the null device, which is writable.
    return os.access(path, os.W_OK) and not os.path.samestat(os.stat(path), os.stat(os.devnull))


def _is_readable(path: str) -> bool:
    """Returns whether this process can read any content at `path`. A hidden folder is empty, so it is not readable."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return bool(os.listdir(fd)) if stat.S_ISDIR(os.fstat(fd).st_mode) else os.read(fd, 1) != b""
    finally:
        os.close(fd)
