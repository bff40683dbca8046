"""The place of a waiting job in the queue, and who is ahead of it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from accounting.models import User
from fairshare.model import Reason
from scheduling.jobs.queue_place import LOTTERY, QueuePlace, queue_place_of
from scheduling.models import Cluster, Job, ShareBalance
from tests.scheduling.world import World, start, world

pytestmark = pytest.mark.django_db(transaction=True)


def full(**settings: object) -> World:
    """Returns a world whose four GPUs Olga's colleague Charlie holds."""
    lab = world(v100=4, a100=4, **settings)
    lab.submit(lab.people.charlie, lab.people.bio, gpus=4, generations=["V100"])
    lab.submit(lab.people.charlie, lab.people.bio, gpus=4, generations=["A100"])
    lab.fill()
    lab.carry_out()
    return lab


def place(job: Job, reader: User) -> QueuePlace:
    job.refresh_from_db()
    found = queue_place_of(job, reader)
    assert found is not None
    return found


def test_a_users_jobs_wait_by_priority_and_age_and_are_named() -> None:
    lab = full()
    bob, astro = lab.people.bob, lab.people.astro
    first = lab.submit(bob, astro, gpus=4, name="first")
    job = lab.submit(bob, astro, gpus=4, name="job")
    urgent = lab.submit(bob, astro, gpus=2, name="urgent", priority=5)
    lab.fill()
    found = place(job, bob)
    assert [(one.name, one.owner, one.gpus) for one in found.ahead] == [
        ("urgent", "bob", 2),
        ("first", "bob", 4),
    ]
    assert (found.position, found.of, found.team_position, found.rest) == (3, 3, 3, "")
    assert found.sentence == "Place 3 of 3 waiting jobs that can use these GPU types; 3 of 3 of Astro."
    assert place(urgent, bob).ahead == ()
    Job.objects.filter(pk__in=[job.pk, urgent.pk]).update(reason=Reason.NEVER_TOO_LARGE)
    assert place(first, bob).sentence == "No other waiting job can use these GPU types."


def test_jobs_of_other_teams_are_only_counted_except_for_operators() -> None:
    lab = full()
    cast = lab.people
    others = [lab.submit(cast.charlie, cast.bio, gpus=2, name="secret plan") for _ in range(2)]
    job = lab.submit(cast.bob, cast.astro, gpus=4)
    lab.fill()
    owe(lab, cast.charlie, 10_000)
    found = place(job, cast.bob)
    assert (found.ahead, found.known, found.others, found.others_gpus) == ((), 0, 2, 4)
    assert found.rest == "2 jobs of other teams (4 GPUs)"
    assert (found.position, found.team_position, found.team_of) == (3, 1, 1)
    of_olga = place(job, cast.olga)
    assert [one.pk for one in of_olga.ahead] == [one.pk for one in others]
    assert (of_olga.others, of_olga.rest) == (0, "")


def owe(lab: World, user: User, owed: float) -> None:
    """Owes the user these GPU-seconds, and all others nothing, with equal shares."""
    ShareBalance.objects.filter(cluster=lab.cluster).update(owed=0, share=2)
    tenant = lab.people.bio if user == lab.people.charlie else lab.people.astro
    for_user = ShareBalance.objects.filter(cluster=lab.cluster, user=user, generation=lab.people.v100)
    if not for_user.update(owed=owed):
        ShareBalance.objects.create(
            cluster=lab.cluster, user=user, tenant=tenant, generation=lab.people.v100, owed=owed, share=2
        )


def test_users_take_turns_by_what_their_share_lacks() -> None:
    lab = full(quantum_seconds=60)
    cast = lab.people
    bobs = [lab.submit(cast.bob, cast.astro, gpus=2) for _ in range(3)]
    alices = [lab.submit(cast.alice, cast.astro, gpus=2) for _ in range(3)]
    lab.fill()
    owe(lab, cast.alice, 2.5 * 60)
    ShareBalance.objects.filter(user=cast.bob).delete()
    owe(lab, cast.bob, 0)
    owed = ShareBalance.objects.filter(user=cast.alice).first()
    assert owed is not None
    ShareBalance.objects.filter(pk=owed.pk).update(owed=2.5 * 60)
    last = place(bobs[2], cast.bob)
    # Alice is 2.5 GPUs of a quantum behind, so she has two turns before Bob's first.
    assert [one.pk for one in last.ahead] == [
        alices[0].pk, alices[1].pk, bobs[0].pk, alices[2].pk, bobs[1].pk,
    ]  # fmt: skip
    assert (last.position, last.of) == (6, 6)


def test_only_jobs_that_could_start_on_its_gpu_types_are_ahead() -> None:
    lab = full()
    bob, astro = lab.people.bob, lab.people.astro
    lab.submit(bob, astro, gpus=4, generations=["A100"], name="other type")
    held = lab.submit(bob, astro, gpus=4, name="blocked by a limit")
    both = lab.submit(bob, astro, gpus=4, generations=["A100", "V100"], name="both")
    idle = lab.submit(bob, astro, gpus=1, name="idle", preemptible=True)
    job = lab.submit(bob, astro, gpus=4, generations=["V100"])
    lab.fill()
    Job.objects.filter(pk=held.pk).update(reason=Reason.QUOTA_IN_USE)
    found = place(job, bob)
    assert [one.pk for one in found.ahead] == [both.pk]
    assert [one.pk for one in place(idle, bob).ahead][-1] == job.pk, "preemptible jobs come last"
    held.refresh_from_db()
    assert queue_place_of(held, bob) is None


def test_a_long_queue_names_the_first_few() -> None:
    lab = world(v100=4)
    start(lab, gpus=4)
    bob, astro = lab.people.bob, lab.people.astro
    jobs = [lab.submit(bob, astro, gpus=1) for _ in range(8)]
    lab.fill()
    found = place(jobs[-1], bob)
    assert (len(found.ahead), found.more, found.rest) == (5, 2, "2 more")
    Job.objects.filter(pk=jobs[-1].pk).update(state=Job.State.CANCELLED)
    assert queue_place_of(jobs[-1], bob) is None, "it ended after it was read"


def test_jobs_that_share_evenly_go_by_what_they_had_and_the_note_names_other_rules() -> None:
    lab = full(ordering=Cluster.Ordering.LOTTERY)
    bob, astro = lab.people.bob, lab.people.astro
    User.objects.filter(pk=bob.pk).update(job_order=User.JobOrder.EVEN)
    had, new = lab.submit(bob, astro, gpus=4), lab.submit(bob, astro, gpus=4)
    lab.fill()
    Job.objects.filter(pk=had.pk).update(
        held_for="01:00:00", first_started_at=had.created_at, first_generation=lab.people.v100
    )
    found = place(had, bob)
    assert [one.pk for one in found.ahead] == [new.pk]
    assert found.note.endswith(LOTTERY)
    Cluster.objects.update(policy="market")
    had.cluster.refresh_from_db()
    assert "market also weighs" in place(Job.objects.get(pk=had.pk), bob).note


def test_a_running_job_has_a_place_for_its_next_turn() -> None:
    lab = full(quantum_seconds=60)
    cast = lab.people
    job = Job.objects.get(owner=cast.charlie, generation_ids=[cast.v100.pk])
    found = place(job, cast.charlie)
    assert (found.sentence, found.of) == (
        "No waiting job can use these GPUs, so the job goes on in its next turn.", 1,
    )  # fmt: skip
    lab.submit(cast.bob, cast.astro, gpus=4, generations=["A100"], name="other type")
    waiting = lab.submit(cast.bob, cast.astro, gpus=4, generations=["V100"])
    lab.fill()
    owe(lab, cast.charlie, 100_000)
    assert place(job, cast.charlie).sentence == (
        "The job goes on in its next turn: it is ahead of 1 waiting job that can use these GPUs."
    )
    owe(lab, cast.charlie, 0)
    owe(lab, cast.bob, 100_000)
    found = place(job, cast.charlie)
    assert (found.position, found.of, found.others, found.others_gpus, found.ahead) == (2, 2, 1, 4, ())
    assert found.sentence.startswith(
        "1 of 1 waiting job that can use these GPUs goes first in the next turn, from "
    )
    assert [one.pk for one in place(job, cast.olga).ahead] == [waiting.pk]


def test_the_next_turn_is_after_the_quantum_and_the_time_for_which_a_job_keeps_its_gpus() -> None:
    lab = full(quantum_seconds=60)
    job = Job.objects.get(owner=lab.people.charlie, generation_ids=[lab.people.v100.pk])
    [lease] = job.leases.all()
    began = lease.running_from
    assert began is not None
    Cluster.objects.update(last_quantum_at=began + timedelta(seconds=100))
    job = Job.objects.get(pk=job.pk)
    assert place(job, job.owner).turn == began + timedelta(seconds=160)
    Cluster.objects.update(min_hold_seconds=3600)
    job = Job.objects.get(pk=job.pk)
    assert place(job, job.owner).turn == began + timedelta(hours=1)
    Job.objects.filter(pk=job.pk).update(preemptible=True)
    turn = place(job, job.owner).turn
    assert turn is not None
    assert turn < began + timedelta(hours=1), "whoever wants the GPUs of a preemptible job gets them"
    lease.state = lease.State.STOPPING
    lease.save()
    assert queue_place_of(job, job.owner) is None
