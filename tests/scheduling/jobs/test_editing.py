"""Users change the priority, labels, GPU types and times of jobs, and the labels of ended jobs."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accounting.core.errors import NotAllowed, Refused
from accounting.models import AuditEvent
from scheduling.core.event_texts import text_of
from scheduling.jobs.actions import cancel_job
from scheduling.jobs.editing import EDITED, edit_job
from scheduling.models import Cluster, Job
from scheduling.spec.job_spec import JobSpec, SpecError
from scheduling.spec.roles import Role
from tests.scheduling.world import World, world

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def lab() -> World:
    return world(v100=4, a100=4)


def test_the_priority_of_a_waiting_job_decides_which_job_of_its_owner_starts_next(lab: World) -> None:
    cast = lab.people
    _, second = (lab.submit(cast.bob, cast.astro, gpus=4, generations=["A100"], name=f"{n}") for n in "cd")
    edit_job(actor=cast.bob, job=second, changes={"priority": 7})
    assert Cluster.objects.get(pk=lab.cluster.pk).round_wanted_at is not None
    lab.quantum()
    second.refresh_from_db()
    assert (second.state, second.priority, second.spec["priority"]) == (Job.State.STARTING, 7, 7)


def test_a_change_is_in_the_history_and_in_the_audit_trail(lab: World) -> None:
    cast = lab.people
    job = lab.submit(cast.bob, cast.astro, priority=3, labels={"project": "apollo"})
    changes = {"priority": 5, "labels": {"run": ""}, "generations": ["V100"], "deadline_hours": 48.0}
    edit_job(actor=cast.alice, job=job, changes=changes)
    job.refresh_from_db()
    assert job.generation_ids == [cast.v100.pk]
    assert job.deadline == job.created_at + timedelta(hours=48)
    assert dict(job.labels.values_list("key", "value")) == {"run": ""}
    [event] = job.events.filter(kind=EDITED)
    assert text_of(event) == (
        "alice changed the GPU types from any to V100, and the priority from 3 to 5, and the labels from"
        " project=apollo to run, and the hours from the submit to the deadline from none to 48"
    )
    noted = AuditEvent.objects.get(verb="job.edit")
    assert noted.actor == cast.alice
    assert (noted.before["priority"], noted.after["priority"]) == (3, 5)


def test_setting_present_values_changes_nothing(lab: World) -> None:
    job = lab.submit(lab.people.bob, lab.people.astro, priority=3)
    edit_job(actor=lab.people.bob, job=job, changes={"priority": 3, "labels": {}})
    assert not job.events.filter(kind=EDITED).exists()
    assert not AuditEvent.objects.filter(verb="job.edit").exists()


def test_only_those_who_may_cancel_a_job_change_it(lab: World) -> None:
    cast = lab.people
    job = lab.submit(cast.alice, cast.astro)
    for stranger in (cast.bob, cast.charlie):
        with pytest.raises(NotAllowed, match="Only the owner, a manager of the team or an operator"):
            edit_job(actor=stranger, job=job, changes={"priority": 9})
    for may in (cast.alice, cast.olga):
        edit_job(actor=may, job=job, changes={"priority": 9})


def test_the_gpu_types_of_a_job_that_holds_or_has_reserved_gpus_stay(lab: World) -> None:
    cast = lab.people
    job = lab.submit(cast.bob, cast.astro)
    lab.quantum()
    with pytest.raises(Refused, match="only while the job waits") as refused:
        edit_job(actor=cast.bob, job=job, changes={"generations": ["V100"], "priority": 4})
    assert refused.value.field == "generations"
    job.refresh_from_db()
    assert (job.priority, job.generation_ids) == (0, [])
    edit_job(actor=cast.bob, job=job, changes={"priority": 4})


def test_gpu_types_on_which_the_job_could_never_run_are_refused(lab: World) -> None:
    cast = lab.people
    job = lab.submit(cast.bob, cast.astro, gpus=8, workers=2)
    with pytest.raises(SpecError, match="has no GPUs of type K80"):
        edit_job(actor=cast.bob, job=job, changes={"generations": ["K80"]})
    with pytest.raises(Refused, match="can never run"):
        edit_job(actor=cast.bob, job=job, changes={"generations": ["V100"]})
    assert Job.objects.get(pk=job.pk).generation_ids == []


def test_ended_jobs_and_fields_of_the_program_stay(lab: World) -> None:
    cast = lab.people
    job = lab.submit(cast.bob, cast.astro)
    with pytest.raises(SpecError, match="cannot be changed after the submit"):
        edit_job(actor=cast.bob, job=job, changes={"command": "rm -rf /"})
    cancel_job(actor=cast.bob, job=job)
    with pytest.raises(Refused, match="not priority, expected_hours") as refused:
        edit_job(actor=cast.bob, job=job, changes={"labels": {"a": ""}, "priority": 1, "expected_hours": 2.0})
    assert refused.value.field == "priority"
    assert not job.labels.exists()


def test_labels_of_ended_and_ending_jobs_change_and_nothing_else_does(lab: World) -> None:
    cast = lab.people
    ended, ending = (lab.submit(cast.bob, cast.astro, labels={"run": "1"}, name=name) for name in "ab")
    cancel_job(actor=cast.bob, job=ended)
    lab.quantum()
    cancel_job(actor=cast.bob, job=ending)
    for job, state in ((ended, Job.State.CANCELLED), (ending, Job.State.CANCELLING)):
        job.refresh_from_db()
        assert job.state == state
        before = {name: value for name, value in vars(job).items() if name not in {"_state", "spec"}}
        edit_job(actor=cast.alice, job=job, changes={"labels": {"group": "baseline"}})
        job.refresh_from_db()
        assert {name: vars(job)[name] for name in before} == before
        assert job.spec["labels"] == dict(job.labels.values_list("key", "value")) == {"group": "baseline"}
        [event] = job.events.filter(kind=EDITED)
        assert text_of(event) == "alice changed the labels from run=1 to group=baseline"
    with pytest.raises(NotAllowed):
        edit_job(actor=cast.charlie, job=ended, changes={"labels": {}})


def test_the_most_workers_are_bounded_by_the_other_fields(lab: World) -> None:
    cast = lab.people
    job = lab.submit(cast.bob, cast.astro, workers=2)
    with pytest.raises(SpecError, match="1 is less than the 2 of workers"):
        edit_job(actor=cast.bob, job=job, changes={"max_workers": 1})
    edit_job(actor=cast.bob, job=job, changes={"max_workers": 3})
    lab.quantum()
    assert lab.lease(job).gpus == 3
    of_roles = lab.submit(cast.bob, cast.astro, workers=2, roles=[Role(name="a", workers=2)])
    with pytest.raises(SpecError, match="without roles"):
        edit_job(actor=cast.bob, job=of_roles, changes={"max_workers": 3})
    bare = lab.submit(cast.bob, cast.astro)
    Job.objects.filter(pk=bare.pk).update(is_bare_pod=True)
    with pytest.raises(Refused, match="bare pod"):
        edit_job(actor=cast.bob, job=bare, changes={"max_workers": 3})


LABELS = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.sampled_from(["", "1", "x.y"]))
CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "priority": st.integers(-100, 100),
        "labels": LABELS,
        "generations": st.lists(st.sampled_from(["V100", "A100"]), unique=True),
        "max_workers": st.none() | st.integers(1, 6),
        "expected_hours": st.none() | st.floats(0.1, 100),
        "deadline_hours": st.none() | st.floats(0.1, 100),
        "time_limit_hours": st.none() | st.floats(0.1, 100),
    },
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(CHANGES, max_size=4))
def test_after_any_changes_the_columns_and_rows_say_the_same_as_the_spec(
    lab: World, changes: list[dict[str, object]]
) -> None:
    job = lab.submit(lab.people.bob, lab.people.astro)
    for some in changes:
        edit_job(actor=lab.people.bob, job=job, changes=some)
    job.refresh_from_db()
    spec = JobSpec.parse(job.spec)
    values = spec.model_dump(exclude={"version", "command", "workers", "gpus_per_worker"})
    again = lab.submit(lab.people.bob, lab.people.astro, **values)
    for name in ("priority", "generation_ids", "expected_seconds", "time_limit_hours", "max_workers", "spec"):
        assert getattr(job, name) == getattr(again, name), name
    waits = [None if one.deadline is None else one.deadline - one.created_at for one in (job, again)]
    assert waits[0] == waits[1]
    assert dict(job.labels.values_list("key", "value")) == spec.labels
