"""Fetches one commit of a git repository that a user named, as a tar file, within limits of time and size.

git runs without any configuration, prompt, hook, submodule, filter or redirect, and speaks HTTP only. The host name is
looked up once, and git connects to the IP addresses that were checked (accounting/notifications/safe_http.py). Nothing
is checked out: `git archive` writes the files of the commit to a pipe.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from accounting.core.errors import Refused
from accounting.notifications.safe_http import NotReachable, addresses_of, check_url

FIELD = "code"
SECONDS = 20.0  # for everything together
MOST_AT_ONCE = 4  # fetches of one process, each for another team
OLDEST = (2, 37)  # earlier versions of git ignore http.curloptResolve, and would look the host up again
LEAST = 2**20  # bytes that git may write to a file in any case
COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?", re.ASCII)
SETTINGS = {
    "core.hooksPath": "/dev/null",
    "credential.helper": "",
    "fetch.fsckObjects": "true",
    "fetch.recurseSubmodules": "false",
    "gc.auto": "0",
    "http.followRedirects": "false",
    "http.lowSpeedLimit": "1000",
    "http.lowSpeedTime": "10",
    "maintenance.auto": "false",
    "protocol.version": "2",
    "tar.umask": "0022",
}


@dataclass(frozen=True, slots=True)
class Source:
    """A commit of a repository: its URL, and a branch, tag or commit (empty: the default branch). `folder`: the part of
    the repository that is wanted; empty for all of it."""

    url: str
    ref: str = ""
    folder: str = ""
    token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Fetched:
    commit: str
    tar: bytes


def fetch(source: Source, *, team: int, to_private: bool, hosts: list[str], most: int) -> Fetched:
    """Returns the files of the commit that `source` names.

    - `team`: who fetches. A team fetches one repository at a time.
    - `to_private`: whether private networks and http are also allowed.
    - `hosts`: the names of hosts from which to fetch; empty for all.
    - `most`: the largest number of bytes of the tar file, and of what the server sends.

    Raises Refused, with what is wrong and how to go on.
    """
    program = shutil.which("git")
    if program is None:
        raise Refused("The portal's machine has no git. Upload the files instead.", FIELD)
    if _version(program) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise Refused(f"The portal's git is older than {oldest}. Upload the files instead.", FIELD)
    try:
        parts = check_url(source.url, to_private=to_private)
        host = parts.hostname or ""
        if hosts and host not in hosts:
            raise Refused(
                f"Repositories of {host} are not fetched here. Accepted hosts: {', '.join(hosts)}.", FIELD
            )
        port = parts.port or (443 if parts.scheme == "https" else 80)
        addresses = ",".join(
            _bracketed(address) for address, _ in addresses_of(host, port, to_private=to_private)
        )
    except NotReachable as error:
        raise Refused(f"The repository cannot be fetched. {error}", FIELD) from None
    with _turn(team), tempfile.TemporaryDirectory(prefix="fairlot-git-") as folder:
        settings = SETTINGS | {"http.curloptResolve": f"{host}:{port}:{addresses}"}
        if source.token:
            user = base64.b64encode(f"x-access-token:{source.token}".encode()).decode()
            settings["http.extraHeader"] = f"Authorization: Basic {user}"
        git = _Git(program, Path(folder), settings, parts.scheme, most)
        commit = source.ref if COMMIT.fullmatch(source.ref) else _resolve(git, source)
        git.run("init", "--quiet", "--bare", "--template=", ".")
        git.run("fetch", "--quiet", "--depth=1", "--no-tags", source.url, commit)
        tree = f"{commit}:{source.folder}" if source.folder else commit
        return Fetched(commit, git.run("archive", "--format=tar", tree))


@cache
def _version(program: str) -> tuple[int, int]:
    said = subprocess.run([program, "version"], capture_output=True, timeout=10, check=False).stdout
    found = re.search(rb"(\d+)\.(\d+)", said)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _resolve(git: _Git, source: Source) -> str:
    """Returns the commit of a branch or tag. A branch comes before a tag of the same name, as for `git clone`."""
    named = [source.ref, f"{source.ref}^{{}}"] if source.ref else ["HEAD"]
    said = git.run("ls-remote", source.url, *named, most=LEAST)
    known = {
        name: commit for commit, _, name in (line.partition("\t") for line in said.decode().splitlines())
    }
    ref = source.ref
    places = (f"refs/heads/{ref}", f"refs/tags/{ref}^{{}}", f"refs/tags/{ref}", ref) if ref else ("HEAD",)
    for place in places:
        if COMMIT.fullmatch(known.get(place, "")):
            return known[place]
    raise Refused(f"The repository has no branch or tag {ref or 'HEAD'}. Name one, or a whole commit.", FIELD)


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address


class _Git:
    """Runs git in one folder, and keeps the limits on time and size."""

    def __init__(self, program: str, folder: Path, settings: dict[str, str], scheme: str, most: int) -> None:
        self._program, self._folder, self._most = program, folder, most
        self._until = time.monotonic() + SECONDS
        # The environment and not arguments, because every user of the machine can read arguments.
        self._environment = {
            "PATH": os.defpath,
            "HOME": str(folder),
            "LC_ALL": "C",
            "GIT_ALLOW_PROTOCOL": scheme,
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": "/bin/false",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_CEILING_DIRECTORIES": str(folder.parent),
            "GIT_CONFIG_COUNT": str(len(settings)),
            # git allocates the size that an object declares before it reads the object.
            "GIT_ALLOC_LIMIT": str(max(most, LEAST)),
        }
        for at, (name, value) in enumerate(settings.items()):
            self._environment |= {f"GIT_CONFIG_KEY_{at}": name, f"GIT_CONFIG_VALUE_{at}": value}

    def run(self, *arguments: str, most: int | None = None) -> bytes:
        """Returns the output of a git command. Raises Refused if it fails, takes too long or writes more than `most`
        bytes (None: the limit of the fetch)."""
        most = self._most if most is None else most
        blocks = str(max(self._most, LEAST) // 512)  # the most that a file may have, in the unit of ulimit
        process = subprocess.Popen(
            ["/bin/sh", "-c", 'ulimit -f "$1"; shift; exec "$@"', "sh", blocks, self._program, *arguments],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=(errors := tempfile.TemporaryFile()),  # noqa: SIM115 - closed below
            start_new_session=True,
        )
        timer = threading.Timer(max(0.1, self._until - time.monotonic()), _kill, [process])
        timer.start()
        try:
            with errors, process:
                output = process.stdout.read(most + 1) if process.stdout else b""
                if len(output) > most:
                    raise Refused(
                        "The repository's files are too large. Name a folder of it, or use a volume.", FIELD
                    )
                code = process.wait()
                errors.seek(0)
                why = errors.read(100_000).decode(errors="replace")
        finally:
            timer.cancel()
            _kill(process)
        if time.monotonic() >= self._until:
            raise Refused(
                f"The repository was not fetched within {SECONDS:g} seconds. Upload the files instead.", FIELD
            )
        if code != 0:
            raise Refused(f"The repository cannot be fetched. {_in_words(arguments[0], why)}", FIELD)
        return output


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _in_words(command: str, why: str) -> str:
    """Returns what users can do about an error of git. git's own words may contain texts of the server, so only known
    ones are used."""
    for said, words in (
        ("terminal prompts disabled", "It does not exist, or needs a token: name a secret that holds one."),
        ("Authentication failed", "The server does not accept the token in the secret."),
        ("could not read Username", "It does not exist, or needs a token: name a secret that holds one."),
        ("not our ref", "It has no such commit, or the server sends only branches and tags."),
        ("not found", "There is no repository at this address."),
        ("Could not resolve", "The host is not known."),
        (
            "unable to update url base from redirection",
            "The server redirects. Use the address it redirects to.",
        ),
        ("The requested URL returned error: 30", "The server redirects. Use the address it redirects to."),
        ("SSL", "The server's certificate is not valid."),
        ("not a valid object name", "It has no such folder at this commit."),
        ("not a tree object", "It has no such folder at this commit."),
        ("over limit", "It has a file that is too large. Upload the files instead."),
        ("File size limit", "It is too large. Upload the files instead."),
    ):
        if said in why:
            return words
    return f"git {command} failed. Check the address, or upload the files instead."


@contextmanager
def _turn(team: int) -> Iterator[None]:
    with _guard:
        if team in _fetching:
            raise Refused("Your team is fetching another repository right now. Try again in a moment.", FIELD)
        _fetching.add(team)
    try:
        if not _turns.acquire(timeout=SECONDS):
            raise Refused("Too many repositories are being fetched right now. Try again in a moment.", FIELD)
        try:
            yield
        finally:
            _turns.release()
    finally:
        with _guard:
            _fetching.discard(team)


_guard = threading.Lock()
_fetching: set[int] = set()  # teams
_turns = threading.BoundedSemaphore(MOST_AT_ONCE)
