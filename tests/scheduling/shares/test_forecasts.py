"""While a job waits, its owner sees between which times it is expected to start; the history says what came."""

from contextlib import closing
from copy import copy
from datetime import timedelta

import pytest
from django.db import connection
from django.db.models import F

from accounting.core.clock import now_from_database
from fairshare.model import Reason
from scheduling.backends.base import Phase
from scheduling.core.event_texts import sentence, text_of
from scheduling.core.locks import Lock
from scheduling.models import Cluster, Job, JobEvent, JobForecast, KeptForecast, Lease, Service
from scheduling.models.event_codes import EventCode
from scheduling.rounds.forecasts import forecast_starts
from scheduling.rounds.outcomes import outcomes_of
from scheduling.services.actions import change_service, create_service
from scheduling.services.replicas import step_service
from scheduling.spec.job_spec import JobSpec
from tests.scheduling.world import World, world

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def lab() -> World:
    return world(v100=4)


def forecast(lab: World) -> int:
    return forecast_starts(cluster_id=lab.cluster.pk)


def test_each_waiting_job_has_an_expected_start_until_it_starts(lab: World) -> None:
    cast = lab.people
    running = lab.submit(cast.bob, cast.astro, gpus=4)
    lab.quantum()
    lab.carry_out()
    waiting = lab.submit(cast.charlie, cast.bio, gpus=4)
    lab.fill()
    assert forecast(lab) == 1
    one = JobForecast.objects.get()
    now = now_from_database()
    lab.cluster.refresh_from_db()
    assert one.job_id == waiting.pk
    assert one.starts_by is not None
    assert now < one.starts_by
    assert one.earliest <= one.starts_by
    Job.objects.filter(pk=running.pk).update(state=Job.State.SUCCEEDED, ended_at=now)
    Job.objects.filter(pk=waiting.pk).update(state=Job.State.RUNNING)
    assert forecast(lab) == 0
    assert JobForecast.objects.exists()  # no round has run since, so the forecast is kept
    Cluster.objects.update(last_round_at=now_from_database())
    assert forecast(lab) == 0
    assert not JobForecast.objects.exists()


@pytest.mark.parametrize("limit", [None, 0.1])
def test_a_job_is_expected_to_end_at_its_time_limit_at_the_latest(lab: World, limit: float | None) -> None:
    bob, astro = lab.people.bob, lab.people.astro
    lab.submit(bob, astro, gpus=4, expected_hours=50, time_limit_hours=limit)
    lab.quantum()
    lab.carry_out()
    lab.submit(bob, astro, gpus=4)
    lab.fill()
    assert forecast(lab) == 1
    kept = KeptForecast.objects.get()
    assert (kept.expected - kept.at < timedelta(minutes=10)) is (limit is not None)


def test_a_job_that_never_runs_is_reserved_nothing(lab: World) -> None:
    cast = lab.people
    lab.submit(cast.bob, cast.astro, gpus=4)
    lab.quantum()
    Job.objects.filter(tenant=cast.astro).update(reason=int(Reason.NEVER_TOO_LARGE), state=Job.State.QUEUED)
    assert forecast(lab) == 0


def test_a_job_that_may_not_start_now_is_reserved_nothing(lab: World) -> None:
    cast = lab.people
    job = lab.submit(cast.bob, cast.astro, gpus=4)
    Job.objects.filter(pk=job.pk).update(not_before=now_from_database() + timedelta(minutes=1))
    assert forecast(lab) == 0
    Job.objects.filter(pk=job.pk).update(not_before=None)
    assert forecast(lab) == 1


def test_a_second_worker_leaves_at_once(lab: World) -> None:
    cast = lab.people
    lab.submit(cast.bob, cast.astro, gpus=4)
    with closing(connection.copy()) as other, other.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(%s, %s)", [Lock.FORECASTS, lab.cluster.pk])
        assert forecast(lab) == 0
        # Unlocks explicitly, because the server releases the locks of a closed connection only after some time.
        cursor.execute("SELECT pg_advisory_unlock(%s, %s)", [Lock.FORECASTS, lab.cluster.pk])
        assert forecast(lab) == 1


def test_a_job_that_no_future_starts_has_no_latest_start(lab: World) -> None:
    cast = lab.people
    job = lab.submit(cast.bob, cast.astro, gpus=4)
    lab.cluster.nodes.update(state="drained")
    lab.quantum()
    job.refresh_from_db()
    assert forecast(lab) == 1
    one = JobForecast.objects.get()
    assert one.starts_by is None
    assert one.earliest > now_from_database()
    Cluster.objects.update(paused_at=now_from_database())
    assert forecast(lab) == 0


def step(lab: World, service: Service, *, ready: bool = True) -> None:
    """Lets the service's controller, a round and the backend work once; replicas that run become ready."""
    step_service(service_id=service.pk)
    lab.fill()
    lab.carry_out()
    for lease in lab.holding(Lease.State.RUNNING) if ready else ():
        if not lease.is_ready:
            lab.see(lease, Phase.RUNNING, address="127.0.0.1:20000", ready_age=0.0)


def rolling(lab: World, *, runs: bool) -> tuple[Service, Job]:
    """Returns a service on all GPUs whose second revision is rolled out, and the new replica that waits.

    With `runs`, another new replica runs and is not ready yet.
    """
    people = lab.people
    made = create_service(
        actor=people.bob,
        tenant=people.astro,
        cluster=lab.cluster,
        spec=JobSpec(name="api", command="serve", port=8000, gpus_per_worker=2),
        replicas=2,
        max_unavailable=1,
    )
    for _ in range(2):
        step(lab, made)
    spec = JobSpec(name="api", command="better", port=8000, gpus_per_worker=2)
    change_service(actor=people.alice, service=made, spec=spec)
    step_service(service_id=made.pk)
    lab.carry_out()
    if runs:
        step(lab, made, ready=False)
        step_service(service_id=made.pk)
        lab.fill()
    made.refresh_from_db()
    return made, Job.objects.filter(service=made, revision=made.current).waiting().latest("pk")


def expected_wait(lab: World, job: Job) -> timedelta:
    KeptForecast.objects.all().delete()
    JobForecast.objects.all().delete()
    Cluster.objects.update(last_round_at=now_from_database())
    assert forecast(lab) >= 1
    kept = KeptForecast.objects.get(job=job)
    return kept.expected - kept.at


def test_a_replica_of_a_rollout_is_expected_when_the_one_before_it_is_ready(lab: World) -> None:
    """The rollout then ends an old replica, although replicas do not end by themselves."""
    service, waiting = rolling(lab, runs=True)
    assert Job.objects.filter(service=service, state=Job.State.RUNNING).count() == 2
    assert expected_wait(lab, waiting) < timedelta(minutes=5)
    crashed = Job.objects.filter(service=service, revision=service.current, state=Job.State.RUNNING).get()
    Service.objects.filter(pk=service.pk).update(progress_at=now_from_database() - timedelta(hours=1))
    done = lab.submit(lab.people.bob, lab.people.astro)
    Job.objects.filter(pk=done.pk).update(
        kind=Job.Kind.REPLICA, service=service, revision=service.current, slot=9, attempt=1,
        state=Job.State.FAILED, ended_at=now_from_database(),
    )  # fmt: skip
    assert expected_wait(lab, waiting) > timedelta(hours=1), "it crashes, so the old ones stay"
    Job.objects.filter(pk=done.pk).update(ended_at=now_from_database() - timedelta(hours=2))
    assert expected_wait(lab, waiting) < timedelta(minutes=5)
    service.revisions.filter(pk=service.current_id).update(failed_at=now_from_database())
    assert expected_wait(lab, waiting) > timedelta(hours=1), "it has failed"
    assert crashed.revision_id == service.current_id


def passed(lab: World, waiting: Job, *, started: timedelta) -> JobEvent:
    """Lets `waiting` start so long after its first forecast, forecasts again, and returns what its history says."""
    [kept] = KeptForecast.objects.filter(job=waiting)
    Job.objects.filter(pk=waiting.pk).update(
        state=Job.State.RUNNING,
        first_started_at=kept.at + started,
        first_generation_id=lab.cluster.nodes.values_list("generation")[:1],
        epoch=1,
    )
    Cluster.objects.update(last_round_at=now_from_database())
    forecast(lab)
    return waiting.events.get(code=EventCode.EXPECTED_START)


def waits(lab: World) -> Job:
    """Returns a job that waits for GPUs and has a forecast."""
    lab.submit(lab.people.bob, lab.people.astro, gpus=4)
    lab.quantum()
    lab.carry_out()
    waiting = lab.submit(lab.people.charlie, lab.people.bio, gpus=4)
    lab.fill()
    forecast(lab)
    return waiting


def test_the_history_says_what_was_expected_and_what_came(lab: World) -> None:
    waiting = waits(lab)
    [kept] = KeptForecast.objects.filter(job=waiting)
    assert kept.is_first
    event = passed(lab, waiting, started=kept.latest - kept.at + timedelta(seconds=1))
    assert text_of(event).startswith("Started later than expected, ")
    kept.refresh_from_db()
    assert kept.closed_at == kept.started_at
    known = outcomes_of(lab.cluster, now=now_from_database())
    assert known.started.tolist() == [True]
    assert known.waited.tolist() == [(kept.started_at - kept.at).total_seconds()]
    assert known.expected.tolist() == [(kept.expected - kept.at).total_seconds()]
    assert known.age.tolist() == [0]


def test_the_event_of_a_start_says_the_day_once() -> None:
    at = {"when": "within", "at": "2026-11-28T03:00:00+00:00", "earliest": "2026-11-28T03:08:00+00:00"}
    for latest, said in (
        ("2026-11-28T03:24:00+00:00", "between 28 Nov 2026 03:08 and 03:24 UTC"),
        ("2026-11-29T00:10:00+00:00", "between 28 Nov 2026 03:08 and 29 Nov 2026 00:10 UTC"),
        ("2026-11-28T03:08:09+00:00", "28 Nov 2026 03:08 UTC"),
    ):
        text = sentence(EventCode.EXPECTED_START, at | {"latest": latest})
        assert text == f"Started as expected, {said}"


def test_intervals_are_later_after_jobs_have_started_later_than_expected(lab: World) -> None:
    """Proves that outcomes are kept and used: later jobs in the same situation get later intervals."""

    def waits_until() -> timedelta:
        Cluster.objects.update(last_round_at=now_from_database())
        forecast(lab)
        one = JobForecast.objects.get(job=waiting)
        assert one.starts_by is not None
        return one.starts_by - now_from_database()

    waiting = waits(lab)
    before = waits_until()
    [kept] = KeptForecast.objects.filter(job=waiting)
    other = lab.submit(lab.people.bob, lab.people.astro, gpus=1)
    late = KeptForecast(
        cluster=lab.cluster, job=other, is_first=True, at=kept.at - timedelta(days=1), age=kept.age,
        expected=kept.expected - timedelta(days=1), earliest=kept.earliest, latest=kept.latest,
        started_at=kept.at, closed_at=kept.at,
    )  # fmt: skip
    KeptForecast.objects.bulk_create([copy(late) for _ in range(30)])
    assert waits_until() > before * 2


def test_a_start_is_expected_later_if_jobs_like_the_running_one_have_run_for_long_without_an_end(
    lab: World,
) -> None:
    cast, now = lab.people, now_from_database()
    lab.submit(cast.bob, cast.astro, gpus=4)
    lab.quantum()
    lab.carry_out()
    lab.submit(cast.bob, cast.astro, gpus=4)
    lab.fill()
    others = [lab.submit(cast.bob, cast.astro, gpus=4).pk for _ in range(24)]
    ran = Job.objects.filter(pk__in=others)
    ran.update(
        first_started_at=F("created_at"),
        first_generation_id=lab.cluster.nodes.values_list("generation")[:1],
        epoch=1,
        held_for=timedelta(minutes=10),
        not_before=now + timedelta(days=1),
    )
    ran.filter(pk__in=others[:12]).update(state=Job.State.SUCCEEDED, ended_at=now_from_database())
    later = ran.filter(pk__in=others[12:])
    expected = []
    for held in (timedelta(minutes=1), timedelta(hours=5)):
        later.update(held_for=held)
        Cluster.objects.update(last_round_at=now_from_database())
        assert forecast(lab) == 1
        expected.append(JobForecast.objects.get().starts_by)
    assert expected[1] - expected[0] > timedelta(minutes=30)


def test_an_outcome_counts_once_however_often_forecasts_run(lab: World) -> None:
    waiting = waits(lab)
    passed(lab, waiting, started=timedelta(seconds=1))
    before = list(KeptForecast.objects.order_by("pk").values())
    Cluster.objects.update(last_round_at=now_from_database())
    forecast(lab)
    assert list(KeptForecast.objects.filter(job=waiting).order_by("pk").values()) == before
    assert waiting.events.filter(code=EventCode.EXPECTED_START).count() == 1


def test_a_job_that_is_cancelled_while_it_waits_teaches_only_how_long_it_waited(lab: World) -> None:
    waiting = waits(lab)
    KeptForecast.objects.filter(job=waiting).update(
        earliest=F("at") + timedelta(hours=1), latest=F("at") + timedelta(hours=2)
    )
    now = now_from_database()
    Job.objects.filter(pk=waiting.pk).update(state=Job.State.CANCELLED, ended_at=now)
    Cluster.objects.update(last_round_at=now)
    forecast(lab)
    [kept] = KeptForecast.objects.filter(job=waiting)
    assert (kept.closed_at, kept.started_at) == (now, None)
    known = outcomes_of(lab.cluster, now=now_from_database())
    assert known.started.tolist() == [False]
    assert known.waited.tolist() == [(now - kept.at).total_seconds()]
    assert not waiting.events.filter(code=EventCode.EXPECTED_START).exists()


def test_forecasts_of_a_waiting_job_are_kept_each_time_it_has_waited_twice_as_long(lab: World) -> None:
    waiting = waits(lab)
    quantum = lab.cluster.effective_quantum
    for waited, kept in ((2, 1), (5, 2), (6, 2), (11, 3)):
        first = KeptForecast.objects.filter(job=waiting, is_first=True)
        now = now_from_database()
        before = list(KeptForecast.objects.filter(job=waiting).order_by("-at"))
        moved = now - timedelta(seconds=waited * quantum) - first.get().at
        for row in before:
            row.at, row.earliest, row.latest = row.at + moved, row.earliest + moved, row.latest + moved
            row.expected += moved
            row.save()
        Cluster.objects.update(last_round_at=now)
        forecast(lab)
        assert KeptForecast.objects.filter(job=waiting).count() == kept, waited
