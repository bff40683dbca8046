"""Where a job's logs lie, whatever backend wrote them: `rank-N.log` for each rank, over all turns."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from scheduling.backends.base import LogChunk


@dataclass(frozen=True)
class LogFiles:
    """The logs in one folder, for who reads them."""

    folder: Path

    def log(self, rank: int) -> Path:
        return self.folder / f"rank-{rank}.log"

    def read(self, rank: int, offset: int, limit: int, *, is_over: Callable[[], bool]) -> LogChunk:
        """Up to `limit` bytes from byte `offset`; complete at the end of a log to which nothing is added any more."""
        # Asked before reading: what is written meanwhile is then never taken for the last word.
        over = is_over()
        try:
            with self.log(rank).open("rb") as log:
                size = os.fstat(log.fileno()).st_size
                data = b""
                if offset < size:  # file systems refuse to seek to where no file can reach
                    log.seek(offset)
                    data = log.read(limit)
                at_end = offset + len(data) >= size
        except FileNotFoundError:
            return LogChunk(rank, offset, offset, b"", complete=over)
        return LogChunk(rank, offset, offset + len(data), data, complete=over and at_end)

    def size(self, rank: int) -> int:
        """Bytes that the log has now; 0 when there is none."""
        try:
            return self.log(rank).stat().st_size
        except FileNotFoundError:
            return 0

    def ranks(self) -> Sequence[int]:
        """Ranks that have a log."""
        return sorted(int(log.stem.removeprefix("rank-")) for log in self.folder.glob("rank-*.log"))
