"""Merges the logs of a service's replicas by time, also of replicas that ended lately.

The log of a replica is that of the worker that answers requests. Attempts of different replicas say nothing about each
other, so lines are ordered by their time alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from django.db.models import Q

from accounting.core.clock import now_from_database
from portal.jobs.log_group import Line, LogGroup, Look, Position, offset_from
from portal.jobs.log_search import ESCAPES, search
from portal.jobs.logs import LONGEST_PIECE, READ, LogEnd, LogFile, split
from scheduling.backends.base import LogUnreadable
from scheduling.backends.logtimes import Moment
from scheduling.clusters.backend_factory import backend_for
from scheduling.models import Job, Service

LATELY = timedelta(days=1)  # how long an ended replica stays in the joint log
MOST_REPLICAS = 32  # whose logs are read together
TAIL = 64 * 1024  # bytes at the ends of the logs that are shown first
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


@dataclass(frozen=True)
class ReplicaLog(LogFile):
    """The log of one replica. `problems` gets the reason, by job, if the log cannot be read; the log then counts as
    empty, so that it does not hide those of the others."""

    has_ended: bool = False
    problems: dict[int, str] = field(default_factory=dict, compare=False)

    @property
    def key(self) -> int:
        return self.job_id

    def placed(self, moment: Moment, before: Moment) -> Moment:
        return Moment(0, max(moment.at, before.at))

    def size(self) -> int:
        try:
            return super().size()
        except LogUnreadable as error:
            self.problems[self.job_id] = str(error)
            return 0

    def read(self, offset: int, limit: int = READ) -> bytes:
        try:
            return super().read(offset, limit)
        except LogUnreadable as error:
            self.problems[self.job_id] = str(error)
            return b""

    def further(self, offset: int, end: LogEnd | None, limit: int) -> tuple[bytes, bool]:
        data = self.read(offset, limit)
        return data, self.has_ended and len(data) < limit


@dataclass(frozen=True)
class ReplicaLogs:
    """The logs of replicas of one service."""

    replicas: Sequence[Job]
    group: LogGroup
    problems: dict[int, str]

    @property
    def names(self) -> dict[int, str]:
        """Returns the name of each replica, by the id of its job."""
        return {job.pk: job.name for job in self.replicas}

    def position_from(self, text: str) -> Position | None:
        """Reads a position that `text_of` wrote. Replicas that it lacks begin at their start. Returns None if `text` is
        no position."""
        known = {}
        for part in filter(None, text.split(".")):
            job, _, offset = (offset_from(one) for one in part.partition("-"))
            if job is None or offset is None:
                return None
            known[job] = offset
        return tuple(known.get(job.pk, 0) for job in self.replicas)

    def text_of(self, position: Position) -> str:
        """Writes a position: the id of each replica's job and its offset."""
        return ".".join(
            f"{job.pk}-{offset}" for job, offset in zip(self.replicas, position, strict=True) if offset
        )

    def recent(self, want: int = TAIL) -> tuple[list[Line], Position]:
        """Returns about the last `want` bytes of all logs together, and the position after them."""
        if not self.replicas:
            return [], ()
        sizes = self.group.sizes()
        return self.group.backward(sizes, want)[0], sizes

    def before(self, end: Position | None, most: int) -> tuple[list[Line], Position]:
        """Returns at most `most` lines before a position, and the position where they begin. `end` None stands for the
        ends of the logs."""
        if not self.replicas:
            return [], ()
        sizes = self.group.sizes()
        end = sizes if end is None else tuple(map(min, end, sizes))
        lines = self.group.backward(end, TAIL)[0][-most:]
        begins = {line.rank: line.offset for line in reversed(lines)}
        return lines, tuple(begins.get(job.pk, at) for job, at in zip(self.replicas, end, strict=True))

    def search(self, text: str, *, regex: bool, most: int) -> tuple[list[Line], bool]:
        """Returns at most `most` lines that match, in the order of time, and whether all logs were searched.

        Raises BadPattern for an invalid regular expression, and LogUnreadable if a log cannot be read.
        """
        found, goes_on = search(self.group, text, regex=regex, most=most)
        files = {file.key: file for file in self.group.files}
        return [_line_at(files[key], offset) for key, offset in found], goes_on is None

    def look(self, position: Position) -> Look:
        """Returns the lines after a position."""
        if not self.replicas:
            return Look([], (), (), is_complete=True)
        return self.group.look(position, self.group.start, None)


def replica_logs(service: Service) -> ReplicaLogs:
    """Returns the logs of the replicas that have run: those that have not ended, and those that ended lately; at most
    the MOST_REPLICAS latest."""
    lately = Q(ended_at=None) | Q(ended_at__gt=now_from_database() - LATELY)
    found = Job.objects.filter(lately, service=service, first_started_at__isnull=False, files_removed_at=None)
    replicas = sorted(found.order_by("-pk")[:MOST_REPLICAS], key=lambda job: job.pk)
    backend, problems = backend_for(service.cluster), dict[int, str]()
    files = [
        ReplicaLog(backend, job.pk, job.leading_rank, has_ended=job.has_ended, problems=problems)
        for job in replicas
    ]
    return ReplicaLogs(replicas, LogGroup(files), problems)


def _line_at(file: LogFile, offset: int) -> Line:
    pieces, _ = split(b"".join(file.chunks(offset, offset + LONGEST_PIECE)), offset, flush=True)
    moment = file.times(offset, offset + 1).of(offset)
    return Line(offset, pieces[0][1] if pieces else "", file.key, moment.at, moment.attempt)


def plain(text: str) -> str:
    """Returns a line as people read it: without colours, overwritten parts and control characters."""
    seen = ESCAPES.sub(b"", text.encode()).decode().rstrip("\r\n").rpartition("\r")[2]
    return CONTROLS.sub(lambda found: chr(0x2421 if found[0] == "\x7f" else 0x2400 + ord(found[0])), seen)


def time_of(line: Line) -> datetime | None:
    return datetime.fromtimestamp(line.at / 1000, UTC) if line.at else None
