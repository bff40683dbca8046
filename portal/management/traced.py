"""Imports a published trace as history, and compares the reports with sums computed from the trace's file.

The sums are computed without the import's code, so that a fault of the import is found.
"""

from __future__ import annotations

import csv
import time
from collections import defaultdict
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from pathlib import Path

from django.core.management import call_command
from django.core.management.base import CommandError

from accounting.actions import create_generation, set_price
from accounting.models import ClosedBook, User
from accounting.reports.capacity import capacity_report
from accounting.reports.usage import By, usage_report
from scheduling.models import Cluster

NAME, GENERATION, PRICE = "Trace", "P100", Decimal("1.37")


def bench_trace(path: Path, tell: Callable[[str], None], *, since: datetime) -> None:
    """Imports the trace at `path`, compares the reports with the file, and verifies the ledger.

    `tell` is called with each line of output. `since` is the time from which the trace's GPUs have a price. Raises
    CommandError if the reports and the file differ.
    """
    set_price(
        actor=None,
        generation=create_generation(actor=None, name=GENERATION),
        per_gpu_hour=PRICE,
        since=since,
    )
    begun = time.perf_counter()
    call_command("import_trace", str(path), name=NAME, generation=GENERATION)
    tell(f"imported the trace and closed its hours in {time.perf_counter() - begun:.0f} s")
    jobs, seconds = counted(path)
    compare(Cluster.objects.get(name=NAME), jobs, seconds)
    tell(
        f"the reports agree with the trace's file: {sum(jobs.values()):,} jobs of {len(jobs)} teams "
        f"used {sum(seconds.values()):,} GPU-seconds"
    )
    begun = time.perf_counter()
    call_command("verify_ledger")
    tell(f"verified the ledger in {time.perf_counter() - begun:.0f} s")


def counted(path: Path) -> tuple[dict[str, int], dict[str, int]]:
    """Reads the trace's file, and returns two mappings by team: the number of jobs, and their GPU-seconds.

    Counts only jobs that have GPUs and a duration.
    """
    jobs: dict[str, int] = defaultdict(int)
    seconds: dict[str, int] = defaultdict(int)
    with path.open(newline="") as lines:
        for row in csv.DictReader(lines):
            gpus, lasts = int(row["num_gpu"]), int(row["duration"])
            if gpus and lasts:
                jobs[f"{NAME} {row['user']}"] += 1
                seconds[f"{NAME} {row['user']}"] += gpus * lasts
    return dict(jobs), dict(seconds)


def compare(cluster: Cluster, jobs: dict[str, int], seconds: dict[str, int]) -> None:
    """Checks that the cluster's reports show the given numbers of jobs and GPU-seconds by team.

    Also checks the capacity report: its classes (busy, free and so on) must add up to the capacity, in GPU-seconds and
    in money. Raises CommandError if a check fails.
    """
    book = ClosedBook.objects.get(book=cluster.pk)
    operator = User.objects.filter(portal_role=User.PortalRole.OPERATOR).first()
    if operator is None:
        raise CommandError("There is no user with the role operator. Only operators may read the reports.")
    usage = usage_report(operator, book.since, book.until, by=(By.TENANT,))
    if {row.tenant: row.gpu_seconds for row in usage.rows} != seconds:
        raise CommandError(
            "The GPU time that was billed to the teams differs from the GPU time in the trace's file."
        )
    by_job = usage_report(operator, book.since, book.until, by=(By.TENANT, By.JOB))
    if len(by_job.rows) != sum(jobs.values()):
        raise CommandError(
            f"{len(by_job.rows)} jobs were billed, but the trace's file has {sum(jobs.values())} jobs."
        )
    capacity = capacity_report(book.since, book.until, book=cluster.pk)
    closes = capacity.classes_close and all(one.closes for one in capacity.identities)
    if not closes or sum(row.held for row in capacity.rows) != sum(seconds.values()):
        raise CommandError(
            "The classes of GPU time do not add up to the capacity, or the held GPU time differs "
            "from the trace's file."
        )
