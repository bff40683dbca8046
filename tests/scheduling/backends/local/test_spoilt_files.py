"""A job may replace any of its files, for example by a link to a file of others. Fairlot then still stops the job,
reads nothing outside its folder, and blocks no other job."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from scheduling.backends import opening
from scheduling.backends.base import End, Gang, LogUnreadable, Phase
from scheduling.backends.local import removal
from scheduling.backends.local.files import JobFiles, read_json, write_json
from scheduling.backends.logfiles import LogFiles
from scheduling.backends.output import NOTE_ROOM, Log
from tests.scheduling.local_rig import Rig, until

Spoil = Callable[[Path, Path], None]


def fifo(path: Path, outside: Path) -> None:
    os.mkfifo(path)


def link(path: Path, outside: Path) -> None:
    path.symlink_to(outside)


def dangling_link(path: Path, outside: Path) -> None:
    path.symlink_to(outside.with_name("made by the portal"))


def hard_link(path: Path, outside: Path) -> None:
    path.hardlink_to(outside)


def directory(path: Path, outside: Path) -> None:
    path.mkdir()
    (path / "inside").touch()


def listening(path: Path, outside: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        os.chdir(path.parent)  # the path of a socket is limited to 108 bytes, so the relative name is used
        made.bind(path.name)


SPOILS = [fifo, link, dangling_link, hard_link, directory, listening]
spoils = pytest.mark.parametrize("spoil", SPOILS, ids=lambda spoil: spoil.__name__)


@pytest.fixture(autouse=True)
def _stay_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(".")


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Returns a file outside the job's folder. If the portal read the file as progress, it would find 42 steps."""
    path = tmp_path / "outside"
    path.write_text("secret 42\n")
    return path


def is_untouched(outside: Path) -> bool:
    return outside.read_text() == "secret 42\n" and not outside.with_name("made by the portal").exists()


def replace(path: Path, spoil: Spoil, outside: Path) -> None:
    """Replaces the file at `path` by the file, link or folder that `spoil` creates, atomically, as a job can do at any
    moment."""
    made = path.with_name("made")
    spoil(made, outside)
    if path.exists() and path.is_dir() != made.is_dir():
        path.unlink()
    made.rename(path)


def running(rig: Rig, **changes: object) -> Gang:
    gang = rig.start(rig.gang("echo ready; exec sleep 600", **changes))
    rig.wait(gang, Phase.RUNNING)
    rig.wait_for_log("ready")
    return gang


def wait_for_beats(rig: Rig, count: int = 2) -> None:
    """Waits for `count` heartbeats, after which the supervisor has read all files again."""
    for _ in range(count):
        before = read_json(rig.files().beat)
        until(lambda before=before: read_json(rig.files().beat) != before, "a heartbeat")


# --- single files ------------------------------------------------------------------------------------


@spoils
def test_only_a_plain_file_is_opened_and_none_is_waited_for(
    tmp_path: Path, outside: Path, spoil: Spoil
) -> None:
    place = tmp_path / "folder"
    place.mkdir()
    spoil(place / "name", outside)
    with opening.folder(place) as folder:
        for flags in (os.O_RDONLY, os.O_WRONLY | os.O_APPEND, os.O_RDWR | os.O_CREAT):
            with pytest.raises(OSError, match="name"):
                opening.open_file("name", flags, folder=folder)
    assert is_untouched(outside)


@spoils
@pytest.mark.parametrize("name", ["a.json", ".a.json.new"])
def test_a_file_is_replaced_whatever_lies_there(
    tmp_path: Path, outside: Path, spoil: Spoil, name: str
) -> None:
    place = tmp_path / "folder"
    place.mkdir()
    spoil(place / name, outside)
    write_json(place / "a.json", {"a": 1})
    assert read_json(place / "a.json") == {"a": 1}
    assert is_untouched(outside)


@pytest.mark.parametrize("at", [1, 2])
def test_no_folder_on_the_way_may_be_a_link(tmp_path: Path, at: int) -> None:
    real = tmp_path / "real" / "job" / "logs"
    real.mkdir(parents=True)
    (real / "rank-0.log").write_text("another's")
    path = tmp_path / "root"
    (path / "job").parent.mkdir()
    if at == 1:
        (path / "job").symlink_to(real.parent)
    else:
        (path / "job").mkdir()
        (path / "job" / "logs").symlink_to(real)
    logs = LogFiles(path / "job" / "logs")
    for read in (lambda: logs.read(0, 0, 9, is_over=lambda: True), lambda: logs.size(0), logs.ranks):
        with pytest.raises(LogUnreadable):
            read()


def test_a_root_that_links_lead_to_is_the_operators_choice(tmp_path: Path) -> None:
    (tmp_path / "disk" / "1" / "logs").mkdir(parents=True)
    (tmp_path / "disk" / "1" / "logs" / "rank-0.log").write_text("ours")
    (tmp_path / "jobs").symlink_to(tmp_path / "disk")
    assert LogFiles(tmp_path / "jobs" / "1" / "logs").size(0) == 4


def test_files_that_are_read_whole_have_a_size_limit(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 42)
    with opening.folder(tmp_path) as folder, pytest.raises(OSError, match="longer than"):
        opening.read_file("large", folder=folder, limit=1000)


@pytest.mark.parametrize("text", ["[]", "nothing", "[" * 100_000, ""])
def test_a_damaged_report_is_a_value_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=r"damaged|Expecting"):
        read_json(tmp_path / "a.json")


# --- files of a running job --------------------------------------------------------------------------


@spoils
def test_whatever_is_the_progress_file_the_job_can_be_stopped(rig: Rig, outside: Path, spoil: Spoil) -> None:
    gang = running(rig)
    replace(rig.files().progress(0), spoil, outside)
    wait_for_beats(rig)
    seen = rig.look(gang)
    assert seen is not None
    assert seen.steps is None
    rig.stop(gang)
    assert rig.wait(gang).end is End.STOPPED
    assert is_untouched(outside)


def test_a_lease_on_the_progress_file_blocks_nothing(rig: Rig) -> None:
    program = """
import fcntl, os, signal, time
signal.signal(signal.SIGIO, signal.SIG_IGN)
fd = os.open(os.environ["FAIRLOT_PROGRESS"], os.O_RDWR | os.O_CREAT)
fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("ready", flush=True)
time.sleep(600)
"""
    gang = rig.start(rig.python(program))
    rig.wait_for_log("ready")
    wait_for_beats(rig)
    rig.stop(gang)
    assert rig.wait(gang).end is End.STOPPED


@spoils
def test_whatever_replaces_the_log_no_foreign_file_is_read(rig: Rig, outside: Path, spoil: Spoil) -> None:
    gang = running(rig)
    replace(rig.files().log(0), spoil, outside)
    with pytest.raises(LogUnreadable, match=r"^The log cannot be read: .+\.$"):
        rig.backend.read_log(job_id=1, rank=0, offset=0, limit=100)
    with pytest.raises(LogUnreadable):
        rig.backend.log_size(job_id=1, rank=0)
    rig.stop(gang)
    assert rig.wait(gang).end is End.STOPPED
    again = rig.start(rig.gang("echo again", epoch=2))
    assert rig.wait(again).end is End.SUCCEEDED
    assert any("log of worker 0 cannot be written" in event.text for event in rig.backend.cluster_events())
    assert is_untouched(outside)


ORDERS = ["gang.json", "desired.json", ".desired.json.new", "poke", "supervisor.log"]


@pytest.mark.parametrize("names", [ORDERS, ["orders.lock", "run.lock"]], ids=["orders", "locks"])
@spoils
def test_whatever_is_put_for_files_of_ours_the_job_can_be_stopped(
    rig: Rig, outside: Path, spoil: Spoil, names: list[str]
) -> None:
    gang = running(rig)
    for name in names:
        replace(rig.files().folder / name, spoil, outside)
    wait_for_beats(rig, 1)
    rig.stop(gang)
    assert rig.wait(gang).phase is Phase.ENDED
    assert not rig.processes_of(gang)
    assert is_untouched(outside)


def test_a_job_folder_that_was_moved_away_keeps_no_job_from_being_stopped(rig: Rig, outside: Path) -> None:
    gang = running(rig)
    rig.files().folder.rename(rig.root / "elsewhere")
    rig.files().folder.symlink_to(outside.parent)
    rig.stop(gang)
    assert rig.wait(gang).phase is Phase.ENDED
    assert is_untouched(outside)
    rig.files().folder.unlink()


def test_extra_names_among_logs_are_no_ranks(rig: Rig) -> None:
    rig.wait(rig.start(rig.gang("true")))
    for name in (
        "rank-x.log",
        "rank-01.log",
        "rank-\u0661.log",
        "rank-9999999.log",
        "rank-.log",
        "rank-2.log.old",
    ):
        (rig.files().logs / name).touch()
    assert rig.backend.log_ranks(job_id=1) == [0]


def test_a_deep_tree_of_temporary_files_blocks_no_attempt(rig: Rig) -> None:
    program = """
import os, time
os.chdir(os.environ["TMPDIR"])
for _ in range(3000):
    os.mkdir("d")
    os.chdir("d")
print("ready", flush=True)
time.sleep(600)
"""
    first = rig.start(rig.python(program))
    rig.wait_for_log("ready")
    second = rig.start(rig.gang("echo again", epoch=2))
    assert rig.wait(second).end is End.SUCCEEDED
    assert rig.wait(first).end is End.STOPPED
    until(lambda: not list(rig.files().folder.glob("tmp*")), "the end of the temporary files")


def test_a_folder_in_place_of_the_progress_file_is_gone_with_a_killed_supervisor(rig: Rig) -> None:
    gang = running(rig)
    rig.files().progress(0).mkdir()
    os.kill(rig.supervisor(gang), 9)
    assert rig.wait(gang).end is End.LOST
    again = rig.start(rig.gang('echo 7 > "$FAIRLOT_PROGRESS"; exec sleep 600', epoch=2))
    until(lambda: (seen := rig.look(again)) and seen.steps == 7, "the progress")


def test_folders_outside_are_created_by_the_program_and_not_by_its_supervisor(
    rig: Rig, tmp_path: Path
) -> None:
    """The program creates the folders that a user names for HOME and TMPDIR, because the supervisor may have more
    rights."""
    outside = f"/tmp/{os.getpid()}-{tmp_path.name}"  # in /tmp, where every user may create files
    made = {"HOME": f"{outside}/home", "TMPDIR": f"{outside}/tmp"}
    rig.wait(rig.start(rig.gang('cd "$HOME" && cd "$TMPDIR" && echo there', environment=made)))
    shutil.rmtree(outside, ignore_errors=True)
    assert rig.log() == "there\n"
    refused = rig.wait(rig.start(rig.gang("true", job=2, environment={"HOME": "/proc/nothing"})))
    assert refused.end is End.START_FAILED


# --- logs --------------------------------------------------------------------------------------------


def sparse(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(b"begin\n")
        file.truncate(size)


def test_a_log_counts_only_as_far_as_a_log_may_reach_or_has_data(tmp_path: Path) -> None:
    logs = LogFiles(tmp_path / "1" / "logs", limit=1000)
    sparse(logs.log(0), 1 << 42)
    size = logs.size(0)
    assert 1000 <= size <= 1000 + 3 * NOTE_ROOM
    assert logs.read(0, size - 5, 1 << 30, is_over=lambda: True).complete
    logs.log(1).write_bytes(b"x" * 200_000)  # longer than the limit, as if written when the limit was higher
    os.sync()
    assert logs.size(1) == 200_000


@pytest.mark.parametrize("offset", [7, 8, 10**9, 2**63 - 1, 2**80])
def test_behind_the_end_there_is_nothing(tmp_path: Path, offset: int) -> None:
    logs = LogFiles(tmp_path / "1" / "logs")
    logs.folder.mkdir(parents=True)
    logs.log(0).write_bytes(b"1234567")
    chunk = logs.read(0, offset, 100, is_over=lambda: True)
    assert (chunk.data, chunk.next_offset, chunk.complete) == (b"", offset, True)


def test_writing_is_tried_again_after_a_disk_error_and_the_gap_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    log = Log(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1000, resumes=True)
    log.write(b"before\n")
    full, real = [True], os.write

    def write(fd: int, data: bytes) -> int:
        if full[0]:
            raise OSError(28, "No space left on device")
        return real(fd, data)

    monkeypatch.setattr(os, "write", write)
    log.write(b"lost\n")
    log.write(b"lost, too\n")
    assert log.trouble == "No space left on device"
    full[0] = False
    log.write(b"after\n")
    assert log.trouble == ""
    log.write(b"more\n")
    log.close()
    text = path.read_text()
    assert text.startswith(
        "before\n\n[fairlot] 15 bytes of output are missing here: the log could not be written (No space left"
    )
    assert ")\nafter\nmore\n" in text
    assert "[fairlot] 15 bytes of output were cut" in text


@pytest.mark.parametrize("number", [5, 13, 20, 21, 30, 40])
def test_no_error_of_a_disk_ends_a_log(number: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    log = Log(os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT), 1000)

    def write(fd: int, data: bytes) -> int:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", write)
        log.write(b"something")
    assert (log.cut, log.trouble) == (9, os.strerror(number))
    log.release()


def test_a_log_that_cannot_be_opened_ends_no_job_and_the_job_says_so(rig: Rig) -> None:
    files = rig.files()
    files.make()
    files.log(0).mkdir()
    seen = rig.wait(rig.start(rig.gang("echo step 5")))
    assert (seen.end, seen.steps) == (End.SUCCEEDED, 5)
    [event] = rig.backend.cluster_events()
    assert "The log of worker 0 cannot be written (Is a directory)" in event.text
    rig.backend.observe()
    assert list(rig.backend.cluster_events()) == []


def test_reports_that_cannot_be_read_hide_no_others(rig: Rig, outside: Path) -> None:
    gang = running(rig)
    for number, spoil in enumerate(SPOILS, start=50):
        spoil(rig.root / ".status" / f"{number}-1.json", outside)
    (rig.root / ".status" / "60-1.json").write_text(json.dumps({"job_id": "x"}))
    (rig.root / ".status" / "elsewhere.json").mkdir()
    assert [seen.token for seen in rig.backend.observe()] == [gang.token]


def test_files_of_an_ended_job_go_whatever_it_left_for_its_lock(tmp_path: Path, outside: Path) -> None:
    for number, spoil in enumerate(SPOILS, start=1):
        files = JobFiles(tmp_path / "jobs", number)
        files.make()
        spoil(files.folder / "run.lock", outside)
        spoil(files.status(1), outside)
        removal.remove(files)
        assert not files.folder.exists()
        assert not list(files.status(1).parent.iterdir())
    assert is_untouched(outside)
