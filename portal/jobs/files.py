"""Reads the folders of a job for pages and the API."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.conf import settings
from django.http import HttpRequest

from accounting.core.clock import now_from_database
from accounting.models import User
from portal.live.streams import Rights
from scheduling.backends.base import Backend, FileEntry, FileKind, FileUnreadable, NoSuchFile
from scheduling.backends.results import UPLOADED_AT
from scheduling.jobs.reading import open_files
from scheduling.models import Job

AT_ONCE = 1000  # most entries of a page
PREVIEWED = (
    ".csv", ".gif", ".jpeg", ".jpg", ".json", ".jsonl", ".log", ".md", ".png", ".tsv", ".txt", ".webp", ".yaml", ".yml",
)  # fmt: skip
UPLOADED = datetime.fromtimestamp(UPLOADED_AT, UTC)


class FilesRemoved(FileUnreadable):
    """Raised when the files of a job have been deleted."""

    def __init__(self) -> None:
        super().__init__("The files of this job were deleted.")


@dataclass(frozen=True)
class Row:
    """An entry of a folder, with its path."""

    name: str
    path: str
    kind: FileKind
    size: int
    changed_at: datetime
    why_not: str

    @property
    def is_folder(self) -> bool:
        return self.kind is FileKind.FOLDER

    @property
    def folder(self) -> str:
        """Returns the path of the folder around the entry."""
        return self.path.rpartition("/")[0]

    @property
    def has_preview(self) -> bool:
        """Returns whether the name promises a file that a page can show."""
        return not self.why_not and self.name.lower().endswith(PREVIEWED)

    @property
    def is_uploaded(self) -> bool:
        """Returns whether this is an uploaded file that the job did not change."""
        return abs(self.changed_at - UPLOADED) < timedelta(days=1)


@dataclass(frozen=True)
class Folder:
    """A page of a folder's entries. `after` continues it; empty on the last page."""

    rows: Sequence[Row]
    after: str
    is_cut: bool


@dataclass(frozen=True)
class Results:
    """The newest files that a job wrote or changed, the number of all that were found, and whether these are all."""

    rows: Sequence[Row]
    count: int
    is_complete: bool


def are_gone(job: Job) -> bool:
    """Returns whether the job's files have been deleted. On Kubernetes clusters only logs are ever deleted."""
    return job.files_removed_at is not None and job.cluster.backend == "local"


def files_of(job: Job, reader: User) -> Backend:
    """Returns the backend that reads the job's files for `reader`, who may see the job.

    Raises FilesRemoved if they have been deleted, and what `open_files` raises.
    """
    if are_gone(job):
        raise FilesRemoved
    return open_files(actor=reader, job=job)


def folder_of(job: Job, reader: User, path: str, *, after: str = "", limit: int) -> Folder:
    """Returns a page of a folder of the job. Raises NoSuchFile and FileUnreadable."""
    try:
        backend = files_of(job, reader)
    except NoSuchFile:
        if path:
            raise
        return Folder((), "", is_cut=False)
    page = backend.list_files(job_id=job.pk, path=path, after=after, limit=limit)
    now = now_from_database()
    rows = [_row(entry, f"{path}/{entry.name}" if path else entry.name, now) for entry in page.entries]
    return Folder(rows, page.after, page.is_cut)


def results_of(job: Job, reader: User, *, limit: int) -> Results:
    """Returns the newest results of the job. Raises FileUnreadable."""
    try:
        backend = files_of(job, reader)
    except NoSuchFile:
        return Results((), 0, is_complete=True)
    found, now = backend.list_results(job_id=job.pk, limit=limit), now_from_database()
    rows = [_row(entry, entry.name, now) for entry in found.entries]
    return Results(rows, found.count, found.is_complete)


def _row(entry: FileEntry, path: str, now: datetime) -> Row:
    return Row(
        name=path.rpartition("/")[2],
        path=path,
        kind=entry.kind,
        size=entry.size,
        changed_at=now - timedelta(seconds=entry.age),
        why_not=entry.why_not,
    )


def deleted_at(job: Job) -> datetime | None:
    """Returns when the files of an ended job will be deleted; None if that is not known, or never happens."""
    days = settings.FAIRLOT_KEEP_JOB_FILES_DAYS
    return job.ended_at + timedelta(days=days) if job.has_ended and job.ended_at and days else None


def keep_right(
    request: HttpRequest, user: User, job: Job, reader: Callable[[], User | None] | None = None
) -> Rights:
    """Returns the check during a download whether `user` may still see the job. `reader`: as for Rights."""

    def may_see(user: User) -> bool:
        return Job.objects.visible_to(user).filter(pk=job.pk).exists()

    return Rights(request, user, may_see, reader)
