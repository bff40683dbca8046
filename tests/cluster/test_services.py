"""Tests that, on a real control plane, a service's endpoints always equal its ready replicas, through every change."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from accounting.core.clock import now_from_database
from scheduling.backends.kubernetes.api import Api as OwnApi
from scheduling.backends.kubernetes.api import Refused as OwnRefused
from scheduling.models import Job, Round, Service
from scheduling.rounds.actions import run_round
from scheduling.services.actions import change_service, create_service, remove_service
from scheduling.services.announcements import announce_service
from scheduling.services.replicas import step_service
from scheduling.spec.job_spec import JobSpec
from tests.cluster.api import PODS, Object, Refused

if TYPE_CHECKING:
    from tests.cluster.attached_lab import Lab

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.django_db(transaction=True)]

SLICES = "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices"
SERVICES = "/api/v1/namespaces/{}/services"


def spec(image: str = "example/serve", **fields: Any) -> JobSpec:
    return JobSpec(
        **({"name": "api", "command": "serve", "port": 8000, "checkpoint_grace_seconds": 1} | fields),
        environment=image,
    )


def serve(lab: Lab, replicas: int, **rules: Any) -> Service:
    return create_service(
        actor=lab.people.bob,
        tenant=lab.people.astro,
        cluster=lab.cluster,
        spec=spec(),
        replicas=replicas,
        **rules,
    )


def home(lab: Lab) -> str:
    return f"fairlot-{lab.people.astro.pk}"


def ready_addresses(lab: Lab) -> set[str]:
    """Returns the addresses of ready endpoints, to which Kubernetes sends requests for the service's DNS name."""
    slices = lab.admin.items(SLICES.format(home(lab)), labelSelector="kubernetes.io/service-name=api")
    return {
        address
        for slice_ in slices
        for endpoint in slice_.get("endpoints") or ()
        if endpoint["conditions"]["ready"]
        for address in endpoint["addresses"]
    }


def addresses_of(jobs: list[Job], lab: Lab) -> set[str]:
    return {pod["status"]["podIP"] for job in jobs for pod in lab.pods(job)}


def living(service: Service) -> list[Job]:
    return list(Job.objects.filter(service=service).unfinished().order_by("slot"))


def until(lab: Lab, service: Service, probe: Callable[[], object], what: str) -> None:
    """Repeats the work of Fairlot's background processes until `probe` returns a true value.

    The work: the service's rollout and endpoints, rounds, orders to the cluster, and observing the cluster. `what`
    describes the goal in the error message.
    """

    def look() -> object:
        step_service(service_id=service.pk)
        announce_service(service_id=service.pk)
        run_round(cluster_id=lab.cluster.pk, force=Round.Kind.FILL)
        return probe()

    def how_far() -> str:
        service.refresh_from_db()
        jobs = [f"{job.name}: {lab.story(job)}" for job in living(service)]
        slices = lab.admin.items(SLICES.format(home(lab)))
        return f"{what}; announced: {service.announced} {service.why_unknown}, {slices}, {jobs}"

    lab.until(look, how_far)


def is_up(lab: Lab, service: Service, replicas: int) -> bool:
    """Returns whether the service has exactly `replicas` replicas, all of the current revision, and exactly these are
    ready endpoints."""
    service.refresh_from_db()
    jobs = living(service)
    return (
        len(jobs) == replicas
        and all(job.revision_id == service.current_id for job in jobs)
        and len(ready_addresses(lab)) == replicas
        and ready_addresses(lab) == addresses_of(jobs, lab)
    )


def test_its_name_leads_to_ready_replicas_through_scaling_and_update(lab: Lab) -> None:
    service = serve(lab, 2)
    until(lab, service, lambda: is_up(lab, service, 2), "two are up")
    made = lab.admin.get(f"{SERVICES.format(home(lab))}/api")
    assert made["spec"]["type"] == "ClusterIP"
    assert made["spec"]["ports"][0]["port"] == 80
    change_service(actor=lab.people.bob, service=service, replicas=3)
    until(lab, service, lambda: is_up(lab, service, 3), "three are up")
    change_service(actor=lab.people.bob, service=service, spec=spec("example/better", port=9000))
    least = 3

    def updated() -> bool:
        nonlocal least
        least = min(least, len(ready_addresses(lab)))
        return is_up(lab, service, 3)

    until(lab, service, updated, "the update is rolled out")
    assert least == 3, "never fewer were ready, as Kubernetes itself saw it"
    assert {job.revision.number for job in living(service)} == {2}
    change_service(actor=lab.people.bob, service=service, replicas=1)
    until(lab, service, lambda: is_up(lab, service, 1), "one is left")


def test_an_update_that_does_not_become_ready_is_rolled_back(lab: Lab) -> None:
    service = serve(lab, 2, progress_deadline_seconds=600)
    until(lab, service, lambda: is_up(lab, service, 2) and service.good, "two are up")
    good = addresses_of(living(service), lab)
    change_service(actor=lab.people.bob, service=service, spec=spec("unready/image"))

    def tries() -> bool:
        bad = [job for job in living(service) if job.revision.number == 2]
        return bool(bad) and bad[0].state == Job.State.RUNNING

    until(lab, service, tries, "the new revision runs")
    assert ready_addresses(lab) == good, "who runs and is not ready is not asked"
    Service.objects.filter(pk=service.pk).update(progress_at=now_from_database() - timedelta(seconds=601))
    until(lab, service, lambda: is_up(lab, service, 2), "it is back")
    assert service.current.number == 1
    assert ready_addresses(lab) == good
    assert service.events.filter(kind="rolled_back").count() == 1


def test_a_stopping_replica_is_out_of_the_endpoints_during_its_grace(lab: Lab) -> None:
    service = serve(lab, 1)
    until(lab, service, lambda: is_up(lab, service, 1), "one is up")
    [job] = living(service)
    lab.annotate(job, stop_after="3600")
    change_service(actor=lab.people.bob, service=service, stopped=True)
    until(lab, service, lambda: not ready_addresses(lab), "nobody is sent there any more")
    assert lab.pods(job), "although it is still there"
    lab.annotate(job, stop_after="0")
    until(lab, service, lambda: not living(service), "it is gone")


def test_a_removed_service_loses_its_name_and_a_deleted_name_is_created_again(lab: Lab) -> None:
    service = serve(lab, 1)
    until(lab, service, lambda: is_up(lab, service, 1), "one is up")
    lab.admin.delete(f"{SERVICES.format(home(lab))}/api")
    until(lab, service, lambda: is_up(lab, service, 1), "its name is back")
    remove_service(actor=lab.people.bob, service=service)

    def gone() -> bool:
        service.refresh_from_db()
        return not service.announced and not living(service)

    until(lab, service, gone, "all of it is gone")
    with pytest.raises(Refused, match="not found"):
        lab.admin.get(f"{SERVICES.format(home(lab))}/api")


def test_a_name_of_a_foreign_service_is_reported_and_left_alone(lab: Lab) -> None:
    first = serve(lab, 1)
    until(lab, first, lambda: is_up(lab, first, 1), "one is up")
    theirs: Object = {
        "metadata": {"name": "web"},
        "spec": {"ports": [{"port": 1}], "selector": {"app": "theirs"}},
    }
    lab.admin.create(SERVICES.format(home(lab)), theirs)
    second = create_service(
        actor=lab.people.bob, tenant=lab.people.astro, cluster=lab.cluster, spec=spec(name="web")
    )

    def told() -> str:
        second.refresh_from_db()
        return second.why_unknown

    until(lab, second, told, "it is told")
    assert second.why_unknown.endswith(
        f"the Service web in the namespace {home(lab)} does not belong to this Fairlot"
    )
    remove_service(actor=lab.people.bob, service=second)
    step_service(service_id=second.pk)
    announce_service(service_id=second.pk)
    assert lab.admin.get(f"{SERVICES.format(home(lab))}/web")["spec"]["selector"] == {"app": "theirs"}


def test_replicas_have_a_label_that_no_one_else_may_set(lab: Lab) -> None:
    service = serve(lab, 1)
    until(lab, service, lambda: is_up(lab, service, 1), "one is up")
    [pod] = lab.pods(living(service)[0])
    assert pod["metadata"]["labels"]["fairlot.io/service"] == str(service.pk)
    thief: Object = {
        "metadata": {"name": "thief", "labels": dict(pod["metadata"]["labels"])},
        "spec": {"containers": [{"name": "main", "image": "example/thief"}]},
    }
    with pytest.raises(Refused):
        lab.admin.create(PODS.format(home(lab)), thief)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"type": "LoadBalancer"}, "from outside the cluster"),
        ({"type": "NodePort"}, "from outside the cluster"),
        ({"externalIPs": ["192.0.2.7"]}, "from outside the cluster"),
        ({"type": "ExternalName", "externalName": "example.org"}, "from outside the cluster"),
        ({"selector": {"app": "theirs"}}, "must select pods of its jobs"),
        ({"selector": None}, "must select pods of its jobs"),
    ],
)
def test_fairlot_itself_cannot_expose_a_service(own: OwnApi, tenant: str, changed: Object, why: str) -> None:
    spec = {"ports": [{"port": 80}], "selector": {"fairlot.io/service": "1"}}
    with pytest.raises(OwnRefused, match=why):
        own.create(SERVICES.format(tenant), {"metadata": {"name": "door"}, "spec": spec | changed})
