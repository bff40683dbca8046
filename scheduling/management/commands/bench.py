"""`make bench`: measures how long one round takes at several cluster sizes, split into reading, deciding and
committing.

Uses a temporary database, and measures three kinds of rounds:

- *first*: fills an empty cluster, and stores for each job that gets no GPUs the reason why it waits.
- *busy*: the steady state. The cluster is full; since the previous round, some gangs ended and as many jobs were
  submitted.
- *fill*: runs after one job was submitted.
"""

from __future__ import annotations

import math
import os
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db import connection

from scheduling.management.bench_cluster import BenchCluster
from scheduling.models import Round
from scheduling.rounds.actions import run_round

# In each quantum, one gang ends and one job is submitted per this many GPUs of the cluster.
GPUS_PER_END = 100
WRITES = ("INSERT", "UPDATE", "DELETE")


@dataclass
class Lap:
    """The measurements of one round: times in milliseconds, and numbers of SQL statements, rows and gangs."""

    read: float = 0.0
    decide: float = 0.0
    commit: float = 0.0
    total: float = 0.0
    cpu: float = 0.0  # CPU time of this process
    database_cpu: float = (
        0.0  # CPU time of this connection's database process; 0 if that runs on another machine
    )
    statements: int = 0
    rows_read: int = 0
    rows_written: int = 0
    started: int = 0
    stopped: int = 0

    @property
    def computing(self) -> float:
        """Returns the milliseconds of CPU time that this process and its database process used together.

        This is about how long the round would take if nothing else used the processors and no disk were read or
        written.
        """
        return self.cpu + self.database_cpu


@dataclass
class Statements:
    """Counts the SQL statements of a connection, and the rows that these statements read or write."""

    count: int = 0
    # True: rows written; False: rows read.
    rows: dict[bool, int] = field(default_factory=lambda: {False: 0, True: 0})

    def __call__(
        self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: dict[str, Any]
    ) -> Any:
        found = execute(sql, params, many, context)
        self.count += 1
        self.rows[sql.lstrip().startswith(WRITES)] += max(context["cursor"].rowcount, 0)
        return found


class Command(BaseCommand):
    help = "Measures the time of one scheduling round: reading, deciding, committing."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--gpus", type=int, nargs="+", default=[1_000, 10_000])
        parser.add_argument("--jobs-per-gpu", type=int, default=10)
        parser.add_argument(
            "--rounds",
            type=int,
            default=5,
            help="How often to measure each kind of round: busy rounds, which find a full cluster, and fill rounds,"
            " which follow the submission of one job. The table shows the median of each figure.",
        )

    def handle(self, *args: Any, gpus: list[int], jobs_per_gpu: int, rounds: int, **options: Any) -> None:
        name = connection.settings_dict["NAME"]
        connection.creation.create_test_db(verbosity=0, autoclobber=True, serialize=False)
        try:
            self.stdout.write(
                f"{'GPUs':>7} {'jobs':>8} {'round':>6} {'read':>8} {'decide':>8} {'commit':>8} {'total ms':>8}"
                f" {'cpu':>8} {'db cpu':>8} {'queries':>8} {'rows':>8} {'written':>8} {'started':>8} {'stopped':>8}"
            )
            kinds = [self._size(count, count * jobs_per_gpu, rounds) for count in gpus]
            self._growth(gpus, kinds)
        finally:
            connection.creation.destroy_test_db(name, verbosity=0)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        self.stdout.write(f"peak memory: {peak:.0f} MiB")

    def _size(self, gpus: int, jobs: int, rounds: int) -> dict[str, Lap]:
        bench = BenchCluster(gpus, jobs)
        ends = -(-gpus // GPUS_PER_END)
        laps: dict[str, list[Lap]] = {"first": [timed_round(bench)], "busy": [], "fill": []}
        bench.analyse()
        for _ in range(rounds):
            bench.pass_quantum(ends=ends)
            bench.submit(ends)
            laps["busy"].append(timed_round(bench))
        bench.pass_quantum(ends=ends)
        for _ in range(rounds):
            bench.submit(1)
            laps["fill"].append(timed_round(bench, Round.Kind.FILL))
        found = {kind: middle(its) for kind, its in laps.items()}
        for kind, lap in found.items():
            figures = "".join(f" {figure:>8,.0f}" for figure in astuple(lap))
            self.stdout.write(f"{gpus:>7,} {jobs:>8,} {kind:>6}{figures}")
        self.stdout.flush()
        return found

    def _growth(self, gpus: Sequence[int], kinds: Sequence[dict[str, Lap]]) -> None:
        """Prints how times grow from the smallest cluster size to the largest, as the exponent k in time = c × size **
        k.

        - `gpus`: the cluster sizes, as numbers of GPUs, smallest first.
        - `kinds`: for each size, the measurements (Lap) by kind of round: first, busy, fill.
        """
        if len(gpus) < 2:
            return
        times = math.log(gpus[-1] / gpus[0])
        for kind, first in kinds[0].items():
            last = kinds[-1][kind]
            powers = [
                f"{name} {math.log(getattr(last, name) / getattr(first, name)) / times:.2f}"
                for name in ("read", "decide", "commit", "total", "computing")
            ]
            more = last.statements - first.statements
            self.stdout.write(
                f"{kind} rounds: times grow with the number of GPUs to the power k, where k is: {', '.join(powers)}."
                f" The largest cluster takes {more:+.0f} queries compared with the smallest."
            )


def middle(laps: Sequence[Lap]) -> Lap:
    """Returns a Lap in which each figure is the median of that figure over `laps`."""
    return Lap(*(median(figures) for figures in zip(*map(astuple, laps), strict=True)))


def timed_round(bench: BenchCluster, kind: Round.Kind = Round.Kind.QUANTUM) -> Lap:
    """Runs and commits one round, and returns its measurements.

    Raises RuntimeError if another process is running a round of the cluster.
    """
    seen = Statements()
    begun, cpu, database_cpu = time.perf_counter(), time.process_time(), _database_cpu()
    with connection.execute_wrapper(seen):
        round_ = run_round(cluster_id=bench.cluster.pk, force=kind)
    total, cpu = (time.perf_counter() - begun) * 1000.0, (time.process_time() - cpu) * 1000.0
    if round_ is None:
        raise RuntimeError("another process uses the benchmark's database")
    return Lap(
        read=round_.read_ms,
        decide=round_.decide_ms,
        commit=total - round_.read_ms - round_.decide_ms,
        total=total,
        cpu=cpu,
        database_cpu=(_database_cpu() - database_cpu) * 1000.0,
        statements=seen.count,
        rows_read=seen.rows[False],
        rows_written=seen.rows[True],
        started=round_.started,
        stopped=round_.stopped,
    )


def _database_cpu() -> float:
    """Returns the CPU seconds that this connection's database process has used; 0 if this process runs on another
    machine."""
    try:
        fields = (
            Path(f"/proc/{connection.connection.info.backend_pid}/stat")
            .read_text()
            .rpartition(")")[2]
            .split()
        )
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
