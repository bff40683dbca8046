"""Members start notebook sessions, and no session is stopped without a warning."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.db.models import F
from hypothesis import given
from hypothesis import strategies as st

from accounting.core.clock import now_from_database
from accounting.core.errors import NotAllowed, Refused
from accounting.models import AuditEvent
from scheduling.backends.base import End, Phase
from scheduling.core.event_texts import end_text_of, text_of
from scheduling.draining.actions import drain_node, return_node
from scheduling.execution.operations import describe_gang
from scheduling.jobs.actions import cancel_job
from scheduling.models import Cluster, HeldGpu, Job, Lease, Session
from scheduling.sessions.actions import keep_session, note_use, start_session, step_session, stop_session
from scheduling.sessions.idle_timeout import Clocks, Step, notice
from scheduling.sessions.programs import command_for
from scheduling.spec.job_spec import JobSpec, SpecError
from scheduling.tasks import step_sessions
from tests.scheduling.services.test_services import service_of
from tests.scheduling.world import World, world

pytestmark = pytest.mark.django_db


@pytest.fixture
def lab() -> World:
    return world(v100=4)


def begin(lab: World, **fields: Any) -> Session:
    usual = {"idle_minutes": 60, "longest_hours": 12, "kind": "notebook"}
    limits = {name: fields.pop(name, value) for name, value in usual.items()}
    key = fields.pop("request_key", None)
    spec = JobSpec(**({"name": "notes", "command": "serve", "port": 8000} | fields))
    return start_session(
        actor=lab.people.bob,
        tenant=lab.people.astro,
        cluster=lab.cluster,
        spec=spec,
        request_key=key,
        **limits,
    )


def run(lab: World, **fields: Any) -> Session:
    session = begin(lab, **fields)
    lab.fill()
    lab.carry_out()
    session.job.refresh_from_db()
    assert session.job.state == Job.State.RUNNING
    return session


def pass_minutes(session: Session, minutes: float) -> None:
    """Backdates all recorded times of the session, its job and its leases by `minutes`."""
    earlier = timedelta(minutes=minutes)
    session.refresh_from_db()
    for name in ("used_at", "warned_at", "end_warned_at"):
        if value := getattr(session, name):
            setattr(session, name, value - earlier)
    session.save()
    job = Job.objects.get(pk=session.pk)
    job.first_started_at -= earlier
    job.save()
    moments = ("held_from", "running_from", "stop_asked_at", "held_until", "missing_since")
    Lease.objects.filter(job=job).update(**{name: F(name) - earlier for name in moments})
    # The GPU rows of ended leases are not backdated, and would overlap.
    HeldGpu.objects.filter(lease__job=job, lease__state=Lease.State.CLOSED).delete()


def step(session: Session) -> Step:
    return step_session(session_id=session.pk)


def texts(session: Session) -> list[str]:
    return [text_of(event) for event in session.job.events.all()]


def test_a_session_is_a_job_with_an_address_and_a_secret_token(lab: World) -> None:
    session = run(lab, variables={"MINE": "1"})
    assert (session.job.kind, session.job.owner, session.job.gpus) == ("session", lab.people.bob, 1)
    lease = Lease.objects.select_related("job__cluster").get(job=session.job)
    gang = describe_gang(lease, JobSpec.parse(session.job.spec), 1000)
    assert gang.environment == {"MINE": "1", "FAIRLOT_BASE_URL": f"/sessions/{session.pk}/proxy/"}
    token = gang.secrets.variables["FAIRLOT_SESSION_TOKEN"]
    assert len(token) == 64
    assert token not in repr(gang)
    assert gang.endpoint is not None
    assert gang.endpoint.is_session


def test_vs_code_starts_with_what_the_machine_or_the_image_has(
    lab: World, tmp_path: Path, settings: LazySettings
) -> None:
    assert command_for("vscode", lab.cluster).startswith("HASHED_PASSWORD=")
    program = tmp_path / "openvscode-server"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    settings.FAIRLOT_ENVIRONMENTS = {"python": f"{tmp_path}:/usr/bin:/bin"}
    assert command_for("vscode", lab.cluster).startswith("exec openvscode-server")
    lab.cluster.backend = Cluster.Backend.KUBERNETES
    in_pod = command_for("vscode", lab.cluster)
    assert in_pod.index("openvscode-server") < in_pod.index("code-server --auth password")
    for command in (in_pod, command_for("notebook", lab.cluster)):
        assert "127.0.0.1" not in command, "the portal reaches a pod from outside"


@pytest.mark.parametrize("kind", ["notebook", "vscode"])
def test_no_program_starts_without_a_token(kind: str) -> None:
    command = command_for(kind, None)
    shell = ["/bin/sh", "-c", command.replace("exec ", "exec echo ")]
    ran = subprocess.run(shell, capture_output=True, env={"PORT": "1"}, text=True, check=False)
    assert ran.returncode != 0
    assert "only sessions have a token" in ran.stderr


def test_an_unknown_kind_is_refused_with_those_that_exist(lab: World) -> None:
    with pytest.raises(SpecError) as refusal:
        begin(lab, kind="emacs")
    assert refusal.value.problems["kind"] == "must be one of: notebook, vscode"


def test_a_job_that_only_has_a_port_is_no_session(lab: World) -> None:
    job = lab.submit(lab.people.bob, lab.people.astro, port=8000)
    lab.fill()
    lease = Lease.objects.select_related("job__cluster").get(job=job)
    endpoint = describe_gang(lease, JobSpec.parse(job.spec), 1000).endpoint
    assert endpoint is not None
    assert not endpoint.is_session


def test_the_portal_leads_people_to_replicas_of_services_too(lab: World) -> None:
    service = service_of(lab, 1)
    lab.fill()
    lease = Lease.objects.select_related("job__cluster").get(job__service=service)
    endpoint = describe_gang(lease, JobSpec.parse(service.current.spec), 1000).endpoint
    assert endpoint is not None
    assert endpoint.is_session


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"workers": 2}, "workers"),
        ({"port": None}, "port"),
        ({"idle_minutes": 4}, "idle_minutes"),
        ({"idle_minutes": 10_081}, "idle_minutes"),
        ({"longest_hours": 0}, "longest_hours"),
        ({"longest_hours": True}, "longest_hours"),
        ({"longest_hours": 721}, "longest_hours"),
    ],
)
def test_an_invalid_session_is_refused_with_its_field(
    lab: World, fields: dict[str, Any], problem: str
) -> None:
    with pytest.raises(SpecError) as refused:
        begin(lab, **fields)
    assert set(refused.value.problems) == {problem}
    assert not Job.objects.exists()


def test_the_same_request_is_the_same_session_and_a_jobs_key_is_none_of_it(lab: World) -> None:
    assert begin(lab, request_key="k") == begin(lab, request_key="k")
    assert Session.objects.count() == AuditEvent.objects.filter(verb="session.start").count() == 1


def test_only_who_may_cancel_its_job_may_keep_and_stop_it(lab: World) -> None:
    session = run(lab)
    people = lab.people
    with pytest.raises(NotAllowed):
        keep_session(actor=people.charlie, session=session)
    with pytest.raises(NotAllowed):
        stop_session(actor=people.charlie, session=session)
    assert set(Session.objects.visible_to(people.charlie)) == set()
    assert set(Session.objects.changeable_by(people.alice)) == {session}
    keep_session(actor=people.alice, session=session)
    assert stop_session(actor=people.bob, session=session).kind == Job.Kind.SESSION
    lab.carry_out()
    session.job.refresh_from_db()
    assert session.job.state == Job.State.CANCELLED
    assert end_text_of(session.job) == "Stopped by bob"
    with pytest.raises(Refused):
        keep_session(actor=people.bob, session=session)


def test_an_unused_session_is_warned_and_then_stopped_once(lab: World) -> None:
    session = run(lab)
    assert step(session) is Step.NOTHING
    pass_minutes(session, 51)
    assert step(session) is Step.WARN_IDLE
    assert step(session) is Step.NOTHING
    assert texts(session)[-1] == ("Nobody uses the session: it is stopped after another 10 min without use")
    pass_minutes(session, 10.1)
    step_sessions()
    step_sessions()
    assert step(session) is Step.NOTHING
    job = Job.objects.get(pk=session.pk)
    assert (job.state, end_text_of(job)) == ("cancelling", "Stopped: nobody used the session for 60 min")
    assert AuditEvent.objects.filter(verb="session.stop").count() == 1
    lab.carry_out()
    step_sessions()
    assert Job.objects.get(pk=session.pk).state == Job.State.CANCELLED


def test_after_a_long_silence_of_fairlot_the_warning_still_comes_first(lab: World) -> None:
    session = run(lab)
    pass_minutes(session, 600)
    assert step(session) is Step.WARN_IDLE
    pass_minutes(session, 9)
    assert step(session) is Step.NOTHING
    pass_minutes(session, 1.1)
    assert step(session) is Step.STOP_IDLE


@pytest.mark.parametrize("act", ["use", "keep"])
def test_use_and_keeping_restart_the_idle_time(lab: World, act: str) -> None:
    session = run(lab)
    pass_minutes(session, 55)
    assert step(session) is Step.WARN_IDLE
    if act == "use":
        note_use(session_id=session.pk)
    else:
        keep_session(actor=lab.people.bob, session=session)
    pass_minutes(session, 20)
    assert step(session) is Step.NOTHING
    pass_minutes(session, 31)
    assert step(session) is Step.WARN_IDLE


def test_use_is_noted_now_and_then_only(lab: World) -> None:
    session = run(lab)
    note_use(session_id=session.pk)
    session.refresh_from_db()
    first = session.used_at
    note_use(session_id=session.pk)
    session.refresh_from_db()
    assert session.used_at == first
    assert first is not None
    assert first <= now_from_database()


def test_nothing_keeps_a_session_beyond_its_longest_duration(lab: World) -> None:
    session = run(lab, longest_hours=1)
    pass_minutes(session, 51)
    keep_session(actor=lab.people.bob, session=session)
    assert step(session) is Step.WARN_END
    assert texts(session)[-1] == "The session reaches its time limit of 1 h in 10 min"
    pass_minutes(session, 10.1)
    keep_session(actor=lab.people.bob, session=session)
    assert step(session) is Step.STOP_END
    assert end_text_of(Job.objects.get(pk=session.pk)) == "Stopped: the session reached its time limit of 1 h"


def test_a_session_that_waits_is_not_idle_and_one_that_ended_is_left_alone(lab: World) -> None:
    waiting = begin(lab)
    assert step(waiting) is Step.NOTHING
    cancel_job(actor=lab.people.bob, job=waiting.job)
    assert step(waiting) is Step.NOTHING
    assert step_session(session_id=10**9) is Step.NOTHING


def give_way(lab: World, session: Session) -> None:
    """Ends the session's attempt as if others had preempted the session."""
    lease = lab.lease(session.job)
    Lease.objects.filter(pk=lease.pk).update(state=Lease.State.STOPPING, stop_asked_at=now_from_database())
    Job.objects.filter(pk=session.pk).update(state=Job.State.STOPPING)
    lab.carry_out()


def be_drained(lab: World, session: Session) -> None:
    node = lab.cluster.nodes.get()
    drain_node(actor=lab.people.olga, node=node, reason="fan", mode="now")
    lab.carry_out()
    return_node(actor=lab.people.olga, node=node)


def move(lab: World, session: Session) -> None:
    """Ends the session's attempt, drains its node and adds another, so that the next attempt must run on the other
    node."""
    give_way(lab, session)
    lab.cluster.nodes.update(state="drained")
    lab.node(f"v100-{lab.cluster.nodes.count()}", lab.people.v100)


def lose_its_pod(lab: World, session: Session) -> None:
    lab.see(lab.lease(session.job), Phase.ENDED, end=End.LOST, ended_age=0.0)


BREAKS = [give_way, be_drained, move, lose_its_pod]


def come_back(lab: World, session: Session) -> None:
    lab.fill()
    lab.carry_out()
    assert Job.objects.get(pk=session.pk).state == Job.State.RUNNING


@pytest.mark.parametrize("leave", BREAKS)
def test_unused_time_adds_up_over_attempts_and_is_warned_of_once(
    lab: World, leave: Callable[[World, Session], None]
) -> None:
    session = run(lab)
    for _ in range(2):
        pass_minutes(session, 24)
        assert step(session) is Step.NOTHING
        leave(lab, session)
        pass_minutes(session, 120)  # does not count as unused, because the session waited
        assert step(session) is Step.NOTHING
        come_back(lab, session)
    pass_minutes(session, 3)
    assert step(session) is Step.WARN_IDLE
    leave(lab, session)
    come_back(lab, session)
    assert step(session) is Step.NOTHING, "it was warned of this stretch"
    pass_minutes(session, 7)
    assert step(session) is Step.NOTHING
    leave(lab, session)
    come_back(lab, session)
    pass_minutes(session, 3.1)
    assert step(session) is Step.STOP_IDLE
    assert sum("Nobody uses the session" in text for text in texts(session)) == 1


@pytest.mark.parametrize("leave", BREAKS)
def test_use_in_an_earlier_attempt_ends_the_idle_time_before_it(
    lab: World, leave: Callable[[World, Session], None]
) -> None:
    session = run(lab)
    pass_minutes(session, 55)
    assert step(session) is Step.WARN_IDLE
    note_use(session_id=session.pk)
    pass_minutes(session, 20)
    leave(lab, session)
    come_back(lab, session)
    pass_minutes(session, 29)
    assert step(session) is Step.NOTHING
    pass_minutes(session, 1.1)
    assert step(session) is Step.WARN_IDLE


BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
MOVES = st.lists(st.tuples(st.sampled_from(["wait", "use", "turn", "look"]), st.integers(0, 90)), max_size=60)


@given(moves=MOVES, idle=st.integers(5, 120), longest=st.integers(1, 6))
def test_no_session_is_stopped_unwarned_too_early_or_in_use(
    moves: list[tuple[str, int]], idle: int, longest: int
) -> None:
    """However irregularly Fairlot checks the session, it stops no session before a warning was shown for the promised
    time."""
    limit, whole = timedelta(minutes=idle), timedelta(hours=longest)
    now, runs, unused = BEGAN, True, timedelta(0)
    unused_warned: timedelta | None = None
    end_warned: datetime | None = None
    for move, minutes in moves:
        now += timedelta(minutes=minutes)
        if runs:
            unused += timedelta(minutes=minutes)
            unused_warned = None if unused_warned is None else unused_warned + timedelta(minutes=minutes)
        match move:
            case "use" if runs:
                unused, unused_warned = timedelta(0), None
            case "turn":
                runs = not runs
        if move != "look":
            continue
        clocks = Clocks(now, limit, whole, runs, unused, unused_warned, BEGAN, end_warned)
        match clocks.step():
            case Step.WARN_IDLE:
                assert runs
                assert unused >= limit - notice(limit)
                unused_warned = timedelta(0)
            case Step.WARN_END:
                assert now - BEGAN >= whole - notice(whole)
                end_warned = now
            case Step.STOP_IDLE:
                assert runs
                assert unused_warned is not None
                assert unused >= limit
                assert unused_warned >= notice(limit)
                return
            case Step.STOP_END:
                assert end_warned is not None
                assert now - BEGAN >= whole
                assert now - end_warned >= notice(whole)
                return
            case Step.NOTHING:
                assert now - BEGAN < whole or end_warned is not None
                heeded = unused_warned is not None and unused_warned < notice(limit)
                assert not runs or unused < limit or heeded, "it is overdue, and nothing happens"
