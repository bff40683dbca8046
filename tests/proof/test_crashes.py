"""No job runs twice, and no work or bill is lost, when Fairlot's programs crash.

The tests kill each service, and then all services together, by SIGKILL, while gangs change every few seconds.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path

import pytest

from tests.proof.marks import JobProcess, is_alive, job_processes
from tests.proof.portal import ROOT, RUN, SERVICES, RunningPortal
from tests.waiting import PATIENCE, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("crashes")]

QUANTUM = 4.0
OWN_WORKERS = ("worker", "background")  # the workers of `make up`, each with two processes
SEED = random.randrange(10_000)


class Lookout(threading.Thread):
    """A thread that looks for workers that run twice, which means that one worker has two living process groups."""

    def __init__(self, jobs_dir: Path) -> None:
        super().__init__(daemon=True)
        self.jobs_dir = jobs_dir
        self.ended = threading.Event()
        self.looks = 0
        self.epochs: set[tuple[int, int]] = set()
        self.twice: list[str] = []

    def run(self) -> None:
        while not self.ended.wait(0.2):
            workers: dict[tuple[int, int], list[JobProcess]] = {}
            for process in job_processes(self.jobs_dir):
                workers.setdefault((process.job, process.rank), []).append(process)
                self.epochs.add((process.job, process.epoch))
            for several in workers.values():
                for one, other in combinations(several, 2):
                    # The two processes were found one after the other; they count only if both live at the same moment.
                    if one.group != other.group and is_alive(one) and is_alive(other) and is_alive(one):
                        self.twice.append(f"{one} and {other}")
            self.looks += 1


@contextmanager
def lookout(portal: RunningPortal) -> Iterator[Lookout]:
    looking = Lookout(portal.var / "jobs")
    looking.start()
    try:
        yield looking
    finally:
        looking.ended.set()
        looking.join()


def test_after_any_crash_everything_goes_on_once(portal: RunningPortal) -> None:
    chance = random.Random(SEED)
    sys.stdout.write(f"seed {SEED}\n")
    portal.scenario("quicken", quantum=QUANTUM)
    steps = 0.0
    with lookout(portal) as looking:
        for victim in ("worker", "background", "watch", "web", "beat", "everything"):
            moment = chance.uniform(0.0, QUANTUM)
            wait_until = time.monotonic() + moment
            wait_for(lambda until=wait_until: time.monotonic() >= until)
            if victim == "everything":
                kill_all(portal)
                portal.start()
            else:
                kill(portal, victim)
            told = portal.scenario("recovered", jobs_dir=str(portal.var / "jobs"), steps=steps)
            sys.stdout.write(f"{victim} killed at {moment:.2f} s: {told}\n")
            steps = told["steps"]
    assert looking.twice == []
    assert looking.looks > 50
    # If no gang had been restarted, the test would prove little.
    assert len(looking.epochs) > len({job for job, _ in looking.epochs})


def test_two_workers_and_two_beats_never_run_a_round_twice(portal: RunningPortal) -> None:
    portal.scenario("quicken", quantum=QUANTUM)
    more = [
        ["worker", "--concurrency", "2", "--hostname", "second@%h", "--loglevel", "WARNING"],
        ["beat", "--pidfile=", "--loglevel", "WARNING"],
    ]
    with lookout(portal) as looking, running(portal, more):
        told = portal.scenario("many_hands", quanta=4, workers=len(OWN_WORKERS) + 1)
    sys.stdout.write(f"{told}\n")
    numbers = told["numbers"]
    assert told["workers"] > len(OWN_WORKERS)
    assert numbers == list(range(told["first"] + 1, told["first"] + 1 + len(numbers)))
    assert told["in_order"]
    assert told["least_gap_s"] >= QUANTUM
    assert looking.twice == []
    portal.scenario("recovered", jobs_dir=str(portal.var / "jobs"), steps=0.0)


def test_no_round_waits_for_analyses_that_are_stuck(portal: RunningPortal) -> None:
    portal.scenario("quicken", quantum=QUANTUM)
    # As many analyses as all workers have processes: if rounds were in the same queue, no process would be left for
    # rounds.
    told = portal.scenario("stuck_analyses", sent=2 * len(OWN_WORKERS), stuck=2)
    sys.stdout.write(f"{told}\n")
    assert told["rounds"] >= 2
    assert told["stuck"] == 2, "only processes of the background worker took analyses"


def kill(portal: RunningPortal, service: str) -> None:
    """Sends SIGKILL to all processes of a service; returns when the supervisor has started the service again."""
    pids = portal.kill(service)
    wait_for(lambda: set(portal.service_pids(service)) - set(pids), what=f"another {service}")


def kill_all(portal: RunningPortal) -> None:
    """Sends SIGKILL to the supervisor; returns when no process of its services is left."""
    assert portal.process is not None
    portal.process.kill()
    portal.process.wait()
    services = ("postgres", "valkey", *SERVICES, "park", "prepare")
    wait_for(lambda: not any(portal.service_pids(name) for name in services), what="no service is left")


@contextmanager
def running(portal: RunningPortal, celery: list[list[str]]) -> Iterator[None]:
    """Runs further Celery programs of the portal until the `with` block ends, each in a separate process group.

    `celery`: the arguments of each program, as after `celery -A portal`.
    """
    log = portal.var / "more.log"
    with log.open("ab") as sink:
        processes = [
            subprocess.Popen(
                [*RUN, sys.executable, "-m", "celery", "-A", "portal", *arguments],
                cwd=ROOT,
                env=portal._env(),
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )
            for arguments in celery
        ]
        try:
            yield
        finally:
            for process in processes:
                os.killpg(process.pid, signal.SIGTERM)
            for process in processes:
                try:
                    process.wait(PATIENCE)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
