"""Helpers for tests of sweeps; by default a sweep is Bob's, in Astro, with 20 members of a plain array."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scheduling.backends.base import End, LogChunk, LogUnreadable, Phase
from scheduling.backends.logtimes import NO_TIMES, Times
from scheduling.models import Job, Lease, Sweep
from scheduling.spec.job_spec import JobSpec
from scheduling.sweeps.actions import Rules, create_sweep
from scheduling.sweeps.controller import step_sweep
from scheduling.sweeps.parameters import Parameters
from tests.scheduling.world import World

LR = Parameters("grid", grid={"lr": [0.1, 0.01, 0.001]})


def spec(**fields: Any) -> JobSpec:
    return JobSpec.parse({"name": "tune", "command": "python train.py --index {index}", **fields})


def array(count: int) -> Parameters:
    return Parameters("array", count=count)


def make(lab: World, parameters: Parameters | None = None, **changes: Any) -> Sweep:
    """Creates a sweep; `changes` replace arguments of `create_sweep` or are fields of its rules."""
    rules = {name: changes.pop(name) for name in list(changes) if name in Rules.__dataclass_fields__}
    asked: dict[str, Any] = {
        "actor": lab.people.bob,
        "tenant": lab.people.astro,
        "cluster": lab.cluster,
        "spec": spec(),
        "parameters": parameters or array(20),
        "rules": Rules(**rules),
    }
    return create_sweep(**asked | changes)


def step(sweep: Sweep) -> Sweep:
    step_sweep(sweep_id=sweep.pk)
    sweep.refresh_from_db()
    return sweep


def states(sweep: Sweep) -> list[str]:
    return list(sweep.members.order_by("index").values_list("state", flat=True))


def living(sweep: Sweep) -> list[Job]:
    return list(Job.objects.filter(sweep=sweep).unfinished().order_by("pk"))


def end(lab: World, job: Job, how: End = End.SUCCEEDED) -> None:
    """Ends the running job as a backend would report it."""
    exit_code = {End.SUCCEEDED: 0, End.FAILED: 1}.get(how)
    lab.see(lab.lease(job), Phase.ENDED, end=how, ended_age=0.0, exit_code=exit_code)


def run(lab: World) -> list[Job]:
    """Starts as many waiting jobs as fit, and returns the running jobs."""
    lab.fill()
    lab.carry_out()
    return [lease.job for lease in lab.holding(Lease.State.RUNNING)]


@dataclass(frozen=True)
class LogsTimes:
    found: Times

    def times(self, rank: int, begin: int, end: int) -> Times:
        return self.found


class Logs:
    """Stands in for a backend: the log of each job by its id; other jobs have printed nothing. The logs of the jobs
    `away` cannot be read."""

    def __init__(self) -> None:
        self.texts: dict[int, bytes] = {}
        self.away: set[int] = set()
        self.complete = True
        self.reads = 0
        self.written: dict[
            int, Times
        ] = {}  # when parts of the logs of jobs were written; others have no times

    def log_size(self, *, job_id: int, rank: int) -> int:
        return len(self._of(job_id))

    def read_log(self, *, job_id: int, rank: int, offset: int, limit: int, last_attempt: int = 0) -> LogChunk:
        self.reads += 1
        data = self._of(job_id)[offset : offset + limit]
        return LogChunk(rank, offset, offset + len(data), data, self.complete and last_attempt > 0)

    def log_times(self, *, job_id: int) -> LogsTimes:
        return LogsTimes(self.written.get(job_id, NO_TIMES))

    def _of(self, job_id: int) -> bytes:
        if job_id in self.away:
            raise LogUnreadable("the node is away")
        return self.texts.get(job_id, b"")
