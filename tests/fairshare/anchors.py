"""Published figures that the simulator must reproduce exactly. `python -m tests.fairshare.anchors TRACES` prints them.

TRACES is a folder with `tiresias/60_job.csv` and `generated/tiresias_format_blox_load6_600jobs.csv`. The figures come
from Tiresias' own simulator. They are the mean completion time (to three decimals) and the makespan, in seconds.
tests/fairshare/simulator/test_anchors.py asserts them.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from pathlib import Path

from fairshare.simulator.engine import Engine
from fairshare.simulator.model import Machines, Scheduler, SimJob
from fairshare.simulator.textbook import Fifo, ShortestFirst

SCHEDULERS: dict[str, Callable[[], Scheduler]] = {
    "FIFO": Fifo,
    "FJF": lambda: Fifo(skips=True),
    "SRTF": ShortestFirst,
    "SRSF": lambda: ShortestFirst(by_service=True),
}
ROWS: tuple[tuple[str, int, dict[str, tuple[float, float]]], ...] = (
    (
        "tiresias/60_job.csv",
        4,
        {"FIFO": (200.817, 3335), "FJF": (190.683, 3271), "SRTF": (192.117, 3271), "SRSF": (195.900, 3315)},
    ),
    (
        "generated/tiresias_format_blox_load6_600jobs.csv",
        32,
        {"FIFO": (110355.920, 1035246), "FJF": (92695.627, 1017470), "SRTF": (75389.542, 1020960)},
    ),
)


def read(path: Path) -> list[SimJob]:
    with path.open() as lines:
        return [
            SimJob(float(row["submit_time"]), float(row["duration"]), int(row["num_gpu"]))
            for row in csv.DictReader(lines)
        ]


def replayed(jobs: list[SimJob], nodes: int, rule: str) -> tuple[float, float]:
    """Replays the jobs on `nodes` nodes of four GPUs. Returns the mean completion time and the makespan, in seconds.

    `rule`: the scheduling rule, as a key of SCHEDULERS such as "FIFO".
    """
    replay = Engine(Machines((0,) * nodes, (4,) * nodes), jobs, SCHEDULERS[rule]()).run()
    return round(replay.mean_completion(jobs), 3), replay.makespan(jobs)


def main(traces: Path) -> int:
    """Prints all figures. Returns how many figures differ from the published ones."""
    missed = 0
    for name, nodes, rows in ROWS:
        jobs = read(traces / name)
        for rule, expected in rows.items():
            found = replayed(jobs, nodes, rule)
            missed += found != expected
            verdict = "exact" if found == expected else f"expected {expected}"
            sys.stdout.write(
                f"{name} on {nodes} x 4 GPUs, {rule}: {found[0]:.3f} s, {found[1]:.0f} s: {verdict}\n"
            )
    return missed


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
