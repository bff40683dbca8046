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
