"""Some jobs run as a pod without a Kubernetes Job. If such a pod vanishes although Fairlot did not order its stop, the
job's attempt counts as lost."""

from typing import Any

import pytest
from django.db import IntegrityError, transaction

from accounting.core.encryption import seal
from accounting.core.errors import NotAllowed
from scheduling.backends.base import End, Phase
from scheduling.clusters.attaching import set_bare_pods
from scheduling.jobs.secrets import create_secret
from scheduling.models import Cluster, ClusterAccess, Job
from scheduling.models.event_codes import EventCode
from scheduling.sessions.actions import start_session
from scheduling.spec.job_spec import JobSpec
from tests.scheduling.world import World, start, world

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def lab() -> World:
    """Returns a world with an attached cluster that allows pods without a Job. No test calls its API server."""
    made = world(v100=4, backend=Cluster.Backend.KUBERNETES)
    ClusterAccess.objects.create(
        cluster=made.cluster, sealed_kubeconfig=seal(b"{}"), server="https://east:6443", bare_pods=True
    )
    return made


def submit(lab: World, **fields: Any) -> Job:
    return lab.submit(lab.people.bob, lab.people.astro, environment="example/train", **fields)


def test_jobs_of_one_worker_that_need_nothing_else_are_bare_pods_where_an_admin_wants_it(lab: World) -> None:
    assert submit(lab, gpus=4).is_bare_pod
    assert not submit(lab, workers=2).is_bare_pod
    assert not submit(lab, port=8000).is_bare_pod
    create_secret(actor=lab.people.bob, name="hf-token", values={"value": "hidden"}, tenant=None)
    assert not submit(lab, secrets={"HF_TOKEN": "hf-token"}).is_bare_pod
    session = start_session(
        actor=lab.people.bob,
        tenant=lab.people.astro,
        cluster=lab.cluster,
        spec=JobSpec(name="notebook", command="jupyter lab", environment="example/train", port=8888),
    )
    assert not session.job.is_bare_pod


def test_an_admins_choice_applies_to_later_jobs(lab: World) -> None:
    before = submit(lab)
    set_bare_pods(actor=lab.people.ada, cluster=lab.cluster, bare_pods=False)
    before.refresh_from_db()
    assert (before.is_bare_pod, submit(lab).is_bare_pod) == (True, False)
    with pytest.raises(NotAllowed):
        set_bare_pods(actor=lab.people.olga, cluster=lab.cluster, bare_pods=True)
    assert not ClusterAccess.objects.get().bare_pods


def test_the_database_takes_no_gang_for_a_bare_pod(lab: World) -> None:
    changes: list[dict[str, Any]] = [{"workers": 2}, {"kind": Job.Kind.SESSION}]
    job = Job.objects.filter(pk=submit(lab).pk)
    for change in changes:
        with (
            pytest.raises(IntegrityError, match="a_bare_pod_is_one_worker_that_ends"),
            transaction.atomic(),
        ):
            job.update(**change)


def test_deleting_a_running_pod_costs_its_job_an_attempt_and_does_not_end_it(lab: World) -> None:
    """If Fairlot did not order the stop of a pod, the attempt is lost, and the job waits for its next attempt. The pod
    does not say who deleted it."""
    job = start(lab, environment="example/train")
    lease = lab.lease(job)
    lab.see(lease, Phase.ENDED, end=End.STOPPED, ended_age=0.0, message="stopped by Fairlot")
    lease.refresh_from_db()
    assert (lease.end_reason, lab.states([job])) == (End.LOST, [Job.State.SUSPENDED])
    assert job.events.filter(detail__message="The processes were stopped, but not by Fairlot.").count() == 1


def test_a_pod_that_vanishes_after_its_stop_order_was_stopped(lab: World) -> None:
    job = start(lab, environment="example/train", gpus=4)
    lab.submit(lab.people.charlie, lab.people.bio, gpus=4, environment="example/train")
    lab.contest(job)
    lease = lab.lease(job)
    lab.see(lease, Phase.ENDED, end=End.STOPPED, ended_age=0.0, message="stopped by Fairlot")
    lease.refresh_from_db()
    assert lease.end_reason == End.STOPPED
    assert job.events.filter(code=EventCode.STOPPED).exists()
