"""Users read the files of a job, whatever the job puts there. Nothing outside its folders is read.

Most tests run twice: on this machine, and through the program of reader pods.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

from scheduling.backends import results, safe_folder
from scheduling.backends.base import (
    CodeArchive,
    End,
    FileKind,
    FileList,
    FileUnreadable,
    NoSuchFile,
    OpenFile,
    ResultList,
)
from scheduling.backends.kubernetes.reader_pods import Reader
from scheduling.backends.local import job_folder
from scheduling.backends.local.files import JobFiles
from scheduling.backends.local.job_folder import list_folder, measure, open_file
from scheduling.backends.results import UPLOADED_AT, find_results
from scheduling.core import code_archives
from tests.scheduling.local_rig import Rig, until
from tests.scheduling.reader_process import reader_of

SECRET = b"another's secret"
TERABYTE = 1 << 40


@pytest.fixture
def files(tmp_path: Path) -> JobFiles:
    made = JobFiles(tmp_path / "jobs", 5)
    made.make()
    for part in ("work", "checkpoint", "home"):
        (made.folder / part).mkdir()
    return made


@pytest.fixture
def work(files: JobFiles) -> Path:
    return files.folder / "work"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "x").write_bytes(SECRET)
    return folder


class Files(Protocol):
    """A way to the files of a job."""

    def list_folder(self, path: str, *, after: str = "", limit: int = 9) -> FileList: ...

    def open_file(self, path: str, offset: int = 0) -> OpenFile: ...

    def list_results(self, limit: int = 9) -> ResultList: ...


@dataclass(frozen=True)
class Here:
    files: JobFiles

    def list_folder(self, path: str, *, after: str = "", limit: int = 9) -> FileList:
        return list_folder(self.files, path, after=after, limit=limit)

    def open_file(self, path: str, offset: int = 0) -> OpenFile:
        return open_file(self.files, path, offset)

    def list_results(self, limit: int = 9) -> ResultList:
        return find_results(job_folder.place_of(self.files), limit)


@dataclass(frozen=True)
class InPod:
    reader: Reader

    def list_folder(self, path: str, *, after: str = "", limit: int = 9) -> FileList:
        return self.reader.list_files(path, after, limit)

    def open_file(self, path: str, offset: int = 0) -> OpenFile:
        return self.reader.open_file(path, offset)

    def list_results(self, limit: int = 9) -> ResultList:
        return self.reader.list_results(limit)


Ways = Callable[[JobFiles], Files]


@pytest.fixture(params=["here", "in a pod"])
def ways(request: pytest.FixtureRequest) -> Iterator[Ways]:
    """Yields a function that returns a way to the files of a job."""
    with ExitStack() as running:

        def way(files: JobFiles) -> Files:
            if request.param == "here":
                return Here(files)
            return InPod(running.enter_context(reader_of(files.folder)))

        yield way


@pytest.fixture
def way(ways: Ways, files: JobFiles) -> Files:
    return ways(files)


def names(way: Files, path: str, limit: int = 100) -> list[str]:
    return [entry.name for entry in way.list_folder(path, limit=limit).entries]


def content(way: Files, path: str, offset: int = 0) -> bytes:
    with closing(way.open_file(path, offset)) as opened:
        return opened.read(1000)


def test_folders_come_first_and_case_does_not_count(way: Files, work: Path) -> None:
    for name in ("b", "A", "c.txt"):
        (work / name).write_text(name)
    (work / "Z").mkdir()
    assert names(way, "work") == ["Z", "A", "b", "c.txt"]
    assert names(way, "") == ["checkpoint", "work"]
    folder, *_, last = way.list_folder("work", limit=9).entries
    assert (folder.kind, folder.size) == (FileKind.FOLDER, 0)
    assert (last.kind, last.size, last.why_not) == (FileKind.FILE, 5, "")
    assert 0 <= last.age < 3600
    assert content(way, "work/c.txt", offset=1) == b".txt"


def test_a_job_that_never_ran_has_no_files(tmp_path: Path) -> None:
    for root in (tmp_path, tmp_path / "missing"):
        nothing = JobFiles(root, 7)
        assert list_folder(nothing, "", after="", limit=9).entries == ()
        assert measure(nothing).total == 0
        with pytest.raises(NoSuchFile):
            list_folder(nothing, "work", after="", limit=9)
        with pytest.raises(NoSuchFile):
            open_file(nothing, "work", 0)


def test_only_two_parts_of_the_folder_are_shown(files: JobFiles, way: Files) -> None:
    files.log(0).write_text("a log")
    for path in ("gang.json", "logs", "logs/rank-0.log", "home", "home/x", "orders.lock"):
        with pytest.raises(NoSuchFile):
            way.list_folder(path, limit=9)
        with pytest.raises((NoSuchFile, FileUnreadable)):
            way.open_file(path, 0)


@pytest.mark.slow
def test_a_hundred_thousand_files_are_paged_by_name(files: JobFiles, work: Path) -> None:
    folder = os.open(work, os.O_DIRECTORY)
    count = 100_000
    for number in range(count):
        os.mknod(f"{number:06}", dir_fd=folder)
    os.close(folder)
    first = list_folder(files, "work", after="", limit=500)
    assert [entry.name for entry in first.entries] == [f"{number:06}" for number in range(500)]
    late = list_folder(files, "work", after="099499", limit=500)
    assert [entry.name for entry in late.entries][-1] == "099999"
    assert (first.after, late.after, late.is_cut) == ("000499", "", False)
    assert measure(files).files == count
    shutil.rmtree(work)


def test_pages_join_without_a_gap_also_where_folders_end(way: Files, work: Path) -> None:
    for number in range(7):
        (work / f"folder {number}").mkdir()
        (work / f"file {number}").touch()
    for limit in (1, 2, 7, 13, 14, 15):
        found, after = [], ""
        while True:
            page = way.list_folder("work", after=after, limit=limit)
            found += [entry.name for entry in page.entries]
            if not (after := page.after):
                break
        assert found == names(way, "work"), limit


def test_more_names_than_are_read_are_said_to_be_missing(
    files: JobFiles, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safe_folder, "MOST_ENTRIES", 3)
    for name in "abc":
        (work / name).touch()
    assert not list_folder(files, "work", after="", limit=9).is_cut
    (work / "d").touch()
    assert list_folder(files, "work", after="", limit=9).is_cut


# --- a hostile job -----------------------------------------------------------------------------------


def fifo(path: Path, outside: Path) -> None:
    os.mkfifo(path)


def link(path: Path, outside: Path) -> None:
    path.symlink_to(outside / "x")


def hard_link(path: Path, outside: Path) -> None:
    path.hardlink_to(outside / "x")


def directory(path: Path, outside: Path) -> None:
    path.mkdir()


def listening(path: Path, outside: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        here = os.getcwd()
        os.chdir(path.parent)  # the path of a socket is limited to 108 bytes
        made.bind(path.name)
        os.chdir(here)


SPOILS = (fifo, link, hard_link, directory, listening)
Spoil = Callable[[Path, Path], None]


@pytest.mark.parametrize("spoil", SPOILS, ids=lambda spoil: spoil.__name__)
def test_what_is_no_plain_file_is_listed_with_the_reason_and_never_opened(
    way: Files, work: Path, outside: Path, spoil: Spoil
) -> None:
    spoil(work / "x", outside)
    (entry,) = way.list_folder("work", limit=9).entries
    assert (entry.why_not == "") == (spoil is directory)
    with pytest.raises(FileUnreadable) as refusal:
        way.open_file("work/x", 0)
    assert str(outside) not in str(refusal.value)


@pytest.mark.parametrize("spoil", SPOILS, ids=lambda spoil: spoil.__name__)
def test_a_file_that_is_swapped_while_it_is_opened_is_the_one_that_was_checked(
    files: JobFiles, work: Path, outside: Path, spoil: Spoil, monkeypatch: pytest.MonkeyPatch
) -> None:
    (work / "x").write_bytes(b"mine")
    real = safe_folder.why_not

    def swap(found: os.stat_result) -> str:
        (work / "x").unlink()
        spoil(work / "x", outside)
        return real(found)

    monkeypatch.setattr(safe_folder, "why_not", swap)
    assert content(Here(files), "work/x") == b"mine"


def test_a_folder_that_is_swapped_for_a_link_leads_nowhere(
    files: JobFiles, work: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (work / "deep").mkdir()
    (work / "deep" / "x").write_bytes(b"mine")
    real = os.open

    def swap(path: object, *args: object, **more: object) -> int:
        if path == "deep" and not (work / "deep").is_symlink():
            (work / "deep").rename(work / "before")
            (work / "deep").symlink_to(outside)
        return real(path, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", swap)
    for read in (lambda: content(Here(files), "work/deep/x"), lambda: names(Here(files), "work/deep")):
        with pytest.raises(NoSuchFile):
            read()
    (work / "deep").unlink()
    (work / "before").rename(work / "deep")
    (outside / "large").write_bytes(b"x" * 1_000_000)
    assert measure(files).total < 1_000_000
    assert (work / "deep").is_symlink()  # it was swapped while it was measured


SWAPS = """
import os, sys
os.mkdir("real")
open("real/x", "w").write("mine")
os.symlink(sys.argv[1], "link")
open("mine", "w").write("mine")
os.symlink(sys.argv[1] + "/x", "file link")
print("ready", flush=True)
while True:
    for name, other in (("real", "d"), ("link", "d"), ("mine", "f"), ("file link", "f")):
        os.rename(name, other)
        os.rename(other, name)
"""


def test_a_running_job_that_swaps_links_all_the_time_gives_nothing_of_others_away(
    rig: Rig, outside: Path, ways: Ways
) -> None:
    rig.start(rig.gang("", command=["python", "-c", SWAPS, str(outside)]))
    rig.wait_for_log("ready")
    files, met = rig.files(), set()
    way = ways(files)

    def read(path: str) -> None:
        try:
            seen = content(way, path)
        except (NoSuchFile, FileUnreadable) as refusal:
            met.add(type(refusal))
        else:
            assert seen == b"mine"
            met.add(bytes)

    def has_met_all() -> bool:
        for path in ("work/rank-0/d/x", "work/rank-0/f"):
            read(path)
        assert SECRET.decode() not in str(way.list_folder("work/rank-0"))
        assert measure(files).total < 1 << 20
        return met == {bytes, NoSuchFile, FileUnreadable}

    until(has_met_all, "each outcome")


def test_links_in_place_of_the_parts_themselves_lead_nowhere(way: Files, work: Path, outside: Path) -> None:
    work.rmdir()
    work.symlink_to(outside)
    for read in (lambda: content(way, "work/x"), lambda: names(way, "work")):
        with pytest.raises(NoSuchFile):
            read()


def test_names_that_are_no_text_can_be_read_by_their_escapes(way: Files, work: Path) -> None:
    for name in (b"\xff\xfe", b"a\nb", b"back\\slash", b"n" * 255):
        path = os.fsencode(work) + b"/" + name
        with open(path, "wb") as file:
            file.write(name)
    assert names(way, "work") == ["a\\x0ab", "back\\\\slash", "n" * 255, "\\xff\\xfe"]
    for text in names(way, "work"):
        assert len(content(way, f"work/{text}")) > 0
    for path in (f"work/{'n' * 256}", "work/" + "/".join("d" * 99)):
        with pytest.raises(NoSuchFile):
            way.open_file(path, 0)


def test_a_file_of_a_terabyte_is_opened_at_any_offset_and_takes_no_space(
    files: JobFiles, way: Files, work: Path
) -> None:
    with open(work / "sparse", "wb") as file:
        file.truncate(TERABYTE)
    opened = way.open_file("work/sparse", TERABYTE - 10)
    assert (opened.size, opened.stored, opened.read(1000)) == (TERABYTE, 0, b"\0" * 10)
    assert opened.read(1) == b""
    opened.close()
    assert measure(files).total < 1 << 20


def test_what_happens_to_an_open_file_reaches_its_reader(files: JobFiles, work: Path) -> None:
    (work / "x").write_bytes(b"0123456789")
    opened = open_file(files, "work/x", 0)
    assert opened.read(4) == b"0123"
    os.truncate(work / "x", 6)
    assert opened.read(100) == b"45"
    (work / "x").unlink()
    assert opened.read(100) == b""
    opened.close()


def test_times_far_away_have_a_bounded_age(way: Files, work: Path) -> None:
    (work / "x").touch()
    for moment in (2**40, -(2**31)):
        os.utime(work / "x", (moment, moment))
        (entry,) = way.list_folder("work", limit=9).entries
        assert 0 <= entry.age <= safe_folder.LONGEST_AGE


# --- results -----------------------------------------------------------------------------------------


def test_results_are_the_files_that_the_job_wrote_or_changed_newest_first(
    files: JobFiles, way: Files, work: Path, outside: Path
) -> None:
    assert way.list_results() == ResultList([], 0, is_complete=True)
    given = {
        "rank-0/code/results.csv": 50, "rank-0/code/out/plot é.png": 40, "rank-1/code/results.csv": 30,
        "rank-0/code/train.py": None, "rank-0/code/__pycache__/train.pyc": 60, "rank-0/.cache/x": 60,
        "rank-0/.netrc": 60, "rank-0/env/pyvenv.cfg": 60, "rank-0/env/lib/x.py": 60,
    }  # fmt: skip
    for name, moment in given.items():
        place = work / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(b"12345")
        at = UPLOADED_AT if moment is None else 10**9 + moment
        os.utime(place, (at, at))
    (files.folder / "checkpoint" / "model.pt").write_bytes(b"1")  # now: the newest
    (files.folder / "home" / "notes").touch()
    (work / "link").symlink_to(outside / "x")
    (work / "linked").symlink_to(outside)
    os.mkfifo(work / "fifo")
    (work / "twice").hardlink_to(outside / "x")
    os.utime(work / "twice", (10**9, 10**9))
    found = way.list_results()
    assert [entry.name for entry in found.entries] == [
        "checkpoint/model.pt", "work/rank-0/code/results.csv", "work/rank-0/code/out/plot é.png",
        "work/rank-1/code/results.csv", "work/twice",
    ]  # fmt: skip
    assert [(one.kind, one.size) for one in found.entries[:2]] == [(FileKind.FILE, 1), (FileKind.FILE, 5)]
    assert ["2 names" in one.why_not for one in found.entries] == [False] * 4 + [True]
    assert (found.count, found.is_complete) == (5, True)
    few = way.list_results(2)
    assert ([one.name for one in few.entries], few.count) == ([one.name for one in found.entries[:2]], 5)
    assert content(way, found.entries[1].name) == b"12345"


def test_an_uploaded_file_is_a_result_as_soon_as_the_job_changes_it(rig: Rig) -> None:
    assert UPLOADED_AT == code_archives.TIME
    packed = code_archives.pack_files([("a.py", b"1"), ("b.py", b"2")], code_archives.Bounds(99, 99, 9))
    gang = rig.start(
        rig.gang("echo 3 > b.py; cp -p a.py c.py", code=CodeArchive(packed.digest, packed.content))
    )
    assert rig.wait(gang).end is End.SUCCEEDED, rig.log()
    found = rig.backend.list_results(job_id=gang.job_id, limit=9)
    assert [entry.name for entry in found.entries] == ["work/rank-0/code/b.py"]


def test_a_search_for_results_ends_at_its_limits_and_finds_outer_files_first(
    files: JobFiles, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = job_folder.place_of(files)
    (work / "data").mkdir()
    for number in range(50):
        (work / "data" / str(number)).touch()
    (work / "results.csv").touch()
    assert (find_results(place, 9).count, find_results(place, 9).is_complete) == (51, True)
    monkeypatch.setattr(results, "MOST_ENTRIES", 10)
    found = find_results(place, 99)
    assert "work/results.csv" in [entry.name for entry in found.entries]
    assert (found.is_complete, found.count <= 12) == (False, True)
    monkeypatch.setattr(results, "MOST_SECONDS", -1.0)
    assert find_results(place, 9) == ResultList([], 0, is_complete=False)
    monkeypatch.undo()
    shutil.rmtree(work)
    assert find_results(place, 9) == ResultList([], 0, is_complete=True)


# --- measuring ---------------------------------------------------------------------------------------


def test_each_part_is_measured_and_a_file_of_two_names_counts_once(files: JobFiles, work: Path) -> None:
    (work / "x").write_bytes(b"x" * 100_000)
    (files.folder / "home" / "y").hardlink_to(work / "x")
    files.log(0).write_bytes(b"x" * 50_000)
    found = measure(files)
    assert found.is_complete
    assert found.of_parts["logs"] >= 50_000
    both = found.of_parts["work"] + found.of_parts["home"]
    assert 100_000 <= both < 150_000
    assert found.total == sum(found.of_parts.values())


@pytest.fixture
def deep(work: Path) -> None:
    inner = os.open(work, os.O_DIRECTORY)
    for _ in range(job_folder.MEASURED_DEPTH + 50):
        os.mkdir("d", dir_fd=inner)
        deeper = os.open("d", os.O_DIRECTORY, dir_fd=inner)
        os.close(inner)
        inner = deeper
    os.close(inner)


@pytest.mark.usefixtures("deep")
def test_a_measurement_that_ends_at_a_limit_says_so(
    files: JobFiles, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    assert not measure(files).is_complete  # deeper than folders are opened
    shutil.rmtree(work / "d" / "d")
    assert measure(files).is_complete
    for number in range(300):
        (work / str(number)).touch()
    monkeypatch.setattr(job_folder, "MEASURED_ENTRIES", 100)
    assert not measure(files).is_complete
    monkeypatch.setattr(job_folder, "MEASURED_ENTRIES", 10_000)
    assert measure(files).is_complete
    monkeypatch.setattr(job_folder, "MEASURE_SECONDS", -1.0)
    assert not measure(files).is_complete
    assert len(os.listdir("/proc/self/fd")) == before
