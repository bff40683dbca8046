"""Measures on replayed traces how often the interval of the expected start holds, how wide it is, and what it costs.

`DATA=FOLDER make bench-eta` replays published traces, of which FOLDER has a copy. Without it, a generated trace is
replayed. Constants of fairshare.starts were chosen on the traces in TUNED_ON, which are not in the totals. The margins
of each replay begin without knowledge, and learn only from jobs that have started before.

Usage: `python -m tests.fairshare.bench_starts [NAME …]`, with names of TRACES.
"""

from __future__ import annotations

import csv
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from time import process_time

import numpy as np

from fairshare.simulator.model import Machines, SimJob
from scheduling.imports.traces import gang
from tests.fairshare.start_replay import FIRST, Made, Workload, forecasts_of

PROCESSES = 2
NODE_GPUS = 8
MINUTE = 60.0


@dataclass(frozen=True, slots=True)
class Row:
    """A job of a trace. Times are in seconds."""

    arrival: float
    gpus: int
    lasts: float
    team: str = ""
    model: str = ""


def read_csv(
    path: str,
    *,
    times: float = 1.0,
    arrival: str = "submit_time",
    gpus: str = "num_gpu",
    lasts: str = "duration",
) -> Callable[[Path], list[Row]]:
    def read(folder: Path) -> list[Row]:
        with (folder / path).open() as lines:
            return [
                Row(
                    float(row[arrival]) * times,
                    int(row[gpus]),
                    float(row[lasts]) * times,
                    row.get("user", ""),
                    row.get("model_name") or row.get("model_class") or "",
                )
                for row in csv.DictReader(lines)
            ]

    return read


def read_philly(folder: Path) -> list[Row]:
    with (folder / "pollux/traces/philly.csv").open() as lines:
        return [
            Row(
                datetime.fromisoformat(row["timestamp"]).timestamp(),
                int(row["num_gpus"]),
                float(row["duration"]),
                row["cluster"],
            )
            for row in csv.DictReader(lines)
        ]


def generated(_: Path) -> list[Row]:
    """Returns jobs of four teams that come in bursts, with run times that depend on the model."""
    chance = np.random.Generator(np.random.PCG64(7))
    rows = []
    for number in range(600):
        model = int(chance.integers(8))
        burst = int(chance.integers(40)) * 3600.0
        rows.append(
            Row(
                burst + float(chance.exponential(1800)),
                int(chance.choice([1, 1, 2, 4, 8, 16])),
                float(chance.lognormal(6 + model / 3, 0.8)),
                f"team{number % 4}",
                str(model),
            )
        )
    return rows


@dataclass(frozen=True, slots=True)
class Trace:
    """Jobs of a trace, from the `first` on, of the teams `teams` (all if empty), on `nodes` nodes with 8 GPUs."""

    read: Callable[[Path], list[Row]]
    nodes: int
    jobs: int
    first: int = 0
    teams: tuple[str, ...] = ()


CHRONUS = read_csv("chronus/trace_job_Philly_SLO.csv")
MURI = {n: read_csv(f"muri/trace{n}.csv", times=1e-3) for n in (1, 3, 4)}
BLOX = read_csv(
    "generated/blox_synth_load6_seed1.csv", arrival="arrival_s", gpus="num_gpus", lasts="iterations"
)
TUNED_ON = {
    "Muri, testbed trace": Trace(read_csv("muri/cluster_trace.csv", times=1e-3), 14, 400),
    "Chronus, vc_103959": Trace(CHRONUS, 14, 3000, teams=("vc_103959",)),
    "Chronus, vc_6c71a0": Trace(CHRONUS, 14, 3000, teams=("vc_6c71a0",)),
}
TRACES = {
    "Muri, trace 3": Trace(MURI[3], 8, 600),
    "Muri, trace 4": Trace(MURI[4], 14, 900),
    "Muri, trace 1": Trace(MURI[1], 18, 700),
    "Chronus, vc_ee9e8c": Trace(CHRONUS, 13, 2000, teams=("vc_ee9e8c",)),
    "Chronus, three teams": Trace(CHRONUS, 38, 2500, teams=("vc_b436b2", "vc_7f04ca", "vc_e13805")),
    "Blox, load 6": Trace(BLOX, 20, 600),
    "Philly, 12 teams": Trace(read_philly, 19, 1500, first=20000),
}
WITHOUT_DATA = {"generated": Trace(generated, 8, 600)}
ALL = TRACES | TUNED_ON | WITHOUT_DATA


def workload_of(trace: Trace, folder: Path) -> Workload:
    most = trace.nodes * NODE_GPUS
    rows = sorted(
        (
            row
            for row in trace.read(folder)
            if 0 < row.gpus <= most and row.lasts > 0 and (not trace.teams or row.team in trace.teams)
        ),
        key=lambda row: (row.arrival, row.gpus, row.lasts),
    )[trace.first : trace.first + trace.jobs]
    teams, models = ({name: n for n, name in enumerate(sorted(set(of)))} for of in _names(rows))
    jobs, groups = [], []
    for row in rows:
        workers, each = gang(row.gpus, NODE_GPUS)
        team = teams[row.team]
        jobs.append(SimJob(row.arrival - rows[0].arrival, row.lasts, workers, each, account=team))
        sized = team * 1000 + row.gpus
        groups.append((sized * 1000 + models[row.model], sized, team, 0))
    return Workload(Machines((0,) * trace.nodes, (NODE_GPUS,) * trace.nodes), jobs, groups, MINUTE)


def _names(rows: Sequence[Row]) -> tuple[list[str], list[str]]:
    return [row.team for row in rows], [row.model for row in rows]


@dataclass(frozen=True, slots=True)
class Measured:
    """How often intervals held, and their median width as a multiple of the true wait."""

    made: int
    holds: float
    earlier: float
    later: float
    width: float
    wait: float
    naive_holds: float
    naive_width: float


def measured(made: Iterable[Made]) -> Measured | None:
    """Returns the figures of forecasts whose job has started; None if there are none."""
    some = [one for one in made if not np.isnan(one.waited)]
    if not some:
        return None
    waits = np.array([one.waited for one in some])
    sides = np.array([(one.earliest, one.latest) for one in some])
    naive = np.array([one.naive for one in some])
    least = np.maximum(waits, MINUTE)
    return Measured(
        len(some),
        float(np.mean([one.holds for one in some])),
        float(np.mean(waits < sides[:, 0])),
        float(np.mean(waits > sides[:, 1])),
        float(np.median((sides[:, 1] - sides[:, 0]) / least)),
        float(np.median(waits)),
        float(np.mean((naive[:, 0] <= waits) & (waits <= naive[:, 1]))),
        float(np.median((naive[:, 1] - naive[:, 0]) / least)),
    )


def _replay(asked: tuple[str, Path]) -> tuple[list[Made], float]:
    name, folder = asked
    begins = process_time()
    made = forecasts_of(workload_of(ALL[name], folder), seed=1)
    return made, process_time() - begins


HEAD = (
    f"{'trace':<34}{'forecasts':>10}{'holds':>7}{'earlier':>9}{'later':>7}{'width/wait':>12}{'wait':>9}{'naive':>8}"
    f"{'its width':>11}"
)


def line(name: str, found: Measured) -> str:
    return (
        f"{name:<34}{found.made:>10}{found.holds:>7.1%}{found.earlier:>9.1%}{found.later:>7.1%}{found.width:>12.1f}"
        f"{found.wait / 60:>7.0f} m{found.naive_holds:>8.1%}{found.naive_width:>11.1f}\n"
    )


def main(names: Sequence[str]) -> None:
    data = os.environ.get("DATA") or os.environ.get("TRACES")
    traces = TRACES | TUNED_ON if data else WITHOUT_DATA
    chosen = [name for name in traces if not names or name in names]
    folder = Path(data or ".")
    if not data:
        sys.stdout.write(
            "DATA=FOLDER is not set, so a generated trace is replayed in place of published ones.\n"
        )
    held_out: list[Made] = []
    sys.stdout.write(f"{HEAD}\n")
    with multiprocessing.get_context("fork").Pool(PROCESSES) as pool:
        results = pool.imap(_replay, [(name, folder) for name in chosen], chunksize=1)
        for name, (made, seconds) in zip(chosen, results, strict=True):
            held_out += [] if name in TUNED_ON else made
            shown = f"({name})" if name in TUNED_ON else name
            for kind, some in (("first", [one for one in made if one.stage == FIRST]), ("all", made)):
                if found := measured(some):
                    sys.stdout.write(
                        line(f"{shown}, {kind}" if kind == "first" else "    first and later", found)
                    )
            sys.stdout.write(f"    {seconds:.0f} s of CPU time\n")
            sys.stdout.flush()
    for kind, some in (
        ("first", [one for one in held_out if one.stage == FIRST]),
        ("first and later", held_out),
    ):
        if found := measured(some):
            sys.stdout.write(line(f"TOTAL, {kind}", found))


if __name__ == "__main__":
    main(sys.argv[1:])
