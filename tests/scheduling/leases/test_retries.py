"""A job whose program fails starts again as often as its spec says, after a wait, unless somebody cancels it first."""

from __future__ import annotations

import random
from datetime import timedelta
from decimal import Decimal
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accounting.core.clock import now_from_database
from accounting.models import UsageSegment
from fairshare.model import Reason
from scheduling.anomalies.history_reader import read_past
from scheduling.backends.base import End, Phase
from scheduling.core.event_texts import text_of
from scheduling.jobs.actions import cancel_job
from scheduling.jobs.explain import explain
from scheduling.leases.actions import apply_observations
from scheduling.models import Job, Lease
from scheduling.models.event_codes import EventCode
from scheduling.reports.job_waste import waste
from scheduling.spec.job_spec import JobSpec, SpecError
from scheduling.spec.retries import Retries
from tests.scheduling.leases.test_any_order import undone
from tests.scheduling.world import World, seen, start, world

SPEC = {"name": "a", "command": "true"}


@pytest.fixture
def lab(db: None) -> World:
    return world(v100=4)


def retrying(lab: World, times: int = 3, *, gpus: int = 1, **how: object) -> Job:
    """Submits and starts a job of Bob's with `times` retries. `how` has other values of the field `retries`."""
    return start(lab, gpus=gpus, retries=Retries(times=times, **how))


def fail(lab: World, lease: Lease, code: int | None = 1) -> Job:
    message = f"exited with code {code}"
    lab.see(lease, Phase.ENDED, end=End.FAILED, ended_age=0.0, exit_code=code, message=message)
    return Job.objects.get(pk=lease.job_id)


def let_wait_pass(job: Job) -> None:
    Job.objects.filter(pk=job.pk).update(not_before=now_from_database() - timedelta(seconds=1))


def restart(lab: World, job: Job) -> Lease:
    """Starts the next attempt of a job that waits for its retry, as if its wait were over."""
    let_wait_pass(job)
    lab.fill()
    lab.carry_out()
    return lab.lease(job)


class TestSpec:
    @pytest.mark.parametrize(
        ("given", "path", "accepted"),
        [
            ({"times": 101}, "retries.times", "a whole number from 0 to 100"),
            ({"times": "3"}, "retries.times", 'a whole number from 0 to 100, not "3"'),
            ({"times": 1, "exit_codes": [0]}, "retries.exit_codes.0", "exit codes from 1 to 255"),
            ({"times": 1, "exit_codes": [7, 7]}, "retries.exit_codes.1", "the list contains 7 twice"),
            ({"times": 1, "backoff_seconds": 0}, "retries.backoff_seconds", "seconds from 1 to 3600"),
            ({"time": 1}, "retries.time", "accepted: times, exit_codes, backoff_seconds"),
            (3, "retries", "{times: 0 to 100"),
        ],
    )
    def test_a_wrong_value_is_refused_with_what_is_accepted(
        self, given: object, path: str, accepted: str
    ) -> None:
        with pytest.raises(SpecError) as refused:
            JobSpec.parse(SPEC | {"retries": given})
        assert accepted in refused.value.problems[path]

    def test_services_and_sessions_have_no_retries(self) -> None:
        assert not JobSpec.parse(SPEC | {"retries": {"times": 0}}).problems_of_endless()
        assert list(JobSpec.parse(SPEC | {"retries": {"times": 1}}).problems_of_endless()) == ["retries"]

    def test_specs_that_were_stored_before_retries_existed_have_none(self) -> None:
        assert Retries.of_stored({"name": "old"}) == Retries()
        assert Retries.of_stored({"retries": {"times": 2, "exit_codes": "all"}}) == Retries(times=2)

    @given(
        retries=st.builds(
            Retries,
            times=st.integers(0, 100),
            exit_codes=st.lists(st.integers(1, 255), max_size=5, unique=True),
            backoff_seconds=st.integers(1, 3600),
        ),
        code=st.none() | st.integers(1, 255),
    )
    def test_waits_double_up_to_an_hour_and_end_with_the_last_retry(
        self, retries: Retries, code: int | None
    ) -> None:
        waits = [retries.wait_after(failures, code) for failures in range(1, 102)]
        if retries.exit_codes and code not in retries.exit_codes:
            assert waits == [None] * 101
            return
        allowed = [wait for wait in waits if wait is not None]
        assert waits == [*allowed, *[None] * (101 - retries.times)]
        assert not allowed or allowed[0].total_seconds() == retries.backoff_seconds
        for before, after in pairwise(allowed):
            assert after == min(2 * before, timedelta(hours=1))


def test_a_failed_program_waits_and_starts_again_until_no_retry_is_left(lab: World) -> None:
    job = retrying(lab, 2, backoff_seconds=60)
    job = fail(lab, lab.lease(job))
    assert (job.state, job.failures, job.exit_code, job.ended_at) == (Job.State.SUSPENDED, 1, None, None)
    assert 50 < (job.not_before - now_from_database()).total_seconds() <= 60
    event = job.events.get(code=EventCode.RETRIED)
    assert text_of(event) == "Failed: exited with code 1; retry 1 of 2 starts after 60 seconds"
    lab.fill()
    job.refresh_from_db()
    assert (job.state, job.reason) == (Job.State.SUSPENDED, Reason.RETRYING)
    told = explain(job)
    assert told.short == "program failed, retrying"
    assert told.sentence == (
        f"The job's program failed. Fairlot starts it again at {job.not_before:%Y-%m-%d %H:%M:%S} UTC at the earliest:"
        " retry 1 of 2."
    )
    job = fail(lab, restart(lab, job))
    assert 110 < (job.not_before - now_from_database()).total_seconds() <= 120
    job = fail(lab, restart(lab, job))
    assert (job.state, job.failures, job.exit_code) == (Job.State.FAILED, 3, 1)
    said = text_of(job.events.get(code=EventCode.FAILED))
    assert said == "Failed: exited with code 1; no retry is left (2 of 2 used)"
    assert [lease.end_reason for lease in job.leases.order_by("epoch")] == [Lease.End.FAILED] * 3


def test_only_the_listed_exit_codes_are_retried(lab: World) -> None:
    job = fail(lab, lab.lease(retrying(lab, 5, exit_codes=[75])), 75)
    assert job.state == Job.State.SUSPENDED
    job = fail(lab, restart(lab, job), 1)
    assert (job.state, job.exit_code) == (Job.State.FAILED, 1)
    assert text_of(job.events.last()) == "Failed: exited with code 1; this exit code is not retried"


@pytest.mark.parametrize("end", [End.LOST, End.START_FAILED, End.STOPPED])
def test_what_is_not_the_programs_failure_uses_up_no_retry(lab: World, end: End) -> None:
    job = lab.submit(lab.people.bob, lab.people.astro, retries=Retries(times=1))
    lab.fill()
    lab.see(lab.lease(job), Phase.ENDED, end=end, ended_age=0.0)
    job.refresh_from_db()
    assert (job.failures, job.state in Job.WAITING) == (0, True)
    assert not job.events.filter(code=EventCode.RETRIED).exists()


def test_a_cancel_during_the_wait_or_the_attempt_wins(lab: World) -> None:
    waits, runs = retrying(lab), retrying(lab)
    fail(lab, lab.lease(waits))
    for job in (waits, runs):
        cancel_job(actor=lab.people.bob, job=job)
    fail(lab, lab.lease(runs))
    assert lab.states([waits, runs]) == [Job.State.CANCELLED] * 2
    let_wait_pass(waits)
    lab.fill()
    assert waits.leases.count() == 1


def test_a_program_that_fails_while_it_is_preempted_is_retried(lab: World) -> None:
    job = retrying(lab, gpus=4)
    lab.submit(lab.people.charlie, lab.people.bio, gpus=4)
    lab.contest(job)
    assert lab.states([job]) == [Job.State.STOPPING]
    job = fail(lab, lab.lease(job))
    assert (job.state, job.failures) == (Job.State.SUSPENDED, 1)


def test_a_repeated_or_late_report_of_the_failure_counts_once(lab: World) -> None:
    job = retrying(lab)
    lease = lab.lease(job)
    first = fail(lab, lease)
    for _ in range(2):
        again = fail(lab, lease)
        assert (again.failures, again.not_before) == (1, first.not_before)
    restart(lab, job)
    late = fail(lab, lease)
    assert (late.state, late.failures) == (Job.State.RUNNING, 1)
    assert job.events.filter(code=EventCode.RETRIED).count() == 1


def test_a_retried_attempt_is_billed_and_its_work_counts_as_run_again(lab: World) -> None:
    job = retrying(lab)
    lease = lab.age(lab.lease(job), 500)
    fail(lab, lease)
    lease.refresh_from_db()
    assert lease.lost_from == lease.held_from, "no step says what a checkpoint has kept"
    billed = sum(UsageSegment.objects.filter(lease_id=lease.pk).values_list("gpu_seconds", flat=True))
    assert float(billed) == pytest.approx((lease.held_until - lease.held_from).total_seconds(), abs=1e-5)

    def wasted() -> tuple[Decimal, Decimal]:
        now = now_from_database()
        total = waste(lab.people.alice, now - timedelta(days=1), now + timedelta(days=1)).total
        return total.run_again, total.failed

    assert wasted() == (billed, 0)
    succeeded = restart(lab, job)
    lab.see(succeeded, Phase.ENDED, end=End.SUCCEEDED, ended_age=0.0, exit_code=0)
    assert wasted() == (billed, 0)


def test_with_steps_only_the_repeated_work_of_a_retried_attempt_is_lost(lab: World) -> None:
    job = retrying(lab)
    lease = lab.age(lab.lease(job), 1000)
    lab.see(lease, Phase.RUNNING, steps=0.0, steps_age=900.0)
    lab.see(lease, Phase.RUNNING, steps=900.0, steps_age=0.0)
    fail(lab, lease)
    lease.refresh_from_db()
    assert lease.lost_from is None
    lab.see(restart(lab, job), Phase.RUNNING, steps=800.0, steps_age=0.0)
    lease.refresh_from_db()
    assert (lease.held_until - lease.lost_from).total_seconds() == pytest.approx(100, abs=5)


def test_the_nightly_comparison_does_not_blame_the_wait_on_others(lab: World) -> None:
    job = retrying(lab, backoff_seconds=60)
    fail(lab, lab.lease(job))
    now = now_from_database()
    past = read_past(lab.cluster, now - timedelta(minutes=1), now + timedelta(hours=1)).past
    [known] = [one for one in past.jobs if one.key == job.pk]
    [wait] = known.ineligible
    assert wait.ends - wait.begins == pytest.approx(60, abs=0.1)


@given(seed=st.integers(0, 2**32))
@settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_in_any_order_each_failed_attempt_is_counted_once_and_retries_are_never_exceeded(
    lab: World, seed: int
) -> None:
    chance = random.Random(seed)
    with undone():
        jobs = [
            retrying(lab, chance.randint(0, 3), exit_codes=chance.choice([[], [1], [75]])) for _ in range(3)
        ]
        cancelled = set()
        for _ in range(40):
            job = Job.objects.get(pk=chance.choice(jobs).pk)
            match chance.choice(["fail", "fail", "lose", "round", "round", "wait", "cancel"]):
                case "fail":  # may be about any attempt, also about one that has ended
                    fail(lab, chance.choice(list(job.leases.all())), chance.choice([1, 75, None]))
                case "lose":
                    lease = chance.choice(list(job.leases.all()))
                    lab.see(lease, Phase.ENDED, end=End.LOST, ended_age=0.0)
                case "round":
                    lab.fill()
                    lab.carry_out()
                case "wait":
                    let_wait_pass(job)
                case "cancel" if chance.random() < 0.1:
                    cancel_job(actor=lab.people.bob, job=job)
                    cancelled.add(job.pk)
            for one in Job.objects.filter(pk__in=[job.pk for job in jobs]):
                _check(one, was_cancelled=one.pk in cancelled)


def _check(job: Job, *, was_cancelled: bool) -> None:
    retries = Retries.of_stored(job.spec)
    failed = job.leases.filter(end_reason=Lease.End.FAILED).count()
    retried = job.events.filter(code=EventCode.RETRIED)
    numbers = [event.detail["retry"] for event in retried]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) <= retries.times
    assert job.leases.filter(state__in=Lease.HOLDING).count() <= 1
    if was_cancelled:
        assert job.state in (Job.State.CANCELLING, Job.State.CANCELLED, Job.State.FAILED)
    else:
        assert job.failures == failed
        assert len(numbers) == failed - (job.state == Job.State.FAILED and job.end_reason == "failed")
    if retries.exit_codes:
        assert {event.detail["exit_code"] for event in retried} <= set(retries.exit_codes)


def test_a_batch_that_repeats_a_failure_counts_it_once(lab: World) -> None:
    one, other = retrying(lab), retrying(lab)
    facts = {"end": End.FAILED, "ended_age": 0.0, "exit_code": 1}
    batch = [seen(lab.lease(job), Phase.ENDED, **facts) for job in (one, other, one)]
    apply_observations(cluster_id=lab.cluster.pk, observations=batch)
    assert [Job.objects.get(pk=job.pk).failures for job in (one, other)] == [1, 1]
