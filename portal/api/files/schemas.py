"""Response schemas of the endpoints for the files of jobs."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from ninja import Field, Schema


class FileEntry(Schema):
    """A file or folder in a folder of a job."""

    name: str
    path: str = Field(
        description=r"The path for other calls. A backslash in it is written as \\, and a byte that is not printable "
        r"UTF-8 as \xNN."
    )
    kind: Literal["folder", "file", "link", "other"] = Field(
        description="Links are never followed. `other`: a FIFO, a socket or a device."
    )
    size: int = Field(description="Bytes of a file; otherwise 0.")
    changed_at: datetime = Field(description="When it was changed last, as the file itself says.")
    why_not: str = Field(description="Why it cannot be downloaded; empty if it can.")


class FilePage(Schema):
    """A page of a folder: folders first, then the rest, each in the order of names.

    To get the next page, call the endpoint again with the parameter `after` set to `next`, which is null on the last
    page.
    """

    path: str
    items: list[FileEntry]
    next: str | None
    is_cut: bool = Field(description="Whether the folder has more entries than Fairlot reads.")


class Results(Schema):
    """The files that a job wrote or changed, newest first."""

    items: list[FileEntry]
    count: int = Field(description="How many were found; `items` has the newest of them.")
    is_complete: bool = Field(
        description="False if the job has more files than Fairlot looks at, so that others may be missing."
    )


class Deletion(Schema):
    """The wish to delete the files of a job, which a worker fulfils soon."""

    wanted_at: datetime
    bytes: int = Field(description="The space of the last measurement; 0 before the first.")


class JobStorage(Schema):
    """The disk space that the files of a job take, as it was measured last."""

    job: int
    name: str
    team: str
    owner: str
    state: str
    bytes: int
    parts: dict[str, int] = Field(
        description="The bytes of each part, such as `work`, `checkpoint` and `logs`."
    )
    files: int
    is_complete: bool = Field(description="Whether the measurement reached all files.")
    measured_at: datetime | None = Field(description="Null before the first measurement.")
    deletion_wanted_at: datetime | None = Field(
        description="When a user had the files deleted; null if nobody has."
    )
    deleted_at: datetime | None = Field(
        description="When Fairlot deletes the files; null if the job has not ended, or they are kept for ever."
    )


class StoragePage(Schema):
    """A page of jobs with files, biggest first.

    To get the next page, call the endpoint again with the parameter `page` set to `next`, which is null on the last
    page.
    """

    items: list[JobStorage]
    next: int | None
