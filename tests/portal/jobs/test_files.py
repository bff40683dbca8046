"""The Files tab of a job: folders, previews and downloads. What a job wrote runs in no browser."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path
from urllib.parse import quote

import pytest
from django.conf import LazySettings
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from hypothesis import given
from hypothesis import strategies as st

from accounting.core.clock import now_from_database
from portal.jobs import file_views, previews
from portal.jobs.previews import MOST_COLUMNS, MOST_ROWS, image_type, table_of
from scheduling.backends.kubernetes.checkpoint_files import elsewhere
from scheduling.backends.local import removal
from scheduling.backends.local.backend import LocalBackend
from scheduling.backends.local.files import JobFiles
from scheduling.backends.results import UPLOADED_AT
from scheduling.clusters.backend_factory import backend_for
from scheduling.models import Job
from tests.portal.scene import Scene

PNG = base64.b64decode(
    b"iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
SCRIPT = "<script>alert(1)</script>"


@pytest.fixture
def work(scene: Scene) -> Iterator[Path]:
    """Yields the working folder of Bob's running job, which is empty."""
    files = JobFiles(backend_for(scene.job.cluster).root, scene.job.pk)
    removal.remove(files)
    files.make()
    (files.folder / "work").mkdir()
    yield files.folder / "work"
    removal.remove(files)


@pytest.fixture
def get(scene: Scene, work: Path, browser_of: Callable[..., Client]) -> Callable[..., str]:
    """Returns a function that returns a page of the files of Bob's job as Bob sees it."""
    browser = browser_of(scene.people.bob)

    def get(name: str, path: str, *, status: int = 200, after: str = "") -> str:
        answer = browser.get(reverse(name, args=[scene.job.pk]), {"path": path, "after": after})
        assert answer.status_code == status
        return answer.content.decode()

    return get


def names_on(page: str) -> list[str]:
    return re.findall(r"</svg>([^<\n]+)</a>\s*</th>", page)


def test_a_folder_lists_folders_first_and_continues_on_the_next_page(
    get: Callable[..., str], work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_views, "ENTRIES_PER_PAGE", 2)
    (work / "out & in").mkdir()
    for name in ("a.txt", "b.txt"):
        (work / name).write_text(name)
    first = get("job_files", "work")
    assert names_on(first) == ["out &amp; in/", "a.txt"]
    assert "after=a.txt" in first
    assert names_on(get("job_files", "work", after="a.txt")) == ["b.txt"]
    assert "The folder is empty." in get("job_files", "work/out & in")
    get("job_files", "work/nothing", status=404)


def test_a_page_of_files_takes_as_many_queries_for_many_files_as_for_none(
    get: Callable[..., str], work: Path
) -> None:
    counts = []
    for number in (0, 150):
        for each in range(number):
            (work / f"{each}").touch()
        with CaptureQueriesContext(connection) as asked:
            get("job_files", "work")
        counts.append(len(asked))
    assert counts[0] == counts[1]


def test_a_text_is_shown_escaped_and_its_errors_are_said(get: Callable[..., str], work: Path) -> None:
    (work / f"page{SCRIPT[:8]}.html").write_text(SCRIPT)
    (work / "bad.txt").write_bytes(b"caf\xe9 au lait")
    (work / "binary").write_bytes(b"\x7fELF\0\0")
    page = get("job_file", f"work/page{SCRIPT[:8]}.html")
    assert SCRIPT not in page
    assert SCRIPT[:8] not in page.partition("<main")[2]
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "caf\ufffd au lait" in get("job_file", "work/bad.txt")
    assert "The file is not UTF-8 text." in get("job_file", "work/bad.txt")
    assert "No preview" in get("job_file", "work/binary")


def test_only_the_beginning_of_a_long_text_is_read(
    get: Callable[..., str], work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(previews, "PREVIEW", 11)
    (work / "long.txt").write_text("0123456789é and the rest")  # the preview ends within a character
    page = get("job_file", "work/long.txt")
    assert "0123456789</pre>" in page
    assert "These are the first" in page
    assert "not UTF-8" not in page


def test_a_picture_is_sent_with_the_type_of_its_content_and_nothing_else_is(
    scene: Scene, work: Path, browser_of: Callable[..., Client], get: Callable[..., str]
) -> None:
    (work / "plot.html").write_bytes(PNG)
    (work / "plot.svg").write_text(f"<svg xmlns='http://www.w3.org/2000/svg'>{SCRIPT}</svg>")
    (work / "plot.png").write_text(SCRIPT)
    assert '<img class="file-image"' in get("job_file", "work/plot.html")
    browser, url = browser_of(scene.people.bob), reverse("job_file_image", args=[scene.job.pk])
    answer = browser.get(url, {"path": "work/plot.html"})
    assert (answer["Content-Type"], answer.content) == ("image/png", PNG)
    assert answer["Content-Security-Policy"].startswith("sandbox; default-src 'none'")
    assert answer["X-Content-Type-Options"] == "nosniff"
    for name in ("plot.svg", "plot.png"):
        assert browser.get(url, {"path": f"work/{name}"}).status_code == 404
        assert "<img" not in get("job_file", f"work/{name}").partition("<main")[2]


@given(st.binary(max_size=20))
def test_nothing_that_begins_like_markup_is_a_picture(begin: bytes) -> None:
    assert image_type(b"<" + begin) == ""
    assert image_type(b" " + begin) == ""


def test_comma_separated_values_are_a_table(get: Callable[..., str], work: Path) -> None:
    rows = "".join(f'{number},"a, b",<b>\n' for number in range(500))
    (work / "loss.csv").write_text(f"step,note,html\n{rows}")
    page = get("job_file", "work/loss.csv")
    assert page.count(", b</td>") == MOST_ROWS
    assert "<td>a, b</td><td>&lt;b&gt;</td>" in page
    assert "only a part of the table" in page


@given(st.text(alphabet='ab,"\n\r\0\t', max_size=200), st.booleans())
def test_every_text_is_a_table_of_bounded_size_or_none(text: str, is_cut: bool) -> None:
    table = table_of(text, ",", is_cut=is_cut)
    if table is not None:
        assert len(table.rows) <= MOST_ROWS
        assert 2 <= len(table.head) <= MOST_COLUMNS
        assert {len(row) for row in table.rows} <= {len(table.head)}


def test_a_table_with_too_much_is_cut() -> None:
    wide = table_of(",".join(map(str, range(100))), ",", is_cut=False)
    assert wide is not None
    assert (len(wide.head), wide.is_cut) == (MOST_COLUMNS, True)
    assert (
        table_of("a" * 200_000 + ",b\n", ",", is_cut=False) is None
    )  # the field is longer than the reader takes


def test_a_name_of_any_bytes_has_links_that_lead_to_it(get: Callable[..., str], work: Path) -> None:
    with open(bytes(work) + b'/\xff"<x>%&?#\n', "wb") as file:
        file.write(b"found it")
    page = get("job_files", "work")
    (link,) = set(re.findall(r'href="\S*/files/file/\?path=([^"]+)"', page))
    assert link == quote('work/\\xff"<x>%&?#\\x0a', safe="")
    assert "found it" in get("job_file", 'work/\\xff"<x>%&?#\\x0a')


@pytest.mark.parametrize(
    "name", ["job_files", "job_file", "job_file_raw", "job_file_image", "job_files_archive", "job_results"]
)
def test_the_files_of_other_teams_are_not_there(
    name: str, scene: Scene, work: Path, browser_of: Callable[..., Client]
) -> None:
    (work / "x.png").write_bytes(PNG)
    path = "work" if "files" in name else "work/x.png"
    url = reverse(name, args=[scene.job.pk])
    people = scene.people
    for person, status in ((people.alice, 200), (people.bob, 200), (people.olga, 200), (people.charlie, 404)):
        assert browser_of(person).get(url, {"path": path}).status_code == status, person


def test_results_come_first_and_newest_first(scene: Scene, get: Callable[..., str], work: Path) -> None:
    place = work / "rank-0" / "code"
    (place / "out").mkdir(parents=True)
    for age, name in enumerate(("results.csv", "out/plot.png", "train.py")):
        (place / name).write_text(name)
        moment = UPLOADED_AT if name == "train.py" else 2_000_000_000 - age
        os.utime(place / name, (moment, moment))
    page = get("job_files", "")
    assert (
        page.index("Results</h2>")
        < page.index("results.csv")
        < page.index("plot.png")
        < page.index("work/</a>")
    )
    assert reverse("job_results", args=[scene.job.pk]) in page
    assert "2 files that the job wrote or changed" in page
    assert "train.py" not in page
    assert "as uploaded" in get("job_files", "work/rank-0/code")
    assert "Results</h2>" not in get("job_files", "work")


def test_the_overview_of_an_ended_job_has_its_newest_results(
    scene: Scene, work: Path, browser_of: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_views, "FEW_RESULTS", 1)
    (work / "old.txt").touch()
    os.utime(work / "old.txt", (10**9, 10**9))
    (work / "new.txt").touch()
    bob, job = browser_of(scene.people.bob), scene.job

    def part() -> str:
        address = f"{reverse('job_files', args=[job.pk])}?few=1"
        assert address in bob.get(reverse("job", args=[job.pk])).content.decode()
        answer = bob.get(address, headers={"HX-Request": "true", "HX-Target": "section#job-results"})
        return answer.content.decode()

    assert "new.txt" not in part()
    Job.objects.filter(pk=job.pk).update(state=Job.State.SUCCEEDED, ended_at=now_from_database())
    shown = part()
    assert "the newest 1 of 2 files" in shown
    assert ("new.txt" in shown, "old.txt" in shown, "<nav" in shown) == (True, False, False)
    (work / "new.txt").write_text("<b>")
    [inline] = re.findall(r'hx-get="([^"]*inline=1[^"]*)"', shown)
    preview = bob.get(unescape(inline), headers={"HX-Request": "true"}).content.decode()
    assert ("&lt;b&gt;</pre>" in preview, "<html" in preview) == (True, False)


def test_the_page_says_when_files_will_be_deleted_and_that_they_were(
    scene: Scene, get: Callable[..., str], settings: LazySettings
) -> None:
    settings.FAIRLOT_KEEP_JOB_FILES_DAYS = 30
    assert "deleted 30 days after its end" in get("job_files", "")
    settings.FAIRLOT_KEEP_JOB_FILES_DAYS = 0
    assert "kept for ever" in get("job_files", "")
    Job.objects.filter(pk=scene.job.pk).update(files_removed_at=now_from_database())
    assert "The files were deleted" in get("job_files", "work")
    assert "The files of this job were deleted." in get("job_file", "work/x")
    assert get("job_file_raw", "work/x", status=409) == "The files of this job were deleted.\n"


def test_where_the_portal_cannot_read_files_the_page_says_how_to_get_them(
    get: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **more: object) -> None:
        raise elsewhere(17, "team-astro", "checkpoints", "the reader cannot start: no such image")

    monkeypatch.setattr(LocalBackend, "list_files", refuse)
    page = get("job_files", "")
    assert "PersistentVolumeClaim checkpoints of the namespace team-astro" in page
    assert "The portal cannot read them: the reader cannot start: no such image." in page
    assert "kubectl --namespace team-astro cp" in page
    get("job_files_archive", "", status=409)
