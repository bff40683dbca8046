"""Logs and checkpoints of ended jobs are removed after some days. Files of running jobs, and files that links point to,
are kept."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from datetime import timedelta
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
from django.conf import LazySettings

from accounting.core.clock import now_from_database
from accounting.models import UsageSegment
from scheduling import tasks
from scheduling.backends.base import BackendError, End, Phase
from scheduling.backends.local import removal
from scheduling.backends.local.files import JobFiles, try_lock
from scheduling.clusters.backend_factory import backend_for
from scheduling.models import Job
from scheduling.retention import remove_files
from tests.scheduling.local_rig import Rig, until
from tests.scheduling.world import World, start, world


class Killed(BaseException):
    """Raised where the test kills the process. As a BaseException it is not caught by `except Exception`."""


def fill(files: JobFiles, outside: Path) -> None:
    """Creates every kind of file that a job may leave: links to `outside`, a FIFO, folders without permissions, …"""
    files.make()
    (files.folder / "run.lock").touch()
    files.log(0).write_text("step 1\n")
    checkpoint = files.folder / "checkpoint" / "a" / "b" / "c"
    checkpoint.mkdir(parents=True)
    (checkpoint / "weights").write_bytes(b"x" * 100)
    (checkpoint / "elsewhere").symlink_to(outside)
    (checkpoint / "its file").symlink_to(outside / "precious")
    (checkpoint / "nowhere").symlink_to("/nonexistent")
    (checkpoint.parent / "hard").hardlink_to(outside / "precious")
    os.mkfifo(checkpoint / "fifo")
    (checkpoint / "weights").chmod(0)
    checkpoint.chmod(0)
    checkpoint.parent.chmod(0o500)
    files.status(1).write_text("{}")
    files.beat.write_text("{}")


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    made = tmp_path / "outside"
    made.mkdir()
    (made / "precious").write_text("keep me")
    return made


def kept(outside: Path) -> bool:
    return [path.name for path in outside.iterdir()] == ["precious"] and (
        outside / "precious"
    ).read_text() == "keep me"


def left(root: Path) -> list[str]:
    """Returns the relative paths of everything below `root`, except the folders that all jobs share."""
    found = (str(path.relative_to(root)) for path in root.rglob("*"))
    return sorted(set(found) - {".status", ".beats", ".removed"})


# --- one folder --------------------------------------------------------------------------------------


def test_everything_goes_and_links_are_not_followed(tmp_path: Path, outside: Path) -> None:
    root = tmp_path / "jobs"
    for job in (5, 51):
        fill(JobFiles(root, job), outside)
    removal.remove(JobFiles(root, 5))
    assert kept(outside)
    assert {path.split("/")[0] for path in left(root)} == {"51", ".status", ".beats"}
    assert os.listdir(root / ".status") == ["51-1.json"]
    assert JobFiles(root, 51).log(0).read_text() == "step 1\n"
    assert JobFiles(root, 51).status(1).exists()
    removal.remove(JobFiles(root, 5))  # removing the same files again changes nothing
    removal.remove(JobFiles(root, 51))
    assert left(root) == []
    removal.remove(JobFiles(tmp_path / "no such root", 1))


def test_a_folder_that_is_a_link_itself_only_loses_the_link(tmp_path: Path, outside: Path) -> None:
    root = tmp_path / "jobs"
    JobFiles(root, 1).make()
    (root / "5").symlink_to(outside)
    removal.remove(JobFiles(root, 5))
    assert kept(outside)
    assert not (root / "5").is_symlink()


def test_nothing_is_moved_to_where_a_link_leads(rig: Rig, outside: Path) -> None:
    files = rig.files(5)
    files.make()
    (rig.root / ".removed").symlink_to(outside)
    with pytest.raises(BackendError, match="cannot be removed"):
        rig.backend.remove_files(job_id=5)
    assert kept(outside)
    assert files.folder.exists()


def test_a_tree_of_any_depth_goes(tmp_path: Path) -> None:
    files = JobFiles(tmp_path / "jobs", 5)
    files.make()
    inner = os.open(files.folder, os.O_DIRECTORY)
    for _ in range(3000):  # exceeds Python's recursion limit, the limit of open files, and the longest path
        os.mkdir("d", dir_fd=inner)
        deeper = os.open("d", os.O_DIRECTORY, dir_fd=inner)
        os.close(inner)
        inner = deeper
    os.close(inner)
    removal.remove(files)
    assert left(files.root) == []


def test_time_is_asked_at_each_name_and_the_rest_goes_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = JobFiles(tmp_path / "jobs", 5)
    for number in range(50):  # the clock is also read for folders that contain no file
        (files.folder / "work" / str(number)).mkdir(parents=True)
    clock = count()
    monkeypatch.setattr(removal, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(removal, "REMOVE_SECONDS", 10)
    for turn in range(50):
        try:
            removal.remove(files)
            break
        except TimeoutError:
            assert next(clock) < (turn + 1) * 60, "it went on"
    assert turn > 5
    assert left(files.root) == []


def test_asking_whether_a_job_runs_does_not_change_its_folder(rig: Rig) -> None:
    """A refused removal of a running job's files leaves the permissions of the job's folder unchanged.

    The Unix user of the job's team needs these permissions to reach the files.
    """
    rig.start(rig.gang("echo ready; exec sleep 600"))
    rig.wait_for_log("ready")
    folder = rig.files().folder
    before = stat.S_IMODE(folder.stat().st_mode) | 0o10
    folder.chmod(before)
    with pytest.raises(BackendError, match="still run"):
        rig.backend.remove_files(job_id=1)
    assert stat.S_IMODE(folder.stat().st_mode) == before


def test_killed_at_any_step_it_is_completed_the_next_time(
    tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = ("mkdir", "rename", "unlink", "rmdir", "listdir", "chmod")
    done, number = False, 0
    while not done:
        files = JobFiles(tmp_path / f"jobs-{number}", 5)
        fill(files, outside)
        with monkeypatch.context() as patched:
            left_to_do = iter(range(number))
            for step in steps:
                patched.setattr(os, step, until_killed(getattr(os, step), left_to_do))
            try:
                removal.remove(files)
                done = True
            except Killed:
                # The job's folder is either complete or gone.
                assert not files.folder.exists() or files.log(0).read_text() == "step 1\n"
        removal.remove(files)
        assert left(files.root) == [], f"killed at step {number}"
        assert kept(outside)
        number += 1
    assert number > 20


def until_killed(do: Callable[..., object], steps: object) -> Callable[..., object]:
    def one(*args: object, **more: object) -> object:
        if next(steps, None) is None:  # type: ignore[call-overload]
            raise Killed
        return do(*args, **more)

    return one


def test_a_running_job_keeps_its_folder(rig: Rig) -> None:
    gang = rig.start(rig.gang("echo here; sleep 100", job=5))
    rig.wait_for_log("here", job=5)
    with pytest.raises(BackendError, match="still run"):
        rig.backend.remove_files(job_id=5)
    assert rig.log(5) == "here\n"
    rig.stop(gang)
    rig.wait(gang)
    files = rig.files(5)

    def released() -> bool:
        lock = files.open_run_lock()
        if lock is not None:
            os.close(lock)
        return lock is not None

    until(released, "the supervisor's end")
    rig.backend.remove_files(job_id=5)
    assert not files.folder.exists()
    assert rig.log(5) == ""
    assert rig.backend.log_ranks(job_id=5) == []
    assert rig.look(gang) is None


def test_one_process_deletes_at_a_time(rig: Rig) -> None:
    rig.files(5).make()
    (rig.root / ".removed").mkdir()
    held = os.open(rig.root / ".removed", os.O_DIRECTORY)
    assert try_lock(held)
    with pytest.raises(BackendError, match="another process"):
        rig.backend.remove_files(job_id=5)
    os.close(held)
    rig.backend.remove_files(job_id=5)
    assert not rig.files(5).folder.exists()


# --- which jobs --------------------------------------------------------------------------------------


@pytest.fixture
def lab(db: None, settings: LazySettings, tmp_path: Path) -> World:
    settings.FAIRLOT_JOBS_DIR = tmp_path / "jobs"
    return world(v100=8)


def folder(job: Job) -> JobFiles:
    files = JobFiles(backend_for(job.cluster).root, job.pk)
    files.make()
    files.log(0).write_text("step 1\n")
    return files


def ended(lab: World, days: float) -> Job:
    """Returns a job that ended `days` days ago, with files."""
    job = start(lab)
    lab.see(lab.lease(job), Phase.ENDED, end=End.SUCCEEDED, ended_age=0.0)
    Job.objects.filter(pk=job.pk).update(ended_at=now_from_database() - timedelta(days=days))
    folder(job)
    return job


def test_files_go_some_days_after_the_end_and_never_before(lab: World) -> None:
    old, young, runs = ended(lab, 31), ended(lab, 29), start(lab)
    waits = lab.submit(lab.people.bob, lab.people.astro, gpus=8)
    Job.objects.filter(pk__in=[runs.pk, waits.pk]).update(created_at=now_from_database() - timedelta(days=99))
    files = {job: folder(job) for job in (old, young, runs, waits)}
    booked = UsageSegment.objects.count()
    assert remove_files(after=timedelta(days=30)) == 1
    assert [job for job in files if not files[job].folder.exists()] == [old]
    assert list(Job.objects.exclude(files_removed_at=None)) == [old]
    assert remove_files(after=timedelta(days=30)) == 0
    assert remove_files(after=timedelta(0)) == 1
    assert files[runs].folder.exists()
    assert files[waits].folder.exists()
    assert UsageSegment.objects.count() == booked


def test_a_job_that_resists_keeps_the_others_from_nothing(lab: World) -> None:
    first, second = ended(lab, 31), ended(lab, 31)
    held = folder(first).open_run_lock()
    assert held is not None
    assert remove_files(after=timedelta(days=30)) == 1
    assert list(Job.objects.exclude(files_removed_at=None)) == [second]
    os.close(held)
    assert remove_files(after=timedelta(days=30)) == 1
    assert not folder_exists(first)


def folder_exists(job: Job) -> bool:
    return JobFiles(backend_for(job.cluster).root, job.pk).folder.exists()


def test_killed_between_the_files_and_the_mark_it_is_marked_the_next_time(
    lab: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = ended(lab, 31)
    real = removal.remove

    def remove_and_die(files: JobFiles) -> None:
        real(files)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(removal, "remove", remove_and_die)
        with pytest.raises(Killed):
            remove_files(after=timedelta(days=30))
    job.refresh_from_db()
    assert job.files_removed_at is None
    assert remove_files(after=timedelta(days=30)) == 1
    job.refresh_from_db()
    assert job.files_removed_at is not None


def test_the_setting_says_after_how_many_days_and_0_keeps_all(lab: World, settings: LazySettings) -> None:
    job = ended(lab, 1000)
    settings.FAIRLOT_KEEP_JOB_FILES_DAYS = 0
    tasks.remove_files()
    assert folder_exists(job)
    settings.FAIRLOT_KEEP_JOB_FILES_DAYS = 1001
    tasks.remove_files()
    assert folder_exists(job)
    settings.FAIRLOT_KEEP_JOB_FILES_DAYS = 999
    tasks.remove_files()
    assert not folder_exists(job)
