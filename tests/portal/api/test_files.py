"""The files of a job can be listed and downloaded by those who see the job, whatever the job does meanwhile."""

from __future__ import annotations

import io
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.http import StreamingHttpResponse
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from accounting.core.clock import now_from_database
from portal.jobs import archive, downloads
from portal.jobs.archive import LEFT_OUT, Archive
from portal.jobs.downloads import Span, asked_span
from portal.live import streams
from portal.live.streams import CutOff
from portal.models import ApiToken
from scheduling.backends.local import removal
from scheduling.backends.local.backend import LocalBackend
from scheduling.backends.local.files import JobFiles
from scheduling.backends.results import UPLOADED_AT
from scheduling.clusters.backend_factory import backend_for
from scheduling.models import Job
from tests.portal.scene import Scene

TERABYTE = 1 << 40
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def work(scene: Scene) -> Iterator[Path]:
    """Yields the working folder of Bob's running job, which is empty."""
    files = JobFiles(backend_for(scene.job.cluster).root, scene.job.pk)
    removal.remove(files)
    files.make()
    for part in ("work", "checkpoint"):
        (files.folder / part).mkdir()
    yield files.folder / "work"
    removal.remove(files)


@pytest.fixture
def get(scene: Scene, work: Path) -> Callable[..., Any]:
    """Returns a function that calls an endpoint for the files of Bob's job with Bob's token."""

    def get(what: str, path: str = "", **more: Any) -> Any:
        query = {"path": path} | {name: more.pop(name) for name in ("after", "limit") if name in more}
        headers = {"authorization": f"Bearer {scene.secret}"} | more
        return Client().get(f"/api/v1/jobs/{scene.job.pk}/files{what}", query, headers=headers)

    return get


def body(answer: StreamingHttpResponse) -> bytes:
    async def read() -> bytes:
        return b"".join([part async for part in answer.streaming_content])  # type: ignore[union-attr]

    return async_to_sync(read)()


def test_folders_are_listed_page_by_page(get: Callable[..., Any], work: Path) -> None:
    (work / "out").mkdir()
    for name in ("a\nb", "weights.pt"):
        (work / name).write_bytes(b"12345")
    (work / "link").symlink_to("/etc/passwd")
    assert [item["path"] for item in get("").json()["items"]] == ["checkpoint", "work"]
    first = get("", "work", limit=2).json()
    assert [(item["path"], item["kind"], item["size"]) for item in first["items"]] == [
        ("work/out", "folder", 0),
        ("work/a\\x0ab", "file", 5),
    ]
    second = get("", "work", limit=2, after=first["next"]).json()
    assert [(item["name"], item["why_not"]) for item in second["items"]] == [
        ("link", "it is a symbolic link"),
        ("weights.pt", ""),
    ]
    assert (second["next"], second["is_cut"]) == (None, False)


def test_a_file_is_sent_as_an_attachment_that_no_browser_runs(get: Callable[..., Any], work: Path) -> None:
    (work / "Größe.html").write_text("<script>alert(1)</script>")
    answer = get("/content", "work/Größe.html")
    assert body(answer) == b"<script>alert(1)</script>"
    assert answer["Content-Type"] == "application/octet-stream"
    assert answer["Content-Disposition"] == "attachment; filename*=utf-8''Gr%C3%B6%C3%9Fe.html"
    assert answer["Content-Length"] == "25"
    assert answer["X-Content-Type-Options"] == "nosniff"
    assert answer["Content-Security-Policy"].startswith("sandbox;")


def test_a_range_continues_a_download_of_the_same_file_alone(get: Callable[..., Any], work: Path) -> None:
    (work / "x").write_bytes(b"0123456789")
    version = get("/content", "work/x")["ETag"]
    part = get("/content", "work/x", range="bytes=4-6", **{"if-range": version})
    assert (part.status_code, part["Content-Range"], body(part)) == (206, "bytes 4-6/10", b"456")
    past = get("/content", "work/x", range="bytes=10-")
    assert (past.status_code, past["Content-Range"]) == (416, "bytes */10")
    (work / "x").write_bytes(b"another one")
    whole = get("/content", "work/x", range="bytes=4-6", **{"if-range": version})
    assert (whole.status_code, body(whole)) == (200, b"another one")
    with open(work / "sparse", "wb") as file:
        file.truncate(TERABYTE)
    end = get("/content", "work/sparse", range="bytes=-3")
    assert (end["Content-Range"], body(end)) == (f"bytes {TERABYTE - 3}-{TERABYTE - 1}/{TERABYTE}", b"\0" * 3)


class Asked:
    """Stands for a request with a header Range."""

    def __init__(self, asked: str) -> None:
        self.headers = {"Range": asked}


@given(st.from_regex(r"bytes=\d{0,4}-\d{0,4}", fullmatch=True) | st.text(max_size=12), st.integers(0, 3000))
def test_a_span_is_always_within_the_file(asked: str, size: int) -> None:
    span = asked_span(Asked(asked), size, "")  # type: ignore[arg-type]
    if span is not None and span.begin < span.end:
        assert 0 <= span.begin < span.end <= size
    if asked == f"bytes=0-{size}" and size:
        assert span == Span(0, size)


def test_results_are_listed_and_sent_without_the_folders_around_all(
    scene: Scene, get: Callable[..., Any], work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = work / "rank-0" / "code"
    (place / "out").mkdir(parents=True)
    for age, name in enumerate(("results.csv", "out/plot.png", "train.py")):
        (place / name).write_text(name)
        moment = UPLOADED_AT if name == "train.py" else 2_000_000_000 - age
        os.utime(place / name, (moment, moment))
    headers = {"authorization": f"Bearer {scene.secret}"}
    url = f"/api/v1/jobs/{scene.job.pk}/results"
    listed = Client().get(url, {"limit": 1}, headers=headers).json()
    assert [(one["name"], one["path"]) for one in listed["items"]] == [
        ("results.csv", "work/rank-0/code/results.csv")
    ]
    assert (listed["count"], listed["is_complete"]) == (2, True)

    def names() -> list[str]:
        answer = Client().get(f"{url}/archive", headers=headers)
        with zipfile.ZipFile(io.BytesIO(body(answer))) as archive:
            assert archive.testzip() is None
            return sorted(name.partition("/")[2] or name for name in archive.namelist())

    assert names() == ["out/plot.png", "results.csv"]
    monkeypatch.setattr(downloads, "MOST_FILES", 1)
    assert names() == ["NOT IN THIS ARCHIVE.txt", "results.csv"]


@pytest.mark.parametrize("what", ["", "/content", "/archive"])
def test_only_who_sees_the_job_sees_its_files(
    what: str, scene: Scene, work: Path, browser_of: Callable[..., Client]
) -> None:
    (work / "x").write_text("x")
    path = "work/x" if what == "/content" else "work"
    url = f"/api/v1/jobs/{scene.job.pk}/files{what}?path={path}"
    people = scene.people
    for person, status in ((people.alice, 200), (people.bob, 200), (people.olga, 200), (people.charlie, 404)):
        assert browser_of(person).get(url).status_code == status, person
    assert Client().get(url).status_code == 401


def test_what_cannot_be_read_is_answered_with_the_reason(
    get: Callable[..., Any], work: Path, scene: Scene, tmp_path: Path
) -> None:
    (tmp_path / "outside").write_text("another's secret")
    (work / "link").symlink_to(tmp_path / "outside")
    (work / "hard").hardlink_to(tmp_path / "outside")
    os.mkfifo(work / "fifo")
    for name in ("link", "hard", "fifo"):
        answer = get("/content", f"work/{name}")
        assert answer.status_code == 409
        assert answer.json()["detail"].startswith("This cannot be opened: ")
    for path in ("work/no", "../2", "/etc/passwd", "work/..", "work/link/x", "logs", "x" * 4096):
        assert get("/content", path).status_code in {404, 409}, path
        assert get("", path).status_code == 404, path
    for path in ("x" * 4097, "work/\0"):
        assert get("/content", path).status_code == 422
    assert get("/content", "work").status_code == 409
    Job.objects.filter(pk=scene.job.pk).update(files_removed_at=now_from_database())
    for what in ("", "/content", "/archive"):
        assert get(what, "work/link").json()["detail"] == "The files of this job were deleted."


def test_a_download_ends_when_its_token_is_revoked(
    get: Callable[..., Any], work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (work / "x").write_bytes(b"x" * 100)
    monkeypatch.setattr(downloads, "READ", 10)
    monkeypatch.setattr(streams, "CHECK_SECONDS", 0.0)
    assert len(body(get("/content", "work/x"))) == 100
    answer = get("/content", "work/x")
    ApiToken.objects.update(revoked_at=now_from_database())
    with pytest.raises(CutOff):
        body(answer)


# --- archives ----------------------------------------------------------------------------------------


def test_a_folder_is_sent_as_an_archive(get: Callable[..., Any], work: Path, scene: Scene) -> None:
    (work / "out" / "deep").mkdir(parents=True)
    (work / "out" / "deep" / "x").write_bytes(os.urandom(600_000))
    (work / "out" / "empty").touch()
    (work / "elsewhere").touch()
    os.utime(work / "out" / "empty", (0, 0))
    answer = get("/archive", "work/out")
    top = f"supernova-{scene.job.pk}-out"
    assert answer["Content-Disposition"] == f'attachment; filename="{top}.zip"'
    with zipfile.ZipFile(io.BytesIO(body(answer))) as got:
        assert got.testzip() is None
        assert sorted(got.namelist()) == [f"{top}/deep/x", f"{top}/empty"]
        assert got.read(f"{top}/deep/x") == (work / "out" / "deep" / "x").read_bytes()
        assert got.getinfo(f"{top}/empty").date_time[0] == 1980


def test_an_archive_lists_what_a_hostile_job_keeps_out_of_it(
    get: Callable[..., Any], work: Path, tmp_path: Path
) -> None:
    (tmp_path / "outside").write_text("another's secret")
    (work / "link").symlink_to(tmp_path)
    (work / "hard").hardlink_to(tmp_path / "outside")
    os.mkfifo(work / "fifo")
    (work / "..\\..\\evil").write_text("evil")
    (work / "x").write_text("mine")
    with open(work / "sparse", "wb") as file:
        file.truncate(TERABYTE)
    inner = work
    for _ in range(105):
        inner = inner / "d"
        inner.mkdir()
    with zipfile.ZipFile(io.BytesIO(body(get("/archive", "")))) as got:
        assert got.testzip() is None
        names = [name.partition("/")[2] for name in got.namelist()]
        assert names == ["work/..%%..%%evil", "work/x", ""]
        left_out = got.read(LEFT_OUT).decode()
        assert b"another's secret" not in b"".join(got.read(name) for name in got.namelist())
    for name in ("link", "hard", "fifo", "sparse"):
        assert f"work/{name}: " in left_out
    assert "at most 100 parts" in left_out
    shutil.rmtree(work)


class Restless(LocalBackend):
    """A backend whose job changes a file at each read."""

    change: Callable[[Path], None]

    def open_file(self, *, job_id: int, path: str, offset: int = 0) -> Any:
        opened = super().open_file(job_id=job_id, path=path, offset=offset)
        place, read = self.root / str(job_id) / path, opened.read

        def changing(limit: int) -> bytes:
            self.change(place)
            return read(limit)

        opened.read = changing
        return opened


def grow(path: Path) -> None:
    with open(path, "ab") as file:
        file.write(b"y" * 5000)


def shrink(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def vanish(path: Path) -> None:
    path.unlink(missing_ok=True)


@pytest.mark.parametrize("change", [grow, shrink, vanish])
def test_an_archive_is_valid_also_if_files_change_while_they_are_read(
    change: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "READ", 1000)
    backend = Restless(tmp_path, {}, tmp_path, 1)
    monkeypatch.setattr(Restless, "change", staticmethod(change), raising=False)
    work = tmp_path / "5" / "work"
    work.mkdir(parents=True)
    for name in "ab":
        (work / name).write_bytes(b"x" * 10_000)
    made = Archive(backend, 5, "work", "top", NOW)
    with zipfile.ZipFile(io.BytesIO(b"".join(made.pieces()))) as got:
        assert got.testzip() is None
        sizes = [got.getinfo(f"top/{name}").file_size for name in "ab"]
        assert (
            "shorter" in got.read(LEFT_OUT).decode() if change is shrink else LEFT_OUT not in got.namelist()
        )
    assert all((size < 10_000) == (change is shrink) for size in sizes)


def test_an_archive_has_limits_and_keeps_little_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "MOST_FILES", 3)
    monkeypatch.setattr(archive, "MOST_BYTES", 1 << 21)
    monkeypatch.setattr(archive, "MOST_LEFT_OUT", 2)
    work = tmp_path / "5" / "work"
    work.mkdir(parents=True)
    (work / "0").write_bytes(b"x" * (1 << 21))
    (work / "1").write_bytes(b"x")
    for number in range(2, 8):
        (work / str(number)).touch()
    made = Archive(LocalBackend(tmp_path, {}, tmp_path, 1), 5, "work", "top", NOW)
    pieces = list(made.pieces())
    assert max(map(len, pieces)) < 2 * archive.READ + 1000
    with zipfile.ZipFile(io.BytesIO(b"".join(pieces))) as got:
        assert [*got.namelist()] == ["top/0", "top/2", "top/3", LEFT_OUT]
        assert got.read(LEFT_OUT).decode().splitlines()[-1] == "… and 3 more"


def test_an_archive_of_endless_folders_ends_and_can_be_stopped_at_any_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "MOST_ENTRIES", 30)
    for one in range(10):
        for other in range(10):
            (tmp_path / "5" / "work" / str(one) / str(other)).mkdir(parents=True)
    made = Archive(LocalBackend(tmp_path, {}, tmp_path, 1), 5, "work", "top", NOW)
    pieces = list(made.pieces())
    assert len(pieces) == 31
    with zipfile.ZipFile(io.BytesIO(b"".join(pieces))) as got:
        assert "all that follows is left out" in got.read(LEFT_OUT).decode()
    before = len(os.listdir("/proc/self/fd"))
    (tmp_path / "5" / "work" / "0" / "x").write_bytes(b"x" * 1_000_000)
    stopped = Archive(LocalBackend(tmp_path, {}, tmp_path, 1), 5, "work", "top", NOW).pieces()
    while not next(stopped):  # until a piece of the file arrives
        continue
    assert len(os.listdir("/proc/self/fd")) == before + 1
    del stopped
    assert len(os.listdir("/proc/self/fd")) == before
