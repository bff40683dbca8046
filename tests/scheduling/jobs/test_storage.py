"""The space that the files of jobs take is measured, and users have the files of ended jobs deleted."""

from __future__ import annotations

import os
from copy import copy
from datetime import timedelta
from pathlib import Path

import pytest
from django.conf import LazySettings
from django.db import connection

from accounting.core.clock import now_from_database
from accounting.core.errors import NotAllowed, Refused
from accounting.models import AuditEvent
from scheduling import storage
from scheduling.backends.base import FileUnreadable
from scheduling.backends.local import job_folder
from scheduling.backends.local.files import JobFiles
from scheduling.clusters.backend_factory import backend_for
from scheduling.models import Job, JobStorage, Lease
from scheduling.retention import remove_files
from scheduling.storage import delete_files, delete_unwanted_files, measure_jobs
from tests.scheduling.jobs.test_job_files import ended
from tests.scheduling.world import World, start, world


@pytest.fixture
def lab(db: None, settings: LazySettings, tmp_path: Path) -> World:
    settings.FAIRLOT_JOBS_DIR = tmp_path / "jobs"
    return world(v100=8)


def write(job: Job, size: int) -> None:
    files = JobFiles(backend_for(job.cluster).root, job.pk)
    files.make()
    (files.folder / "work").mkdir(exist_ok=True)
    (files.folder / "work" / "x").write_bytes(os.urandom(size))


def exists(job: Job) -> bool:
    return JobFiles(backend_for(job.cluster).root, job.pk).folder.exists()


def measured_earlier(job: Job) -> None:
    JobStorage.objects.filter(job=job).update(measured_at=now_from_database() - timedelta(hours=2))


def test_a_running_job_is_measured_hourly_and_an_ended_one_once(lab: World) -> None:
    runs, over = start(lab), ended(lab, 1)
    waits = lab.submit(lab.people.bob, lab.people.astro, gpus=8)
    write(runs, 100_000)
    write(over, 300_000)
    assert measure_jobs(seconds=60) == 2
    assert not JobStorage.objects.filter(job=waits).exists()
    sizes = {row.job_id: row.size // 100_000 for row in JobStorage.objects.all()}
    assert sizes == {runs.pk: 1, over.pk: 3}
    assert measure_jobs(seconds=60) == 0
    for job in (runs, over):
        measured_earlier(job)
    write(runs, 500_000)
    assert measure_jobs(seconds=60) == 1
    assert JobStorage.objects.get(job=runs).size >= 500_000


def test_a_job_whose_files_resist_keeps_no_other_from_being_measured(
    lab: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = ended(lab, 1), ended(lab, 1)
    real = job_folder.measure

    def refuse(files: JobFiles) -> object:
        if files.job_id == first.pk:
            raise FileUnreadable("no")
        return real(files)

    monkeypatch.setattr(job_folder, "measure", refuse)
    assert measure_jobs(seconds=60) == 1
    assert [row.job_id for row in JobStorage.objects.all()] == [second.pk]
    assert measure_jobs(seconds=-1) == 0


def test_a_measurement_before_the_last_attempt_has_ended_is_not_the_last(lab: World) -> None:
    job = ended(lab, 1)
    Lease.objects.filter(job=job).update(state=Lease.State.STOPPING)
    measure_jobs(seconds=60)
    assert not Job.objects.get(pk=job.pk).files_measured
    Lease.objects.filter(job=job).update(state=Lease.State.CLOSED)
    measure_jobs(seconds=60)
    assert Job.objects.get(pk=job.pk).files_measured


def test_the_search_for_unmeasured_files_looks_at_no_job_that_ended_long_ago(lab: World) -> None:
    job = ended(lab, 90)
    Job.objects.filter(pk=job.pk).update(files_measured=True)
    job.refresh_from_db()
    job.pk = None
    Job.objects.bulk_create([copy(job) for _ in range(2_000)])
    start(lab)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE scheduling_job")  # without it, the planner guesses how many jobs there are
    plan = storage._due().explain()
    assert "job_with_unmeasured_files" in plan, plan


def test_files_are_deleted_at_a_users_wish_once(lab: World) -> None:
    job, other = ended(lab, 1), ended(lab, 1)
    measure_jobs(seconds=60)
    size = JobStorage.objects.get(job=job).size
    for _ in range(2):
        delete_files(actor=lab.people.bob, job=job)
    (event,) = AuditEvent.objects.filter(verb="job.delete_files")
    assert (event.actor, event.tenant, event.before) == (lab.people.bob, lab.people.astro, {"bytes": size})
    assert delete_unwanted_files() == 1
    job.refresh_from_db()
    assert job.files_removed_at is not None
    assert [exists(each) for each in (job, other)] == [False, True]
    assert [row.job_id for row in JobStorage.objects.all()] == [other.pk]
    assert delete_unwanted_files() == 0
    with pytest.raises(Refused, match="already been deleted"):
        delete_files(actor=lab.people.bob, job=job)
    assert measure_jobs(seconds=60) == 0


def test_a_wish_stays_until_it_is_fulfilled(lab: World, monkeypatch: pytest.MonkeyPatch) -> None:
    job = ended(lab, 1)
    delete_files(actor=lab.people.alice, job=job)  # also before the first measurement
    files = JobFiles(backend_for(job.cluster).root, job.pk)
    held = files.open_run_lock()
    assert held is not None
    assert delete_unwanted_files() == 0
    os.close(held)
    assert delete_unwanted_files() == 1
    assert not exists(job)


def test_only_who_may_change_an_ended_job_may_delete_its_files(lab: World) -> None:
    job, runs = ended(lab, 1), start(lab)
    people = lab.people
    with pytest.raises(NotAllowed):
        delete_files(actor=people.charlie, job=job)
    with pytest.raises(Refused, match="has not ended"):
        delete_files(actor=people.bob, job=runs)
    for actor in (people.bob, people.alice, people.olga, people.ada):
        delete_files(actor=actor, job=job)
    assert AuditEvent.objects.filter(verb="job.delete_files").count() == 1
    assert not JobStorage.objects.filter(job=runs).exists()


def test_the_usual_deletion_also_ends_the_measurement(lab: World) -> None:
    ended(lab, 31)
    measure_jobs(seconds=60)
    assert JobStorage.objects.count() == 1
    assert remove_files(after=timedelta(days=30)) == 1
    assert JobStorage.objects.count() == 0


def test_a_measurement_that_comes_too_late_is_seen_by_nobody(lab: World) -> None:
    job = ended(lab, 31)
    remove_files(after=timedelta(days=30))
    assert storage._measure(job)  # a worker that had chosen the job before its files were deleted
    assert not JobStorage.objects.visible_to(lab.people.bob).present().exists()
