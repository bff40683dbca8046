"""When an attempt first reports its progress, Fairlot knows from which step it resumed. The work of earlier attempts
after this step must be repeated, and is recorded as lost.

Lost work is recorded once, and is never more than the work that was done.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db.models import F
from hypothesis import given
from hypothesis import strategies as st

from scheduling.backends.base import End, Phase
from scheduling.leases.lost_work import lost_attempts
from scheduling.leases.reservations import write_times
from scheduling.models import Job, Lease
from tests.scheduling.world import World, start, world

BEGIN = datetime(2026, 3, 2, tzinfo=UTC)


class TestFromObservations:
    pytestmark = pytest.mark.django_db(transaction=True)

    @pytest.fixture
    def lab(self, transactional_db: None) -> World:
        return world(v100=4)

    def ran_until(self, lab: World, job: Job, first: float, last: float) -> Lease:
        """Makes the job's attempt vanish after 1000 s. It was at step `first` after 100 s, and at step `last` at the
        end."""
        lease = lab.age(lab.lease(job), 1000)
        lab.see(lease, Phase.RUNNING, steps=first, steps_age=900.0)
        lab.see(lease, Phase.RUNNING, steps=last, steps_age=0.0)
        lab.see(lease, Phase.ENDED, end=End.LOST, ended_age=0.0)
        return lease

    def long_over(self, lease: Lease) -> None:
        """Backdates all times of the lease by an hour."""
        names = ("held_from", "held_until", "first_steps_at", "progress_at", "running_from")
        hour = timedelta(hours=1)
        Lease.objects.filter(pk=lease.pk).update(**{name: F(name) - hour for name in names})
        write_times([lease.pk])

    def goes_on_at(self, lab: World, job: Job, steps: float) -> Lease:
        lab.fill()
        lab.carry_out()
        lease = lab.lease(job)
        lab.see(lease, Phase.RUNNING, steps=steps, steps_age=0.0)
        return lease

    def lost(self, lease: Lease) -> float:
        """Returns the length of the lost time at the end of the lease, in seconds; 0.0 if no work is lost."""
        lease.refresh_from_db()
        assert lease.held_until is not None
        return (lease.held_until - lease.lost_from).total_seconds() if lease.lost_from else 0.0

    def test_work_since_the_last_checkpoint_is_lost(self, lab: World) -> None:
        job = start(lab, gpus=4)
        before = self.ran_until(lab, job, 100, 1000)
        self.goes_on_at(lab, job, 700)
        assert self.lost(before) == pytest.approx(300, abs=5)

    def test_nothing_is_lost_where_it_goes_on_where_it_was(self, lab: World) -> None:
        job = start(lab, gpus=4)
        before = self.ran_until(lab, job, 100, 1000)
        self.goes_on_at(lab, job, 1000)
        assert self.lost(before) == 0

    def test_a_job_that_restarts_from_zero_has_lost_all_earlier_attempts(self, lab: World) -> None:
        job = start(lab, gpus=4)
        attempts = [self.ran_until(lab, job, 100, 1000)]
        self.long_over(attempts[0])
        lab.fill()
        lab.carry_out()
        attempts.append(self.ran_until(lab, job, 1000, 2000))
        self.goes_on_at(lab, job, 0)
        for attempt in attempts:
            attempt.refresh_from_db()
            assert attempt.lost_from == attempt.held_from

    def test_seeing_it_again_changes_nothing(self, lab: World) -> None:
        job = start(lab, gpus=4)
        before = self.ran_until(lab, job, 100, 1000)
        lease = self.goes_on_at(lab, job, 700)
        once = self.lost(before)
        for steps in (700, 650, 710):
            lab.see(lease, Phase.RUNNING, steps=steps, steps_age=0.0)
        assert self.lost(before) == once

    def test_a_turn_that_never_ran_did_nothing(self, lab: World) -> None:
        lab.submit(lab.people.bob, lab.people.astro, gpus=4)
        lab.fill()
        (lease,) = lab.holding(Lease.State.STARTING)
        lab.tried(lease)
        lab.age(lease, 60)
        lab.see(lease, Phase.ENDED, end=End.START_FAILED, ended_age=0.0)
        lease.refresh_from_db()
        assert lease.lost_from == lease.held_from

    def test_a_job_without_progress_reports_has_lost_nothing(self, lab: World) -> None:
        job = start(lab, gpus=4)
        lease = lab.age(lab.lease(job), 1000)
        lab.see(lease, Phase.ENDED, end=End.LOST, ended_age=0.0)
        self.goes_on_at(lab, job, 5)
        assert self.lost(lease) == 0


steps = st.integers(0, 1000)
histories = st.lists(st.tuples(steps, st.integers(1, 500)), min_size=1, max_size=4)


def leases_of(history: list[tuple[int, int]]) -> list[Lease]:
    """Returns unsaved leases of an hour each, the latest first. Each reported progress in its first and last minutes.

    `history`: for each lease, from the first to the latest, (step in the first report, further steps until the last
    report).
    """
    made = []
    for epoch, (first, more) in enumerate(history, start=1):
        begins = BEGIN + epoch * timedelta(hours=2)
        made.append(
            Lease(
                epoch=epoch, held_from=begins, held_until=begins + timedelta(hours=1), first_steps=first,
                first_steps_at=begins + timedelta(minutes=1), progress_steps=first + more,
                progress_at=begins + timedelta(minutes=59),
            )
        )  # fmt: skip
    return made[::-1]


def lost_time(leases: list[Lease]) -> timedelta:
    return sum((one.held_until - one.lost_from for one in leases if one.lost_from), timedelta())


@given(histories, steps, steps)
def test_resuming_from_an_earlier_step_loses_no_less(
    history: list[tuple[int, int]], one: int, other: int
) -> None:
    lost = {}
    for at in (one, other):
        leases = leases_of(history)
        list(lost_attempts(leases, at))
        lost[at] = lost_time(leases)
        for lease in leases:
            assert lease.lost_from is None or lease.held_from <= lease.lost_from < lease.held_until
        assert bool(lost[at]) == (at < leases[0].progress_steps)
    assert lost[min(one, other)] >= lost[max(one, other)]


@given(histories, steps)
def test_the_part_lost_is_the_part_of_the_steps(history: list[tuple[int, int]], at: int) -> None:
    latest = leases_of(history)[0]
    list(lost_attempts([latest], at))
    seen = latest.progress_at - latest.first_steps_at
    if latest.first_steps <= at < latest.progress_steps:
        part = (latest.progress_steps - at) / (latest.progress_steps - latest.first_steps)
        kept = latest.lost_from - latest.first_steps_at
        assert kept / seen == pytest.approx(1 - part, abs=1e-6)
    elif at < latest.first_steps:
        assert latest.lost_from == latest.held_from
