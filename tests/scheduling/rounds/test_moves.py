"""While a gang moves to other GPUs, it has a reservation of the new GPUs until it has left the old ones."""

from __future__ import annotations

import pytest

from portal.jobs.detail import leases_of, why_ended
from scheduling.backends.base import End, Phase
from scheduling.core.event_texts import text_of
from scheduling.draining.actions import drain_node
from scheduling.jobs.actions import cancel_job
from scheduling.models import Job, JobSpeed, Lease, Operation
from tests.scheduling.world import World, start, world

pytestmark = pytest.mark.django_db


def two_that_swap(**settings: object) -> tuple[World, list[Job]]:
    """Returns a world and two jobs of Bob's, one on a V100 and one on an A100, that a round has ordered to swap GPUs.

    The speed of each job is measured only on its present GPU type.
    """
    lab = world(v100=1, a100=1, trading=True, **settings)
    jobs = [lab.submit(lab.people.bob, lab.people.astro) for _ in range(2)]
    lab.fill()
    lab.carry_out()
    for job in jobs:
        lease = lab.age(lab.lease(job), 100)
        JobSpeed.objects.create(job=job, generation=lease.generation, steps=100, seconds=100)
    lab.pass_time(60)
    lab.quantum()
    return lab, jobs


def opened(job: Job) -> list[tuple[str, str]]:
    leases = job.leases.exclude(state=Lease.State.CLOSED).order_by("epoch")
    return list(leases.values_list("state", "generation__name"))


def test_gangs_that_swap_are_promised_each_others_gpus_and_begin_when_both_have_left() -> None:
    lab, jobs = two_that_swap()
    assert [opened(job) for job in jobs] in (
        [[("stopping", "V100"), ("reserved", "A100")], [("stopping", "A100"), ("reserved", "V100")]],
        [[("stopping", "A100"), ("reserved", "V100")], [("stopping", "V100"), ("reserved", "A100")]],
    )
    first, second = ([*job.leases.order_by("epoch")] for job in jobs)
    lab.see(first[0], Phase.ENDED, end=End.STOPPED, ended_age=0.0)
    assert lab.states(jobs) == [Job.State.SUSPENDED, Job.State.STOPPING]
    lab.see(second[0], Phase.ENDED, end=End.STOPPED, ended_age=0.0)
    assert lab.states(jobs) == [Job.State.STARTING, Job.State.STARTING]
    for job, (old, new) in zip(jobs, (first, second), strict=True):
        assert opened(job) == [("starting", new.generation.name)]
        assert new.generation_id != old.generation_id


def test_a_round_before_they_have_left_changes_nothing() -> None:
    lab, jobs = two_that_swap()
    before = [opened(job) for job in jobs]
    newest = [lab.lease(job).pk for job in jobs]
    lab.fill()
    lab.quantum()
    assert [opened(job) for job in jobs] == before
    assert [lab.lease(job).pk for job in jobs] == newest


def test_each_line_of_the_history_is_of_the_turn_that_it_speaks_of() -> None:
    lab, jobs = two_that_swap()
    lab.carry_out()
    for job in jobs:
        lines = job.events.exclude(kind="submitted").values_list("kind", "epoch")
        assert list(lines) == [
            ("picked", 1), ("started", 1), ("preempted", 1), ("released", 1), ("picked", 2), ("started", 2),
        ]  # fmt: skip
        old = leases_of(job).get(epoch=1)
        assert why_ended(old) == f"moved to {lab.lease(job).generation.name}"


def test_a_job_stopped_for_a_drain_says_so_where_it_resumes() -> None:
    lab = world(v100=1, a100=1)
    job = start(lab)
    held = lab.lease(job).generation
    drain_node(actor=lab.people.olga, node=lab.cluster.nodes.get(generation=held), reason="fan", mode="now")
    lab.carry_out()
    lab.fill()
    lab.carry_out()
    assert lab.lease(job).generation != held
    assert why_ended(leases_of(job).get(epoch=1)) == "node drained"
    released = text_of(job.events.get(kind="released"))
    assert (
        released
        == "Stopped; in its next attempt the job starts again, from its checkpoint if it has saved one"
    )


def test_a_gang_suspended_for_others_has_not_moved() -> None:
    lab = world(v100=1)
    job = start(lab)
    lab.submit(lab.people.charlie, lab.people.bio)
    lab.contest(job)
    lab.carry_out()
    assert lab.states([job]) == [Job.State.SUSPENDED]
    assert why_ended(leases_of(job).get(epoch=1)) == "suspended"


def test_a_gang_that_moves_is_stopped_and_not_frozen() -> None:
    _, jobs = two_that_swap(slicing="freeze")
    orders = Operation.objects.filter(lease__job__in=jobs).exclude(verb=Operation.Verb.START)
    assert set(orders.values_list("verb", flat=True)) == {Operation.Verb.STOP}


def test_the_reservation_goes_when_the_gang_is_cancelled_on_its_way() -> None:
    lab, (first, second) = two_that_swap()
    cancel_job(actor=lab.people.bob, job=first)
    assert [state for state, _ in opened(first)] == ["stopping"]
    lab.carry_out()
    assert lab.states([first]) == [Job.State.CANCELLED]
    assert opened(first) == []
    assert [state for state, _ in opened(second)] == ["running"]


@pytest.mark.parametrize("end", [End.SUCCEEDED, End.FAILED])
def test_the_reservation_goes_when_the_gang_ends_on_its_way(end: End) -> None:
    lab, (first, second) = two_that_swap()
    lab.see(first.leases.earliest("epoch"), Phase.ENDED, end=end, ended_age=0.0, exit_code=0)
    assert opened(first) == []
    lab.carry_out()
    assert [state for state, _ in opened(second)] == ["running"]


def test_the_reservation_goes_when_the_node_is_drained_that_the_gang_goes_to() -> None:
    lab, jobs = two_that_swap()
    drain_node(actor=lab.people.olga, node=lab.cluster.nodes.get(name="a100-0"), reason="fan", mode="now")
    going = next(job for job in jobs if job.leases.earliest("epoch").generation == lab.people.v100)
    assert opened(going) == [("stopping", "V100")]
    lab.carry_out()
    lab.fill()
    lab.carry_out()
    assert sorted(lab.states(jobs)) == [Job.State.RUNNING, Job.State.SUSPENDED]
