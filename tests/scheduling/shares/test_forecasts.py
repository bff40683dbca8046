"""While a job waits, its owner sees a forecast of the latest time at which the job starts."""

from contextlib import closing
from datetime import timedelta

import pytest
from django.db import connection

from accounting.core.clock import now_from_database
from fairshare.model import Reason
from scheduling.core.locks import Lock
from scheduling.models import Cluster, Job, JobForecast
from scheduling.rounds.forecasts import forecast_starts
from tests.scheduling.world import World, world

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def lab() -> World:
    return world(v100=4)


def forecast(lab: World) -> int:
    return forecast_starts(cluster_id=lab.cluster.pk)


def test_each_waiting_job_has_a_latest_start_until_it_starts(lab: World) -> None:
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
    quantum = timedelta(seconds=lab.cluster.effective_quantum)
    assert one.job_id == waiting.pk
    assert one.starts_by is not None
    assert now < one.starts_by <= now + 3 * quantum
    Job.objects.filter(pk=running.pk).update(state=Job.State.SUCCEEDED, ended_at=now)
    Job.objects.filter(pk=waiting.pk).update(state=Job.State.RUNNING)
    assert forecast(lab) == 0
    assert JobForecast.objects.exists()  # no round has run since, so the forecast is kept
    Cluster.objects.update(last_round_at=now_from_database())
    assert forecast(lab) == 0
    assert not JobForecast.objects.exists()


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


def test_a_job_without_a_forecast_start_says_how_far_was_forecast(lab: World) -> None:
    cast = lab.people
    job = lab.submit(cast.bob, cast.astro, gpus=4)
    lab.cluster.nodes.update(state="drained")
    lab.quantum()
    job.refresh_from_db()
    assert forecast(lab) == 1
    one = JobForecast.objects.get()
    assert one.starts_by is None
    assert one.looked_until > now_from_database()
    Cluster.objects.update(paused_at=now_from_database())
    assert forecast(lab) == 0
