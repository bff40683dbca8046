"""A service or session that holds more than its account's guarantee gets notice before another account takes its
GPUs."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.conf import LazySettings
from django.db import connection

from accounting.core.clock import now_from_database
from accounting.core.errors import Refused
from accounting.models import NotificationEvent
from scheduling.backends.base import End, Phase
from scheduling.clusters.actions import update_cluster
from scheduling.core.event_texts import text_of
from scheduling.models import Cluster, Job, JobEvent, Lease, Round
from scheduling.models.event_codes import Cause
from scheduling.rounds.actions import due_kind
from scheduling.services.actions import create_service
from scheduling.services.replicas import step_service
from scheduling.sessions.actions import start_session
from scheduling.spec.job_spec import JobSpec
from tests.notified import mails
from tests.scheduling.world import World, world

NOTICE = timedelta(seconds=60)
pytestmark = pytest.mark.django_db


@pytest.fixture
def lab() -> World:
    """Returns a world with four GPUs. Each of the two teams is guaranteed two of them once both teams want GPUs."""
    return world(v100=4)


def sessions(lab: World, count: int) -> list[Job]:
    """Starts `count` sessions of Bob's; returns their running jobs."""
    made = [
        start_session(
            actor=lab.people.bob,
            tenant=lab.people.astro,
            cluster=lab.cluster,
            spec=JobSpec(name=f"notes-{number}", command="serve", port=8000),
        ).job
        for number in range(count)
    ]
    lab.fill()
    lab.carry_out()
    return made


def due(lab: World) -> str | None:
    return due_kind(Cluster.objects.get(pk=lab.cluster.pk), now_from_database())


def wait(lab: World, lasted: timedelta) -> None:
    """Lets time pass: backdates the last round and all notices by `lasted`. The present quantum still counts as just
    begun."""
    lab.pass_time(lasted.total_seconds())
    with connection.cursor() as cursor:
        cursor.execute("UPDATE scheduling_lease SET notice_since = notice_since - %s", [lasted])
        cursor.execute("UPDATE scheduling_cluster SET last_quantum_at = now()")


def noticed(jobs: list[Job]) -> list[bool]:
    return [Lease.objects.on_notice().filter(job=job).exists() for job in jobs]


def test_a_claim_takes_surplus_of_training_jobs_at_the_round_after_its_submit(lab: World) -> None:
    training = [lab.submit(lab.people.bob, lab.people.astro) for _ in range(4)]
    lab.quantum()
    lab.carry_out()
    claim = lab.submit(lab.people.charlie, lab.people.bio)
    assert due(lab) == Round.Kind.FILL, "not only when the quantum is over"
    lab.fill()
    assert lab.states(training) == ["running", "running", "running", "stopping"]
    lab.carry_out()
    assert lab.states([claim]) == ["running"]
    said = JobEvent.objects.get(job=training[3], kind="preempted")
    assert said.detail["cause"] == Cause.CLAIMED
    assert text_of(said) == "Suspended: bob has 4 GPUs, of which 2 are guaranteed; waiting jobs get 1"


def test_sessions_within_the_guarantee_stay_over_many_rounds_of_others_claims(lab: World) -> None:
    mine = sessions(lab, 2)
    for _ in range(6):
        lab.submit(lab.people.charlie, lab.people.bio)
        lab.submit(lab.people.bob, lab.people.astro)
    for _ in range(10):
        lab.pass_time(60)
        lab.quantum()
        lab.carry_out()
    assert lab.states(mine) == ["running", "running"]
    assert [job.leases.count() for job in mine] == [1, 1]
    assert noticed(mine) == [False, False]


def test_a_session_beyond_the_guarantee_is_warned_and_goes_once_its_notice_is_over(
    lab: World, settings: LazySettings
) -> None:
    settings.EMAIL_HOST = "mail.example"
    people = lab.people
    people.bob.email = "bob@example.org"
    people.bob.save(update_fields=["email"])
    mine = sessions(lab, 3)
    assert noticed(mine) == [False] * 3, "nobody else wants anything"
    claims = [lab.submit(people.charlie, people.bio) for _ in range(2)]
    lab.fill()
    lab.carry_out()
    assert lab.states([*mine, *claims]) == ["running"] * 4 + ["queued"], "the one GPU that was free"
    assert noticed(mine) == [False, False, True]
    text = text_of(JobEvent.objects.get(job=mine[2], kind="warned_of_claims"))
    assert "bob has 3 GPUs, of which 2 are guaranteed" in text
    assert not any("astro" in text_of(event) for event in JobEvent.objects.filter(job__in=claims))
    assert mails().get().subject == "[Fairlot] May be suspended: “notes-2”"
    wait(lab, NOTICE / 2)
    assert due(lab) is None
    lab.quantum()
    assert lab.states(mine) == ["running"] * 3, "a quantum round waits for the notice, too"
    wait(lab, NOTICE / 2)
    assert due(lab) == Round.Kind.FILL, "whoever waits need not wait for the quantum"
    lab.fill()
    assert lab.states(mine) == ["running", "running", "stopping"]
    lab.carry_out()
    assert lab.states([*mine, *claims]) == ["running", "running", "suspended", "running", "running"]
    assert JobEvent.objects.get(job=mine[2], kind="preempted").detail["cause"] == Cause.CLAIMED


def test_a_notice_ends_when_the_guarantee_suffices_and_is_sent_once_an_hour(lab: World) -> None:
    mine = sessions(lab, 3)
    for _ in range(2):
        claim = lab.submit(lab.people.charlie, lab.people.bio)
        claims = [claim, lab.submit(lab.people.charlie, lab.people.bio)]
        lab.fill()
        assert noticed(mine) == [False, False, True]
        Job.objects.filter(pk__in=[job.pk for job in claims]).update(state=Job.State.CANCELLED)
        Lease.objects.filter(job__in=claims).delete()
        lab.quantum()
        assert noticed(mine) == [False] * 3
    assert JobEvent.objects.filter(kind="warned_of_claims").count() == 1


def test_a_service_is_warned_once_a_day_whichever_of_its_replicas_may_be_preempted(lab: World) -> None:
    service = create_service(
        actor=lab.people.bob,
        tenant=lab.people.astro,
        cluster=lab.cluster,
        spec=JobSpec(name="api", command="serve", port=8000),
        replicas=4,
    )
    step_service(service_id=service.pk)
    lab.fill()
    lab.carry_out()
    for _ in range(2):
        lab.submit(lab.people.charlie, lab.people.bio)
    lab.fill()

    def warned() -> int:
        return JobEvent.objects.filter(job__service=service, kind="warned_of_claims").count()

    assert warned() == 2
    beyond = Job.objects.filter(leases__in=Lease.objects.on_notice()).last()
    assert beyond is not None
    lab.see(lab.lease(beyond), Phase.ENDED, end=End.FAILED, ended_age=0.0, exit_code=1)
    Job.objects.filter(pk=beyond.pk).update(ended_at=now_from_database() - timedelta(seconds=10))
    step_service(service_id=service.pk)
    Job.objects.filter(tenant=lab.people.bio).update(state=Job.State.CANCELLED)
    lab.quantum()
    lab.carry_out()
    for _ in range(2):
        lab.submit(lab.people.charlie, lab.people.bio)
    lab.fill()
    assert warned() == 3, "the new replica has its own warning in its own history"
    [event] = NotificationEvent.objects.all()
    assert event.concerns == [service.owner_id], "managers are not concerned by each suspension"
    assert (event.title, event.path, event.job_id) == (
        "May be suspended: “api”",
        f"/services/{service.pk}/",
        None,
    )
    assert event.text.startswith("The replica “api-")
    assert service.events.filter(kind="warned_of_claims").count() == 1


def test_an_admin_sets_how_long_notices_are(lab: World) -> None:
    people = lab.people
    update_cluster(actor=people.ada, cluster=lab.cluster, notice_seconds=600)
    with pytest.raises(Refused, match="0 to 3"):
        update_cluster(actor=people.ada, cluster=lab.cluster, notice_seconds=4000)
    mine = sessions(lab, 3)
    for _ in range(2):
        lab.submit(people.charlie, people.bio)
    lab.fill()
    wait(lab, timedelta(seconds=500))
    assert due(lab) is None
    lab.quantum()
    assert lab.states(mine) == ["running"] * 3
    wait(lab, timedelta(seconds=100))
    lab.fill()
    assert lab.states(mine) == ["running", "running", "stopping"]
