"""The replicas of a service are jobs, and a controller keeps as many of them running as the service wants."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction

from accounting.core.clock import now_from_database
from accounting.core.errors import NotAllowed, Refused
from accounting.models import AuditEvent, Membership, NotificationEvent
from scheduling.backends.base import End, Phase
from scheduling.core.event_texts import end_text_of
from scheduling.core.service_texts import service_text_of
from scheduling.jobs.actions import cancel_job
from scheduling.jobs.submitting import submit_stored
from scheduling.models import Job, Lease, Service, ServiceEvent
from scheduling.retention import prune
from scheduling.services import replicas
from scheduling.services.actions import change_service, create_service, remove_service, roll_back_service
from scheduling.services.crashes import crash_loop_of
from scheduling.services.replicas import FIRST, NextSteps, next_steps_of, services_to_step, step_service
from scheduling.spec.job_spec import JobSpec, SpecError
from tests.scheduling.world import World, world

pytestmark = pytest.mark.django_db


@pytest.fixture
def lab() -> World:
    return world(v100=6)


def spec(**fields: Any) -> JobSpec:
    return JobSpec(**({"name": "api", "command": "serve", "port": 8000} | fields))


def service_of(lab: World, replicas: int = 2, **rules: Any) -> Service:
    made = create_service(
        actor=lab.people.bob,
        tenant=lab.people.astro,
        cluster=lab.cluster,
        spec=rules.pop("spec", spec()),
        replicas=replicas,
        **rules,
    )
    step_service(service_id=made.pk)
    return made


def living(service: Service) -> list[Job]:
    return list(Job.objects.filter(service=service).unfinished().order_by("slot"))


def names(service: Service) -> list[str]:
    return [job.name for job in living(service)]


def come_up(lab: World, service: Service, *, ready: bool = True) -> None:
    """Brings up the replicas of the service: starts those that wait, and reports those that run as ready (or as not
    ready, if `ready` is False). Then runs the controller once."""
    lab.fill()
    lab.carry_out()
    for lease in lab.holding(Lease.State.RUNNING):
        if lease.job.service_id == service.pk:
            facts = (
                {"ready_age": 0.0} if ready else {"why_not_ready": "the answer to GET / has HTTP status 503"}
            )
            lab.see(lease, Phase.RUNNING, address="127.0.0.1:20000", **facts)
    step_service(service_id=service.pk)
    service.refresh_from_db()


def roll_out(lab: World, service: Service, rounds: int = 12) -> None:
    for _ in range(rounds):
        come_up(lab, service)


def fail(lab: World, job: Job, code: int = 1) -> None:
    lab.see(
        lab.lease(job), Phase.ENDED, end=End.FAILED, ended_age=0.0, exit_code=code, message=f"exit {code}"
    )


def told(service: Service, *kinds: str) -> list[str]:
    return [service_text_of(event) for event in service.events.filter(kind__in=kinds).order_by("pk")]


def test_replicas_are_jobs_of_its_author_before_all_training_and_prove_the_revision(lab: World) -> None:
    training = lab.submit(lab.people.bob, lab.people.astro, gpus=6)
    service = service_of(lab, 3)
    assert names(service) == ["api-0-1", "api-1-1", "api-2-1"]
    job = living(service)[0]
    assert (job.kind, job.owner, job.priority) == (Job.Kind.REPLICA, lab.people.bob, FIRST)
    come_up(lab, service)
    assert lab.states([training]) == [Job.State.QUEUED]
    assert service.good == service.current
    assert told(service, "proved") == ["Revision 1 works: 3 replicas became ready"]
    assert not step_service(service_id=service.pk)


def test_scaling_makes_and_ends_and_says_who_asked(lab: World) -> None:
    service = service_of(lab, 1)
    come_up(lab, service)
    change_service(actor=lab.people.bob, service=service, replicas=3)
    step_service(service_id=service.pk)
    come_up(lab, service)
    assert len(living(service)) == 3
    change_service(actor=lab.people.alice, service=service, replicas=1)
    step_service(service_id=service.pk)
    assert [job.state for job in living(service)] == ["running", "cancelling", "cancelling"]
    lab.carry_out()
    assert names(service) == ["api-0-1"]
    ended = Job.objects.get(name="api-2-1")
    assert end_text_of(ended) == "Ended: the service api now has 1 replica"
    assert told(service, "scaled") == [
        "bob scaled the service from 1 to 3 replicas",
        "alice scaled the service from 3 to 1 replica",
    ]


def test_a_replica_that_keeps_ending_is_replaced_with_growing_delays(lab: World) -> None:
    service = service_of(lab, 1)
    come_up(lab, service)
    for attempt in (1, 2):
        [job] = living(service)
        assert job.name == f"api-0-{attempt}"
        fail(lab, job)
        assert not step_service(service_id=service.pk), "it rests"
        Job.objects.filter(pk=job.pk).update(ended_at=now_from_database() - timedelta(seconds=10 * attempt))
        assert step_service(service_id=service.pk)
        come_up(lab, service)
    assert told(service, "replaced") == [
        "api-0-1 ended by itself (exit 1); api-0-2 replaces it",
        "api-0-2 ended by itself (exit 1); api-0-3 replaces it",
    ]
    [job] = living(service)
    fail(lab, job)
    Job.objects.filter(pk=job.pk).update(ended_at=now_from_database() - timedelta(seconds=20))
    assert not step_service(service_id=service.pk), "the third in a row rests for a minute"


def test_a_crash_loop_of_a_good_revision_is_announced_once_a_day(lab: World) -> None:
    service = service_of(lab, 1)
    come_up(lab, service)

    def crash(times: int) -> int:
        for _ in range(times):
            [job] = living(service)
            fail(lab, job)
            step_service(service_id=service.pk)
            now = now_from_database()
            Job.objects.filter(pk=job.pk).update(ended_at=now - timedelta(minutes=6))
            come_up(lab, service)
            come_up(lab, service)
        return NotificationEvent.objects.filter(kind="service.failed").count()

    assert crash(2) == 0
    assert crash(1) == 1
    [event] = NotificationEvent.objects.filter(kind="service.failed")
    assert event.title == "Replicas of the service “api” end again and again"
    said = "Replica api-0 ended by itself 3 times within an hour; most recently: exit 1"
    assert event.text.startswith(f"{said}. ")
    assert event.concerns == [lab.people.bob.pk]
    assert told(service, "crashes") == [said]
    assert crash(2) == 1, "once a day"
    service.events.filter(kind="crashes").update(at=now_from_database() - timedelta(hours=25))
    assert crash(1) == 2


def test_no_crash_loop_is_announced_of_what_ended_long_ago_or_was_never_good(lab: World) -> None:
    service = service_of(lab, 1)
    come_up(lab, service)
    for _ in range(3):
        [job] = living(service)
        fail(lab, job)
        Job.objects.filter(pk=job.pk).update(ended_at=now_from_database() - timedelta(minutes=61))
        come_up(lab, service)
        come_up(lab, service)
    assert crash_loop_of(service, now=now_from_database()) is None
    Job.objects.filter(service=service).exclude(ended_at=None).update(ended_at=now_from_database())
    assert crash_loop_of(service, now=now_from_database())
    service.stopped_at = now_from_database()
    assert crash_loop_of(service, now=now_from_database()) is None
    service.stopped_at, service.good = None, None
    assert crash_loop_of(service, now=now_from_database()) is None


def test_a_cancelled_replica_is_replaced_at_once(lab: World) -> None:
    service = service_of(lab, 1)
    come_up(lab, service)
    cancel_job(actor=lab.people.bob, job=living(service)[0])
    lab.carry_out()
    assert step_service(service_id=service.pk)
    assert names(service) == ["api-0-2"]


def test_an_update_never_has_fewer_ready_than_allowed_and_ends_with_the_new_one(lab: World) -> None:
    service = service_of(lab, 3)
    come_up(lab, service)
    change_service(actor=lab.people.bob, service=service, spec=spec(command="serve --better"))
    for _ in range(12):
        assert Lease.objects.ready().filter(job__service=service).count() >= 3
        assert len(living(service)) <= 4
        come_up(lab, service)
    assert {job.revision.number for job in living(service)} == {2}
    assert len(living(service)) == 3
    assert service.good == service.current
    assert told(service, "updated", "proved")[-2:] == [
        "bob created revision 2",
        "Revision 2 works: 3 replicas became ready",
    ]


def test_a_revision_runs_as_its_author_regardless_of_who_rolls_it_out(lab: World) -> None:
    people = lab.people
    service = service_of(lab, 1)
    come_up(lab, service)
    change_service(actor=people.alice, service=service, spec=spec(command="hers"))
    roll_out(lab, service, 4)
    assert [job.owner for job in living(service)] == [people.alice], "or she could read Bob's secrets"
    roll_back_service(actor=people.alice, service=service, number=1)
    roll_out(lab, service, 4)
    assert [job.owner for job in living(service)] == [people.bob]
    with pytest.raises(NotAllowed, match="Only members of Astro"):
        change_service(actor=people.olga, service=service, spec=spec(command="theirs"))


def test_the_same_spec_again_is_no_revision(lab: World) -> None:
    service = service_of(lab)
    change_service(actor=lab.people.bob, service=service, spec=spec(name="anything"))
    assert service.revisions.count() == 1


def test_a_revision_that_does_not_become_ready_is_rolled_back(lab: World) -> None:
    service = service_of(lab, 2, progress_deadline_seconds=60)
    come_up(lab, service)
    good = set(names(service))
    change_service(actor=lab.people.bob, service=service, spec=spec(command="broken"))
    step_service(service_id=service.pk)
    lab.fill()
    lab.carry_out()
    [bad] = [job for job in living(service) if job.name not in good]
    lab.see(
        lab.lease(bad),
        Phase.RUNNING,
        address="127.0.0.1:1",
        why_not_ready="the answer to GET / has HTTP status 503",
    )
    step_service(service_id=service.pk)
    service.refresh_from_db()
    assert service.current.number == 2, "its time is not over"
    Service.objects.filter(pk=service.pk).update(progress_at=now_from_database() - timedelta(seconds=61))
    assert step_service(service_id=service.pk)
    service.refresh_from_db()
    assert (service.current.number, service.good.number) == (1, 1)
    lab.carry_out()
    assert set(names(service)) == good, "the ready ones were never touched"
    why = (
        "0 of 2 replicas became ready, and no further one became ready within 60 s"
        " (the answer to GET / has HTTP status 503)"
    )
    assert told(service, "rolled_back") == [f"Revision 2 has failed: {why}. Rolled back to revision 1"]
    assert service.revisions.get(number=2).why_failed == why
    assert AuditEvent.objects.filter(verb="service.roll_back", actor=None).count() == 1
    [event] = NotificationEvent.objects.filter(kind="service.failed")
    assert event.title == "Revision 2 of the service “api” failed"
    assert event.text == f"The rollout was given up: {why}. The service was rolled back to revision 1."
    assert event.path == f"/services/{service.pk}/"
    assert event.concerns == [lab.people.bob.pk]
    assert not step_service(service_id=service.pk)


def test_a_failure_without_rollback_is_told_once_a_rollout(lab: World) -> None:
    service = service_of(lab, 1, progress_deadline_seconds=60, auto_rollback=False)
    come_up(lab, service)

    def time_out() -> int:
        for _ in range(3):  # the replica of an earlier revision gives its place
            come_up(lab, service, ready=False)
        now = now_from_database()
        service.revisions.exclude(failed_at=None).update(failed_at=now - timedelta(seconds=120))
        Service.objects.filter(pk=service.pk).update(progress_at=now - timedelta(seconds=61))
        step_service(service_id=service.pk)
        return NotificationEvent.objects.filter(kind="service.failed").count()

    change_service(actor=lab.people.alice, service=service, spec=spec(command="broken"))
    step_service(service_id=service.pk)
    assert time_out() == 1
    concerned = NotificationEvent.objects.get().concerns
    assert concerned == sorted({lab.people.alice.pk, lab.people.bob.pk}), (
        "the owner and the revision's author"
    )
    assert time_out() == 1, "it is the same rollout"
    change_service(actor=lab.people.bob, service=service, spec=spec(command="still broken"))
    step_service(service_id=service.pk)
    assert time_out() == 2


def test_a_revision_is_good_although_an_update_came_before_the_controller_saw_that(lab: World) -> None:
    service = service_of(lab, 1)
    lab.fill()
    lab.carry_out()
    [lease] = lab.holding(Lease.State.RUNNING)
    lab.see(lease, Phase.RUNNING, address="127.0.0.1:20000", ready_age=0.0)
    changed = change_service(actor=lab.people.bob, service=service, spec=spec(command="broken"))
    assert changed.good is not None
    assert (changed.good.number, changed.current.number) == (1, 2)


def test_waiting_for_gpus_is_no_failure_of_a_revision(lab: World) -> None:
    service = service_of(lab, 6, progress_deadline_seconds=60)
    come_up(lab, service)
    change_service(actor=lab.people.bob, service=service, spec=spec(command="better"))
    come_up(lab, service)
    [waiting] = [job for job in living(service) if job.state == Job.State.QUEUED]
    assert waiting.revision.number == 2
    for _ in range(3):
        Service.objects.filter(pk=service.pk).update(progress_at=now_from_database() - timedelta(hours=1))
        step_service(service_id=service.pk)
    service.refresh_from_db()
    assert service.current.number == 2
    # Now the rollout may stop an old replica, and the new replica gets its GPU.
    change_service(actor=lab.people.bob, service=service, max_unavailable=1)
    roll_out(lab, service, 40)
    assert {job.revision.number for job in living(service)} == {2}


def test_a_crash_loop_is_rolled_back_although_it_waits_for_gpus_in_between(lab: World) -> None:
    service = service_of(lab, 1, progress_deadline_seconds=60)
    come_up(lab, service)
    change_service(actor=lab.people.bob, service=service, spec=spec(command="crashes"))
    step_service(service_id=service.pk)
    lab.fill()
    lab.carry_out()
    fail(lab, Job.objects.get(service=service, revision__number=2))
    step_service(service_id=service.pk)
    Job.objects.filter(service=service, revision__number=2).update(ended_at=now_from_database())
    Service.objects.filter(pk=service.pk).update(progress_at=now_from_database() - timedelta(seconds=90))
    step_service(service_id=service.pk)
    service.refresh_from_db()
    assert service.current.number == 1
    assert "(exit 1)" in service.revisions.get(number=2).why_failed


def steps(service: Service) -> NextSteps:
    service.refresh_from_db()
    return next_steps_of(service, at=now_from_database())


def crash(lab: World, service: Service, number: int) -> Job:
    """Lets the replica of a revision start and end by itself, and the controller see that."""
    for _ in range(2):
        lab.fill()
        lab.carry_out()
        step_service(service_id=service.pk)
    job = Job.objects.unfinished().get(service=service, revision__number=number)
    fail(lab, job)
    step_service(service_id=service.pk)
    job.refresh_from_db()
    return job


def test_what_comes_next_is_known_while_a_rollout_crashes(lab: World) -> None:
    service = service_of(lab, 1, progress_deadline_seconds=300)
    come_up(lab, service)
    assert steps(service) == NextSteps()
    change_service(actor=lab.people.bob, service=service, spec=spec(command="crashes"))
    assert steps(service) == NextSteps(), "its replica only waits"
    step_service(service_id=service.pk)
    for delay in (1, 10):
        bad = crash(lab, service, 2)
        found = steps(service)
        assert found.next_try_at == bad.ended_at + timedelta(seconds=delay)
        assert found.gives_up_at == service.progress_at + timedelta(seconds=300)
        assert found.back_to == service.good
        Job.objects.filter(pk=bad.pk).update(ended_at=now_from_database() - timedelta(seconds=delay))
        assert steps(service).next_try_at is None, "the controller makes it now"
        step_service(service_id=service.pk)
    change_service(actor=lab.people.bob, service=service, auto_rollback=False)
    assert steps(service).back_to is None
    service.current.failed_at = now_from_database()
    service.current.save()
    assert next_steps_of(service, at=now_from_database()).gives_up_at is None, "it has failed already"
    change_service(actor=lab.people.bob, service=service, stopped=True)
    assert steps(service) == NextSteps()


def test_a_good_revision_has_a_next_try_and_no_end_of_a_rollout(lab: World) -> None:
    service = service_of(lab, 2)
    come_up(lab, service)
    job = living(service)[0]
    fail(lab, job)
    job.refresh_from_db()
    assert steps(service) == NextSteps(next_try_at=job.ended_at + timedelta(seconds=1))
    change_service(actor=lab.people.bob, service=service, replicas=1)
    assert steps(service) == NextSteps(), "enough are left"


@pytest.mark.parametrize("how", ["rollback", "update"])
def test_a_revision_that_a_person_replaces_because_it_crashes_is_marked_failed(lab: World, how: str) -> None:
    service = service_of(lab, 1)
    come_up(lab, service)
    change_service(actor=lab.people.bob, service=service, spec=spec(command="crashes"))
    step_service(service_id=service.pk)
    crash(lab, service, 2)
    if how == "rollback":
        roll_back_service(actor=lab.people.alice, service=service, number=1)
    else:
        change_service(actor=lab.people.alice, service=service, spec=spec(command="better"))
    bad = service.revisions.get(number=2)
    assert bad.failed_at is not None
    assert bad.why_failed == ("0 of 1 replica had become ready when alice replaced the revision (exit 1)")


def test_a_revision_that_is_replaced_while_nothing_is_wrong_is_not_marked(lab: World) -> None:
    service = service_of(lab, 1)
    come_up(lab, service)
    change_service(actor=lab.people.bob, service=service, spec=spec(command="slow"))
    step_service(service_id=service.pk)
    roll_back_service(actor=lab.people.bob, service=service, number=1)  # its replica waits
    roll_back_service(actor=lab.people.bob, service=service, number=2)
    step_service(service_id=service.pk)
    lab.fill()
    lab.carry_out()
    roll_back_service(actor=lab.people.bob, service=service, number=1)  # its replica has just started
    assert service.revisions.exclude(failed_at=None).count() == 0
    assert told(service, "rolled_back")[-1] == "bob rolled the service back from revision 2 to 1"


def test_where_nothing_is_to_be_gone_back_to_it_says_so_once_and_goes_on(lab: World) -> None:
    service = service_of(lab, 1, progress_deadline_seconds=60)
    come_up(lab, service, ready=False)
    Service.objects.filter(pk=service.pk).update(progress_at=now_from_database() - timedelta(seconds=61))
    for _ in range(3):
        step_service(service_id=service.pk)
    service.refresh_from_db()
    assert len(told(service, "failed")) == 1
    assert len(living(service)) == 1
    come_up(lab, service)
    assert service.good == service.current
    assert service.current.why_failed == ""


def test_without_automatic_rollback_a_person_decides(lab: World) -> None:
    service = service_of(lab, 1, progress_deadline_seconds=60, auto_rollback=False)
    come_up(lab, service)
    change_service(actor=lab.people.bob, service=service, spec=spec(command="broken"))
    come_up(lab, service, ready=False)
    come_up(lab, service, ready=False)
    Service.objects.filter(pk=service.pk).update(progress_at=now_from_database() - timedelta(seconds=61))
    step_service(service_id=service.pk)
    service.refresh_from_db()
    assert service.current.number == 2
    assert len(told(service, "failed")) == 1
    roll_back_service(actor=lab.people.alice, service=service, number=1)
    roll_out(lab, service, 4)
    assert {job.revision.number for job in living(service)} == {1}
    assert told(service, "rolled_back") == ["alice rolled the service back from revision 2 to 1"]
    with pytest.raises(Refused, match="no revision 9"):
        roll_back_service(actor=lab.people.alice, service=service, number=9)


def test_stopped_it_has_no_replicas_and_started_it_has_them_again(lab: World) -> None:
    service = service_of(lab, 2)
    come_up(lab, service)
    change_service(actor=lab.people.bob, service=service, stopped=True)
    step_service(service_id=service.pk)
    lab.carry_out()
    assert living(service) == []
    assert not step_service(service_id=service.pk)
    change_service(actor=lab.people.bob, service=service, stopped=False)
    step_service(service_id=service.pk)
    assert names(service) == ["api-0-2", "api-1-2"]


def test_removed_it_ends_for_good_and_its_name_is_free(lab: World) -> None:
    service = service_of(lab, 2)
    come_up(lab, service)
    for _ in range(2):
        remove_service(actor=lab.people.bob, service=service)
    step_service(service_id=service.pk)
    assert service in services_to_step()
    lab.carry_out()
    step_service(service_id=service.pk)
    assert living(service) == []
    assert service not in services_to_step()
    with pytest.raises(Refused, match="was removed"):
        change_service(actor=lab.people.bob, service=service, replicas=3)
    again = service_of(lab, 1)
    assert again.pk != service.pk


def test_when_the_author_may_run_nothing_there_any_more_it_says_so_and_goes_on_when_she_may(
    lab: World,
) -> None:
    service = service_of(lab, 1)
    Membership.objects.filter(user=lab.people.bob, tenant=lab.people.astro).delete()
    change_service(actor=lab.people.alice, service=service, replicas=2)
    for _ in range(2):
        step_service(service_id=service.pk)
    service.refresh_from_db()
    assert service.trouble == "bob may no longer run jobs in Astro."
    assert len(told(service, "trouble")) == 1
    assert len(living(service)) == 1
    Membership.objects.create(user=lab.people.bob, tenant=lab.people.astro)
    step_service(service_id=service.pk)
    service.refresh_from_db()
    assert (service.trouble, len(living(service))) == ("", 2)


def test_the_database_refuses_a_second_replica_in_a_slot_and_half_a_replica(lab: World) -> None:
    service = service_of(lab, 1)
    [job] = living(service)
    for changes in ({"attempt": 7}, {"kind": "training", "service": None, "revision": None}):
        twin = Job.objects.get(pk=job.pk)
        twin.pk = None
        for name, value in changes.items():
            setattr(twin, name, value)
        with pytest.raises(IntegrityError), transaction.atomic():
            twin.save()


def test_a_controller_that_dies_in_the_middle_has_done_nothing_and_the_next_one_does_it(
    lab: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = create_service(
        actor=lab.people.bob, tenant=lab.people.astro, cluster=lab.cluster, spec=spec(), replicas=3
    )
    made = []

    def submit_and_die(**fields: Any) -> Job:
        if made:
            raise SystemExit("killed")
        made.append(submit_stored(**fields))
        return made[0]

    monkeypatch.setattr(replicas, "submit_stored", submit_and_die)
    with pytest.raises(SystemExit):
        step_service(service_id=service.pk)
    assert not Job.objects.filter(service=service).exists()
    monkeypatch.undo()
    step_service(service_id=service.pk)
    assert names(service) == ["api-0-1", "api-1-1", "api-2-1"]


def test_who_may_do_what(lab: World) -> None:
    people = lab.people
    service = service_of(lab, 1)
    with pytest.raises(NotAllowed):
        create_service(actor=people.charlie, tenant=people.astro, cluster=lab.cluster, spec=spec(name="x"))
    for verb in (
        lambda: change_service(actor=people.charlie, service=service, replicas=2),
        lambda: roll_back_service(actor=people.charlie, service=service, number=1),
        lambda: remove_service(actor=people.charlie, service=service),
    ):
        with pytest.raises(NotAllowed):
            verb()
    assert service not in Service.objects.visible_to(people.charlie)
    change_service(actor=people.olga, service=service, replicas=2)
    with pytest.raises(Refused, match="already has a service api"):
        service_of(lab, 1)


@pytest.mark.parametrize(
    ("fields", "rules", "field"),
    [
        ({"port": None}, {}, "port"),
        ({"name": "Api"}, {}, "name"),
        ({"name": "api_1"}, {}, "name"),
        ({"name": "a" * 41}, {}, "name"),
        ({"name": "fairlot-x"}, {}, "name"),
        ({}, {"replicas": 1001}, "replicas"),
        ({}, {"replicas": True}, "replicas"),
        ({}, {"max_surge": 0, "max_unavailable": 0}, "max_surge"),
        ({}, {"progress_deadline_seconds": 1}, "progress_deadline_seconds"),
        ({"generations": ["H100"]}, {}, "generations"),
        ({"secrets": {"TOKEN": "gone"}}, {}, "secrets"),
    ],
)
def test_an_invalid_service_is_refused(
    lab: World, fields: dict[str, Any], rules: dict[str, Any], field: str
) -> None:
    with pytest.raises(SpecError) as refused:
        service_of(lab, spec=spec(**fields), **rules)
    assert field in refused.value.problems
    assert not Service.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_many_controllers_at_once_make_no_replica_twice(lab: World) -> None:
    service = create_service(
        actor=lab.people.bob, tenant=lab.people.astro, cluster=lab.cluster, spec=spec(), replicas=3
    )
    troubles: list[Exception] = []

    def step() -> None:
        try:
            for _ in range(3):
                step_service(service_id=service.pk)
        except Exception as trouble:
            troubles.append(trouble)
        finally:
            connection.close()

    threads = [threading.Thread(target=step) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert troubles == []
    assert names(service) == ["api-0-1", "api-1-1", "api-2-1"]
    assert Job.objects.filter(service=service).count() == 3


def test_events_of_people_outlast_a_services_replicas(lab: World) -> None:
    service = service_of(lab)
    for kind in ("replaced", "trouble", "proved", "failed"):
        ServiceEvent.objects.create(service=service, kind=kind, text="of old")
    prune(records=timedelta(days=1), attempts=timedelta(days=1))
    assert service.events.filter(text="of old").count() == 4
    prune(records=timedelta(days=1), attempts=timedelta(0))
    assert set(service.events.values_list("kind", flat=True)) == {"created", "failed"}
