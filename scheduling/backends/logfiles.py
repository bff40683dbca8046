"""The log files of a job, for all backends: one file `rank-N.log` per rank, which contains the output of all
attempts, and beside it `rank-N.times` (logtimes.py)."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from scheduling.backends import opening
from scheduling.backends.base import LogChunk, LogUnreadable
from scheduling.backends.logtimes import NO_TIMES, Moment, Times, TimesReader, TimesWriter
from scheduling.backends.output import NOTE_ROOM

logger = logging.getLogger(__name__)
LOG = re.compile(r"rank-(0|[1-9]\d{0,5})\.log", re.ASCII)


@dataclass(frozen=True)
class LogFiles:
    """The log files in one folder. Reading raises LogUnreadable if a log is not a plain file, for example a link."""

    folder: Path
    limit: int = sys.maxsize  # most bytes of a log, not counting Fairlot's own notes

    def log(self, rank: int) -> Path:
        return self.folder / f"rank-{rank}.log"

    def open(self, rank: int, flags: int) -> int:
        """Opens a rank's log and returns its file descriptor. Raises OSError if the log is not a plain file."""
        return opening.open_path(self.log(rank), flags)

    def read(self, rank: int, offset: int, limit: int, *, is_over: Callable[[], bool]) -> LogChunk:
        """Returns up to `limit` bytes of a rank's log from byte `offset`; no bytes if `offset` is beyond the end.
        Raises LogUnreadable.

        `is_over` is called without arguments and returns whether the log has stopped growing. The chunk's `complete` is
        true if `is_over` returned True and the chunk reaches the end of the log.
        """
        try:
            # Called before reading, so that output written meanwhile is never missed at the end.
            over = is_over()
            with opening.opened(self.open(rank, os.O_RDONLY)) as log:
                end = self._end(os.fstat(log))
                data = os.pread(log, min(limit, end - offset), offset) if offset < end else b""
        except FileNotFoundError:
            return LogChunk(rank, offset, offset, b"", complete=over)
        except (OSError, ValueError) as error:
            raise LogUnreadable(opening.why(error)) from error
        reached = offset + len(data)
        return LogChunk(rank, offset, reached, data, complete=over and reached >= end)

    def times_writer(self, rank: int, attempt: int) -> TimesWriter:
        """Opens the file of a rank's times to append. Never raises an error: without it, the log has no times."""
        path = self.log(rank).with_suffix(".times")
        try:
            return TimesWriter(opening.open_path(path, os.O_RDWR | os.O_APPEND | os.O_CREAT), attempt)
        except OSError as error:
            logger.warning("%s cannot be written: %s", path.name, opening.why(error))
            return TimesWriter(None, attempt)

    def times(self, rank: int, begin: int, end: int) -> Times:
        """Returns when the bytes of a rank's log from offset `begin` to offset `end` were written, as far as known."""
        with self._times(rank) as times:
            return times.between(begin, end) if times else NO_TIMES

    def offset_after(self, rank: int, moment: Moment) -> int | None:
        """Returns the offset of the first byte that was written later than `moment`; None if no byte was."""
        with self._times(rank) as times:
            return times.offset_after(moment) if times else None

    def attempts(self, rank: int, most: int) -> list[tuple[int, Moment]]:
        """Returns where each of the last `most` attempts begins in a rank's log, oldest first: pairs of an offset and
        its moment."""
        with self._times(rank) as times:
            return times.attempts(most) if times else []

    @contextmanager
    def _times(self, rank: int) -> Iterator[TimesReader | None]:
        """Opens the file of a rank's times to read, for the `with` block; None if no plain file is there."""
        try:
            fd = opening.open_path(self.log(rank).with_suffix(".times"), os.O_RDONLY)
        except OSError:  # earlier releases kept no times, and a job may have put anything there
            yield None
            return
        with opening.opened(fd):
            yield TimesReader(fd)

    def size(self, rank: int) -> int:
        """Returns the current size of the log in bytes; 0 if there is no log. Raises LogUnreadable."""
        try:
            with opening.opened(self.open(rank, os.O_RDONLY)) as log:
                return self._end(os.fstat(log))
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise LogUnreadable(opening.why(error)) from error

    def ranks(self) -> Sequence[int]:
        """Returns the ranks that have a log, in ascending order. Raises LogUnreadable.

        Ignores other files in the folder.
        """
        parts = self.folder.parts
        try:
            with opening.folder(Path(*parts[:-2]), *parts[-2:]) as folder:
                found = map(LOG.fullmatch, opening.names_in(folder))
                return sorted(int(name[1]) for name in found if name)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise LogUnreadable(opening.why(error)) from error

    def _end(self, found: os.stat_result) -> int:
        """Returns the offset at which the log ends, in bytes. `found` is the file's status.

        This is the file's size. For a sparse file, it is at most the disk space that the file occupies, or the log's
        size limit if that is larger.
        """
        # A job may have made the file sparse, so that its size is far above the limit.
        most = self.limit + 2 * NOTE_ROOM  # room for the notes that Fairlot itself writes
        return min(found.st_size, max(most, found.st_blocks * 512))
