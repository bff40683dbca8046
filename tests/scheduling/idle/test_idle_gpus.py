"""Idle rules warn about jobs with idle GPUs and then stop these jobs. Users can postpone the stop."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import IntegrityError
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.core.clock import now_from_database
from accounting.core.errors import NotAllowed, Refused
from accounting.models import AuditEvent, User
from scheduling import tasks
from scheduling.core.event_texts import end_text_of, text_of
from scheduling.idle.actions import (
    IdleRules,
    idle_to_step,
    idleness_of,
    remove_idle_rule,
    set_idle_rule,
    snooze_idle,
    step_idle,
)
from scheduling.idle.steps import STALE, Idleness, Step, Terms
from scheduling.models import GpuUse, IdleRule, Job, JobEvent
from tests.accounting.ledger.test_at_once import at_once
from tests.notified import mails
from tests.scheduling.world import World, start, world

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
NONE = timedelta(0)
NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
TERMS = Terms(after=30 * MINUTE, grace=10 * MINUTE, snooze=2 * HOUR, then=Step.STOP)


# --- what follows from a rule --------------------------------------------------------------------


def minutes(least: int, most: int) -> st.SearchStrategy[timedelta]:
    return st.integers(least, most).map(lambda count: count * MINUTE)


LIVES = st.lists(
    st.tuples(
        st.one_of(minutes(1, 3), minutes(1, 20)),
        st.sampled_from(
            ["idle", "idle", "idle", "idle", "used", "unmeasured", "snooze", "waiting", "waiting"]
        ),
        st.sampled_from([True, True, False]),  # whether Fairlot checks the job afterwards
    ),
    min_size=6,
    max_size=60,
)


@settings(max_examples=400)
@given(
    life=LIVES,
    after=minutes(1, 40),
    grace=minutes(1, 30),
    snooze=minutes(0, 60),
    then=st.sampled_from([Step.NOTHING, Step.PREEMPTIBLE, Step.STOP]),
)  # fmt: skip
def test_no_job_is_stopped_unwarned_too_early_in_use_or_while_postponed(
    life: list[tuple[timedelta, str, bool]],
    after: timedelta,
    grace: timedelta,
    snooze: timedelta,
    then: Step,
) -> None:
    """Whatever the history of a job, no stop comes without a warning, too early, while the GPUs are used, or while a
    user has postponed it.

    Hypothesis generates the histories, with irregular checks by Fairlot and with waits between attempts. After the
    event "waiting", the job runs again, and the GPU use of the new attempt is not measured yet.
    """
    terms = Terms(after=after, grace=grace, snooze=snooze, then=then)
    now = measured = promised = NOON
    since: datetime | None = None
    lasted = timedelta(0)
    lasted_warned = timedelta(0)
    first = warned = snoozed = last_use = None
    longest_put_off = NOON
    is_of_this_attempt = True
    unused: list[tuple[datetime, datetime]] = []  # the measured idle intervals of all attempts

    def seen() -> Idleness:
        return Idleness(
            since, lasted, measured, is_of_this_attempt, first, warned, lasted_warned, snoozed_until=snoozed
        )

    for length, what, is_looked_at in life:
        now += length
        if what == "used":
            since, lasted, lasted_warned, measured, last_use = None, timedelta(0), timedelta(0), now, now
            is_of_this_attempt = True
        elif what == "idle":
            since = since or now - length
            lasted, measured, is_of_this_attempt = lasted + length, now, True
            lasted_warned += length if warned else timedelta(0)
            unused.append((now - length, now))
        elif what == "waiting":
            is_of_this_attempt = False
        elif what == "snooze" and since is not None:
            until = seen().snooze_ends(terms, now)
            if until > now:
                snoozed, first = until, first if first and first >= since else now
                longest_put_off = until
        if not is_looked_at:
            continue
        acts_at, step = seen().acts_at(terms, now), seen().step(terms, now)
        if step is not Step.NOTHING:
            assert since is not None
            assert lasted >= after
            assert snoozed is None or now >= snoozed
            assert now - measured <= STALE
            assert is_of_this_attempt
        if step is Step.WARN:
            warned, first = now, first if first and first >= since else now
            lasted_warned, promised = timedelta(0), NOON
        elif step is not Step.NOTHING:
            assert step is then
            assert warned is not None
            assert now >= warned + grace
            assert (
                sum((ends - max(begins, warned) for begins, ends in unused if ends > warned), NONE) >= grace
            )
            assert now >= promised
            assert last_use is None or warned > last_use
            assert warned >= longest_put_off or longest_put_off == NOON
            return
        if acts_at is not None:
            promised = acts_at


def test_a_warning_comes_first_and_then_the_end() -> None:
    idle = Idleness(NOON, 30 * MINUTE, NOON + 30 * MINUTE, is_of_this_attempt=True)
    assert idle.step(TERMS, NOON + 30 * MINUTE) is Step.WARN
    warned = warned_at_half_past(39)
    assert warned.step(TERMS, NOON + 39 * MINUTE) is Step.NOTHING
    assert warned.acts_at(TERMS, NOON + 39 * MINUTE) == NOON + 40 * MINUTE
    assert warned.step(TERMS, NOON + 40 * MINUTE) is Step.NOTHING  # the last minute has not been measured yet
    over = warned_at_half_past(40)
    assert over.step(TERMS, NOON + 40 * MINUTE) is Step.STOP
    assert over.step(TERMS, NOON + 44 * MINUTE) is Step.NOTHING  # the last measurement is too old


def warned_at_half_past(measured: int, **changes: Any) -> Idleness:
    """Returns the state of a job that has been idle since 12:00 and whose user was warned at 12:30.

    Its GPU use is measured without a gap until `measured` minutes after 12:00.
    """
    told = NOON + 30 * MINUTE
    idle = Idleness(
        NOON, measured * MINUTE, NOON + measured * MINUTE, is_of_this_attempt=True, first_told=told, warned=told,
        lasted_warned=(measured - 30) * MINUTE,
    )  # fmt: skip
    return replace(idle, **changes)


def test_waiting_for_a_turn_uses_up_no_grace() -> None:
    """The grace period does not pass while the job waits for GPUs.

    The job is preempted a minute after the warning, and holds GPUs again an hour later.
    """
    waits = warned_at_half_past(31, is_of_this_attempt=False)
    later = NOON + 90 * MINUTE
    assert waits.grace_left(TERMS) == 9 * MINUTE
    assert waits.acts_at(TERMS, later) == later + 9 * MINUTE
    runs = replace(
        waits, is_of_this_attempt=True, measured_until=later, lasted=32 * MINUTE, lasted_warned=2 * MINUTE
    )
    assert runs.step(TERMS, later) is Step.NOTHING
    assert runs.acts_at(TERMS, later) == later + 8 * MINUTE


def test_measurements_of_the_previous_attempt_stop_no_job() -> None:
    over = warned_at_half_past(40)
    assert over.step(TERMS, NOON + 41 * MINUTE) is Step.STOP
    assert replace(over, is_of_this_attempt=False).step(TERMS, NOON + 41 * MINUTE) is Step.NOTHING


def test_a_longer_rule_takes_a_warning_back() -> None:
    warned = warned_at_half_past(60)
    longer = Terms(after=2 * HOUR, grace=MINUTE, snooze=HOUR, then=Step.STOP)
    assert warned.step(longer, NOON + 60 * MINUTE) is Step.NOTHING
    assert warned.acts_at(longer, NOON + 60 * MINUTE) is None


def test_it_is_not_put_off_for_ever() -> None:
    told = Idleness(NOON, HOUR, NOON + HOUR, True, first_told=NOON + 30 * MINUTE)
    assert told.snooze_ends(TERMS, NOON + HOUR) == NOON + 30 * MINUTE + 2 * HOUR
    # `first_told` belongs to an earlier idle time
    before = Idleness(NOON, HOUR, NOON + HOUR, True, first_told=NOON - HOUR)
    assert before.snooze_ends(TERMS, NOON + HOUR) == NOON + 3 * HOUR


# --- which rule, and what is done ----------------------------------------------------------------


@pytest.fixture
def lab(db: None, settings) -> World:
    settings.EMAIL_HOST = "mail.example.org"
    lab = world(v100=4)
    for name in ("alice", "bob", "charlie"):
        User.objects.filter(username=name).update(email=f"{name}@example.org")
    return lab


def rule(**changes: Any) -> IdleRule:
    usual = {"actor": None, "action": "stop", "after_minutes": 30, "grace_minutes": 10, "snooze_hours": 2}
    return set_idle_rule(**usual | changes)


def idle(lab: World, job: Job, lasted: timedelta = 31 * MINUTE) -> GpuUse:
    """Records that the job's GPUs have been idle for the time `lasted`, until now."""
    now = now_from_database()
    measured = {"lease": lab.lease(job), "measured_until": now, "measure": "gpu", "percent": 0.0,
                "idle_since": now - lasted, "idle_for": lasted}  # fmt: skip
    return GpuUse.objects.update_or_create(job=job, defaults=measured)[0]


def tick() -> None:
    tasks.step_idle_jobs()


def told(job: Job) -> list[str]:
    return [text_of(event) for event in JobEvent.objects.filter(job=job, kind="warned")]


def test_the_nearest_rule_holds(lab: World) -> None:
    people = lab.people
    job = start(lab)

    def found() -> IdleRule | None:
        return IdleRules.read().rule_of(job.tenant, job.cluster_id)

    assert found() is None
    for_all = rule()
    assert found() == for_all
    of_cluster = rule(cluster=lab.cluster)
    assert found() == of_cluster
    of_uni = rule(tenant=people.uni)
    assert found() == of_uni
    of_astro = rule(tenant=people.astro, action="nothing")
    assert found() == of_astro
    assert IdleRules.read().terms_of(job) is None
    rule(tenant=people.bio)
    remove_idle_rule(actor=people.ada, rule=of_astro)
    assert found() == of_uni
    assert rule(after_minutes=45).pk == for_all.pk  # setting the rule again replaces it


def test_operators_and_admins_set_rules_and_senseless_ones_are_refused(lab: World) -> None:
    people = lab.people
    for who in (people.alice, people.bob):
        with pytest.raises(NotAllowed):
            rule(actor=who)
    wrong = {"action": "explode", "after_minutes": 0, "grace_minutes": 0, "snooze_hours": -1}
    for field, value in wrong.items():
        with pytest.raises(Refused) as refused:
            rule(**{field: value})
        assert refused.value.field == field
    with pytest.raises(Refused):
        rule(tenant=people.uni, cluster=lab.cluster)
    made = rule(actor=people.olga, tenant=people.uni)
    remove_idle_rule(actor=people.ada, rule=made)
    with pytest.raises(Refused):
        remove_idle_rule(actor=people.ada, rule=made)
    trail = (
        AuditEvent.objects.filter(verb__startswith="idle_rule")
        .values_list("verb", "actor_name")
        .order_by("pk")
    )
    assert list(trail) == [("idle_rule.set", "olga"), ("idle_rule.remove", "ada")]


def test_the_database_has_one_rule_of_each(lab: World) -> None:
    rule()
    with pytest.raises(IntegrityError):
        IdleRule.objects.create(
            action="warn", after_minutes=1, grace_minutes=1, snooze_hours=0, services=False
        )


def test_the_owner_and_managers_are_warned_once_and_then_it_is_stopped_once(lab: World) -> None:
    rule()
    job = start(lab)
    idle(lab, job, 29 * MINUTE)
    tick()
    assert told(job) == []
    idle(lab, job)
    for _ in range(3):
        tick()
    assert told(job) == [
        "The job's GPUs have been idle for 31 min: the job is stopped after another 10 min without use"
    ]
    sent = mails().order_by("address")
    assert [the_mail.address for the_mail in sent] == ["alice@example.org", "bob@example.org"]
    assert job.name in sent[0].subject
    assert f"/jobs/{job.pk}/" in sent[0].text
    later(11 * MINUTE)
    idle(lab, job, 45 * MINUTE)
    for _ in range(3):
        tick()
    job.refresh_from_db()
    assert job.state == Job.State.CANCELLING
    assert end_text_of(job) == "Stopped: the job's GPUs were idle for 45 min"
    assert AuditEvent.objects.filter(verb="job.idle_stop").count() == 1


def later(passed: timedelta) -> None:
    """Backdates the warning by `passed`, as if the job had held idle GPUs during this time."""
    use = GpuUse.objects.get()
    GpuUse.objects.update(
        warned_at=use.warned_at - passed, first_told_at=use.first_told_at - passed, idle_warned=passed
    )


def test_any_use_ends_the_warning(lab: World) -> None:
    rule()
    job = start(lab)
    idle(lab, job)
    tick()
    later(11 * MINUTE)
    GpuUse.objects.update(idle_since=None, idle_for=timedelta(0), used_at=now_from_database())
    tick()
    assert lab.states([job]) == [Job.State.RUNNING]
    idle(lab, job, 10 * MINUTE)
    tick()
    assert lab.states([job]) == [Job.State.RUNNING]
    assert len(told(job)) == 1


def test_a_job_under_a_warning_rule_keeps_running(lab: World) -> None:
    rule(action="warn")
    job = start(lab)
    idle(lab, job)
    tick()
    later(11 * MINUTE)
    idle(lab, job, 50 * MINUTE)
    tick()
    assert told(job) == ["The job's GPUs have been idle for 31 min"]
    assert lab.states([job]) == [Job.State.RUNNING]


@pytest.mark.parametrize("kind", ["session", "replica"])
def test_sessions_have_their_own_clock_and_replicas_are_left_alone_unless_the_rule_says_so(
    lab: World, kind: str
) -> None:
    job = start(lab)
    job.kind = kind  # not stored, because a stored replica would need a service
    rule()
    assert IdleRules.read().terms_of(job) is None
    rule(services=True)
    terms = IdleRules.read().terms_of(job)
    assert (terms is not None) is (kind == "replica")
    assert terms is None or terms.then is Step.NOTHING


def test_a_job_without_idle_warnings_has_a_reason(lab: World) -> None:
    job = start(lab)

    def why() -> str:
        rules = IdleRules.read()
        reason = rules.why_none(job)
        assert (rules.terms_of(job) is None) is bool(reason)
        return reason

    assert why() == "no idle rule is set"
    rule()
    assert why() == ""
    job.kind = Job.Kind.SESSION  # not stored
    assert why() == "idle rules leave out sessions, which have their own idle timeout"
    job.kind = Job.Kind.REPLICA
    assert why() == "the idle rule leaves out replicas of services"
    job.kind = Job.Kind.TRAINING
    rule(action="nothing")
    assert why() == "the idle rule does nothing"
    rule(action="preemptible")
    assert why() == ""
    job.preemptible = True
    assert why() == "the idle rule leaves out preemptible jobs, which keep no GPUs from others"


def test_jobs_that_no_longer_run_are_left_alone(lab: World) -> None:
    rule()
    job = start(lab)
    idle(lab, job)
    for state in (Job.State.SUSPENDED, Job.State.STOPPING, Job.State.SUCCEEDED):
        Job.objects.filter(pk=job.pk).update(state=state)
        assert idle_to_step(now_from_database()) == []
        assert step_idle(job_id=job.pk) is Step.NOTHING
    assert told(job) == []


def test_the_owner_puts_it_off_with_a_reason_and_within_the_rule(lab: World) -> None:
    rule()
    people = lab.people
    job = start(lab)
    now = now_from_database()
    with pytest.raises(Refused, match="not idle"):
        snooze_idle(actor=people.bob, job=job, until=now + HOUR, reason="x")
    idle(lab, job)
    tick()
    for stranger in (people.charlie,):
        with pytest.raises(NotAllowed):
            snooze_idle(actor=stranger, job=job, until=now + HOUR, reason="x")
    wrong = [(now - MINUTE, "x", "until"), (now + 3 * HOUR, "x", "until"), (now + HOUR, " ", "reason")]
    for until, reason, field in wrong:
        with pytest.raises(Refused) as refused:
            snooze_idle(actor=people.bob, job=job, until=until, reason=reason)
        assert refused.value.field == field
    snooze_idle(actor=people.bob, job=job, until=now + HOUR, reason="reads its data")
    later(11 * MINUTE)
    tick()
    assert lab.states([job]) == [Job.State.RUNNING]
    event = AuditEvent.objects.get(verb="job.idle_snooze")
    assert (event.actor_name, event.after["reason"], event.tenant) == ("bob", "reads its data", people.astro)
    snooze_idle(actor=people.alice, job=job, until=now + 100 * MINUTE, reason="still does")
    idle(lab, job, 5 * HOUR)
    GpuUse.objects.update(first_told_at=now - 2 * HOUR)
    with pytest.raises(Refused, match="no further snooze"):
        snooze_idle(actor=people.bob, job=job, until=now + 100 * MINUTE, reason="and again")


def test_a_postponed_stop_is_preceded_by_a_new_warning(lab: World) -> None:
    rule()
    job = start(lab)
    idle(lab, job)
    tick()
    snooze_idle(actor=lab.people.bob, job=job, until=now_from_database() + HOUR, reason="reads its data")
    tick()
    assert len(told(job)) == 1
    GpuUse.objects.update(snoozed_until=now_from_database())
    idle(lab, job, 2 * HOUR)
    tick()
    assert len(told(job)) == 2
    assert lab.states([job]) == [Job.State.RUNNING]
    use = GpuUse.objects.select_related("job__tenant").get()
    terms = IdleRules.read().terms_of(use.job)
    assert terms is not None
    assert idleness_of(use).acts_at(terms, use.warned_at) == use.warned_at + 10 * MINUTE


def test_it_is_put_off_also_while_it_waits_for_its_next_turn(lab: World) -> None:
    """Users can postpone the stop of an idle job also while the job waits for GPUs. On a busy cluster an attempt may be
    too short for a reaction."""
    rule()
    job = start(lab)
    idle(lab, job)
    tick()
    Job.objects.filter(pk=job.pk).update(state=Job.State.SUSPENDED)
    until = now_from_database() + HOUR
    assert snooze_idle(actor=lab.people.bob, job=job, until=until, reason="x").snoozed_until == until
    for state in (Job.State.CANCELLING, Job.State.CANCELLED):
        Job.objects.filter(pk=job.pk).update(state=state)
        with pytest.raises(Refused, match="not idle"):
            snooze_idle(actor=lab.people.bob, job=job, until=until, reason="x")


def test_without_a_rule_there_is_nothing_to_put_off(lab: World) -> None:
    job = start(lab)
    idle(lab, job)
    tick()
    assert told(job) == []
    with pytest.raises(Refused, match="No idle rule"):
        snooze_idle(actor=lab.people.bob, job=job, until=now_from_database() + HOUR, reason="x")


def test_a_step_that_dies_is_made_again_by_the_next(lab: World, monkeypatch: pytest.MonkeyPatch) -> None:
    rule()
    job = start(lab)
    idle(lab, job)

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("scheduling.idle.actions.announce_warning", die)
        with pytest.raises(KeyboardInterrupt):
            step_idle(job_id=job.pk)
    assert told(job) == []
    assert GpuUse.objects.get().warned_at is None
    assert step_idle(job_id=job.pk) is Step.WARN
    later(11 * MINUTE)
    idle(lab, job, 45 * MINUTE)
    with monkeypatch.context() as patched:
        patched.setattr("scheduling.idle.actions.audit.record", die)
        with pytest.raises(KeyboardInterrupt):
            step_idle(job_id=job.pk)
    assert lab.states([job]) == [Job.State.RUNNING]
    assert step_idle(job_id=job.pk) is Step.STOP


@pytest.mark.django_db(transaction=True)
def test_workers_at_once_warn_once(transactional_db: None) -> None:
    lab = world(v100=4)
    rule()
    job = start(lab)
    idle(lab, job)
    assert at_once(*[lambda: step_idle(job_id=job.pk)] * 4) == [None] * 4
    assert len(told(job)) == 1
