"""The export formats. Each is a generator that yields the export as pieces of text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

from accounting.core.calendar import MICROSECOND
from accounting.core.clock import now_from_database
from accounting.core.csv_lines import csv_line, escape_cell
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
    """Yields pipe-separated lines in the format of sacct, with a header.

    Each attempt gives a job line and a step line. A job that waits, or that ended while it waited, gives one more job
    line.
    """
    now, generations = now_from_database(), generations_of()
    yield sacct_head()
    for some in read_jobs(selection, now):
        yield "".join(line for exported in some for line in sacct_lines(exported, now, generations))


def shredder(selection: Selection) -> Iterator[str]:
    """Yields a line for each attempt that ended in the period, without a header, in the format of `xdmod-shredder -f
    slurm`."""
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
    """Returns the facts about a job that XDMoD uses, by column name. Times are cut to the exported period.

    *Elapsed* is the time from start to end. *Wall* is the time in which the job held GPUs. *Wait* is the time from
    submission to end, minus the wall time.
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
            csv_line([escape_cell(cell) for cell in row_of(exported, now).values()]) for exported in some
        )


def jobs_json(selection: Selection) -> Iterator[str]:
    """Yields a JSON array of job objects, each on one line."""
    now, before = now_from_database(), "[\n"
    for some in filter(None, read_jobs(selection, now)):
        yield before + ",\n".join(_json(row_of(exported, now)) for exported in some)
        before = ",\n"
    yield "[]\n" if before == "[\n" else "\n]\n"


def _json(row: dict[str, Any]) -> str:
    """Returns the row as JSON on one line. Escapes Unicode line breaks, because some programs would split the line
    there."""
    return json.dumps(row, ensure_ascii=False).translate(BREAKS)


# By the name of the file: its generator and its media type.
FORMS: dict[str, tuple[Callable[[Selection], Iterator[str]], str]] = {
    "sacct.txt": (sacct, "text/plain; charset=utf-8"),
    "xdmod.txt": (shredder, "text/plain; charset=utf-8"),
    "jobs.csv": (jobs_csv, "text/csv; charset=utf-8"),
    "jobs.json": (jobs_json, "application/json"),
}


def export_lines(form: str, selection: Selection) -> Iterator[str]:
    """Yields the text of an export in pieces, in the format `form`, which is a key of FORMS.

    Each piece is read from the database only when it is requested.
    """
    return FORMS[form][0](selection)
