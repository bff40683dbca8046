"""Kills worker and watcher at every step. Tests that new ones complete each operation once and bills equal leases.

A step is a database statement or a request to the API server.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from decimal import Decimal

import pytest

from accounting.core.clock import now_from_database
from accounting.models import UsageSegment
from scheduling.backends.kubernetes import objects
from scheduling.clusters.attaching import set_bare_pods
from scheduling.jobs.actions import cancel_job
from scheduling.models import Job, Lease, Operation
from tests.cluster.attached_lab import Lab
from tests.cluster.dying import Dying, dying
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.django_db(transaction=True)]

# Fate counts each step twice: before it and after it.
# A death after a step is the same as a death before the next one, so only the latter is tested.
EVERY = 2
FEWEST = 10  # least number of deaths; with fewer, the processes died at other steps than intended
SOME = 10  # jobs that run at the same time


@pytest.fixture
def mortals(lab: Lab) -> Iterator[Dying]:
    """Yields an object that runs workers and watchers for the lab's cluster and kills them at a given step.

    First stops the lab's own watcher, which would interfere.
    """
    lab.changes.close()
    with dying(lab.cluster.pk) as made:
        yield made


def watch_until(mortals: Dying, jobs: Sequence[Job], state: str) -> None:
    def there() -> bool:
        mortals.watch()
        for job in jobs:
            job.refresh_from_db()
        return all(job.state == state for job in jobs)

    wait_for(there, what=lambda: f"they are {state}, not {[(job.pk, job.state) for job in jobs]}")


def put_off(hours: float) -> None:
    """Makes all open operations due in `hours` hours. With 0 they are due now."""
    moment = now_from_database() + timedelta(hours=hours)
    # also those that a killed worker had claimed for some time
    Operation.objects.filter(done_at=None).update(not_before=moment)


def check(lab: Lab, job: Job) -> None:
    """Asserts that the job has one closed lease, no open operation, and a bill that equals the lease."""
    lease = lab.lease(job)
    assert (lease.epoch, lease.state) == (1, Lease.State.CLOSED)
    assert not Operation.objects.filter(lease=lease, done_at=None).exists()
    assert lease.held_from
    assert lease.held_until
    billed = sum((one.gpu_seconds for one in UsageSegment.objects.filter(lease_id=lease.pk)), Decimal(0))
    held = Decimal(str((lease.held_until - lease.held_from).total_seconds())) * lease.gpus
    assert abs(billed - held) < Decimal("0.001")


def running_pods(lab: Lab, job: Job) -> list[int]:
    """Returns the ranks of the job's pods that have not ended."""
    return [objects.rank_of(pod) for pod in lab.pods(job) if not objects.has_ended(pod)]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_that_is_killed_at_any_step_starts_nothing_twice_and_completes_its_stops(
    lab: Lab, mortals: Dying, workers: int
) -> None:
    """Proves that a worker that is killed at any step starts nothing twice, and that its stops are completed by the
    next worker.

    A job of one worker runs as a bare pod, a job of two as a Job whose pods have scheduling gates.
    """
    set_bare_pods(actor=lab.people.ada, cluster=lab.cluster, bare_pods=True)
    jobs: list[Job] = []
    died = True
    while died:
        jobs.append(lab.send(workers=workers))
        lab.fill()
        died = mortals.work(EVERY * (len(jobs) - 1))
        put_off(hours=1)
    assert len(jobs) > FEWEST
    put_off(hours=0)
    mortals.work()
    watch_until(mortals, jobs, Job.State.RUNNING)
    for job in jobs:
        assert running_pods(lab, job) == list(range(workers)), f"job {job.pk}"
    deaths = 0
    for number, job in enumerate(jobs):
        cancel_job(actor=lab.people.bob, job=job)
        deaths += mortals.work(EVERY * number)
        put_off(hours=1)
    assert FEWEST < deaths < len(jobs), "or the stop has more steps than the start"
    put_off(hours=0)
    mortals.work()
    watch_until(mortals, jobs, Job.State.CANCELLED)
    for job in jobs:
        assert running_pods(lab, job) == [], f"job {job.pk}"
        check(lab, job)


def test_a_watcher_that_is_killed_at_any_step_loses_no_end_and_books_it_once(
    lab: Lab, mortals: Dying
) -> None:
    """Proves that a watcher that is killed at any step loses no job's end, and that each end is booked once.

    The first ten jobs run as Jobs, the next ten as bare pods, and so on.
    """
    deaths = 0
    while deaths % SOME == 0:
        set_bare_pods(actor=lab.people.ada, cluster=lab.cluster, bare_pods=deaths // SOME % 2 == 1)
        jobs = [lab.send() for _ in range(SOME)]
        lab.fill()
        mortals.work()
        watch_until(mortals, jobs, Job.State.RUNNING)
        for job in jobs:
            lab.annotate(job, run_for="0")
            wait_for(lambda job=job: all(map(objects.has_ended, lab.pods(job))), what="it has ended")
            died = mortals.watch(EVERY * deaths)
            watch_until(mortals, [job], Job.State.SUCCEEDED)
            assert job.events.filter(kind="succeeded").count() == 1
            check(lab, job)
            if not died:
                break
            deaths += 1
    assert deaths > FEWEST
