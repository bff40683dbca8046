"""Measures searches in logs of a million lines. `python -m tests.bench_logs` prints the seconds and checks the limit.

`make bench` runs this module. It reads the files as a page does, and searches in parts, as one request does. It
measures CPU time, so that other programs affect the result little.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from time import process_time

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
django.setup()

from portal.jobs.log_group import LogGroup, Position  # noqa: E402 - models need Django's set-up
from portal.jobs.log_search import Found, Search  # noqa: E402
from portal.jobs.logs import LogFile  # noqa: E402
from scheduling.backends.base import LogChunk  # noqa: E402
from scheduling.backends.logfiles import LogFiles  # noqa: E402
from scheduling.backends.logtimes import RECORD  # noqa: E402

LINES = 1_000_000
WORKERS = 8  # that share the lines, in the second log
MOST_SECONDS = 2.0
MOST_MEGABYTES = 100  # that a search may add to the memory of the process
MOST_FOUND = 1000
CONTEXT_BYTES = 128 * 1024  # around each of the matches that are shown
SHOWN = 10
SEARCHES = (
    ("a rare text", "needle in worker", False),
    ("a text that is nowhere", "segmentation fault", False),
    ("a regular expression", r"^step \d+ loss 0\.0{4}\d$", True),
    ("a slow one elsewhere", r"(\w+ )*nowhere$", True),
)


@dataclass(frozen=True)
class Folder:
    """Log files in a folder, as a backend reads them."""

    files: LogFiles

    def log_size(self, *, job_id: int, rank: int) -> int:
        return self.files.size(rank)

    def read_log(self, *, job_id: int, rank: int, offset: int, limit: int, last_attempt: int = 0) -> LogChunk:
        return self.files.read(rank, offset, limit, is_over=lambda: False)

    def log_times(self, *, job_id: int) -> LogFiles:
        return self.files


def write(folder: Path, workers: int, *, coloured: bool) -> LogGroup:
    """Writes LINES lines of `workers` workers, with a time for each, and returns their logs."""
    begin, end = (b"\x1b[1;32m", b"\x1b[0m") if coloured else (b"", b"")
    for rank in range(workers):
        offset, rows = 0, 0
        with (
            (folder / f"rank-{rank}.log").open("wb") as log,
            (folder / f"rank-{rank}.times").open("wb") as times,
        ):
            for step in range(rank, LINES, workers):
                text = b"step %d %sloss%s 0.%05d\n" % (step, begin, end, step * 7919 % 99_991)
                if step % (LINES // 5) == rank:
                    text = b"the needle in worker %d\n" % rank
                times.write(RECORD.pack(offset, 1_790_000_000_000 + step, 1))
                log.write(text)
                offset, rows = offset + len(text), rows + 1
    backend = Folder(LogFiles(folder))
    return LogGroup([LogFile(backend, 1, rank) for rank in range(workers)])  # type: ignore[arg-type]


def whole(group: LogGroup, text: str, *, regex: bool) -> list[Found]:
    """Searches to the end, with as many requests as it takes, and reads the lines around the first matches."""
    found: list[Found] = []
    position: Position | None = group.start
    while position is not None and len(found) < MOST_FOUND:
        one = Search(group, text, regex=regex, most=MOST_FOUND, begin=position)
        while one.look():
            continue
        found, position = found + one.found, one.next
    for rank, offset in found[:SHOWN]:
        group.around(rank, offset, CONTEXT_BYTES)
    return found


def figures() -> Iterator[tuple[str, int, float, float]]:
    """Yields for each search its name, the number of matches, the seconds, and the megabytes that it took."""
    for workers, coloured in ((1, False), (1, True), (WORKERS, False)):
        with tempfile.TemporaryDirectory() as folder:
            group = write(Path(folder), workers, coloured=coloured)
            for name, text, regex in SEARCHES:
                before, begins = getrusage(RUSAGE_SELF).ru_maxrss, process_time()
                found = whole(group, text, regex=regex)
                seconds = process_time() - begins
                about = f"{'in colour, ' if coloured else ''}{workers} worker{'s' if workers > 1 else ''}"
                yield (
                    f"{name}, {about}",
                    len(found),
                    seconds,
                    (getrusage(RUSAGE_SELF).ru_maxrss - before) / 1024,
                )


def main() -> int:
    """Prints each search; returns the exit status: 1 if one took too long or too much memory, otherwise 0."""
    wrong = 0
    sys.stdout.write(f"search in {LINES:,} lines, at most {MOST_SECONDS:g} s\n")
    for name, count, seconds, megabytes in figures():
        is_wrong = seconds > MOST_SECONDS or megabytes > MOST_MEGABYTES
        wrong += is_wrong
        sys.stdout.write(
            f"{name:<48} {seconds:6.2f} s {count:5} matches  +{megabytes:.0f} MB{'  TOO MUCH' * is_wrong}\n"
        )
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
