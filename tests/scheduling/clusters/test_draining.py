"""No gang starts on a drained node. A gang that already runs there may finish, or is stopped at a deadline or
immediately."""

from __future__ import annotations

from datetime import timedelta

import pytest

from accounting.closing.gpu_classes import Availability
from accounting.core.clock import now_from_database
from accounting.core.errors import NotAllowed, Refused
from accounting.models import AuditEvent, Quota
from fairshare.model import Reason
from scheduling.advance.actions import cancel_advance_reservation, reserve_in_advance
from scheduling.advance.proposals import Terms
from scheduling.books.closing import AVAILABILITY
from scheduling.clusters.actions import declare_node, remove_node
from scheduling.core.event_texts import text_of
from scheduling.draining.actions import (
    DrainMode,
    drain_node,
    drain_nodes,
    drains_due,
    end_drain,
    return_node,
    return_nodes,
)
from scheduling.draining.consequences import consequences_of
from scheduling.draining.drained_jobs import jobs_to_drain
from scheduling.jobs.actions import cancel_job
from scheduling.models import Cluster, HeldGpu, Job, Lease, Node, NodeChange
from scheduling.services.actions import create_service
from scheduling.services.replicas import step_service
from scheduling.spec.job_spec import JobSpec, SpecError
from scheduling.tasks import end_drains
from tests.scheduling.world import World, world

pytestmark = pytest.mark.django_db


def running(lab: World, **spec: object) -> Job:
    """Submits a job of Bob's in Astro, starts it, and returns it."""
    job = lab.submit(lab.people.bob, lab.people.astro, **spec)
    lab.fill()
    lab.carry_out()
    return job


def over(node: Node) -> None:
    """Sets the node's drain deadline to a second ago."""
    Node.objects.filter(pk=node.pk).update(drain_deadline=now_from_database() - timedelta(seconds=1))


def test_gangs_on_a_drained_node_continue_and_nothing_starts_there() -> None:
    lab = world(v100=4)
    stays, node = running(lab, gpus=2), lab.cluster.nodes.get()
    drain_node(actor=lab.people.olga, node=node, reason="new fan")
    waits = [lab.submit(lab.people.charlie, lab.people.bio, gpus=2) for _ in range(2)]
    for _ in range(3):  # three quanta, so that the result does not depend on which team is owed more
        lab.pass_time(600)
        lab.quantum()
        lab.carry_out()
    assert lab.states([stays, *waits]) == [Job.State.RUNNING, Job.State.QUEUED, Job.State.QUEUED]
    cancel_job(actor=lab.people.bob, job=stays)
    lab.carry_out()
    lab.quantum()
    assert lab.states(waits) == [Job.State.QUEUED] * 2
    return_node(actor=lab.people.olga, node=node)
    lab.quantum()
    assert lab.states(waits) == [Job.State.STARTING] * 2


def test_a_gang_on_a_drained_node_finishes_and_no_gang_of_its_team_follows() -> None:
    lab = world(v100=4)
    lab.node("v100-1", lab.people.v100)
    gang = running(lab, workers=2, gpus=4)
    node = lab.cluster.nodes.get(name="v100-0")
    (concerned,) = jobs_to_drain([node], lab.people.olga).seen
    assert (concerned.gpus, concerned.gpus_elsewhere) == (4, 4)
    drain_node(actor=lab.people.olga, node=node, reason="fan")
    rival = lab.submit(lab.people.charlie, lab.people.bio, gpus=4)
    like_it = lab.submit(lab.people.bob, lab.people.astro, workers=2, gpus=4)
    lab.contest(gang)
    assert lab.states([gang, rival, like_it]) == [Job.State.RUNNING, Job.State.QUEUED, Job.State.QUEUED]
    cancel_job(actor=lab.people.bob, job=gang)
    lab.carry_out()
    lab.fill()
    assert lab.states([rival, like_it]) == [Job.State.STARTING, Job.State.QUEUED]
    assert {gpu.node.name for gpu in lab.lease(rival).held_gpus.all()} == {"v100-1"}


def test_a_drain_deadline_stops_running_gangs_once() -> None:
    lab = world(v100=4)
    job, node = running(lab, gpus=2), lab.cluster.nodes.get()
    deadline = now_from_database() + timedelta(hours=1)
    drain_node(actor=lab.people.olga, node=node, reason="fan", mode="deadline", deadline=deadline)
    node.refresh_from_db()
    assert (node.state, node.drain_deadline) == (Node.State.DRAINED, deadline)
    assert drains_due(now_from_database()) == []
    assert end_drain(node_id=node.pk) is False
    over(node)
    end_drains()
    assert (lab.lease(job).state, lab.states([job])) == (Lease.State.STOPPING, [Job.State.STOPPING])
    assert "is being drained: fan" in text_of(job.events.latest("id"))
    event = AuditEvent.objects.latest("id")
    assert (event.verb, event.actor) == ("node.drain_deadline", None)
    assert drains_due(now_from_database()) == []
    lab.carry_out()
    assert lab.states([job]) == [Job.State.SUSPENDED]


def test_a_node_that_is_returned_before_its_deadline_loses_no_job() -> None:
    lab = world(v100=4)
    job, node = running(lab), lab.cluster.nodes.get()
    deadline = now_from_database() + timedelta(hours=1)
    drain_node(actor=lab.people.olga, node=node, reason="fan", mode="deadline", deadline=deadline)
    return_node(actor=lab.people.olga, node=node)
    node.refresh_from_db()
    assert node.drain_deadline is None
    end_drains()
    lab.quantum()
    assert lab.states([job]) == [Job.State.RUNNING]


def test_a_drain_may_be_hurried_or_given_more_time() -> None:
    lab = world(v100=4)
    job, node = running(lab), lab.cluster.nodes.get()
    soon = now_from_database() + timedelta(hours=1)
    drain_node(actor=lab.people.olga, node=node, reason="fan", mode="deadline", deadline=soon)
    drain_node(actor=lab.people.olga, node=node, reason="fan")
    node.refresh_from_db()
    assert node.drain_deadline is None
    drain_node(actor=lab.people.olga, node=node, reason="fire", mode=DrainMode.NOW)
    assert lab.states([job]) == [Job.State.STOPPING]


@pytest.mark.parametrize(
    ("mode", "hours", "field"),
    [
        ("gently", None, "mode"),
        ("deadline", None, "deadline"),
        ("deadline", -1, "deadline"),
        ("now", 1, "deadline"),
    ],
)
def test_a_drain_that_says_two_things_is_refused(mode: str, hours: int | None, field: str) -> None:
    lab = world(v100=4)
    deadline = None if hours is None else now_from_database() + timedelta(hours=hours)
    with pytest.raises(Refused) as refused:
        drain_node(
            actor=lab.people.olga, node=lab.cluster.nodes.get(), reason="", mode=mode, deadline=deadline
        )
    assert refused.value.field == field
    with pytest.raises(NotAllowed):
        drain_node(actor=lab.people.alice, node=lab.cluster.nodes.get(), reason="")


def test_where_gangs_are_frozen_one_on_a_drained_node_saves_and_stops_instead() -> None:
    """On a cluster that freezes preempted gangs, a gang on a drained node is stopped instead, because a frozen gang
    could not resume there.

    The gang must give up its GPUs because its team has reached a limit.
    """
    lab = world(v100=4)
    Cluster.objects.filter(pk=lab.cluster.pk).update(slicing=Cluster.Slicing.FREEZE)
    gang = running(lab, gpus=4)
    drain_node(actor=lab.people.olga, node=lab.cluster.nodes.get(), reason="fan")
    # A waiting job would not preempt the gang, because no job can start on a drained node.
    Quota.objects.create(tenant=lab.people.uni, kind=Quota.Kind.GPU_HOURS, period="month", limit=1)
    lab.age(lab.lease(gang), 3600)
    lab.quantum()
    lease = lab.lease(gang)
    assert lease.state == Lease.State.STOPPING
    assert set(lease.operations.values_list("verb", flat=True)) == {"start", "stop"}


def test_a_drained_nodes_gpus_are_busy_while_they_are_held_and_drained_when_they_are_free() -> None:
    # The class DRAINED counts only the time in which no gang holds the GPU.
    assert AVAILABILITY[Node.State.DRAINED] is Availability.DRAINED


def test_a_drain_shows_the_affected_jobs_that_the_reader_may_see() -> None:
    lab = world(v100=8)
    mine = running(lab, gpus=2)
    running_of_others = lab.submit(lab.people.charlie, lab.people.bio)
    lab.fill()
    lab.carry_out()
    Quota.objects.create(tenant=lab.people.astro, kind=Quota.Kind.LONGEST_RUN, limit=3)
    node = lab.cluster.nodes.get()
    for_olga = jobs_to_drain([node], lab.people.olga)
    assert ([one.job for one in for_olga.seen], for_olga.hidden) == ([mine, running_of_others], 0)
    for_bob = jobs_to_drain([node], lab.people.bob)
    assert ([one.job for one in for_bob.seen], for_bob.hidden) == ([mine], 1)
    (one,) = for_bob.seen
    assert (one.gpus, one.gpus_elsewhere) == (2, 0)
    assert one.since is not None
    assert one.ends is not None
    assert one.ends - one.since == timedelta(hours=3)


def test_a_node_with_a_past_is_removed_once_it_is_drained_and_its_past_stays() -> None:
    lab = world(v100=4)
    ada, cast = lab.people.ada, lab.people
    job, node = running(lab, gpus=2), lab.cluster.nodes.get()
    with pytest.raises(Refused, match="Drain v100-0 first"):
        remove_node(actor=ada, node=node)
    drain_node(actor=ada, node=node, reason="sold")
    with pytest.raises(Refused, match="Jobs still hold GPUs of v100-0"):
        remove_node(actor=ada, node=node)
    cancel_job(actor=cast.bob, job=job)
    lab.carry_out()
    remove_node(actor=ada, node=node)
    assert not lab.cluster.nodes.present().exists()
    assert lab.lease(job).held_gpus.filter(node=node).count() == 2
    assert list(NodeChange.objects.filter(node_id=node.pk).values_list("gpus", flat=True)) == [4, 4, 0]
    with pytest.raises(SpecError, match="lab has no GPUs of type V100"):
        lab.submit(cast.bob, cast.astro, generations=["V100"])
    lab.node("a100-0", cast.a100)
    waits, runs = lab.submit(cast.bob, cast.astro, gpus=8), lab.submit(cast.bob, cast.astro, gpus=2)
    lab.quantum()
    assert lab.states([waits, runs]) == [Job.State.QUEUED, Job.State.STARTING]
    waits.refresh_from_db()
    assert Reason(waits.reason) is Reason.NEVER_WORKER_TOO_LARGE, "the removed one counts no more"
    cancel_job(actor=cast.bob, job=waits)
    with pytest.raises(Refused, match="A node must have 1 to 64 GPUs"):
        declare_node(actor=ada, cluster=lab.cluster, name="v100-0", generation=cast.a100, gpus=65)
    again = declare_node(actor=ada, cluster=lab.cluster, name="v100-0", generation=cast.a100, gpus=8)
    assert (again.pk, again.state, again.gone_at) == (node.pk, Node.State.READY, None)
    assert lab.states([running(lab, gpus=8)]) == [Job.State.RUNNING]


def test_a_node_that_its_kubernetes_cluster_has_is_not_removed_here() -> None:
    lab = world(v100=4)
    Cluster.objects.update(backend=Cluster.Backend.KUBERNETES)
    node = lab.cluster.nodes.get()
    with pytest.raises(Refused, match="Remove the node in Kubernetes first"):
        remove_node(actor=lab.people.ada, node=node)
    Node.objects.update(gone_at=now_from_database())
    remove_node(actor=lab.people.ada, node=node)
    assert not Node.objects.exists(), "it never held a job"


@pytest.mark.parametrize("mode", [DrainMode.FINISH, DrainMode.NOW])
def test_a_set_of_nodes_is_drained_at_once_and_a_gang_on_two_of_them_is_stopped_once(mode: str) -> None:
    lab = world(v100=4)
    lab.node("v100-1", lab.people.v100)
    gang = running(lab, workers=2, gpus=4)
    nodes = list(lab.cluster.nodes.order_by("name"))
    (concerned,) = jobs_to_drain(nodes, lab.people.olga).seen
    assert (concerned.gpus, concerned.gpus_elsewhere) == (8, 0)
    drain_nodes(actor=lab.people.olga, nodes=nodes, reason="new switch", mode=mode)
    assert {node.state for node in lab.cluster.nodes.all()} == {Node.State.DRAINED}
    assert AuditEvent.objects.filter(verb="node.drain").count() == 2
    stopped = mode == DrainMode.NOW
    assert lab.states([gang]) == [Job.State.STOPPING if stopped else Job.State.RUNNING]
    assert Lease.objects.filter(job=gang, stop_asked_at__isnull=False).count() == stopped
    return_nodes(actor=lab.people.olga, nodes=nodes)
    assert {node.state for node in lab.cluster.nodes.all()} == {Node.State.READY}


def test_a_refused_drain_of_a_set_drains_no_node_of_it() -> None:
    lab = world(v100=4, a100=4)
    nodes = list(lab.cluster.nodes.all())
    with pytest.raises(Refused):
        drain_nodes(actor=lab.people.olga, nodes=nodes, reason="fan", mode=DrainMode.DEADLINE)
    with pytest.raises(Refused) as none:
        drain_nodes(actor=lab.people.olga, nodes=[], reason="fan")
    assert none.value.field == "nodes"
    with pytest.raises(NotAllowed):
        drain_nodes(actor=lab.people.alice, nodes=nodes, reason="fan")
    assert {node.state for node in lab.cluster.nodes.all()} == {Node.State.READY}


def left_by(lab: World, *names: str):
    """Returns what a drain of these nodes leaves, as Olga sees it."""
    nodes = list(lab.cluster.nodes.filter(name__in=names).order_by("name"))
    return consequences_of(nodes, jobs_to_drain(nodes, lab.people.olga), lab.people.olga)


def test_a_preview_names_the_waiting_jobs_that_would_lose_their_only_nodes() -> None:
    lab = world(v100=4, a100=8)
    lab.node("v100-1", lab.people.v100)
    cast = lab.people
    on_v100 = {"generations": ["V100"]}
    both_nodes = lab.submit(cast.bob, cast.astro, workers=2, gpus=4, **on_v100)
    lab.submit(cast.alice, cast.astro, gpus=4, **on_v100)  # fits on the other node
    lab.submit(cast.charlie, cast.bio, gpus=8, generations=["A100"])
    lab.submit(cast.charlie, cast.bio, gpus=4)  # accepts every type
    one = left_by(lab, "v100-0")
    assert [job.pk for job in one.stranded] == [both_nodes.pk]
    assert [(row.generation, row.before, row.after) for row in one.capacity] == [("V100", 8, 4)]
    assert len(left_by(lab, "v100-0", "v100-1").stranded) == 2
    drain_nodes(actor=cast.olga, nodes=list(lab.cluster.nodes.filter(name="v100-1")), reason="x")
    # Bob's job has lost its place by the other drain; Alice's loses it by this one.
    again = left_by(lab, "v100-0")
    assert [job.owner for job in again.stranded] == [cast.alice]
    assert [(row.before, row.after) for row in again.capacity] == [(4, 0)]
    assert [job.owner for job in left_by(lab, "v100-1").stranded] == [cast.bob], "it is drained already"


def test_a_preview_names_the_running_jobs_that_could_continue_nowhere() -> None:
    lab = world(v100=4, a100=4)
    cast = lab.people
    bound = lab.submit(cast.bob, cast.astro, gpus=4, generations=["V100"])
    lab.fill()
    lab.carry_out()
    one, both = left_by(lab, "v100-0"), left_by(lab, "v100-0", "a100-0")
    assert ([job.pk for job in one.stuck], one.keeps_nodes) == ([bound.pk], True)
    assert ([job.pk for job in both.stuck], both.keeps_nodes) == ([bound.pk], False)
    Job.objects.filter(pk=bound.pk).update(generation_ids=[])
    assert left_by(lab, "v100-0").stuck == [], "it could continue on the A100s"
    drain_nodes(actor=cast.olga, nodes=list(lab.cluster.nodes.filter(name="a100-0")), reason="x")
    assert not left_by(lab, "v100-0").keeps_nodes


def test_a_preview_hides_the_names_of_jobs_that_the_reader_may_not_see() -> None:
    lab = world(v100=4)
    lab.submit(lab.people.bob, lab.people.astro, gpus=4)
    nodes = list(lab.cluster.nodes.all())
    found = consequences_of(nodes, jobs_to_drain(nodes, lab.people.charlie), lab.people.charlie)
    assert (found.stranded, found.more) == ([], 1)


def test_a_preview_names_reservations_and_services_on_the_nodes() -> None:
    lab = world(v100=4, a100=4)
    cast, now = lab.people, now_from_database()
    terms = Terms(
        name="course", tenant=cast.astro, generation=cast.v100, gpus=2,
        begins=now + timedelta(hours=1), ends=now + timedelta(hours=3),
    )  # fmt: skip
    held = reserve_in_advance(actor=cast.olga, cluster=lab.cluster, terms=terms)
    [row] = left_by(lab, "v100-0").reservations
    assert (row.reservation, row.gpus, row.window.begins) == (held, 2, terms.begins)
    assert left_by(lab, "a100-0").reservations == []
    cancel_advance_reservation(actor=cast.olga, reservation=held)
    assert left_by(lab, "v100-0").reservations == []
    spec = JobSpec(name="chat", command="serve", port=8000)
    service = create_service(actor=cast.bob, tenant=cast.astro, cluster=lab.cluster, spec=spec, replicas=3)
    step_service(service_id=service.pk)
    lab.fill()
    lab.carry_out()
    node = HeldGpu.objects.filter(lease__job__service=service).first().node
    there = Job.objects.filter(service=service, leases__held_gpus__node=node).distinct().count()
    [lost] = left_by(lab, node.name).services
    assert (lost.service, lost.lost, lost.wanted) == (service, there, 3)
