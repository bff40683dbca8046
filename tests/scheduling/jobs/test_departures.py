"""When a member may no longer submit in a team, the member's work there is stopped, or handed over to another
member."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import groupby, pairwise

import pytest
from django.db import connection, transaction
from django.db.models import Model
from django.test.utils import CaptureQueriesContext

from accounting.actions import add_member, change_membership, move_tenant, reactivate_user
from accounting.core.clock import now_from_database
from accounting.core.errors import NotAllowed, Refused
from accounting.models import AuditEvent, Membership, UsageSegment, User
from fairshare.model import Reason
from scheduling.backends.base import End, Phase
from scheduling.core.locks import lock_schedule
from scheduling.departures.actions import (
    Fate,
    Work,
    deactivate_user,
    remove_member,
    settle_work,
    work_of_member,
)
from scheduling.jobs.explain import explain
from scheduling.jobs.secrets import create_secret
from scheduling.leases.actions import hand_over as start_reserved
from scheduling.models import Cluster, Job, Lease, Schedule, Service, ServiceRevision
from scheduling.models.event_codes import EventCode
from scheduling.services.actions import change_service, create_service
from scheduling.services.replicas import step_service
from scheduling.sessions.actions import start_session
from scheduling.spec.job_spec import JobSpec
from tests import make
from tests.scheduling import scheduled
from tests.scheduling.world import World, start, world
from tests.threads import let_go
from tests.waiting import PATIENCE, wait_for

pytestmark = pytest.mark.django_db


@pytest.fixture
def lab() -> World:
    return world(v100=4)


def bobs(lab: World) -> Membership:
    return Membership.objects.select_related("user", "tenant").get(
        user=lab.people.bob, tenant=lab.people.astro
    )


def leave_the_team(lab: World) -> Callable[[], object]:
    remove_member(actor=lab.people.ada, membership=bobs(lab))
    return lambda: add_member(actor=lab.people.ada, tenant=lab.people.astro, user=lab.people.bob)


def be_shut_out(lab: World) -> Callable[[], object]:
    deactivate_user(actor=lab.people.ada, user=lab.people.bob)
    return lambda: reactivate_user(actor=lab.people.ada, user=lab.people.bob)


def become_a_viewer(lab: World) -> Callable[[], object]:
    change_membership(actor=lab.people.alice, membership=bobs(lab), role="viewer")
    return lambda: change_membership(actor=lab.people.alice, membership=bobs(lab), role="member")


def lose_what_came_from_above(lab: World) -> Callable[[], object]:
    """Replaces Bob's membership in Astro by one in Astro's parent team Uni, and then moves Astro away from Uni. So Bob
    loses his rights in Astro.

    Returns a function that moves Astro back.
    """
    people = lab.people
    bobs(lab).delete()
    make.membership(people.bob, people.uni)
    move_tenant(actor=people.ada, tenant=people.astro, parent=None)
    people.astro.refresh_from_db()
    return lambda: move_tenant(actor=people.ada, tenant=people.astro, parent=people.uni)


LOSSES = [leave_the_team, be_shut_out, become_a_viewer, lose_what_came_from_above]


@pytest.mark.parametrize("lose", LOSSES)
def test_work_of_a_user_who_may_not_submit_stops_until_the_right_returns(
    lab: World, lose: Callable[[World], Callable[[], object]]
) -> None:
    running = start(lab, gpus=2)
    waiting = lab.submit(lab.people.bob, lab.people.astro, gpus=4)
    come_back = lose(lab)
    lab.fill()
    assert lab.states([running]) == [Job.State.RUNNING], "it has its GPUs until the quantum is over"
    lab.quantum()
    lab.carry_out()
    lab.quantum()
    assert not lab.holding(*Lease.OPEN)
    for job in (running, waiting):
        job.refresh_from_db()
        told = explain(job)
        assert (job.reason, told.never) == (Reason.OWNER_MAY_NOT, False)
        assert "bob" in told.sentence
        assert "handed over" in told.unblock[0]
    come_back()
    lab.quantum()
    assert len(lab.holding(Lease.State.STARTING)) == 1


def test_the_same_holds_of_sessions_and_replicas(lab: World) -> None:
    people = lab.people
    place = {"actor": people.bob, "tenant": people.astro, "cluster": lab.cluster}
    program = JobSpec(name="api", command="serve", port=8000)
    session = start_session(spec=program, **place)
    service = create_service(spec=program, **place)
    step_service(service_id=service.pk)
    lab.fill()
    lab.carry_out()
    assert len(lab.holding(Lease.State.RUNNING)) == 2
    leave_the_team(lab)
    lab.quantum()
    lab.carry_out()
    assert not lab.holding(*Lease.OPEN)
    assert Job.objects.get(pk=session.pk).state == Job.State.SUSPENDED
    assert Job.objects.get(service=service).state == Job.State.SUSPENDED


def test_a_reservation_does_not_become_a_start_after_its_owner_has_left(lab: World) -> None:
    old = lab.submit(lab.people.charlie, lab.people.bio, gpus=4)
    lab.fill()
    lab.carry_out()
    new = lab.submit(lab.people.bob, lab.people.astro, gpus=4)
    lab.contest(old)
    assert lab.lease(new).state == Lease.State.RESERVED
    leave_the_team(lab)
    lab.carry_out()
    start_reserved(cluster_id=lab.cluster.pk)
    assert lab.states([new]) == [Job.State.QUEUED]
    assert lab.lease(new).state == Lease.State.CLOSED


def test_a_schedule_is_not_paused_when_its_owner_loses_rights(lab: World, clock: Callable[..., None]) -> None:
    schedule = scheduled.make(lab)
    come_back = leave_the_team(lab)
    for day in range(7):
        clock(scheduled.NOON + day * scheduled.DAY)
        scheduled.tick()
    schedule.refresh_from_db()
    assert (schedule.paused_at, Job.objects.count()) == (None, 0)
    assert set(schedule.runs.values_list("outcome", "text")) == {
        ("refused", "bob may no longer run jobs in Astro.")
    }
    come_back()
    clock(scheduled.NOON + 7 * scheduled.DAY)
    scheduled.tick()
    assert Job.objects.count() == 1


def everything(lab: World) -> tuple[Job, Job, Service, Schedule]:
    """Returns (running job, waiting job, service with one replica, schedule), all of them Bob's."""
    people = lab.people
    running = start(lab, gpus=2)
    waiting = lab.submit(people.bob, people.astro, gpus=4)
    service = create_service(
        actor=people.bob, tenant=people.astro, cluster=lab.cluster,
        spec=JobSpec(name="api", command="serve", port=8000),
    )  # fmt: skip
    step_service(service_id=service.pk)
    return running, waiting, service, scheduled.make(lab)


def test_it_is_counted_before_anybody_decides(lab: World) -> None:
    assert work_of_member(bobs(lab)).counts() == {}
    everything(lab)
    counts = {"running job": 1, "waiting job": 1, "service": 1, "schedule": 1}
    assert work_of_member(bobs(lab)).counts() == Work(lab.people.bob).counts() == counts
    make.membership(lab.people.bob, lab.people.uni)
    assert work_of_member(bobs(lab)).counts() == {}, "he is a member of the department above, too"
    assert Work(lab.people.bob).counts() == counts


def test_work_is_handed_over_and_the_ledger_keeps_earlier_owners(lab: World) -> None:
    people = lab.people
    running, waiting, service, schedule = everything(lab)
    lease = lab.age(lab.lease(running), 100)
    Lease.objects.filter(pk=lease.pk).update(last_seen_at=now_from_database())
    done = remove_member(actor=people.ada, membership=bobs(lab), fate=Fate.HAND_OVER, to=people.alice)
    assert done is not None
    assert (done.jobs, done.services, done.schedules, done.kept) == (3, 1, 1, ())
    assert set(Job.objects.values_list("owner__username", flat=True)) == {"alice"}
    service.refresh_from_db()
    schedule.refresh_from_db()
    assert (service.owner, service.current.author, schedule.owner) == (people.alice,) * 3
    lab.quantum()
    assert lab.states([running]) == [Job.State.RUNNING], "nothing of it was stopped"
    lab.see(Lease.objects.get(pk=lease.pk), Phase.ENDED, end=End.SUCCEEDED, ended_age=0.0, exit_code=0)
    held = list(UsageSegment.objects.filter(job_id=running.pk).order_by("period"))
    # Usage is split at full hours, so there may be more than two segments.
    assert [name for name, _ in groupby(one.user_name for one in held)] == ["bob", "alice"]
    assert 200 <= sum(one.gpu_seconds for one in held if one.user_name == "bob") < 300
    assert all(one.period.upper == other.period.lower for one, other in pairwise(held))
    event = AuditEvent.objects.get(verb="member.hand_over")
    assert (event.actor, event.tenant, event.target_name) == (people.ada, people.astro, "bob")
    assert event.after["owner"] == "alice"
    assert set(event.after["jobs"]) == set(Job.objects.values_list("pk", flat=True))
    assert waiting.events.filter(
        code=EventCode.HANDED_OVER, detail={"before": "bob", "user": "alice"}
    ).exists()


def test_cancelling_a_users_work_ends_jobs_and_pauses_services_and_schedules(lab: World) -> None:
    running, waiting, service, schedule = everything(lab)
    deactivate_user(actor=lab.people.ada, user=lab.people.bob, fate=Fate.CANCEL)
    step_service(service_id=service.pk)
    lab.carry_out()
    assert set(lab.states([running, waiting])) == {Job.State.CANCELLED}
    assert not Job.objects.unfinished().exists()
    service.refresh_from_db()
    schedule.refresh_from_db()
    assert service.stopped_at is not None
    assert schedule.paused_at is not None
    assert schedule.paused_reason == "Paused because the owner bob may no longer run jobs in the team"


def test_many_waiting_jobs_are_cancelled_in_as_many_statements_as_a_few(lab: World) -> None:
    def statements(jobs: int) -> int:
        waiting = [lab.submit(lab.people.bob, lab.people.astro) for _ in range(jobs)]
        what = {"user": lab.people.bob, "tenant": lab.people.astro, "fate": Fate.CANCEL}
        with CaptureQueriesContext(connection) as seen:
            settle_work(actor=lab.people.alice, **what)
        assert set(lab.states(waiting)) == {Job.State.CANCELLED}
        told = AuditEvent.objects.filter(verb="job.cancel", target_id__in=[str(job.pk) for job in waiting])
        assert {(one.actor, one.tenant) for one in told} == {(lab.people.alice, lab.people.astro)}
        assert told.count() == jobs
        return len(seen)

    assert statements(2) == statements(8)


def test_no_program_runs_with_secrets_of_another_user(lab: World) -> None:
    people = lab.people
    create_secret(actor=people.alice, tenant=people.astro, name="token", values={"value": "of the team"})
    spec = {"secrets": {"TOKEN": "token"}}
    lab.submit(people.bob, people.astro, name="named", **spec)
    scheduled.make(lab, spec=scheduled.spec(**spec))
    place = {"actor": people.bob, "tenant": people.astro, "cluster": lab.cluster}
    for name, first in (("api", spec), ("plain", {})):
        service = create_service(spec=JobSpec(name=name, command="serve", port=8000, **first), **place)
        step_service(service_id=service.pk)
        second = JobSpec(name=name, command="serve --better", port=8000)
        change_service(actor=people.bob, service=service, spec=second)
    free = lab.submit(people.bob, people.astro)
    where = {"actor": people.alice, "user": people.bob, "tenant": people.astro}
    done = settle_work(fate=Fate.HAND_OVER, to=people.alice, **where)
    assert done is not None
    assert (done.jobs, done.services, done.schedules) == (2, 1, 0)
    assert done.kept == ("named", "api-0-1", "api", "nightly"), "its first revision could be rolled back to"
    assert set(Job.objects.filter(owner=people.alice).values_list("name", flat=True)) == {
        free.name,
        "plain-0-1",
    }
    assert Schedule.objects.get().owner == people.bob
    authors = ServiceRevision.objects.filter(author=people.alice)
    assert set(authors.values_list("service__name", flat=True)) == {"plain"}


def row(model: type[Model], **named: str) -> Callable[[World], object]:
    return lambda lab: list(model._default_manager.select_for_update(no_key=True).filter(**named))


def schedule_of_cluster(lab: World) -> None:
    lock_schedule(lab.cluster.pk)


AT_ONCE = {
    "a service's step ends a replica": (row(Service), schedule_of_cluster),
    "a schedule's run replaces the one before": (row(Schedule), schedule_of_cluster),
    "an admin sets tickets": (row(Cluster, name="k1"), row(Cluster, name="k2")),
    "a manager changes the role": (row(Membership), row(Cluster, name="k1")),
    "an admin reactivates": (row(User, username="bob"), row(Cluster, name="k1")),
}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("leave", [remove_member, deactivate_user])
@pytest.mark.parametrize("others", AT_ONCE.values(), ids=AT_ONCE)
def test_a_departure_and_concurrent_changes_lock_in_one_order(
    others: tuple[Callable[[World], object], ...], leave: Callable[..., object]
) -> None:
    lab = world(v100=4)
    Cluster.objects.update(name="k1")
    second = replace(lab, cluster=Cluster.objects.create(name="k2"))
    job = second.submit(lab.people.bob, lab.people.astro)
    everything(lab)
    whom = {"membership": bobs(lab)} if leave is remove_member else {"user": lab.people.bob}
    first, then = others
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            first(lab)
            leaving = pool.submit(let_go, lambda: leave(actor=lab.people.ada, fate=Fate.CANCEL, **whom))
            wait_for(lambda: somebody_waits() or leaving.done())
            then(lab)
        leaving.result(timeout=PATIENCE)
    job.refresh_from_db()
    assert job.state == Job.State.CANCELLED


def somebody_waits() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)")
        return bool(cursor.fetchone()[0])


def test_only_managers_hand_over_work_and_only_to_users_who_may_submit(lab: World) -> None:
    people = lab.people
    lab.submit(people.bob, people.astro)
    what = {"user": people.bob, "tenant": people.astro, "fate": Fate.HAND_OVER}
    for actor in (people.bob, people.charlie, people.olga):
        with pytest.raises(NotAllowed):
            settle_work(actor=actor, to=people.alice, **what)
    for to, why in (
        (people.charlie, "charlie may no longer run jobs in Astro"),
        (people.bob, "bob is already the owner"),
    ):
        with pytest.raises(Refused, match=why):
            settle_work(actor=people.alice, to=to, **what)
    with pytest.raises(Refused, match="Choose the new owner"):
        remove_member(actor=people.ada, membership=bobs(lab), fate=Fate.HAND_OVER)
    with pytest.raises(Refused, match="waits, cancel, hand_over"):
        remove_member(actor=people.ada, membership=bobs(lab), fate="fire")
    assert bobs(lab)
