"""Measures on replayed traces how often the interval of the expected start holds, how wide it is, and what it costs.

`DATA=FOLDER make bench-eta` replays published traces, of which FOLDER has a copy. Without it, a generated trace is
replayed. Constants of fairshare.starts were chosen on it and on the traces in SEEN, which are not in the totals. Each
trace begins without knowledge of earlier outcomes, and an interval depends only on what was known when it was made.

A replay takes minutes of a processor. With `KEEP=FOLDER`, the forecasts of each replay are written to FOLDER and read
from there next time, unless the trace or the code that makes them has changed; so a run can be interrupted, and a
change of fairshare.starts.calibration is judged in seconds. `ARGS="'Blox, load 6'"` replays only traces of these names.
"""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from time import process_time

import numpy as np

from fairshare.simulator.model import Machines, SimJob
from fairshare.starts.calibration import COVERAGE
from scheduling.imports.traces import gang
from tests.fairshare.start_replay import HORIZON, Judged, Made, Workload, forecasts_of, judge

NODE_GPUS = 8
MINUTE = 60.0
JOBS = 10**6  # more than a trace has
# Coverage that counts as calibrated: COVERAGE within so much.
WITHIN = 0.05
# An end of an interval counts as at most so far away, in seconds, because scores must be finite.
LONGEST = 10 * HORIZON


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
    """The first `jobs` jobs of a trace, of the teams `teams` (all if empty), on `nodes` nodes with 8 GPUs.

    All are replayed. Forecasts are made for a random `share` of them, because three futures for each cost most.
    """

    read: Callable[[Path], list[Row]]
    nodes: int
    jobs: int
    teams: tuple[str, ...] = ()
    share: float = 1.0


# The times of this trace are minutes: in them it lasts for two weeks, half of its jobs run for an hour, and the
# scheduler of its authors counts 60 as an hour.
CHRONUS = read_csv("chronus/trace_job_Philly_SLO.csv", times=MINUTE)
MURI = {n: read_csv(f"muri/trace{n}.csv", times=1e-3) for n in (1, 3, 4)}
BLOX = read_csv(
    "generated/blox_synth_load6_seed1.csv", arrival="arrival_s", gpus="num_gpus", lasts="iterations"
)
SEEN = {
    "Muri, testbed trace": Trace(read_csv("muri/cluster_trace.csv", times=1e-3), 14, 400),
    "Muri, trace 3": Trace(MURI[3], 8, 600, share=0.3),
    "Muri, trace 4": Trace(MURI[4], 14, 900, share=0.2),
    "Muri, trace 1": Trace(MURI[1], 18, 700, share=0.1),
    "Blox, load 6": Trace(BLOX, 20, 600),
}
# In Philly each team had nodes of its own. Here it has as few as let it use 80 % of their GPUs; in Chronus, 99 %.
TRACES = {
    "Philly, team 103959": Trace(read_philly, 4, JOBS, teams=("103959",), share=0.15),
    "Philly, team 0e4a51": Trace(read_philly, 6, JOBS, teams=("0e4a51",), share=0.15),
    "Philly, team ee9e8c": Trace(read_philly, 19, JOBS, teams=("ee9e8c",), share=0.15),
    "Philly, team 2869ce": Trace(read_philly, 5, JOBS, teams=("2869ce",), share=0.1),
    "Philly, team ed69ec": Trace(read_philly, 1, JOBS, teams=("ed69ec",), share=0.15),
    "Chronus, team ee9e8c": Trace(CHRONUS, 13, 2000, teams=("vc_ee9e8c",), share=0.3),
    "Chronus, team 103959": Trace(CHRONUS, 14, 2000, teams=("vc_103959",), share=0.2),
    "Chronus, team 6c71a0": Trace(CHRONUS, 14, 2000, teams=("vc_6c71a0",), share=0.2),
}
WITHOUT_DATA = {"generated": Trace(generated, 8, 600)}
ALL = TRACES | SEEN | WITHOUT_DATA


def workload_of(trace: Trace, folder: Path) -> Workload:
    most = trace.nodes * NODE_GPUS
    rows = sorted(
        (
            row
            for row in trace.read(folder)
            if 0 < row.gpus <= most and row.lasts > 0 and (not trace.teams or row.team in trace.teams)
        ),
        key=lambda row: (row.arrival, row.gpus, row.lasts),
    )[: trace.jobs]
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
    """How often intervals held, and how wide they were.

    - `made`: the forecasts; `holds`: the fraction of them that held. `jobs_hold`: the mean over jobs of the fraction
      of the job's forecasts that held.
    - `earlier`, `later`: the fraction of jobs that started before and after their interval.
    - `wait`: the median wait in seconds. `width`: the median width of intervals as a multiple of the wait.
    - `score`: the mean interval score (Gneiting, Raftery, JASA 2007, section 6.2) as a multiple of the mean wait: the
      width, and ten times the distance of a start outside the interval. Less is better.
    """

    made: int
    holds: float
    jobs_hold: float
    earlier: float
    later: float
    wait: float
    width: float
    score: float

    @property
    def is_calibrated(self) -> bool:
        return abs(round(self.holds, 3) - COVERAGE) <= WITHIN


def measured(made: Sequence[Made], sides: Sequence[tuple[float, float]]) -> Measured | None:
    """Returns the figures of intervals with the sides `sides`, each of a forecast; None if there are none."""
    if not made:
        return None
    waits = np.array([one.waited for one in made])
    low, high = np.minimum(np.array(sides), LONGEST).T
    _, job = np.unique([one.job for one in made], return_inverse=True)
    holds = (low <= waits) & (waits <= high)
    missed = np.maximum(low - waits, 0) + np.maximum(waits - high, 0)
    return Measured(
        len(made),
        float(np.mean(holds)),
        float(np.mean(np.bincount(job, holds) / np.bincount(job))),
        float(np.mean(waits < low)),
        float(np.mean(waits > high)),
        float(np.median(waits)),
        float(np.median((high - low) / np.maximum(waits, MINUTE))),
        float(np.mean(high - low + 2 / (1 - COVERAGE) * missed) / np.mean(waits)),
    )


def of_intervals(some: Iterable[Judged]) -> Measured | None:
    some = list(some)
    return measured([one.made for one in some], [(one.earliest, one.latest) for one in some])


def of_naive(some: Iterable[Judged]) -> Measured | None:
    """Returns the figures of the interval that the waits of the last hundred jobs give."""
    made = [one.made for one in some]
    return measured(made, [one.naive for one in made])


def kept_name(name: str, work: Workload, share: float) -> str:
    """Returns the name of the file that keeps the forecasts of a replay: another one if their code or trace changes."""
    root = Path(__file__).resolve().parents[2]
    digest = sha256(repr((work, share)).encode())
    code = sorted(path for path in (root / "fairshare").rglob("*.py") if path.name != "calibration.py")
    for path in (*code, root / "tests/fairshare/start_replay.py"):
        digest.update(path.read_bytes())
    return f"{name.replace(', ', '-').replace(' ', '-')}-{digest.hexdigest()[:12]}.csv"


def replayed(name: str, work: Workload, keep: Path | None, *, share: float = 1.0) -> list[Made]:
    """Returns the forecasts of a replay, from the folder `keep` if they are there; else they are kept there."""
    path = keep / kept_name(name, work, share) if keep else None
    if path and path.exists():
        return read_made(path)
    made = forecasts_of(work, seed=1, share=share)
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        write_made(part, made)
        part.rename(path)
    return made


def write_made(path: Path, made: Iterable[Made]) -> None:
    with path.open("w") as lines:
        csv.writer(lines).writerows(
            [one.job, one.at, one.age, one.expected, one.spread, *one.naive, one.waited] for one in made
        )


def read_made(path: Path) -> list[Made]:
    with path.open() as lines:
        rows = [[float(cell) for cell in row] for row in csv.reader(lines)]
    return [
        Made(int(job), at, age, expected, spread, (low, high), waited)
        for job, at, age, expected, spread, low, high, waited in rows
    ]


HEAD = (
    f"{'trace':<32}{'forecasts':>10}{'holds':>7}{'in band':>9}{'by job':>8}{'earlier':>9}{'later':>7}{'wait':>9}"
    f"{'width/wait':>12}{'score':>8}{'naive holds':>13}{'score':>8}\n"
)


def line(name: str, found: Measured, naive: Measured) -> str:
    band = "yes" if found.is_calibrated else "no"
    return (
        f"{name:<32}{found.made:>10}{found.holds:>7.1%}{band:>9}{found.jobs_hold:>8.1%}"
        f"{found.earlier:>9.1%}{found.later:>7.1%}{found.wait / 60:>7.0f} m{found.width:>12.1f}{found.score:>8.1f}"
        f"{naive.holds:>13.1%}{naive.score:>8.1f}\n"
    )


def show(name: str, judged: Sequence[Judged]) -> None:
    for kind, some in (
        ("first", [one for one in judged if one.is_first]),
        ("later", [one for one in judged if not one.is_first]),
        ("all", judged),
    ):
        found, naive = of_intervals(some), of_naive(some)
        if found and naive:
            sys.stdout.write(line(f"{name}, {kind}" if kind == "first" else f"    {kind}", found, naive))
    sys.stdout.flush()


def main(names: Sequence[str]) -> None:
    data, keep = os.environ.get("DATA") or os.environ.get("TRACES"), os.environ.get("KEEP")
    traces = TRACES | SEEN if data else WITHOUT_DATA
    if not data:
        sys.stdout.write(
            "DATA=FOLDER is not set, so a generated trace is replayed in place of published ones.\n"
        )
    if unknown := sorted(set(names) - traces.keys()):
        sys.exit(
            f"There is no trace {', '.join(map(repr, unknown))}. Available: {', '.join(map(repr, traces))}."
        )
    held_out: list[Judged] = []
    sys.stdout.write(HEAD)
    sys.stdout.flush()
    for name in [name for name in traces if not names or name in names]:
        work, begins = workload_of(traces[name], Path(data or ".")), process_time()
        made = replayed(name, work, Path(keep) if keep else None, share=traces[name].share)
        between = process_time()
        judged = judge(made, quantum=work.quantum, share=traces[name].share)
        show(f"({name})" if name in SEEN else name, judged)
        replay, intervals = between - begins, process_time() - between
        sys.stdout.write(
            f"    CPU time: {replay:.0f} s for the replay, {intervals:.1f} s for the intervals\n"
        )
        sys.stdout.flush()
        if name not in SEEN:  # the jobs of all traces get numbers of their own
            apart = JOBS * list(traces).index(name)
            held_out += [replace(one, made=replace(one.made, job=one.made.job + apart)) for one in judged]
    show("TOTAL", held_out)


if __name__ == "__main__":
    main(sys.argv[1:])
