"""Where a reader must run in the cluster, the Files tab, the API and downloads start it, wait for it, and then read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.test import Client
from django.urls import reverse

from accounting.models import AuditEvent
from portal.models import Scope
from portal.tokens.actions import create_token
from scheduling.backends.base import BackendError, FilesElsewhere, FilesNotReady, NoSuchFile
from scheduling.backends.local import removal
from scheduling.backends.local.backend import LocalBackend
from scheduling.backends.local.files import JobFiles
from scheduling.clusters.backend_factory import backend_for
from scheduling.jobs import reading
from scheduling.jobs.reading import open_files
from scheduling.jobs.submitting import submit_job
from scheduling.models import Cluster
from scheduling.spec.job_spec import JobSpec
from scheduling.tasks import stop_readers
from tests.portal.scene import Scene


class Readers:
    """What a cluster does with the reader of one job."""

    def __init__(self) -> None:
        self.started = 0
        self.is_ready = False
        self.trouble: BackendError | None = None
        self.stopped: list[Callable[[int], bool]] = []

    def files_are_ready(self, backend: object, *, job_id: int) -> bool:
        if self.started and not self.is_ready:
            raise FilesNotReady("The reader of the files waits for a node.")
        return self.is_ready

    def start_reader(self, backend: object, *, job_id: int) -> bool:
        if self.trouble is not None:
            raise self.trouble
        self.started += 1
        return True

    def stop_readers(self, backend: object, *, unless: Callable[[int], bool]) -> None:
        if self.trouble is not None:
            raise self.trouble
        self.stopped.append(unless)


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> Readers:
    made = Readers()
    for name in ("files_are_ready", "start_reader", "stop_readers"):
        method = getattr(made, name)
        monkeypatch.setattr(LocalBackend, name, lambda self, _method=method, **named: _method(self, **named))
    return made


@pytest.fixture
def work(scene: Scene) -> Iterator[Path]:
    files = JobFiles(backend_for(scene.job.cluster).root, scene.job.pk)
    removal.remove(files)
    files.make()
    (files.folder / "work").mkdir()
    (files.folder / "work" / "x.txt").write_text("mine")
    yield files.folder / "work"
    removal.remove(files)


def noted() -> list[str]:
    events = AuditEvent.objects.filter(verb="job.read_files").select_related("actor")
    return [event.actor.get_username() for event in events if event.actor]


@pytest.mark.usefixtures("work")
def test_the_page_starts_a_reader_once_and_shows_the_files_when_it_is_ready(
    scene: Scene, browser_of: Callable[..., Client], readers: Readers
) -> None:
    bob = browser_of(scene.people.bob)

    def see(name: str, path: str = "") -> tuple[int, str]:
        answer = bob.get(reverse(name, args=[scene.job.pk]), {"path": path})
        return answer.status_code, b"".join(answer).decode()

    assert browser_of(scene.people.charlie).get(reverse("job_files", args=[scene.job.pk])).status_code == 404
    assert not readers.started
    for words in ("The reader of the files is starting", "waits for a node"):
        status, page = see("job_files")
        assert status == 200
        assert words in page
        assert 'data-live-within="3"' in page
    assert "waits for a node" in see("job_file", "work/x.txt")[1]
    for name in ("job_file_raw", "job_files_archive", "job_file_image"):
        answer = bob.get(reverse(name, args=[scene.job.pk]), {"path": "work/x.txt"})
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "3")
    assert (readers.started, noted()) == (1, ["bob"])
    readers.is_ready = True
    assert "x.txt" in see("job_files", "work")[1]
    assert "mine" in see("job_file", "work/x.txt")[1]


@pytest.mark.usefixtures("work")
def test_the_api_says_when_to_ask_again(scene: Scene, readers: Readers) -> None:
    _, token = create_token(actor=scene.people.bob, name="t", scopes=Scope.values, days=1)
    path = f"/api/v1/jobs/{scene.job.pk}/files"

    def ask() -> tuple[int, str]:
        answer = Client().get(path, {"path": "work"}, HTTP_AUTHORIZATION=f"Bearer {token}")
        return answer.status_code, answer.headers.get("Retry-After", "")

    assert ask() == (503, "3")
    readers.is_ready = True
    assert ask() == (200, "")


def test_a_reader_that_cannot_start_is_noted_by_nobody(scene: Scene, readers: Readers) -> None:
    scene.job.refresh_from_db()
    readers.trouble = FilesElsewhere("No.", "kubectl")
    with pytest.raises(FilesElsewhere):
        open_files(actor=scene.people.bob, job=scene.job)
    assert not noted()


def test_a_job_that_never_started_has_no_files_and_gets_no_reader(
    scene: Scene, browser_of: Callable[..., Client], readers: Readers
) -> None:
    spec = JobSpec(name="new", command="x")
    bob, cluster = scene.people.bob, scene.job.cluster
    job = submit_job(actor=bob, tenant=scene.people.astro, cluster=cluster, spec=spec)
    with pytest.raises(NoSuchFile):
        open_files(actor=bob, job=job)
    page = browser_of(bob).get(reverse("job_files", args=[job.pk]))
    assert "No files yet" in page.content.decode()
    assert not readers.started


def test_readers_of_deleted_jobs_are_stopped_and_a_cluster_without_an_answer_is_left_for_later(
    scene: Scene, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster: Cluster = scene.job.cluster
    assert reading.clusters_with_readers() == [], "only attached clusters have readers"
    monkeypatch.setattr(reading, "clusters_with_readers", lambda: [cluster.pk])
    stop_readers()
    (is_kept,) = readers.stopped
    assert is_kept(scene.job.pk)
    assert not is_kept(scene.job.pk + 1_000_000)
    readers.trouble = BackendError("away")
    stop_readers()
    assert len(readers.stopped) == 1
