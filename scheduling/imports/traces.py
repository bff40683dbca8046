"""Reads published traces of GPU jobs (user, number of GPUs, submit time, duration), and replays them on equal nodes."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256

from accounting.core.numbers import IN_WORDS, read_whole
from accounting.core.texts import why_no_name
from fairshare.simulator.engine import Engine
from fairshare.simulator.model import Machines, SimJob, Span
from fairshare.simulator.packed import FirstCome

# The columns of the traces of Chronus (SoCC '21), in which a user is a virtual cluster of Philly; other columns are
# ignored. Its times are minutes; here they are seconds.
COLUMNS = ("job_id", "user", "num_gpu", "submit_time", "duration")
# Longest job or team name, and latest time in seconds (31 years), that Fairlot accepts.
LONGEST_NAME, MOST_SECONDS = 50, 10**9


class BadTrace(Exception):
    """Raised for a file that is not a valid trace. The message names the line or the column."""


@dataclass(frozen=True, slots=True)
class TraceJob:
    """A job of a trace. Times are whole seconds from the beginning of the trace."""

    number: str
    tenant: str
    gpus: int
    submitted: int
    duration: int
    line: int = 0  # line in the file; 0 if the job was not read from a file


@dataclass(frozen=True, slots=True)
class PastJob:
    """A job that got GPUs in the replay.

    `held` has the start and the end of the job, in seconds since the trace began, and the node of each worker.
    """

    traced: TraceJob
    workers: int
    gpus_per_worker: int
    held: Span


def decoded(lines: Iterable[bytes]) -> Iterator[str]:
    """Yields the lines of a file decoded as UTF-8. Raises BadTrace for a line that is not UTF-8."""
    for number, line in enumerate(lines, 1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise BadTrace(f"line {number}: not valid UTF-8: {error.reason}") from None


def fingerprint_of(jobs: Iterable[TraceJob]) -> str:
    """Returns a SHA-256 digest of the jobs, in hexadecimal. Files with the same jobs in another format have the same
    digest."""
    told = repr([(job.number, job.tenant, job.gpus, job.submitted, job.duration) for job in jobs])
    return sha256(told.encode()).hexdigest()


def read_trace(lines: Iterable[str]) -> list[TraceJob]:
    """Reads a trace from the lines of a CSV file. Returns the jobs in order of submission.

    The file must have the columns in COLUMNS, and may have others. Raises BadTrace for an invalid trace. The result
    includes jobs without GPUs and jobs with a duration of 0.
    """
    rows = csv.DictReader(lines, strict=True)
    try:
        names = rows.fieldnames or ()
    except csv.Error as error:
        raise BadTrace(f"line 1: {error}") from None
    missing = [name for name in COLUMNS if name not in names]
    if missing:
        raise BadTrace(f"the file has no column {missing[0]}; it must have the columns {', '.join(COLUMNS)}")
    return sorted(_jobs(rows), key=lambda job: (job.submitted, job.number))


def _jobs(rows: csv.DictReader[str]) -> Iterator[TraceJob]:
    seen = set()
    while True:
        begins = rows.line_num + 1
        try:
            row = next(rows, None)
        except csv.Error as error:
            raise BadTrace(f"line {begins}: {error}") from None
        if row is None:
            return
        try:
            gpus, submitted, duration = (_whole(row[column], column) for column in COLUMNS[2:])
            job = TraceJob(row["job_id"], row["user"], gpus, submitted, duration, rows.line_num)
        except (TypeError, ValueError) as error:
            raise BadTrace(f"line {rows.line_num}: {error}") from None
        numbers = (gpus, submitted, duration)
        if (
            not (_is_name(job.number) and _is_name(job.tenant))
            or min(numbers) < 0
            or max(numbers) > MOST_SECONDS
        ):
            raise BadTrace(
                f"line {rows.line_num}: job {str(job.number)[:LONGEST_NAME]} has a name or number that is not accepted;"
                f" accepted: names of 1 to {LONGEST_NAME} characters and numbers from 0 to {MOST_SECONDS}"
            )
        if job.number in seen:
            raise BadTrace(f"line {rows.line_num}: job {job.number} occurs twice")
        seen.add(job.number)
        yield job


def _whole(text: str | None, column: str) -> int:
    number = read_whole(text or "")
    if number is None:
        raise ValueError(f"{column} must be {IN_WORDS}, not {(text or '')[:40]!r}")
    return number


def _is_name(text: str | None) -> bool:
    return text is not None and len(text) <= LONGEST_NAME and not why_no_name(text)


def gang(gpus: int, gpus_per_node: int) -> tuple[int, int]:
    """Returns (workers, GPUs per worker) for a job of `gpus` GPUs: the smallest number of equal workers that each fit
    on a node.

    For example, 12 GPUs on nodes with 8 GPUs give two workers with 6 GPUs each.
    """
    if gpus <= gpus_per_node:
        return 1, gpus
    workers = next(
        count for count in range(2, gpus + 1) if gpus % count == 0 and gpus // count <= gpus_per_node
    )
    return workers, gpus // workers


def replay(jobs: Iterable[TraceJob], *, nodes: int, gpus_per_node: int) -> list[PastJob]:
    """Simulates the jobs on equal nodes, first come, first served. Returns the nodes and times of each job.

    The result is in order of submission, depends only on the arguments, and leaves out jobs without GPUs or duration.
    Raises BadTrace if a job is too large to run even if all nodes are free.
    """
    wanted = [job for job in jobs if job.gpus and job.duration]
    for job in wanted:
        # Checked before the search for the number of workers, which may take millions of steps.
        if job.gpus > nodes * gpus_per_node:
            raise _too_large(job, nodes, gpus_per_node)
    gangs = [gang(job.gpus, gpus_per_node) for job in wanted]
    for job, (workers, each) in zip(wanted, gangs, strict=True):
        if workers > nodes * (gpus_per_node // each):
            raise _too_large(job, nodes, gpus_per_node)
    machines = Machines((0,) * nodes, (gpus_per_node,) * nodes)
    sims = [
        SimJob(float(job.submitted), float(job.duration), workers, each)
        for job, (workers, each) in zip(wanted, gangs, strict=True)
    ]
    fates = Engine(machines, sims, FirstCome()).run().fates
    return [
        PastJob(job, workers, each, fate.spans[0])
        for job, (workers, each), fate in zip(wanted, gangs, fates, strict=True)
    ]


def _too_large(job: TraceJob, nodes: int, gpus_per_node: int) -> BadTrace:
    where = f"line {job.line}: " if job.line else ""
    return BadTrace(
        f"{where}job {job.number} requests {job.gpus} GPUs; {nodes} nodes with {gpus_per_node} GPUs each are too few"
    )
