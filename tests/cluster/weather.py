"""Runs many tests with random faults ("storms"), some of them in parallel.

Each thread runs one storm after another in its own lab: a cluster in the database with nodes and a faulty proxy (see
storm.py).
"""

from __future__ import annotations

import itertools
import os
import queue
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from django.db import connection

from tests.cluster.controlplane import ControlPlane
from tests.cluster.storm import Storm, lab
from tests.make import Cast

AT_ONCE = int(os.environ.get("STORMS_AT_ONCE", "1"))
NUMBERS = itertools.count()  # numbers of labs, which keep their nodes apart


@dataclass
class Summary:
    """The totals of all runs, and the error message of each failed run."""

    runs: int = 0
    deaths: int = 0
    seconds: float = 0.0
    ends: Counter[str] = field(default_factory=Counter)  # number of jobs by final state
    leases: Counter[str] = field(default_factory=Counter)  # number of leases by the reason of their end
    faults: Counter[str] = field(default_factory=Counter)
    failures: dict[int, str] = field(default_factory=dict)  # message of each failed run, by seed

    def add(self, run: Storm) -> None:
        self.runs += 1
        self.deaths += run.fate.deaths
        self.faults += run.faults.met
        self.ends += run.ends()
        self.leases += run.lease_ends()

    def line(self) -> str:
        return (
            f"{self.runs} runs in {self.seconds:.0f} s, {len(self.failures)} failed; jobs: {dict(self.ends)};"
            f" leases: {dict(self.leases)}; faults: {dict(self.faults)}; {self.deaths} processes killed"
        )

    def report(self) -> str:
        told = "".join(f"\n\nSEEDS={seed}: {text}" for seed, text in self.failures.items())
        return self.line() + told


def forecast(plane: ControlPlane, fairlot: Path, people: Cast, folder: Path, seeds: Sequence[int]) -> Summary:
    """Runs one storm (a test run with random faults) for each seed, and returns the summary of the results.

    After a failed storm, the thread uses a new lab.
    """
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for seed in seeds:
        waiting.put(seed)
    summary, lock = Summary(), threading.Lock()

    def work() -> None:
        with ExitStack() as stack:
            stack.callback(connection.close)
            while (seed := _next(waiting)) is not None:
                number, where = next(NUMBERS), Path(tempfile.mkdtemp(dir=folder))
                with lock:  # each lab changes its cluster's identity before the next lab attaches
                    place = stack.enter_context(lab(plane, fairlot, people, where, str(number)))
                trouble = ""
                while seed is not None and not trouble:
                    trouble = _run(Storm(place, seed), summary, lock)
                    seed = None if trouble else _next(waiting)

    began = time.monotonic()
    threads = [threading.Thread(target=work) for _ in range(min(AT_ONCE, len(seeds)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    summary.seconds = time.monotonic() - began
    return summary


def _next(waiting: queue.SimpleQueue[int]) -> int | None:
    try:
        return waiting.get_nowait()
    except queue.Empty:
        return None


def _run(run: Storm, summary: Summary, lock: threading.Lock) -> str:
    """Runs a storm and adds its results to the summary. Returns the error message if the run failed, otherwise ""."""
    trouble, began = "", time.monotonic()
    try:
        run.run()
    except Exception:
        trouble = f"{traceback.format_exc()}\n{run.story()}"
    with lock:
        summary.add(run)
        if trouble:
            summary.failures[run.seed] = trouble
        if "STORM_LOG" in os.environ:
            told = (
                f"{dict(run.ends())} {dict(run.lease_ends())} {dict(run.faults.met)} {run.fate.deaths} killed"
            )
            with Path(os.environ["STORM_LOG"]).open("a") as log:
                how = "FAILED" if trouble else "ok"
                log.write(f"{how} {run.seed} {time.monotonic() - began:.1f} s {told} {trouble}\n")
    return trouble
