"""Users create, cancel and repeat sweeps; the controller submits members a few at a time and records their ends."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from accounting.actions import archive_tenant, set_quota
from accounting.core.errors import NotAllowed, Refused
from accounting.models import AuditEvent, Membership, Quota
from scheduling.backends.base import BackendError, End
from scheduling.core.event_texts import end_text_of, text_of
from scheduling.departures.actions import Fate, settle_work
from scheduling.execution.operations import describe_gang
from scheduling.jobs.actions import cancel_job
from scheduling.jobs.secrets import create_secret
from scheduling.leases import history
from scheduling.metrics.printed import READ
from scheduling.models import Cluster, Job, Sweep, SweepMember
from scheduling.spec.job_spec import JobSpec, SpecError
from scheduling.sweeps import controller
from scheduling.sweeps.actions import Rules, cancel_sweep, preview_sweep, run_failed_again
from scheduling.sweeps.controller import LEAST_WAITING, sweeps_to_step
from scheduling.sweeps.parameters import Parameters
from scheduling.tasks import step_sweeps
from tests.make import membership, user
from tests.scheduling.schedules.test_schedules_at_once import at_once, killed_at
from tests.scheduling.swept import LR, Logs, array, end, living, make, run, spec, states, step
from tests.scheduling.world import World, world

pytestmark = pytest.mark.django_db


@pytest.fixture
def lab() -> World:
    return world(v100=4)


@pytest.fixture(autouse=True)
def logs(monkeypatch: pytest.MonkeyPatch) -> Logs:
    found = Logs()
    monkeypatch.setattr(controller, "backend_for", lambda cluster: found)
    return found


def say(logs: Logs, job: Job, text: str) -> None:
    logs.texts[job.pk] = text.encode()


# --- what people do --------------------------------------------------------------------------------


def test_a_member_makes_one_and_its_first_members_become_jobs(lab: World) -> None:
    sweep = step(make(lab, array(40)))
    assert (sweep.owner, sweep.name, sweep.size, sweep.state) == (lab.people.bob, "tune", 40, "running")
    assert sweep.counts == {"pending": 40 - LEAST_WAITING, "active": LEAST_WAITING}
    job = living(sweep)[3]
    assert (job.name, job.spec["command"]) == ("tune-3", "python train.py --index 3")
    assert job.spec["variables"] == {"SWEEP_INDEX": "3"}
    assert text_of(job.events.get(kind="submitted")) == "Submitted by the sweep “tune”"
    event = AuditEvent.objects.get(verb="sweep.create")
    assert (event.actor, event.tenant, event.after["members"]) == (lab.people.bob, lab.people.astro, 40)


def test_all_members_know_the_number_of_their_sweep_and_other_jobs_have_none(lab: World) -> None:
    sweep = step(make(lab, array(2), spec=spec(variables={"MINE": "1"})))
    alone = lab.submit(lab.people.bob, lab.people.astro)
    run(lab)

    def variables(job: Job) -> dict[str, str]:
        return dict(describe_gang(lab.lease(job), JobSpec.parse(job.spec), 1000).environment)

    shared = {"MINE": "1", "FAIRLOT_SWEEP_ID": str(sweep.pk)}
    assert [variables(job) for job in living(sweep)] == [shared | {"SWEEP_INDEX": index} for index in "01"]
    assert "FAIRLOT_SWEEP_ID" not in variables(alone)


def test_the_same_request_again_gives_the_same_sweep(lab: World) -> None:
    assert make(lab, request_key="k") == make(lab, request_key="k")
    assert SweepMember.objects.count() == 20
    assert make(lab) != make(lab)


def test_a_preview_shows_the_first_members_and_what_is_wrong() -> None:
    shown = preview_sweep(spec=spec(command="go {lr}"), parameters=LR)
    assert shown.size == 3
    assert [made.command for _, made in shown.first] == ["go 0.1", "go 0.01", "go 0.001"]
    assert not shown.notes
    doubtful = preview_sweep(
        spec=spec(command="go {rate} ${lr} {{lr}} {index} {1,2}"),
        parameters=Parameters("grid", grid={"lr": [1, 1]}),
    )
    assert doubtful.notes == [
        "{rate} is no parameter of this sweep, so it stays in the command as it is.",
        "Only 1 of the 2 members have different parameters.",
    ]
    with pytest.raises(SpecError, match="variables"):
        preview_sweep(spec=spec(variables={"lr": "1"}), parameters=LR)
    long = "x" * 19_990 + "{v}" * 3
    with pytest.raises(SpecError, match="too long for member 1"):
        preview_sweep(spec=spec(command=long), parameters=Parameters("grid", grid={"v": ["a", "x" * 20]}))


@pytest.mark.parametrize("who", ["charlie", "olga", "viewer"])
def test_users_sweep_only_for_their_own_teams(lab: World, who: str) -> None:
    actor = user("vera") if who == "viewer" else getattr(lab.people, who)
    if who == "viewer":
        membership(actor, lab.people.astro, role="viewer")
    with pytest.raises(NotAllowed, match="members of Astro"):
        make(lab, actor=actor)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"at_once": 0}, "at_once"),
        ({"metric": "a b"}, "metric"),
        ({"stop_at": 1.0}, "metric"),
        ({"metric": "loss", "stop_at": float("nan")}, "stop_at"),
        ({"median_after": 5}, "metric"),
        ({"metric": "loss", "median_after": -1}, "median_after"),
        ({"goal": "best"}, "goal"),
        ({"parameters": array(0)}, "count"),
        ({"spec": spec(generations=["K80"])}, "generations"),
        ({"spec": spec(port=8000)}, "port"),
        ({"spec": spec(secrets={"TOKEN": "hers"})}, "secrets"),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_field(lab: World, changes: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError) as refused:
        make(lab, **changes)
    assert field in refused.value.problems
    assert not Sweep.objects.exists()


def test_a_sweep_that_could_never_run_is_refused_if_asked(lab: World) -> None:
    with pytest.raises(Refused, match="64"):
        make(lab, spec=spec(gpus_per_worker=64), even_if_never=False)
    assert make(lab, spec=spec(gpus_per_worker=64))


def test_who_sees_and_who_may_change(lab: World) -> None:
    people, sweep = lab.people, make(lab)
    viewer, member = user("vera"), user("mia")
    membership(viewer, people.astro, role=Membership.Role.VIEWER)
    membership(member, people.astro)
    see = [name for name in (people.alice, people.bob, viewer, member, people.olga, people.charlie)
           if Sweep.objects.visible_to(name).exists()]  # fmt: skip
    assert see == [people.alice, people.bob, viewer, member, people.olga]
    for other in (viewer, member, people.charlie):
        for act in (cancel_sweep, run_failed_again):
            with pytest.raises(NotAllowed):
                act(actor=other, sweep=sweep)
    assert cancel_sweep(actor=people.alice, sweep=sweep).state == "cancelled"


# --- the window ------------------------------------------------------------------------------------


def test_as_many_wait_as_run_and_never_more_are_at_work_than_allowed() -> None:
    lab = world(v100=40)
    sweep = step(make(lab, array(200)))
    assert len(living(sweep)) == 16
    for expected in (32, 64, 80, 80):  # 40 GPUs: 40 run and 40 wait
        run(lab)
        assert len(living(step(sweep))) == expected
    bounded = step(make(lab, array(200), at_once=5))
    assert len(living(bounded)) == 5


def test_all_members_end_and_the_sweep_with_them(lab: World, logs: Logs) -> None:
    sweep = make(lab, array(9), at_once=4)
    for _ in range(3):
        step(sweep)
        for number, job in enumerate(run(lab)):
            say(logs, job, f"loss={number}\n")
            end(lab, job, End.FAILED if number == 1 else End.SUCCEEDED)
    step(sweep)
    assert (sweep.state, sweep.counts) == ("finished", {"succeeded": 7, "failed": 2})
    assert sweep.ended_at
    assert sweep.metric_names == ["loss"]
    assert not sweeps_to_step().exists()
    assert sweep.members.get(index=2).metrics == {"loss": 2}


def test_a_cancelled_job_is_a_cancelled_member_and_the_next_one_comes(lab: World) -> None:
    sweep = step(make(lab, array(3), at_once=1))
    cancel_job(actor=lab.people.bob, job=living(sweep)[0])
    step(sweep)
    assert states(sweep) == ["cancelled", "active", "pending"]


def test_cancelling_ends_waiting_and_running_members(lab: World) -> None:
    sweep = step(make(lab, array(30)))
    run(lab)
    for _ in range(2):
        cancel_sweep(actor=lab.people.bob, sweep=sweep)
        step(sweep)
    assert sweep.counts == {"active": 4, "cancelled": 12, "skipped": 14}
    lab.carry_out()
    step(sweep)
    assert (sweep.counts, sweep.state) == ({"cancelled": 16, "skipped": 14}, "cancelled")
    assert sweep.ended_at
    job = Job.objects.filter(sweep=sweep).first()
    assert job
    assert end_text_of(job) == "Cancelled with the sweep “tune” by bob"
    assert AuditEvent.objects.filter(verb="sweep.cancel").count() == 1


def test_a_sweep_that_is_cancelled_before_its_first_step_submits_nothing(lab: World) -> None:
    sweep = make(lab)
    cancel_sweep(actor=lab.people.bob, sweep=sweep)
    step(sweep)
    assert sweep.counts == {"skipped": 20}
    assert sweep.ended_at
    assert not Job.objects.exists()


# --- refusals --------------------------------------------------------------------------------------


def test_a_limit_on_waiting_jobs_lets_in_as_many_as_fit(lab: World) -> None:
    set_quota(actor=lab.people.ada, tenant=lab.people.astro, kind=Quota.Kind.QUEUED_JOBS, limit=3)
    sweep = step(make(lab, array(5)))
    assert states(sweep) == ["active"] * 3 + ["pending"] * 2
    assert "waiting" in sweep.trouble
    run(lab)
    step(sweep)
    assert states(sweep) == ["active"] * 5
    assert sweep.trouble == ""


@pytest.mark.parametrize("what", ["archived", "left", "detached"])
def test_what_refuses_every_job_is_told_and_tried_again(lab: World, what: str) -> None:
    people, sweep = lab.people, make(lab, array(2))
    role = Membership.objects.get(user=people.bob)
    if what == "archived":
        archive_tenant(actor=people.ada, tenant=people.astro)
    elif what == "left":
        Membership.objects.filter(pk=role.pk).update(role=Membership.Role.VIEWER)
    else:
        type(lab.cluster).objects.update(detached_at=sweep.created_at)
    step_sweeps()
    sweep.refresh_from_db()
    assert states(sweep) == ["pending"] * 2
    assert {"archived": "Astro is archived", "left": "bob", "detached": "is detached"}[what] in sweep.trouble
    if what == "archived":
        type(people.astro).objects.update(archived_at=None)
    Membership.objects.filter(pk=role.pk).update(role=Membership.Role.MEMBER)
    type(lab.cluster).objects.update(detached_at=None)
    step(sweep)
    assert (states(sweep), sweep.trouble) == (["active"] * 2, "")


def test_the_work_of_a_user_who_leaves_is_cancelled_or_handed_over(lab: World) -> None:
    people = lab.people
    create_secret(actor=people.bob, name="token", values={"value": "his"})
    bound = step(make(lab, array(2), spec=spec(secrets={"TOKEN": "token"})))
    sweep = step(make(lab, array(20)))
    done = settle_work(
        actor=people.alice, user=people.bob, tenant=people.astro, fate=Fate.HAND_OVER, to=people.alice
    )
    assert done is not None
    assert (done.sweeps, done.jobs) == (1, 16)
    assert "tune" in done.kept
    sweep.refresh_from_db()
    bound.refresh_from_db()
    assert (sweep.owner, bound.owner) == (people.alice, people.bob)
    assert {job.owner for job in living(sweep)} == {people.alice}
    settle_work(actor=people.ada, user=people.alice, tenant=people.astro, fate=Fate.CANCEL)
    step(sweep)
    assert (sweep.state, sweep.counts) == ("cancelled", {"cancelled": 16, "skipped": 4})
    assert living(bound)


# --- metrics and the stop rule ---------------------------------------------------------------------


def test_a_member_that_meets_the_rule_stops_the_sweep(lab: World, logs: Logs) -> None:
    sweep = step(make(lab, array(30), metric="loss", stop_at=0.1, stop_cancels=True))
    first, second, *_ = run(lab)
    say(logs, first, "loss=0.2")
    end(lab, first)
    assert step(sweep).state == "running"
    say(logs, second, "loss=0.5\nloss=0.1\n")
    end(lab, second)
    step(sweep)
    index = SweepMember.objects.get(job=second).index
    assert (sweep.state, sweep.stopped_by) == ("stopped", index)
    assert sweep.counts["skipped"] > 0
    assert "pending" not in sweep.counts
    lab.carry_out()
    step(sweep)
    assert sweep.ended_at
    ended = Job.objects.filter(sweep=sweep, state="cancelled").first()
    assert ended
    assert end_text_of(ended) == f"Cancelled: member {index} of the sweep “tune” met the stop rule"


def test_without_cancelling_members_at_work_go_on_after_the_rule_is_met(lab: World, logs: Logs) -> None:
    sweep = step(make(lab, array(30), metric="acc", goal="max", stop_at=0.9))
    first, *_ = run(lab)
    say(logs, first, "acc=0.95")
    end(lab, first)
    step(sweep)
    assert sweep.state == "stopped"
    assert len(living(sweep)) == 15
    assert sweep.ended_at is None


def test_a_failed_member_does_not_meet_the_rule(lab: World, logs: Logs) -> None:
    sweep = step(make(lab, metric="loss", stop_at=1))
    first, *_ = run(lab)
    say(logs, first, "loss=0")
    end(lab, first, End.FAILED)
    assert step(sweep).state == "running"
    assert SweepMember.objects.get(job=first).metrics == {"loss": 0}


def test_the_end_of_a_log_is_awaited_but_not_for_ever(lab: World, logs: Logs) -> None:
    sweep = step(make(lab, array(2)))
    early, away = run(lab)[:2]
    logs.complete = False
    logs.away.add(away.pk)
    say(logs, early, "x" * READ + "\nloss=1")
    for job in (early, away):
        end(lab, job)
    step(sweep)
    assert states(sweep) == ["active", "active"]
    Job.objects.update(ended_at=early.created_at - timedelta(minutes=2))
    step(sweep)
    assert states(sweep) == ["succeeded", "succeeded"]
    assert [member.metrics for member in sweep.members.all()] == [{"loss": 1}, {}]


def test_a_cluster_without_a_backend_does_not_keep_members_from_ending(
    lab: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(cluster: Cluster) -> Logs:
        raise BackendError(f"{cluster} is not attached")

    sweep = step(make(lab, array(1)))
    [job] = run(lab)
    end(lab, job)
    monkeypatch.setattr(controller, "backend_for", away)
    assert step(sweep).state == "running"
    Job.objects.update(ended_at=job.created_at - timedelta(minutes=2))
    assert step(sweep).counts == {"succeeded": 1}


def test_what_happens_to_a_job_wakes_the_controller(lab: World, monkeypatch: pytest.MonkeyPatch) -> None:
    woken: list[int] = []
    monkeypatch.setattr(history, "wake_sweep", woken.append)
    sweep = step(make(lab, array(1)))
    [job] = run(lab)
    woken.clear()
    end(lab, job)
    assert woken == [sweep.pk]


# --- again -----------------------------------------------------------------------------------------


def test_failed_members_run_again_as_new_jobs(lab: World, logs: Logs) -> None:
    sweep = step(make(lab, array(3)))
    for number, job in enumerate(run(lab)):
        say(logs, job, "loss=1")
        end(lab, job, End.SUCCEEDED if number else End.FAILED)
    assert step(sweep).state == "finished"
    run_failed_again(actor=lab.people.alice, sweep=sweep)
    assert step(sweep).state == "running"
    member = sweep.members.get(state="active")
    assert (member.attempts, member.metrics) == (2, {})
    [job] = living(sweep)
    assert (job.owner, job.sweep_index) == (lab.people.bob, member.index)
    [again] = run(lab)
    end(lab, again)
    say(logs, again, "loss=2")
    step(sweep)
    assert (sweep.state, sweep.counts) == ("finished", {"succeeded": 3})
    with pytest.raises(Refused, match="No member"):
        run_failed_again(actor=lab.people.bob, sweep=sweep)
    cancelled = make(lab)
    cancel_sweep(actor=lab.people.bob, sweep=cancelled)
    with pytest.raises(Refused, match="was cancelled"):
        run_failed_again(actor=lab.people.bob, sweep=cancelled)


# --- faults and costs ------------------------------------------------------------------------------

STEPS = ["step", "step", "run", "succeed", "fail", "cancel a job", "killed", "again"]


@given(
    st.lists(st.tuples(st.sampled_from(STEPS), st.integers(1, 40)), max_size=25),
    st.sampled_from([None, 1, 3]),
    st.sampled_from([None, "cancel", "stop"]),
)
@settings(max_examples=10, derandomize=True, phases=[Phase.explicit, Phase.generate], deadline=None)
def test_whatever_happens_members_run_once_and_end_once(
    acts: list[tuple[str, int]], most: int | None, ends: str | None
) -> None:
    before = transaction.savepoint()
    try:
        _interleave(acts, most, ends)
    finally:
        transaction.savepoint_rollback(before)


def _interleave(acts: list[tuple[str, int]], most: int | None, ends: str | None) -> None:
    logs, lab = Logs(), _lab_of_property()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(controller, "backend_for", lambda cluster: logs)
        sweep = make(lab, array(7), at_once=most, metric="v", stop_at=0, stop_cancels=True)
        for act, number in [*acts, (ends or "step", 1)]:
            _act(lab, logs, sweep, act, number)
            _holds(sweep, most)
        for _ in range(30):
            if step(sweep).ended_at:
                break
            for job in run(lab):
                say(logs, job, "v=1")
                end(lab, job)
        step(sweep)
        _holds(sweep, most)
    assert sweep.ended_at
    assert not living(sweep)
    assert not set(states(sweep)) & {"pending", "active"}
    assert sum(sweep.counts.values()) == 7
    attempts = dict(sweep.members.values_list("index", "attempts"))
    for index, count in attempts.items():
        assert Job.objects.filter(sweep=sweep, sweep_index=index).count() == count


def _lab_of_property() -> World:
    return world(v100=3)


def _act(lab: World, logs: Logs, sweep: Sweep, act: str, number: int) -> None:
    running = (
        [job for job in run(lab) if job.sweep_id == sweep.pk]
        if act in {"run", "succeed", "fail", "stop"}
        else []
    )
    if act == "step":
        step(sweep)
    elif act in {"succeed", "fail", "stop"} and running:
        say(logs, running[0], "v=0" if act == "stop" else "v=1")
        end(lab, running[0], End.FAILED if act == "fail" else End.SUCCEEDED)
    elif act == "cancel a job" and (jobs := living(sweep)):
        cancel_job(actor=lab.people.bob, job=jobs[number % len(jobs)])
    elif act == "cancel":
        cancel_sweep(actor=lab.people.bob, sweep=sweep)
    elif act == "killed":
        _step_and_die(sweep, number)
    elif act == "again" and sweep.members.filter(state="failed").exists():
        sweep.refresh_from_db()
        if sweep.state in ("running", "finished"):
            run_failed_again(actor=lab.people.bob, sweep=sweep)


def _holds(sweep: Sweep, most: int | None) -> None:
    """Asserts what is true at any time."""
    jobs = living(sweep)
    assert len(jobs) <= (most or 7)
    assert len({job.sweep_index for job in jobs}) == len(jobs)
    at_work = {member.job_id for member in sweep.members.filter(state="active")}
    assert {job.pk for job in jobs} <= at_work
    sweep.refresh_from_db()
    assert sum(sweep.counts.values()) == 7


class Died(Exception):
    pass


def _step_and_die(sweep: Sweep, statement: int) -> None:
    """Takes a step that dies at its SQL statement number `statement`, if it has so many."""
    seen = 0

    def count(execute: Callable[..., Any], *args: Any) -> Any:
        nonlocal seen
        seen += 1
        if seen == statement:
            raise Died
        return execute(*args)

    try:
        with connection.execute_wrapper(count):
            controller.step_sweep(sweep_id=sweep.pk)
    except Died:
        pass


@pytest.mark.django_db(transaction=True)
def test_several_workers_submit_each_member_once() -> None:
    lab = world(v100=4)
    sweep = make(lab, array(12))
    act = lambda: controller.step_sweep(sweep_id=sweep.pk)  # noqa: E731
    assert at_once(*[act] * 4) == [None] * 4
    assert Job.objects.filter(sweep=sweep).count() == 12
    assert sorted(job.sweep_index or 0 for job in living(sweep)) == list(range(12))


@pytest.mark.django_db(transaction=True)
def test_killed_at_any_statement_nothing_is_submitted_twice_and_nothing_is_lost() -> None:
    lab = world(v100=4)
    statement = 1
    while True:
        sweep = make(lab, array(2))
        died = killed_at(statement, lambda: controller.step_sweep(sweep_id=sweep.pk))  # noqa: B023 - called at once
        step(sweep)
        assert states(sweep) == ["active", "active"]
        assert Job.objects.filter(sweep=sweep).count() == 2
        if not died:
            break
        cancel_sweep(actor=lab.people.bob, sweep=sweep)
        statement += 3
    assert statement > 10


def test_ten_thousand_members_cost_no_more_statements_than_ten(lab: World) -> None:
    def cost(count: int) -> list[int]:
        with CaptureQueriesContext(connection) as made:
            sweep = make(lab, array(count))
        with CaptureQueriesContext(connection) as first:
            step(sweep)
        with CaptureQueriesContext(connection) as idle:
            step(sweep)
        with CaptureQueriesContext(connection) as cancelled:
            cancel_sweep(actor=lab.people.bob, sweep=sweep)
        return [len(made), len(first), len(idle), len(cancelled)]

    make(lab, array(1))  # warms what is read once
    few, many = cost(20), cost(10_000)
    assert few == many
    assert many[2] <= 8


def test_rules_that_are_left_out_are_the_usual_ones() -> None:
    Rules().check()
