"""The log files of a job, with any backend: one file `rank-N.log` per rank for all attempts."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from scheduling.backends import opening
from scheduling.backends.base import LogChunk, LogUnreadable
from scheduling.backends.output import NOTE_ROOM

LOG = re.compile(r"rank-(0|[1-9]\d{0,5})\.log", re.ASCII)


@dataclass(frozen=True)
class LogFiles:
    """The logs in one folder. Reading a file that is no plain log file raises LogUnreadable."""

    folder: Path
    limit: int = sys.maxsize  # most bytes of a log, not counting Fairlot's own notes

    def log(self, rank: int) -> Path:
        return self.folder / f"rank-{rank}.log"

    def open(self, rank: int, flags: int) -> int:
        """Opens a rank's log and returns its file descriptor. Raises OSError if the name leads to anything but a plain
        file."""
        return opening.open_path(self.log(rank), flags)

    def read(self, rank: int, offset: int, limit: int, *, is_over: Callable[[], bool]) -> LogChunk:
        """Returns up to `limit` bytes of a rank's log from byte `offset`.

        The chunk is marked complete at the end of a log that will not grow any more (`is_over`). It has no bytes if
        `offset` is behind the end. Raises LogUnreadable.
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

    def size(self, rank: int) -> int:
        """Returns the log's present size in bytes; 0 without a log. Raises LogUnreadable."""
        try:
            with opening.opened(self.open(rank, os.O_RDONLY)) as log:
                return self._end(os.fstat(log))
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise LogUnreadable(opening.why(error)) from error

    def ranks(self) -> Sequence[int]:
        """Returns the ranks that have a log, in ascending order. Ignores other files in the folder. Raises
        LogUnreadable."""
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
        """Returns the offset of the log's end. Beyond the limit, only bytes that occupy the disk count, because a job
        may have made the file sparse."""
        most = self.limit + 2 * NOTE_ROOM
        return min(found.st_size, max(most, found.st_blocks * 512))
