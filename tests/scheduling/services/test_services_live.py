"""Tests services whose replicas run as real processes on the local backend: replicas answer, crash, become unready and
are replaced."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from accounting.core.clock import now_from_database
from scheduling.backends.local.files import JobFiles
from scheduling.clusters.backend_factory import backend_for
from scheduling.core.service_texts import service_text_of
from scheduling.execution.operations import perform_operations
from scheduling.execution.reconcile import observe
from scheduling.models import Job, Lease, Service
from scheduling.services.actions import change_service, create_service
from scheduling.services.replicas import step_service
from scheduling.spec.job_spec import JobSpec
from tests.scheduling.leases.test_whole_life import end_all
from tests.scheduling.world import World, world
from tests.waiting import wait_for

pytestmark = pytest.mark.django_db

# A file server, which is ready as soon as it listens. It answers with HTTP status 404 if the path names no file.
SERVE = """python -c '
import os, signal, sys
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
for name in ("{version}", "well"):
    open(name, "w").close()
ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), SimpleHTTPRequestHandler).serve_forever()
'"""

PATIENT = {"readiness_failures": 30}  # so that a slow answer does not make a replica unready


@pytest.fixture
def lab(jobs_folder: Path) -> Iterator[World]:
    made = world(v100=4)
    backend_for(made.cluster).prepare()
    yield made
    end_all(made)


def spec(version: str = "one", **fields: Any) -> JobSpec:
    usual = {
        "name": "files", "command": SERVE.format(version=version), "port": 8000, "readiness_path": "/well",
        "readiness_period_seconds": 1, "readiness_failures": 1, "checkpoint_grace_seconds": 5,
    }  # fmt: skip
    return JobSpec(**(usual | fields))


def serve(lab: World, replicas: int, **rules: Any) -> Service:
    return create_service(
        actor=lab.people.bob,
        tenant=lab.people.astro,
        cluster=lab.cluster,
        spec=rules.pop("spec", spec()),
        replicas=replicas,
        **rules,
    )


def until(lab: World, service: Service, probe: Callable[[], object], what: str) -> None:
    """Does repeatedly what Celery beat, the worker and the watcher do, until `probe` returns a true value.

    `what` describes the expected result, for the error message.
    """

    def look() -> object:
        step_service(service_id=service.pk)
        lab.fill()
        perform_operations(cluster=lab.cluster, log_limit_bytes=10_000_000)
        observe(lab.cluster)
        return probe()

    def how() -> str:
        jobs = Job.objects.filter(service=service).values_list("name", "state", "end_code", "end_message")
        return f"{what}; {list(jobs)}, {[service_text_of(event) for event in service.events.all()]}"

    wait_for(look, what=how)


def ready(service: Service, version: str) -> int:
    """Sends a request to each ready replica; returns how many of them run `version`.

    A replica answers with a list of the files in its folder. One of these files is named after its version.
    """
    leases = Lease.objects.ready().filter(job__service=service)
    count = 0
    for address in leases.values_list("address", flat=True):
        with urllib.request.urlopen(f"http://{address}/", timeout=60) as answer:
            count += f">{version}<" in answer.read().decode()
    return count


def living(service: Service) -> list[Job]:
    return list(Job.objects.filter(service=service).unfinished().order_by("slot"))


def test_replicas_answer_are_scaled_and_change_to_another_revision_without_a_gap(lab: World) -> None:
    service = serve(lab, 2, spec=spec(**PATIENT))
    until(lab, service, lambda: ready(service, "one") == 2, "two answer")
    change_service(actor=lab.people.bob, service=service, replicas=3)
    until(lab, service, lambda: ready(service, "one") == 3, "three answer")
    change_service(actor=lab.people.bob, service=service, spec=spec("two", **PATIENT))
    least = 3

    def changed() -> bool:
        nonlocal least
        least = min(least, Lease.objects.ready().filter(job__service=service).count())
        return ready(service, "two") == 3 and len(living(service)) == 3

    until(lab, service, changed, "all are of the second revision")
    assert least == 3
    service.refresh_from_db()
    assert service.good == service.current
    change_service(actor=lab.people.bob, service=service, replicas=0)
    until(lab, service, lambda: not living(service), "none is left")
    ends = Job.objects.filter(service=service).values_list("state", flat=True)
    assert set(ends) <= {Job.State.CANCELLED, Job.State.SUCCEEDED}, "each had its grace and used it"


def test_a_replica_that_is_not_well_is_not_ready_until_it_is(lab: World) -> None:
    service = serve(lab, 2)
    until(lab, service, lambda: ready(service, "one") == 2, "two answer")
    first, second = living(service)
    well = JobFiles(backend_for(lab.cluster).root, first.pk).folder / "work" / "rank-0" / "well"
    well.unlink()  # the readiness probe now gets HTTP status 404
    leases = Lease.objects.ready().filter(job__service=service)
    until(lab, service, lambda: [lease.job for lease in leases.all()] == [second], "one is not ready")
    well.touch()
    until(lab, service, lambda: ready(service, "one") == 2, "it is ready again")
    changes = [event.kind for event in first.events.filter(kind__in=["ready", "unready"]).order_by("id")]
    # On a slow machine a late answer may have made the replica unready at other times, too.
    assert changes == ["ready", "unready"] * (len(changes) // 2) + ["ready"]
    assert len(changes) >= 3


def test_a_revision_that_crashes_is_rolled_back_and_the_good_one_answers_all_the_time(lab: World) -> None:
    service = serve(lab, 2, progress_deadline_seconds=600, spec=spec(**PATIENT))
    until(lab, service, lambda: ready(service, "one") == 2, "two answer")
    change_service(actor=lab.people.bob, service=service, spec=spec(command="echo broken; exit 3", **PATIENT))
    bad = Job.objects.filter(service=service, revision__number=2)
    until(lab, service, lambda: bad.filter(state=Job.State.FAILED).exists(), "it crashes")
    assert ready(service, "one") == 2
    Service.objects.filter(pk=service.pk).update(progress_at=now_from_database() - timedelta(seconds=601))
    until(lab, service, lambda: Service.objects.get(pk=service.pk).current.number == 1, "it goes back")
    until(lab, service, lambda: not bad.unfinished().exists(), "nothing is left of the bad one")
    assert len(living(service)) == 2
    assert ready(service, "one") == 2
    assert "exited with code 3" in service.revisions.get(number=2).why_failed
    texts = [service_text_of(event) for event in service.events.filter(kind="rolled_back")]
    assert len(texts) == 1
    assert texts[0].endswith("Rolled back to revision 1")
