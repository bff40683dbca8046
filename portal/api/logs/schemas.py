"""Response schemas of the endpoints for the lines of logs."""

from __future__ import annotations

from datetime import datetime

from ninja import Field, Schema


class LogLine(Schema):
    """A line of the log of one worker, or a part of a long line. `text` includes the line end."""

    rank: int
    offset: int = Field(description="Byte offset of the line in the log of its worker. It never changes.")
    at: datetime | None = Field(description="When the line was written; null if this is not known.")
    attempt: int | None = Field(description="The attempt that wrote the line; null if this is not known.")
    text: str


class LogLines(Schema):
    """Lines of the logs of several workers. `next` continues after them, as the parameter `after`.

    The lines are merged by time as far as they are there: those that a running job writes later come later.
    """

    items: list[LogLine]
    next: str
    complete: bool = Field(description="Whether the job has ended and no more lines will come.")


class LogMatch(LogLine):
    """A line that a search found, with lines of the same worker before and after it."""

    before: list[str]
    after: list[str]


class LogMatches(Schema):
    """The lines that a search found, merged by time. If `next` is not null, the search has not reached the end of the
    logs and can be continued with `next` as the parameter `after`."""

    items: list[LogMatch]
    next: str | None
