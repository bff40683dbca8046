"""Arrays of jobs: each task becomes a job."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from scheduling.importers.report import Report, Work
from scheduling.importers.slurm.directives import BatchScript

MOST_TASKS = 100
RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?(?::(\d{1,9}))?", re.ASCII)


def each_task(script: BatchScript, works: list[Work], report: Report) -> list[Work]:
    """Returns one job for each task of the array, or the job itself if the script describes no array."""
    if "array" not in script:
        return works
    source = script.source("array")
    listed, _, at_once = script.value("array").partition("%")
    tasks = numbers(listed)
    if not tasks:
        report.refused_at(source, "This is not a list of task numbers, such as 0-9 or 1,3,5-7:2.")
        return []
    if len(tasks) > MOST_TASKS:
        report.refused_at(
            source,
            f"The array has more than {MOST_TASKS} tasks. Import a part of it at a time, for example"
            f" --array={tasks[0]}-{tasks[MOST_TASKS - 1]}.",
        )
        return []
    limit = f" All may run at once, not only {at_once[:9]} of them." if at_once else ""
    report.approximated(
        source, "variables.SLURM_ARRAY_TASK_ID",
        f"Each of the {len(tasks)} tasks becomes a separate job.{limit} To run them as one, create a sweep of the kind"
        " Array, whose members have their number in SWEEP_INDEX.",
    )  # fmt: skip
    return [_task(work, number, tasks) for work in works for number in tasks]


def numbers(listed: str) -> list[int]:
    """Returns the task numbers in an array's list, at most one more than MOST_TASKS. Returns an empty list if the text
    is not such a list."""
    found: dict[int, None] = {}
    for part in listed.split(","):
        said = RANGE.fullmatch(part.strip())
        if not said or int(said[3] or 1) == 0:
            return []
        for number in _range(int(said[1]), int(said[2] or said[1]), int(said[3] or 1)):
            found[number] = None
            if len(found) > MOST_TASKS:
                return list(found)
    return sorted(found)


def _range(first: int, last: int, by: int) -> Iterator[int]:
    yield from range(first, last + 1, by)


def _task(work: Work, number: int, tasks: list[int]) -> Work:
    steps = {later - earlier for earlier, later in pairwise(tasks)}
    variables = {
        "SLURM_ARRAY_TASK_ID": str(number),
        "SLURM_ARRAY_TASK_COUNT": str(len(tasks)),
        "SLURM_ARRAY_TASK_MIN": str(tasks[0]),
        "SLURM_ARRAY_TASK_MAX": str(tasks[-1]),
        "SLURM_ARRAY_TASK_STEP": str(steps.pop() if len(steps) == 1 else 1),
    }
    spec = {
        **work.spec,
        "name": f"{work.name[:108]}-{number}",
        "variables": {**work.spec.get("variables", {}), **variables},
    }
    return Work(work.kind, spec, work.options)
