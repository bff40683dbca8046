"""Each situation in which a job waits offers what would help. After that is done, the job or its clone starts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import pytest

from accounting.actions import remove_quota, set_quota
from accounting.actions.tenants import archive_tenant
from accounting.actions.users import deactivate_user
from accounting.core.clock import now_from_database
from accounting.core.errors import NotAllowed, Refused
from accounting.models import AuditEvent, Quota, User
from fairshare.model import Reason
from scheduling.anomalies.history_reader import read_past
from scheduling.backends.base import End, Phase
from scheduling.clusters.actions import pause_cluster, resume_cluster
from scheduling.core.event_texts import text_of
from scheduling.draining.actions import drain_node, return_node
from scheduling.jobs.actions import cancel_job
from scheduling.jobs.explain import Explainer, explain
from scheduling.jobs.remedies import TRIED_NOW, RemedyCode, apply_remedy, remedies_of, try_now
from scheduling.jobs.submitting import submit_job
from scheduling.models import Job, Lease, Node, Service, ShareBalance
from scheduling.services.actions import change_service, create_service
from scheduling.services.replicas import step_service
from scheduling.sessions.actions import start_session
from scheduling.spec.job_spec import JobSpec
from scheduling.spec.retries import Retries
from tests import make
from tests.scheduling.world import World, start, world

pytestmark = pytest.mark.django_db(transaction=True)
Kind = Quota.Kind


def waits(lab: World, reason: Reason, **fields: Any) -> Job:
    """Submits a job of Bob's in Astro and runs a round. The job must wait for `reason`."""
    job = lab.submit(lab.people.bob, lab.people.astro, **fields)
    lab.fill()
    return now_waits(job, reason)


def now_waits(job: Job, reason: Reason) -> Job:
    job.refresh_from_db()
    assert (job.state in Job.WAITING, Reason(job.reason)) == (True, reason)
    return job


def offered(job: Job, *readers: User) -> list[list[RemedyCode]]:
    return [[one.code for one in remedies_of(job, reader=reader)] for reader in readers]


def clone(job: Job, code: RemedyCode) -> Job:
    """Submits the clone that the remedy proposes."""
    [remedy] = [one for one in remedies_of(job, reader=job.owner) if one.code == code]
    spec = JobSpec.parse(job.spec | remedy.changes)
    return submit_job(actor=job.owner, tenant=job.tenant, cluster=job.cluster, spec=spec, even_if_never=False)


def starts(lab: World, job: Job, rounds: Iterable[Callable[[], object]] = ()) -> None:
    for run in rounds or (lab.fill, lab.carry_out):
        run()
    assert lab.states([job])[0] in {Job.State.STARTING, Job.State.RUNNING}


def test_gpu_type_not_in_the_cluster_accept_every_type() -> None:
    lab = world(v100=4, a100=4)
    pause_cluster(actor=lab.people.olga, cluster=lab.cluster, reason="")
    job = lab.submit(lab.people.bob, lab.people.astro, generations=["A100"])
    Node.objects.filter(name="a100-0").delete()
    resume_cluster(actor=lab.people.olga, cluster=lab.cluster)
    lab.fill()
    now_waits(job, Reason.NEVER_NO_SUCH_GENERATION)
    assert offered(job, lab.people.bob) == [[RemedyCode.EVERY_TYPE]]
    apply_remedy(actor=lab.people.bob, job=job, code="every_type")
    starts(lab, job)


def test_larger_than_the_cluster_clone_with_fewer_workers() -> None:
    lab = world(v100=5)
    job = waits(lab, Reason.NEVER_TOO_LARGE, workers=3, gpus=2)
    [remedy] = remedies_of(job, reader=lab.people.bob)
    assert (remedy.label, remedy.changes) == ("Clone with 2 × 2 GPUs", {"workers": 2, "gpus_per_worker": 2})
    starts(lab, clone(job, RemedyCode.FEWER_WORKERS))


def test_an_elastic_job_waits_clone_with_a_smaller_least() -> None:
    lab = world(v100=4)
    lab.submit(lab.people.charlie, lab.people.bio, gpus=2)
    lab.fill()
    lab.carry_out()
    job = lab.submit(lab.people.bob, lab.people.astro, workers=4, max_workers=8)
    lab.fill()
    job.refresh_from_db()
    assert job.reason in {Reason.SHARE_IN_USE, Reason.FRAGMENTED}
    [remedy] = [
        one for one in remedies_of(job, reader=lab.people.bob) if one.code is RemedyCode.FEWER_WORKERS
    ]
    assert remedy.label == "Clone with at least 2 × 1 GPUs"
    smaller = clone(job, RemedyCode.FEWER_WORKERS)
    assert (smaller.workers, smaller.max_workers) == (2, 8)
    starts(lab, smaller)


def test_no_node_is_large_enough_clone_with_smaller_workers() -> None:
    lab = world(v100=4)
    lab.node("v100-1", lab.people.v100, 4)
    job = waits(lab, Reason.NEVER_WORKER_TOO_LARGE, gpus=6)
    smaller = clone(job, RemedyCode.OTHER_SHAPE)
    assert (smaller.workers, smaller.gpus_per_worker) == (2, 3)
    starts(lab, smaller)


@pytest.mark.parametrize(
    ("kind", "least", "gpus", "reason"),
    [
        (Kind.GPUS, 1, 2, Reason.NEVER_OVER_QUOTA),
        (Kind.GPUS, 2, 2, Reason.QUOTA_IN_USE),
        (Kind.GPU_HOURS, 0, 2, Reason.HOURS_SPENT),
        (Kind.BORROWED, 0, 2, Reason.BORROWED_ENOUGH),
    ],
)
def test_a_limit_blocks_managers_ask_for_a_larger_one(
    kind: str, least: int, gpus: int, reason: Reason
) -> None:
    lab = world(v100=4)
    cast = lab.people
    set_quota(actor=None, tenant=cast.astro, kind=kind, limit=least)
    if reason is Reason.QUOTA_IN_USE:
        start(lab, gpus=1)
    if reason is Reason.BORROWED_ENOUGH:
        lab.submit(cast.charlie, cast.bio, gpus=2)
        start(lab, gpus=2)
    job = waits(lab, reason, gpus=gpus)
    of_alice, of_bob = offered(job, cast.alice, cast.bob)
    assert RemedyCode.ASK_FOR_LIMIT in of_alice
    assert RemedyCode.ASK_FOR_LIMIT not in of_bob
    Quota.objects.all().delete()
    for other in Job.objects.filter(owner=cast.charlie):
        lab.see(lab.lease(other), Phase.ENDED, end=End.SUCCEEDED)
    starts(lab, job)


@pytest.mark.parametrize(
    ("kind", "least", "reason"),
    [
        (Kind.GPUS, 1, Reason.NEVER_OVER_QUOTA),
        (Kind.GPUS, 2, Reason.QUOTA_IN_USE),
        (Kind.GPU_HOURS, 0, Reason.HOURS_SPENT),
    ],
)
def test_a_limit_of_managers_leads_to_them(kind: str, least: int, reason: Reason) -> None:
    lab = world(v100=4)
    cast = lab.people
    quota = set_quota(actor=cast.alice, tenant=cast.astro, kind=kind, limit=least, user=cast.bob)
    if reason is Reason.QUOTA_IN_USE:
        start(lab, gpus=1)
    job = waits(lab, reason, gpus=2)
    of_alice, of_bob, of_olga = offered(job, cast.alice, cast.bob, cast.olga)
    assert RemedyCode.CHANGE_LIMIT in of_alice
    assert RemedyCode.ASK_MANAGER in of_bob
    assert not {RemedyCode.CHANGE_LIMIT, RemedyCode.ASK_MANAGER} & set(of_olga)
    said = explain(job, reader=cast.bob)
    assert "bob in Astro" in said.sentence
    if reason is not Reason.NEVER_OVER_QUOTA:
        assert any("a manager of Astro raises the limit" in line for line in said.unblock), said
    remove_quota(actor=cast.alice, quota=quota)
    starts(lab, job)


def test_others_are_owed_more_accept_every_type() -> None:
    lab = world(v100=4, a100=4)
    cast = lab.people
    lab.submit(cast.charlie, cast.bio, gpus=4, generations=["V100"])
    lab.fill()
    lab.carry_out()
    job = waits(lab, Reason.SHARE_IN_USE, gpus=4, generations=["V100"])
    assert offered(job, cast.bob, cast.alice) == [
        [RemedyCode.EVERY_TYPE],
        [RemedyCode.EVERY_TYPE, RemedyCode.ASK_FOR_TICKETS],
    ]
    apply_remedy(actor=cast.bob, job=job, code="every_type")
    starts(lab, job)


def test_the_owners_other_jobs_go_first_run_this_one_first() -> None:
    lab = world(v100=4)
    cast = lab.people
    running = start(lab, gpus=4)
    first = lab.submit(cast.bob, cast.astro, gpus=4)
    job = waits(lab, Reason.OWN_JOBS_AHEAD, gpus=4)
    apply_remedy(actor=cast.bob, job=job, code="run_first")
    lab.see(lab.lease(running), Phase.ENDED, end=End.SUCCEEDED)
    starts(lab, job)
    assert lab.states([first]) == [Job.State.QUEUED]
    with pytest.raises(Refused, match="situation has changed"):
        apply_remedy(actor=cast.bob, job=Job.objects.get(pk=job.pk), code="run_first")


def session_and_service(lab: World) -> tuple[Job, Service]:
    """Bob's session holds 1 GPU, and his service holds 2."""
    cast = lab.people
    place = {"actor": cast.bob, "tenant": cast.astro, "cluster": lab.cluster}
    session = start_session(**place, spec=JobSpec(name="stars", command="serve", port=8888))
    service = create_service(**place, spec=JobSpec(name="api", command="serve", port=8000), replicas=2)
    step_service(service_id=service.pk)
    lab.fill()
    lab.carry_out()
    return session.job, service


def test_the_owners_session_and_service_hold_the_share_stop_or_scale_them() -> None:
    lab = world(v100=4)
    cast = lab.people
    session, service = session_and_service(lab)
    job = waits(lab, Reason.SHARE_IN_USE, gpus=4)
    later = waits(lab, Reason.OWN_JOBS_AHEAD, gpus=4)
    named = (
        "The owner's service “api” (2 GPUs) and session “stars” (1 GPU) hold 3 GPUs, and the owner's share"
    )
    assert named in explain(job, reader=cast.bob).sentence
    assert named in explain(later, reader=cast.bob).sentence
    assert offered(later, cast.bob) == [
        [RemedyCode.STOP_SESSION, RemedyCode.SCALE_SERVICE, RemedyCode.RUN_FIRST]
    ]
    found = {one.code: one for one in remedies_of(job, reader=cast.bob)}
    stop, scale = found[RemedyCode.STOP_SESSION], found[RemedyCode.SCALE_SERVICE]
    assert (stop.label, stop.target) == ("Stop session “stars”", session.pk)
    assert (scale.label, scale.target) == ("Scale service “api”", service.pk)
    assert {RemedyCode.STOP_SESSION, RemedyCode.SCALE_SERVICE}.isdisjoint(*offered(job, cast.charlie))
    cancel_job(actor=cast.bob, job=session)
    change_service(actor=cast.bob, service=service, replicas=0)
    step_service(service_id=service.pk)
    starts(lab, job, (lab.carry_out, lab.fill, lab.carry_out))
    assert remedies_of(Job.objects.get(pk=job.pk), reader=cast.bob) == []


def test_holders_of_other_gpu_types_and_the_own_service_are_not_named() -> None:
    lab = world(v100=4, a100=4)
    session_and_service(lab)
    held = set(Lease.objects.filter(job__kind=Job.Kind.SESSION).values_list("generation__name", flat=True))
    [other] = {"V100", "A100"} - held
    job = lab.submit(lab.people.bob, lab.people.astro, gpus=4, generations=[other])
    named = {one.name for one in Explainer(lab.cluster).holders(job)}
    assert "stars" not in named
    replica = Job.objects.filter(kind=Job.Kind.REPLICA).earliest("pk")
    replica.gpus_per_worker, replica.generation_ids = 8, []
    assert [one.name for one in Explainer(lab.cluster).holders(replica)] == ["stars"]


def test_within_the_share_no_holder_is_named() -> None:
    lab = world(v100=4)
    session_and_service(lab)
    job = lab.submit(lab.people.bob, lab.people.astro)
    ShareBalance.objects.filter(user=lab.people.bob).update(share=4)
    assert Explainer(lab.cluster).holders(job) == []
    ShareBalance.objects.filter(user=lab.people.bob).update(share=3)
    assert len(Explainer(lab.cluster).holders(job)) == 2


def test_free_gpus_are_scattered_clone_with_smaller_workers() -> None:
    lab = world(v100=3)
    lab.node("v100-1", lab.people.v100, 3)
    for _ in range(2):
        start(lab, gpus=2)
    job = waits(lab, Reason.FRAGMENTED, gpus=2)
    smaller = clone(job, RemedyCode.OTHER_SHAPE)
    assert (smaller.workers, smaller.gpus_per_worker) == (2, 1)
    starts(lab, smaller)


def test_preemptible_end_that_mode() -> None:
    lab = world(v100=4)
    cast = lab.people
    other = lab.submit(cast.charlie, cast.bio, gpus=4)
    lab.fill()
    lab.carry_out()
    job = waits(lab, Reason.PREEMPTIBLE, gpus=4, preemptible=True)
    apply_remedy(actor=cast.bob, job=job, code="end_preemptible")
    lab.contest(other)
    starts(lab, job, (lab.carry_out, lab.quantum, lab.carry_out))


def test_a_start_has_failed_try_again_now() -> None:
    lab = world(v100=4)
    cast = lab.people
    job = lab.submit(cast.bob, cast.astro)
    lab.fill()
    lab.see(lab.lease(job), Phase.ENDED, end=End.START_FAILED, ended_age=0.0, message="no such program")
    lab.fill()
    now_waits(job, Reason.BACKING_OFF)
    assert offered(job, cast.bob, cast.charlie) == [[RemedyCode.TRY_NOW], []]
    with pytest.raises(NotAllowed):
        try_now(actor=cast.charlie, job=job)
    apply_remedy(actor=cast.bob, job=job, code="try_now")
    assert text_of(job.events.get(kind=TRIED_NOW)) == "bob ended the pause after the failed attempt"
    assert AuditEvent.objects.get(verb="job.try_now").actor == cast.bob
    starts(lab, job)
    assert Job.objects.get(pk=job.pk).failed_starts == 1
    try_now(actor=cast.bob, job=job)
    assert AuditEvent.objects.filter(verb="job.try_now").count() == 1


def test_a_wait_that_a_user_ended_is_over_for_the_nightly_comparison() -> None:
    lab = world(v100=4)
    bob = lab.people.bob
    job = start(lab, retries=Retries(times=1, backoff_seconds=3600))
    lab.see(lab.lease(job), Phase.ENDED, end=End.FAILED, exit_code=1, ended_age=0.0)
    lab.fill()
    apply_remedy(actor=bob, job=now_waits(job, Reason.RETRYING), code="try_now")
    now = now_from_database()
    past = read_past(lab.cluster, now - timedelta(minutes=1), now + timedelta(hours=2)).past
    [known] = [one for one in past.jobs if one.key == job.pk]
    [wait] = known.ineligible
    assert wait.ends - wait.begins < 60
    starts(lab, job)


def test_the_cluster_is_paused_operators_resume_it() -> None:
    lab = world(v100=4)
    pause_cluster(actor=lab.people.olga, cluster=lab.cluster, reason="new switch")
    job = waits(lab, Reason.CLUSTER_PAUSED)
    assert offered(job, lab.people.olga, lab.people.bob) == [[RemedyCode.RESUME_CLUSTER], []]
    resume_cluster(actor=lab.people.olga, cluster=lab.cluster)
    starts(lab, job)


def test_nodes_are_drained_operators_return_them() -> None:
    lab = world(v100=4, a100=1)
    node = Node.objects.get(name="v100-0")
    drain_node(actor=lab.people.olga, node=node, reason="", mode="now")
    job = waits(lab, Reason.NODES_AWAY, gpus=1, generations=["V100"])
    assert offered(job, lab.people.olga, lab.people.bob) == [
        [RemedyCode.EVERY_TYPE, RemedyCode.RETURN_NODES],
        [RemedyCode.EVERY_TYPE],
    ]
    return_node(actor=lab.people.olga, node=node)
    starts(lab, job)


def test_the_team_is_archived_clone_in_another_team() -> None:
    lab = world(v100=4)
    cast = lab.people
    make.membership(cast.bob, cast.bio)
    job = lab.submit(cast.bob, cast.astro)
    archive_tenant(actor=cast.ada, tenant=cast.astro)
    lab.fill()
    now_waits(job, Reason.TEAM_ARCHIVED)
    assert offered(job, cast.bob, cast.charlie) == [[RemedyCode.OTHER_TEAM], [RemedyCode.OTHER_TEAM]]


def test_the_owner_may_not_run_jobs_managers_open_the_team() -> None:
    lab = world(v100=4)
    cast = lab.people
    job = lab.submit(cast.bob, cast.astro)
    deactivate_user(actor=cast.ada, user=cast.bob)
    lab.fill()
    now_waits(job, Reason.OWNER_MAY_NOT)
    assert offered(job, cast.alice, cast.ada, cast.charlie) == [[RemedyCode.HAND_OVER]] * 2 + [[]]


def test_a_running_job_that_own_jobs_are_ahead_of_run_this_job_first() -> None:
    lab = world(v100=4)
    job = start(lab, gpus=4)
    lab.submit(lab.people.bob, lab.people.astro, gpus=4, priority=5)
    lab.fill()
    assert offered(job, lab.people.bob, lab.people.alice) == [
        [RemedyCode.RUN_FIRST],
        [RemedyCode.RUN_FIRST, RemedyCode.ASK_FOR_TICKETS],
    ]
    apply_remedy(actor=lab.people.bob, job=job, code="run_first")
    job.refresh_from_db()
    assert (job.priority, offered(job, lab.people.bob)) == (6, [[]])


def test_running_jobs_ahead_of_all_and_ended_jobs_offer_nothing() -> None:
    lab = world(v100=4)
    job = start(lab)
    assert offered(job, lab.people.bob, lab.people.olga) == [[], []]
