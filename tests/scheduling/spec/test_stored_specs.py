"""Jobs, schedules and services whose specs an earlier version accepted keep working, even if this version would refuse
the specs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting.core.clock import now_from_database
from accounting.models import UsageSegment
from scheduling.backends.base import Backend, End, Gang, Observation, Phase
from scheduling.execution import operations as performing
from scheduling.execution import reconcile as reconciling
from scheduling.execution.operations import perform_operations
from scheduling.execution.reconcile import PATIENCE, follow, reconcile
from scheduling.jobs.actions import cancel_job
from scheduling.models import Job, Lease, Schedule, ScheduleRun, ServiceRevision
from scheduling.reports.exports import FORMS, Selection, export_lines
from scheduling.schedules.schedule_runs import run_schedule
from scheduling.services.actions import create_service
from scheduling.services.replicas import step_service
from scheduling.spec.job_spec import JobSpec, SpecError, dump_stored
from tests.scheduling import scheduled
from tests.scheduling.scheduled import NOON, Clock
from tests.scheduling.world import OneByOne, World, seen, start, world

# A stored spec of which today's rules refuse every field; `retired` is no field at all.
STRANGE = {
    "version": 0, "name": "zero\u200bwidth", "command": "", "workers": True, "gpus_per_worker": "two",
    "variables": {"RANK": "7"}, "checkpoint_grace_seconds": 1e9, "progress_pattern": "(", "memory": "１Gi",
    "shm": 5, "volumes": [{"name": "UPPER", "where": 1}], "secret_files": ["a"], "labels": [1], "port": 80,
    "readiness_path": "no path", "cpu": False, "user_id": 0, "retired": [1, {"a": None}],
}  # fmt: skip
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@pytest.fixture
def lab(db: None) -> World:
    return world(v100=4)


class Machine(OneByOne):
    """A backend that records orders to start and to stop, and never ends a gang by itself."""

    def __init__(self) -> None:
        self.gangs: list[Gang] = []
        self.stopped: list[float] = []
        self.sees: list[Observation] = []

    def start(self, gang: Gang) -> None:
        self.gangs.append(gang)

    def stop(self, *, grace_seconds: float, **which: Any) -> None:
        self.stopped.append(grace_seconds)

    def observe(self) -> list[Observation]:
        return self.sees

    changed = observe

    def staleness(self) -> float:
        return 0.0

    def nothing(self, **which: Any) -> None:
        pass

    node_gpus = cluster_events = advance = forget = nothing


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    for module in (reconciling, performing):
        monkeypatch.setattr(module, "backend_for", lambda cluster: made)
    return made


def store(row: Job | Schedule | ServiceRevision, spec: Any = STRANGE) -> None:
    """Replaces the spec of the row without validation, as if an earlier version had stored it."""
    type(row).objects.filter(pk=row.pk).update(spec=spec)


def perform(lab: World) -> None:
    perform_operations(cluster=lab.cluster, log_limit_bytes=1_000)


def test_todays_rules_refuse_each_field_of_the_strange_one() -> None:
    with pytest.raises(SpecError) as refused:
        JobSpec.parse({**STRANGE, "workers": 0})
    assert {path.partition(".")[0] for path in refused.value.problems} >= STRANGE.keys()


@given(st.dictionaries(st.sampled_from(sorted(JobSpec.model_fields)) | st.text(max_size=5), values) | values)
def test_whatever_is_stored_can_be_read_and_shown(data: Any) -> None:
    spec = JobSpec.stored(data)
    assert spec.gpus == spec.workers * spec.gpus_per_worker
    assert spec.argv[-1] == spec.command
    for mounted in (*spec.volumes, *spec.secret_files):
        assert mounted.place
    assert JobSpec.stored(spec.to_dict()) == spec
    assert "version" in dump_stored(data)


def test_valid_stored_specs_are_read_unchanged() -> None:
    spec = JobSpec.parse(
        {
            "name": "n", "command": "c", "cpu": 2, "port": 8000, "volumes": [{"name": "data"}], "preemptible": True,
            "secret_files": [{"name": "key", "path": "/keys"}], "variables": {"A": "1"}, "user_id": 1000,
        }
    )  # fmt: skip
    assert JobSpec.stored(spec.to_dict()) == spec
    assert dump_stored(spec.to_dict()) == spec.to_yaml()


def test_all_that_it_says_is_shown_known_today_or_not() -> None:
    shown = dump_stored(STRANGE)
    for name in STRANGE:
        assert f"{name}:" in shown
    assert "where: 1" in shown


def test_a_running_job_is_observed_stopped_billed_and_exported(lab: World, machine: Machine) -> None:
    job = start(lab, checkpoint_grace_seconds=7)
    lease = lab.age(lab.lease(job), 600)
    store(job)
    machine.sees = [seen(lease, Phase.RUNNING, running_age=600.0)]
    reconcile(lab.cluster)
    follow(lab.cluster, machine)  # type: ignore[arg-type]
    cancel_job(actor=lab.people.bob, job=job)
    perform(lab)
    assert machine.stopped == [7.0]

    # The gang does not end, so the order is repeated once the stored grace period has passed.
    lease.operations.filter(verb="stop").update(done_at=now_from_database() - PATIENCE * 2)
    reconcile(lab.cluster)
    perform(lab)
    assert machine.stopped == [7.0, 7.0]

    lab.see(lease, Phase.ENDED, end=End.STOPPED, ended_age=0.0)
    assert lab.states([job]) == [Job.State.CANCELLED]
    assert UsageSegment.objects.filter(job_id=job.pk).exists()
    # If the lease is closed but the gang still runs, Fairlot stops the gang with the same grace period.
    reconcile(lab.cluster)
    assert machine.stopped[2:] == [7.0]
    for form in FORMS:
        wide = Selection(job.created_at.replace(year=2020), job.created_at.replace(year=2199), None)
        assert "".join(export_lines(form, wide))
    lab.cluster.refresh_from_db()
    assert lab.cluster.failure == ""


def test_a_waiting_job_starts_with_the_readable_fields_of_its_spec(lab: World, machine: Machine) -> None:
    job = lab.submit(lab.people.bob, lab.people.astro, checkpoint_grace_seconds=7)
    store(job, STRANGE | {"volumes": [], "command": "true"})
    lab.fill()
    perform(lab)
    [gang] = machine.gangs
    assert (gang.command[-1], gang.environment, gang.grace_seconds) == ("true", {"RANK": "7"}, 7.0)


def test_a_schedule_keeps_submitting_its_stored_spec(lab: World, clock: Clock) -> None:
    schedule = scheduled.make(lab)
    store(schedule, {"name": "zero\u200bwidth", "command": "c", "port": 80, "retired": 1})
    clock(NOON)
    run_schedule(schedule_id=schedule.pk)
    [run] = schedule.runs.all()
    assert (run.outcome, run.job.name) == (ScheduleRun.Outcome.SUBMITTED, "zero\u200bwidth")


def test_a_schedule_whose_spec_cannot_become_a_job_says_so_and_waits_for_the_next_time(
    lab: World, clock: Clock
) -> None:
    schedule = scheduled.make(lab)
    store(schedule, {"name": "n" * 121, "command": "c", "workers": 0})
    clock(NOON)
    run_schedule(schedule_id=schedule.pk)
    [run] = schedule.runs.all()
    assert run.outcome == ScheduleRun.Outcome.REFUSED
    assert "stored spec" in run.text
    schedule.refresh_from_db()
    assert schedule.next_due_at > NOON


def test_a_service_keeps_making_replicas_of_its_stored_spec(lab: World) -> None:
    people = lab.people
    spec = JobSpec(name="api", command="serve", port=8000)
    service = create_service(
        actor=people.bob, tenant=people.astro, cluster=lab.cluster, spec=spec, replicas=1
    )
    store(service.current, spec.to_dict() | {"port": 80, "variables": {"RANK": "1"}})
    step_service(service_id=service.pk)
    [job] = Job.objects.filter(service=service)
    assert (job.name, job.spec["port"]) == ("api-0-1", 80)
    service.refresh_from_db()
    assert service.trouble == ""


def test_a_job_that_cannot_be_recorded_blocks_no_other(lab: World, machine: Machine) -> None:
    """If the end of one job cannot be recorded, Fairlot still records the end of another job. The page of the cluster
    shows the failure."""
    first, second = start(lab), start(lab)
    leases = [lab.lease(job) for job in (first, second)]
    machine.sees = [
        seen(leases[0], Phase.ENDED, end=End.SUCCEEDED, ended_age=float("nan"), message="a\0b"),
        seen(leases[1], Phase.ENDED, end=End.SUCCEEDED, ended_age=0.0, exit_code=0),
    ]
    backend: Backend = machine  # type: ignore[assignment]
    follow(lab.cluster, backend)
    assert lab.states([first, second]) == [Job.State.RUNNING, Job.State.SUCCEEDED]
    lab.cluster.refresh_from_db()
    assert f"job_id={first.pk}" in lab.cluster.failure
    assert lab.cluster.has_failure(now_from_database())
    assert Lease.objects.get(pk=leases[0].pk).state == Lease.State.RUNNING
