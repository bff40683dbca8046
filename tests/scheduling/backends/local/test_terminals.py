"""Terminals in running gangs of the local backend: shells that are processes of the job, and never outlive it."""

from __future__ import annotations

import gc
import os
import re
import select
import selectors
import signal
import socket
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.backends.base import End, NoSuchTerminal, Phase
from scheduling.backends.local import accounts, isolation, processes, sandbox, scrollback, shells
from scheduling.backends.local.files import read_json
from scheduling.backends.local.isolation import Isolation
from scheduling.backends.local.shells import Shells
from scheduling.backends.local.terminal import LocalTerminal, open_terminal
from scheduling.backends.local.worker import UNCONFINED, Worker
from tests.scheduling.local_rig import Rig, until
from tests.waiting import PATIENCE

SLEEPS = "echo up; exec sleep 600"


class Screen:
    """A user at an open terminal, who types and reads what the shell prints."""

    def __init__(self, terminal: LocalTerminal) -> None:
        self.terminal = terminal
        self.shown = ""

    def type(self, keys: str) -> None:
        os.write(self.terminal.fileno(), keys.encode())

    def read(self) -> bool:
        """Reads what is there. Returns False once the shell has ended."""
        try:
            self.shown += self.terminal.read(65536).decode(errors="replace")
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True

    def wait_for(self, pattern: str) -> re.Match[str]:
        def found() -> re.Match[str] | None:
            lives = self.read()
            match = re.search(pattern, self.shown)
            assert lives or match, f"the shell ended without {pattern!r}: {self.shown!r}"
            return match

        match = until(found, f"{pattern!r} on the screen")
        assert match is not None
        return match

    def said(self, command: str) -> str:
        """Runs a command, and returns what it printed on one line."""
        mark = uuid.uuid4().hex
        self.type(f"echo {mark[:8]}''{mark[8:]} $({command}).\n")
        return self.wait_for(rf"{mark} (.*?)\.\r?\n")[1].strip()

    def message(self) -> bytes:
        """Waits for a message of the supervisor and returns it."""
        assert select.select([self.terminal.link], [], [], PATIENCE)[0]
        return self.terminal.link.recv(4096)


class Desk:
    """Opens terminals in the gang of a rig, and closes them at the end."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.opened: list[LocalTerminal] = []

    def open(
        self,
        key: str = "first",
        *,
        rank: int | None = 0,
        rows: int = 24,
        columns: int = 80,
        is_trusted: bool = True,
    ) -> Screen:
        terminal = self.rig.backend.open_terminal(
            job_id=1, key=key, rows=rows, columns=columns, rank=rank, is_trusted=is_trusted
        )
        self.opened.append(terminal)
        return Screen(terminal)


@pytest.fixture
def desk(rig: Rig) -> Iterator[Desk]:
    it = Desk(rig)
    yield it
    for terminal in it.opened:
        terminal.close()


def test_a_shell_has_the_workers_user_variables_and_folder_and_its_exit_code_is_told(
    rig: Rig, desk: Desk
) -> None:
    gang = rig.start(
        rig.gang(
            "pwd; id -u; readlink /proc/self/ns/pid; exec sleep 600", workers=2, environment={"HUE": "red"}
        )
    )
    rig.wait(gang, Phase.RUNNING)
    folder, uid, space = rig.wait_for_log("pid:", rank=1).split()
    screen = desk.open(rank=1, rows=33, columns=101)
    assert screen.said("pwd") == folder
    assert screen.said("id -u") == uid
    assert screen.said("readlink /proc/self/ns/pid") == space
    assert screen.said("echo $HUE $FAIRLOT_RANK $CUDA_VISIBLE_DEVICES $TERM") == "red 1 1,9 xterm-256color"
    assert screen.said("stty size") == "33 101"
    screen.terminal.resize(rows=20, columns=60)
    assert screen.said("stty size") == "20 60"
    shell = screen.said("echo $$")
    assert shell.isdigit()
    screen.type("exit 7\n")
    assert screen.terminal.exit_code(screen.message()) == 7
    seen = rig.look(gang)
    assert seen is not None
    assert seen.phase is Phase.RUNNING


def test_the_user_of_a_team_has_a_name_and_a_home_folder(rig: Rig, desk: Desk) -> None:
    if not (rig.backend.isolation.users and rig.backend.isolation.namespaces):
        pytest.skip("jobs run as the user of the portal, or see the accounts of the machine")
    gang = rig.start(rig.gang(SLEEPS, team="astro"))
    rig.wait(gang, Phase.RUNNING)
    (rig.files().folder / "home" / ".bashrc").write_text("PS1='[\\u in \\W]$ '\n")
    screen = desk.open()
    screen.wait_for(r"\[team-astro in ")
    assert (
        screen.said("whoami; id -gn; echo $USER $LOGNAME | xargs")
        == "team-astro team-astro team-astro team-astro"
    )
    assert screen.said("getent passwd team-astro | cut -d: -f6") == str(rig.files().folder / "home")
    assert screen.said("getent passwd 0 | cut -d: -f1") == "root", "the machine's accounts are there, too"
    assert screen.said("touch /etc/passwd && echo can || echo cannot") == "cannot"
    assert "team-astro" not in Path("/etc/passwd").read_text()


def test_a_team_whose_name_the_machine_uses_is_called_by_its_uid(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = rig.root / "accounts"
    taken.write_text("team-astro:x:7:7::/:/bin/sh")
    monkeypatch.setattr(accounts, "PLACES", {"passwd": str(taken), "group": str(rig.root / "none")})
    rig.files().make()
    with rig.files().opened(rig.files().folder, make=True):
        made = accounts.write(rig.files(), name=accounts.name_of("astro", 8), uid=8)
    assert list(made) == [str(taken)]
    first, own = Path(made[str(taken)]).read_text().splitlines()
    assert first.startswith("team-astro:x:7:")
    assert own.startswith("uid8:x:8:8:")
    assert len(accounts.name_of("a" * 80, 8)) == accounts.LONGEST


@pytest.mark.parametrize("own", [False, True])
def test_the_prompt_names_the_job_where_the_user_has_no_account(
    rig: Rig, desk: Desk, monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    if not rig.backend.isolation.users:
        pytest.skip("jobs run as the user of the portal, who has an account")
    monkeypatch.setattr(accounts, "PLACES", {})  # as where jobs have no namespaces
    gang = rig.start(rig.gang(SLEEPS, environment={"PROMPT_COMMAND": "HUE=red"} if own else {}))
    rig.wait(gang, Phase.RUNNING)
    files = rig.files().folder / "home"
    (files / ".bashrc").write_text("PS1='[\\u in \\W]$ '\n")
    screen = desk.open()
    if own:
        assert screen.said("echo $HUE") == "red", "the job's own command goes first"
        return
    screen.wait_for(r"\[job-1 in ")
    assert screen.said("echo $PROMPT_COMMAND") == "", "each prompt after the first costs nothing"
    assert "I have no name" not in screen.shown


def test_a_shell_has_no_rights_and_no_open_files_of_the_portal(rig: Rig, desk: Desk) -> None:
    gang = rig.start(rig.gang(SLEEPS))
    rig.wait(gang, Phase.RUNNING)
    screen = desk.open()
    told = screen.said("grep -E '^(CapPrm|CapEff|NoNewPrivs)' /proc/self/status | tr -s '\\n\\t' ' '").split()
    assert told == ["CapPrm:", "0000000000000000", "CapEff:", "0000000000000000", "NoNewPrivs:", "1"]
    # 3 is the folder that ls itself reads
    assert set(screen.said("ls /proc/self/fd | tr '\\n' ' '").split()) <= {"0", "1", "2", "3"}
    if rig.backend.isolation.namespaces:
        assert screen.said("ls /dev/pts | tr '\\n' ' '") == "0 ptmx", "terminals of others are not there"
    # The job's own processes cannot ask for terminals.
    place = rig.files().folder / shells.SOCKET
    assert place.exists()
    assert screen.said(f"test -w {place} && echo can || echo cannot") == "cannot"


@pytest.mark.parametrize("how", ["exit", "stop", "kill"])
def test_a_shell_ends_with_the_job(rig: Rig, desk: Desk, how: str) -> None:
    gang = rig.start(rig.gang("while ! test -e go; do sleep 0.05; done"))
    rig.wait(gang, Phase.RUNNING)
    screen = desk.open()
    # A shell that ignores SIGHUP and SIGTERM, with a child that does so too.
    screen.type("trap '' HUP TERM; sleep 600 & echo rea''dy\n")
    screen.wait_for("ready")
    began = time.monotonic()
    if how == "exit":
        screen.type("touch go\n")
    elif how == "stop":
        rig.stop(gang, grace=600)
    else:
        os.kill(rig.supervisor(gang), 9)
    if how != "kill" or rig.backend.isolation.namespaces:
        until(lambda: not rig.processes_of(gang), "the end of all processes")
    seen = rig.wait(gang)
    assert seen.end is {"exit": End.SUCCEEDED, "stop": End.STOPPED, "kill": End.LOST}[how]
    assert not rig.processes_of(gang)
    assert time.monotonic() - began < PATIENCE, "the shell must not use up the job's grace period"
    until(lambda: not screen.read(), "the end of the terminal")
    with pytest.raises(NoSuchTerminal):
        desk.open("another")


def test_a_shell_is_frozen_with_the_job_and_goes_on_with_its_command(rig: Rig, desk: Desk) -> None:
    gang = rig.start(rig.gang(SLEEPS))
    rig.wait(gang, Phase.RUNNING)
    screen = desk.open()
    screen.type("for n in 1 2 3 4 5 6 7 8 9; do read line; echo got=$line; done; echo all-''done\n")
    screen.type("a\n")
    screen.wait_for("got=a")
    rig.freeze(gang)
    rig.wait(gang, Phase.FROZEN)
    assert all(each.is_stopped for each in rig.processes_of(gang))
    with pytest.raises(NoSuchTerminal, match="suspended"):
        desk.open("another")
    screen.type("b\n")
    rig.backend.thaw(rig.gang(SLEEPS, epoch=2))
    screen.wait_for("got=b")
    screen.type("c\nd\ne\nf\ng\nh\ni\n")
    screen.wait_for("all-done")
    assert "Stopped" not in screen.shown


def test_a_lost_connection_keeps_the_shell_for_a_while_and_another_takes_it_over(
    rig: Rig, desk: Desk
) -> None:
    rig.wait(rig.start(rig.gang(SLEEPS)), Phase.RUNNING)
    first = desk.open()
    first.type("mark=kept\n")
    first.terminal.close()
    second = desk.open(rank=None)
    assert not second.terminal.is_new
    assert second.said("echo $mark") == "kept"
    third = desk.open(rank=None)
    assert b"replaced" in second.message()
    assert third.said("echo $mark") == "kept"
    third.terminal.end()
    assert third.terminal.exit_code(third.message()) is not None
    with pytest.raises(NoSuchTerminal, match="has ended"):
        desk.open(rank=None)


def test_what_was_shown_and_what_was_printed_meanwhile_is_there_for_who_comes_back(
    rig: Rig, desk: Desk
) -> None:
    rig.wait(rig.start(rig.gang(SLEEPS)), Phase.RUNNING)
    first = desk.open()
    first.type("echo fir''st\n")
    first.wait_for("first")
    first.type("while ! test -e go; do sleep 0.05; done; echo mean''while; touch done\n")
    first.wait_for("done")
    first.terminal.close()
    work = rig.files().folder / "work" / "rank-0"
    (work / "go").touch()
    until((work / "done").exists, "the end of the command, which nobody reads")
    second = desk.open(rank=None)
    until(
        lambda: second.read() and "meanwhile" in second.terminal.earlier.decode() + second.shown, "the output"
    )
    assert "first" in second.terminal.earlier.decode()
    assert desk.open("other").terminal.earlier == b""


def test_output_that_nobody_reads_slows_the_shell_down_and_is_not_lost(rig: Rig, desk: Desk) -> None:
    rig.wait(rig.start(rig.gang(SLEEPS)), Phase.RUNNING)
    first = desk.open()
    lines = 100_000
    count = f"seq 1 20000; touch mid; seq 20001 {lines}; touch end"
    first.type(f"stty -echo; echo rea''dy; read go; {count}; echo al''l\n")
    first.wait_for("ready")
    first.type("\n")
    first.terminal.close()
    work = rig.files().folder / "work" / "rank-0"
    until((work / "mid").exists, "output that the supervisor reads meanwhile")
    second = desk.open(rank=None)
    assert not (work / "end").exists(), "more than is kept was printed"
    second.shown = second.terminal.earlier.decode()
    second.wait_for("all")
    printed = second.shown.partition("ready\r\n")[2].split()
    assert [int(line) for line in printed if line.isdigit()] == list(range(1, lines + 1))


@pytest.mark.parametrize("is_left", [False, True])
def test_a_shell_is_ended_by_its_key(rig: Rig, desk: Desk, is_left: bool) -> None:
    rig.wait(rig.start(rig.gang(SLEEPS)), Phase.RUNNING)
    screen, other = desk.open(), desk.open("other")
    if is_left:
        screen.terminal.close()
    rig.backend.end_terminal(job_id=1, key="first")
    if not is_left:
        assert screen.terminal.exit_code(screen.message()) is not None

    def is_over() -> bool:
        try:
            desk.open(rank=None).terminal.close()
        except NoSuchTerminal:
            return True
        return False

    until(is_over, "the end of the shell")
    assert other.said("echo lives") == "lives"
    rig.backend.end_terminal(job_id=1, key="first")
    rig.backend.end_terminal(job_id=77, key="no such job")


@given(st.lists(st.binary(max_size=200), max_size=40))
def test_the_scrollback_keeps_the_newest_output(pieces: list[bytes]) -> None:
    kept = 64
    with mock.patch.object(scrollback, "KEPT", kept), mock.patch.object(scrollback, "CUT_WITHIN", 8):
        made = scrollback.create()
        for piece in pieces:
            made.add(piece)
        written = b"".join(pieces)
        newest = written[-kept:]
        if len(written) > kept and b"\n" in newest[:8]:
            newest = newest[newest.index(b"\n") + 1 :]
        assert made.read() == newest
        made.close()
        made.close()


class ShellsHere:
    """The supervisor's part, run in this process, so that time passes as a test wants it."""

    def __init__(self, rig: Rig) -> None:
        rig.wait(rig.start(rig.gang(SLEEPS)), Phase.RUNNING)
        self.files, self.worker = rig.files(2), Worker(rig.files(2), _described(rig), 0)
        self.files.folder.mkdir()
        self.selector = selectors.DefaultSelector()
        self.shells = Shells(self.files, self.selector)

    def serve(self) -> None:
        for key, _ in self.selector.select(0.05):
            self.shells.handle(key.fileobj, lambda rank, is_trusted: (self.worker, None))

    @contextmanager
    def opening(self) -> Iterator[Future[LocalTerminal]]:
        with ThreadPoolExecutor() as pool:
            yield pool.submit(open_terminal, self.files, key="k", rows=24, columns=80, rank=0)

    def terminal(self) -> LocalTerminal:
        with self.opening() as opening:
            until(lambda: self.serve() or opening.done(), "the terminal")
            return opening.result()

    def reap(self, pid: int) -> None:
        """Waits for the end of a child, and tells the shells of it."""

        def ended() -> tuple[int, int] | None:
            self.shells.end_abandoned()
            found = os.waitpid(pid, os.WNOHANG)
            return found if found[0] else None

        self.shells.note_end(*until(ended, "the shell's end"))


@pytest.fixture
def here(rig: Rig) -> Iterator[ShellsHere]:
    made = ShellsHere(rig)
    yield made
    made.shells.close()


def test_a_shell_that_nobody_takes_up_again_ends(here: ShellsHere, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = here.terminal()
    (shell,) = here.shells._shells.values()
    here.shells.end_abandoned()
    assert processes.look(shell.pid) is not None
    terminal.close()
    until(lambda: here.serve() or shell.link is None, "the loss of the connection")
    monkeypatch.setattr(shells, "KEPT_SECONDS", 0.0)
    monkeypatch.setattr(shells, "HANGUP_SECONDS", 0.0)
    here.reap(shell.pid)


@pytest.mark.parametrize("how", ["late", "killed", "job ends"])
def test_a_shell_that_the_job_stops_before_it_starts_makes_only_its_user_wait(
    here: ShellsHere, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A program of the job can send SIGSTOP or SIGKILL to the process before it becomes a shell."""
    monkeypatch.setattr(shells, "_enter_folder", lambda *_: signal.pause())
    with here.opening() as opening:
        until(
            lambda: here.serve() or any(one.master >= 0 for one in here.shells._starts.values()), "the start"
        )
        (start,) = here.shells._starts.values()
        here.shells.end_abandoned()
        assert not opening.done()
        assert processes.look(start.pid) is not None
        if how == "killed":
            os.kill(start.pid, signal.SIGKILL)
            here.reap(start.pid)
            terminal = opening.result()
            assert terminal.exit_code(terminal.link.recv(4096)) == 128 + signal.SIGKILL
            terminal.close()
            return
        if how == "job ends":
            here.shells.hang_up_all()
        start.until = 0.0
        here.reap(start.pid)
        with pytest.raises(NoSuchTerminal, match="too long" if how == "late" else "the job ends"):
            opening.result()


def test_a_supervisor_outlives_messages_that_make_no_sense(here: ShellsHere) -> None:
    for message in (
        b"[" * shells.LARGEST_MESSAGE, b"5", b"\xff", b"{}", b'{"key": 1, "rank": 0, "rows": 1e999, "columns": 1}',
    ):  # fmt: skip
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link,
            here.files.opened(here.files.folder) as folder,
        ):
            link.connect(f"/proc/self/fd/{folder}/{shells.SOCKET}")
            link.send(message)
            link.setblocking(False)

            def answer() -> bytes:
                here.serve()
                with suppress(BlockingIOError):
                    return link.recv(4096)
                return b""

            assert b"refused" in until(answer, "the answer")


def test_a_terminal_that_nobody_took_leaves_no_open_files(rig: Rig, desk: Desk) -> None:
    """As after a request that was given up while its terminal was opened."""
    rig.wait(rig.start(rig.gang(SLEEPS)), Phase.RUNNING)
    screen = desk.open()
    master, link = screen.terminal.fileno(), screen.terminal.link.fileno()
    desk.opened.clear()
    del screen
    gc.collect()
    for fd in (master, link):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def test_only_trusted_users_get_a_shell_in_a_gang_that_was_started_with_the_rights_of_the_portal(
    rig: Rig, desk: Desk
) -> None:
    found = rig.backend.isolation
    isolation.force(rig.places, Isolation(False, False, "a test wants it so", "a test wants it so"))
    rig.wait(rig.start(rig.gang(SLEEPS)), Phase.RUNNING)
    # Fairlot has started again, and can keep jobs apart now. The gang still runs as it was started.
    isolation.force(rig.places, replace(found, users=True, exposed=()))
    with pytest.raises(NoSuchTerminal, match="only admins"):
        desk.open(is_trusted=False)
    desk.open()


def test_a_job_cannot_take_all_terminals_of_the_machine(rig: Rig, desk: Desk) -> None:
    if not rig.backend.isolation.namespaces:
        pytest.skip("jobs share the machine's terminals")
    program = (
        "import os, time\nheld = []\ntry:\n    while len(held) < 400: held.append(os.openpty())\n"
        "except OSError: pass\nprint('took', len(held), flush=True)\ntime.sleep(600)"
    )
    rig.wait(rig.start(rig.python(program)), Phase.RUNNING)
    rig.wait_for_log(f"took {sandbox.MOST_TERMINALS}\n")
    with pytest.raises(NoSuchTerminal, match="cannot be started"):
        desk.open()
    rig.wait(rig.start(rig.gang(SLEEPS, job=2)), Phase.RUNNING)
    other = rig.backend.open_terminal(job_id=2, key="k", rows=24, columns=80, rank=0, is_trusted=True)
    desk.opened.append(other)
    assert Screen(other).said("echo fine") == "fine"


def _described(rig: Rig) -> dict[str, Any]:
    described = read_json(rig.files().gang)
    assert described is not None
    return described | {"confinement": UNCONFINED, "progress_pattern": ""}


def test_unread_output_makes_only_the_shell_wait(rig: Rig, desk: Desk) -> None:
    gang = rig.start(rig.gang("i=0; while :; do i=$((i+1)); echo step $i; sleep 0.02; done"))
    rig.wait(gang, Phase.RUNNING)
    screen = desk.open()
    screen.type("yes\n")
    screen.wait_for("y\r\ny\r\n")
    steps = rig.log().count("step")
    rig.wait_for_log("step", times=steps + 50)
    seen = rig.look(gang)
    assert seen is not None
    assert seen.phase is Phase.RUNNING
    screen.type("\x03")
    assert screen.said("echo still here") == "still here"


def test_messages_that_make_no_sense_and_too_many_shells_are_refused(rig: Rig, desk: Desk) -> None:
    rig.wait(rig.start(rig.gang("echo up; exec sleep 600", workers=2)), Phase.RUNNING)
    with pytest.raises(NoSuchTerminal, match="no worker 2"):
        desk.open(rank=2)
    with pytest.raises(NoSuchTerminal, match="has ended"):
        desk.open("never opened", rank=None)
    for number in range(shells.MOST_SHELLS):
        desk.open(f"shell-{number}")
    with pytest.raises(NoSuchTerminal, match="16 terminals"):
        desk.open("one more")
    assert desk.open("shell-3", rank=None).said("echo mine") == "mine"


def test_a_job_with_its_own_shell_gets_it(rig: Rig, desk: Desk) -> None:
    rig.wait(rig.start(rig.gang(SLEEPS, environment={"SHELL": "/bin/sh"})), Phase.RUNNING)
    assert desk.open().said("readlink /proc/$PPID/exe >/dev/null; echo $SHELL") == "/bin/sh"
    rig.wait(rig.start(rig.gang(SLEEPS, job=2, environment={"SHELL": "/no/such"})), Phase.RUNNING)
    terminal = rig.backend.open_terminal(job_id=2, key="k", rows=24, columns=80, rank=0, is_trusted=True)
    desk.opened.append(terminal)
    assert Screen(terminal).said("echo $SHELL") in shells.PROGRAMS
