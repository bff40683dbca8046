"""The export formats. Each is a generator of text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

from accounting.core.calendar import MICROSECOND
from accounting.core.clock import now_from_database
from accounting.core.csv_lines import csv_line, harmless
from scheduling.models import Job
from scheduling.reports.exports.reading import (
    ExportedJob,
    Selection,
    generations_of,
    read_attempts,
    read_jobs,
)
from scheduling.reports.exports.slurm import job_state, sacct_head, sacct_lines, shredder_line

MICROS = 10**6  # microseconds per second
BREAKS = {
    ord(char): f"\\u{ord(char):04x}" for char in "\x85\u2028\u2029"
}  # line breaks that JSON leaves unescaped


def sacct(selection: Selection) -> Iterator[str]:
    """Yields pipe-separated lines with a header: for each attempt a job line and a step line, and one more job line for
    a job that waits or ended while it waited."""
    now, generations = now_from_database(), generations_of()
    yield sacct_head()
    for some in read_jobs(selection, now):
        yield "".join(line for exported in some for line in sacct_lines(exported, now, generations))


def shredder(selection: Selection) -> Iterator[str]:
    """Yields lines for `xdmod-shredder -f slurm`, without a header: one for each attempt that ended in the period."""
    now, generations = now_from_database(), generations_of()
    for some in read_attempts(selection, now):
        yield "".join(shredder_line(exported, now, generations) for exported in some)


COLUMNS = (
    "job_id", "job_name", "kind", "preemptible", "resource", "queue", "user", "account", "account_path", "priority",
    "state", "exit_state", "exit_code", "submit_time", "start_time", "end_time", "elapsed_seconds", "wall_seconds",
    "wait_seconds", "gpu_count", "gpu_seconds", "worker_count", "node_count", "node_list", "attempts",
)  # fmt: skip
# The former names of columns, which are exported for one more version, and the present names.
NEW_NAMES = {"only_idle": "preemptible", "turns": "attempts"}


def row_of(exported: ExportedJob, now: datetime) -> dict[str, Any]:
    """Returns the row of a job, by column name: the facts that XDMoD knows of jobs, limited to the exported period.

    *Elapsed* is the time from start to end, *wall* the part of it in which the job held GPUs, and *wait* all other
    time from submit to end.
    """
    job, there = exported.job, exported.there
    held = [
        (attempt.lease.gpus, _micros(attempt.held.begins, attempt.held.ends or now))
        for attempt in exported.attempts
    ]
    wall = sum(micros for _, micros in held)
    start = job.first_started_at
    if start is not None:
        start = None if start >= (there.ends or now) else max(start, there.begins)
    end = None if there.goes_on and start is None else there.ends
    ended = exported.state in Job.ENDED
    nodes = sorted({node for attempt in exported.attempts for node in attempt.nodes})
    row = {
        "job_id": job.pk,
        "job_name": exported.name,
        "kind": job.kind,
        "preemptible": job.preemptible,
        "resource": job.cluster.name,
        "queue": ",".join(dict.fromkeys(attempt.lease.generation.name for attempt in exported.attempts)),
        "user": exported.user,
        "account": exported.account,
        "account_path": exported.account_path,
        "priority": job.priority,
        "state": exported.state,
        "exit_state": job_state(exported),
        "exit_code": job.exit_code if ended else None,
        "submit_time": job.created_at.isoformat(),
        "start_time": start and start.isoformat(),
        "end_time": end and end.isoformat(),
        "elapsed_seconds": _micros(start, end or now) / MICROS if start else 0.0,
        "wall_seconds": wall / MICROS,
        "wait_seconds": max(_micros(there.begins, there.ends or now) - wall, 0) / MICROS,
        "gpu_count": job.gpus,
        "gpu_seconds": sum(gpus * micros for gpus, micros in held) / MICROS,
        "worker_count": job.workers,
        "node_count": len(nodes),
        "node_list": ",".join(nodes),
        "attempts": len(exported.attempts),
    }
    return row | {old: row[new] for old, new in NEW_NAMES.items()}


def _micros(begins: datetime, ends: datetime) -> int:
    return max((ends - begins) // MICROSECOND, 0)


def jobs_csv(selection: Selection) -> Iterator[str]:
    now = now_from_database()
    yield csv_line([*COLUMNS, *NEW_NAMES])
    for some in read_jobs(selection, now):
        yield "".join(
            csv_line([harmless(cell) for cell in row_of(exported, now).values()]) for exported in some
        )


def jobs_json(selection: Selection) -> Iterator[str]:
    """Yields a JSON array of job objects, each on one line."""
    now, before = now_from_database(), "[\n"
    for some in filter(None, read_jobs(selection, now)):
        yield before + ",\n".join(_json(row_of(exported, now)) for exported in some)
        before = ",\n"
    yield "[]\n" if before == "[\n" else "\n]\n"


def _json(row: dict[str, Any]) -> str:
    """Returns the row as JSON on one line. Escapes Unicode line breaks, at which some programs would split the line."""
    return json.dumps(row, ensure_ascii=False).translate(BREAKS)


# By the name of the file: its generator and its media type.
FORMS: dict[str, tuple[Callable[[Selection], Iterator[str]], str]] = {
    "sacct.txt": (sacct, "text/plain; charset=utf-8"),
    "xdmod.txt": (shredder, "text/plain; charset=utf-8"),
    "jobs.csv": (jobs_csv, "text/csv; charset=utf-8"),
    "jobs.json": (jobs_json, "application/json"),
}


def export_lines(form: str, selection: Selection) -> Iterator[str]:
    """Yields the text of the export `form`, a key of FORMS, in pieces. Runs the queries of a piece when it is
    needed."""
    return FORMS[form][0](selection)
