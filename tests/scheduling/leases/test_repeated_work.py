"""A job that begins again at each attempt is found, and its owner learns once what that costs and what helps."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db.models import F, QuerySet
from hypothesis import given
from hypothesis import strategies as st

from accounting.models import Generation, NotificationEvent
from accounting.models.notifications import EventKind
from scheduling.backends.base import End, Phase
from scheduling.jobs.remedies import RemedyCode, remedies_of_repeats
from scheduling.leases.lost_work import lost_attempts
from scheduling.leases.repeated_work import repeated_work, repeated_work_of
from scheduling.leases.reservations import write_times
from scheduling.models import Cluster, Job, Lease
from tests.scheduling.world import World, start, world

BEGIN = datetime(2026, 3, 2, tzinfo=UTC)
END = Lease.End
TIMES = "held_from", "held_until", "running_from", "first_steps_at", "progress_at", "lost_from"
V100 = Generation(name="V100")


def attempts(*steps: tuple[float, float], ends: str = END.STOPPED) -> list[Lease]:
    """Returns unsaved leases of an hour on two GPUs each, earliest first, whose programs went from step to step. The
    last one runs."""
    made: list[Lease] = []
    for number, (first, last) in enumerate(steps, start=1):
        begins = BEGIN + number * timedelta(hours=2)
        lease = Lease(
            epoch=number, gpus=2, generation=V100, end_reason=ends, held_from=begins,
            running_from=begins, held_until=begins + timedelta(hours=1), first_steps=first,
            first_steps_at=begins, progress_steps=last, progress_at=begins + timedelta(hours=1),
        )  # fmt: skip
        list(lost_attempts(made[::-1], first))
        made.append(lease)
    made[-1].end_reason, made[-1].held_until = "", None
    return made


def again(lab: World, job: Job, *, steps: float | None = None, resumed_from: str = "") -> Job:
    """Lets the job's attempt run for 1000 s, from step 1 to `steps`, and lose its GPUs. The next one then runs, and
    begins at step 1 again."""
    lease = lab.age(lab.lease(job), 1000)
    shift(Lease.objects.filter(pk=lease.pk), timedelta(seconds=1000), "first_steps_at", "progress_at")
    if steps is not None:
        lab.see(lease, Phase.RUNNING, steps=1.0, steps_age=1000.0)
        lab.see(lease, Phase.RUNNING, steps=steps, steps_age=0.0)
    lab.see(lease, Phase.ENDED, end=End.LOST, ended_age=0.0)
    closed = job.leases.filter(state=Lease.State.CLOSED)
    shift(closed, timedelta(hours=1), *TIMES)  # so that the next lease can be aged, too
    for one in closed.order_by("epoch"):  # one by one, so that none meets the old times of another
        write_times([one.pk])
    Job.objects.filter(pk=job.pk).update(not_before=None)
    lab.fill()
    lease = lab.lease(job)
    lab.tried(lease)
    lab.see(lease, Phase.RUNNING, running_age=0.0, resumed_from=resumed_from)
    if steps is not None:
        lab.see(lease, Phase.RUNNING, steps=1.0, steps_age=0.0)
    return Job.objects.select_related("cluster", "tenant").get(pk=job.pk)


def shift(leases: QuerySet[Lease], earlier: timedelta, *names: str) -> None:
    leases.update(**{name: F(name) - earlier for name in names})


class TestFromLeases:
    def test_attempts_that_begin_where_the_first_began_repeat_their_work(self) -> None:
        found = repeated_work(attempts((1, 15), (1, 15), (1, 11), (1, 5)))
        assert found is not None
        assert (found.attempts, found.step, found.reached) == (3, 1, 15)
        assert found.total == pytest.approx(3 * 2 * 3600)
        assert found.sentence == (
            "The work of 3 attempts was lost: the latest attempt began at step 1, "
            "although step 15 had been reached. About 6 GPU-hours were spent on work that was done again"
        )

    @pytest.mark.parametrize(
        "steps",
        [
            [(1, 15), (1, 15)],  # once is no habit
            [(1, 100), (90, 190), (170, 270)],  # what a program loses that saves now and then
            [(1, 15), (1, 15), (1, 15), (14, 20)],  # it resumes now
        ],
    )
    def test_attempts_that_go_on_repeat_nothing(self, steps: list[tuple[float, float]]) -> None:
        assert repeated_work(attempts(*steps)) is None

    def test_retries_of_a_failed_program_are_no_preemptions(self) -> None:
        assert repeated_work(attempts((1, 15), (1, 15), (1, 15), ends=END.FAILED)) is None

    @given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), min_size=1, max_size=6))
    def test_no_more_is_repeated_than_was_held(self, made: list[tuple[int, int]]) -> None:
        leases = attempts(*((first, first + more) for first, more in made))
        found = repeated_work(leases)
        if found is not None:
            assert 2 <= found.attempts < len(leases)
            assert 0 < found.total <= 2 * 3600 * (len(leases) - 1)


class TestFromObservations:
    pytestmark = pytest.mark.django_db(transaction=True)

    @pytest.fixture
    def lab(self, transactional_db: None) -> World:
        return world(v100=4)

    def told(self) -> list[NotificationEvent]:
        return list(NotificationEvent.objects.filter(kind=EventKind.JOB_WARNED))

    def test_the_owner_and_the_managers_are_told_once(self, lab: World) -> None:
        job = start(lab, gpus=4)
        assert repeated_work_of(again(lab, job, steps=15)) is None
        assert self.told() == []
        found = repeated_work_of(again(lab, job, steps=15))
        assert found is not None
        assert (found.attempts, found.step, found.reached) == (2, 1, 15)
        again(lab, job, steps=15)
        [event] = self.told()
        assert event.concerns == sorted({lab.people.alice.pk, lab.people.bob.pk})
        assert "The work of 2 attempts was lost" in event.text
        assert event.title.startswith("Repeats its work: ")

    def test_a_job_that_finds_no_checkpoint_repeats_its_work_without_reporting_steps(
        self, lab: World
    ) -> None:
        job = start(lab, checkpoint="step-*.pt")
        again(lab, job)
        found = repeated_work_of(again(lab, job))
        assert found is not None
        assert (found.attempts, found.step) == (2, None)
        assert "2 attempts ended, and none found a complete checkpoint" in found.sentence
        # What an attempt that has not started finds is not known.
        Lease.objects.filter(job=job, epoch=3).update(running_from=None)
        assert repeated_work_of(job) is None
        assert repeated_work_of(again(lab, job, resumed_from="step-5.pt")) is None

    def test_nothing_is_said_where_nothing_is_known(self, lab: World) -> None:
        job = start(lab)
        again(lab, job)
        assert repeated_work_of(again(lab, job)) is None  # it may read its own checkpoint

    def test_each_reader_is_offered_what_they_may_do(self, lab: World) -> None:
        job, people = start(lab), lab.people
        how, clone, freeze = RemedyCode.SAVE_CHECKPOINTS, RemedyCode.CLONE_CORRECTED, RemedyCode.FREEZE_JOBS

        def offered() -> list[list[RemedyCode]]:
            shown = Job.objects.select_related("cluster", "tenant").get(pk=job.pk)
            readers = people.bob, people.olga, people.ada
            return [[one.code for one in remedies_of_repeats(shown, reader=reader)] for reader in readers]

        assert offered() == [[how, clone], [how], [how, freeze]]
        Cluster.objects.update(slicing=Cluster.Slicing.AUTO)
        assert offered() == [[how, clone], [how], [how]]
