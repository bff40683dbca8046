"""A small cluster with the users and teams of `cast()`. Its methods submit jobs, run rounds, and report observations as
a backend does."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from django.db import connection

from accounting.models import Generation, Tenant, User
from scheduling.backends.base import End, Observation, Phase
from scheduling.jobs.submitting import submit_job
from scheduling.leases.actions import apply_observations
from scheduling.models import Cluster, Job, Lease, Node, Operation, Round
from scheduling.rounds.actions import run_round
from scheduling.spec.job_spec import JobSpec
from tests.make import Cast, cast


class OneByOne:
    """A base class for stand-ins of backends. The worker gives them one order after another, not several in
    parallel."""

    orders_at_once = 1

    def preload(self, job_id: int) -> None:
        """Does nothing. Here a real backend reads from the database what later orders for the job need; a stand-in
        needs nothing."""


@dataclass
class World:
    people: Cast
    cluster: Cluster

    def node(self, name: str, generation: Generation, gpus: int = 4) -> Node:
        return Node.objects.create(
            cluster=self.cluster, name=name, generation=generation, gpus=gpus, virtual_speed=1.0
        )

    def submit(self, owner: User, tenant: Tenant, *, gpus: int = 1, workers: int = 1, **fields: Any) -> Job:
        spec = JobSpec(
            name=fields.pop("name", f"{owner.username}-{gpus}x{workers}"),
            command="true",
            gpus_per_worker=gpus,
            workers=workers,
            **fields,
        )
        return submit_job(actor=owner, tenant=tenant, cluster=self.cluster, spec=spec)

    def quantum(self) -> Round | None:
        return run_round(cluster_id=self.cluster.pk, force=Round.Kind.QUANTUM)

    def fill(self) -> Round | None:
        return run_round(cluster_id=self.cluster.pk, force=Round.Kind.FILL)

    def lease(self, job: Job) -> Lease:
        """Returns the lease of the job's latest attempt."""
        return job.leases.select_related("generation").latest("epoch")

    def see(self, lease: Lease, phase: Phase, **facts: Any) -> list[Lease]:
        return apply_observations(cluster_id=self.cluster.pk, observations=[seen(lease, phase, **facts)])

    def carry_out(self) -> None:
        """Reports that all orders are carried out: starting gangs run, and stopping gangs have ended or are frozen."""
        for lease in self.holding(Lease.State.STARTING):
            self.tried(lease)
            self.see(lease, Phase.RUNNING, running_age=0.0)
        for lease in self.holding(Lease.State.STOPPING):
            frozen = lease.operations.filter(verb=Operation.Verb.FREEZE).exists()
            if frozen:
                self.see(lease, Phase.FROZEN, frozen_age=0.0)
            else:
                self.see(lease, Phase.ENDED, end=End.STOPPED, ended_age=0.0)
        if self.holding(Lease.State.STARTING):
            self.carry_out()

    def tried(self, lease: Lease) -> None:
        """Records that a worker has begun to start or resume the lease's gang."""
        lease.operations.filter(verb__in=[Operation.Verb.START, Operation.Verb.THAW]).update(attempts=1)

    def holding(self, *states: str) -> list[Lease]:
        return list(Lease.objects.filter(cluster=self.cluster, state__in=states))

    def contest(self, holder: Job, seconds: float = 60) -> None:
        """Runs two quanta, `seconds` apart, while the job `holder` holds its GPUs.

        After the first quantum, teams whose jobs wait become owed GPU time. In the second quantum they may therefore
        preempt `holder`.
        """
        self.quantum()
        self.age(self.lease(holder), seconds)
        self.pass_time(seconds)
        self.quantum()

    def pass_time(self, seconds: float) -> None:
        """Backdates the cluster's last round and all open trades by `seconds`, as if that time had passed."""
        with connection.cursor() as cursor:
            for statement in EARLIER:
                cursor.execute(statement, {"seconds": seconds, "cluster": self.cluster.pk})
        self.cluster = Cluster.objects.get(pk=self.cluster.pk)

    def states(self, jobs: Iterable[Job]) -> list[str]:
        return [Job.objects.get(pk=job.pk).state for job in jobs]

    def age(self, lease: Lease, seconds: float) -> Lease:
        """Backdates the begin of the lease, and that of its running gang, by `seconds`. Returns the lease."""
        earlier = timedelta(seconds=seconds)
        lease.refresh_from_db()
        lease.held_from = lease.held_from - earlier if lease.held_from else None
        lease.running_from = lease.running_from - earlier if lease.running_from else None
        lease.save(update_fields=["held_from", "running_from"])
        for gpu in lease.held_gpus.all():
            gpu.during = type(gpu.during)(lease.held_from, gpu.during.upper, "[)")
            gpu.save(update_fields=["during"])
        return lease


EARLIER = (
    "UPDATE scheduling_cluster SET last_round_at = last_round_at - %(seconds)s * interval '1 second',"
    " ask_again_at = ask_again_at - %(seconds)s * interval '1 second' WHERE id = %(cluster)s",
    "UPDATE scheduling_round SET at = at - %(seconds)s * interval '1 second' WHERE cluster_id = %(cluster)s"
    " AND number = (SELECT round_number FROM scheduling_cluster WHERE id = %(cluster)s)",
    "UPDATE scheduling_trade SET begins = begins - %(seconds)s * interval '1 second' WHERE ends IS NULL",
)


def seen(lease: Lease, phase: Phase, **facts: Any) -> Observation:
    blank = Observation(job_id=lease.job_id, epoch=lease.epoch, token=lease.token, phase=phase)
    return replace(blank, **facts)


def world(*, v100: int = 4, a100: int = 0, **settings: Any) -> World:
    """Returns a world with one node of each generation for which a number of GPUs is given.

    `settings` are fields of the cluster. Its quantum is 60 s by default.
    """
    people = cast()
    made = World(people, Cluster.objects.create(name="lab", **settings))
    if v100:
        made.node("v100-0", people.v100, v100)
    if a100:
        made.node("a100-0", people.a100, a100)
    return made


def start(lab: World, **fields: Any) -> Job:
    """Submits a job of Bob's in Astro, starts it, and returns it running."""
    job = lab.submit(lab.people.bob, lab.people.astro, **fields)
    lab.fill()
    lab.carry_out()
    job.refresh_from_db()
    assert job.state == Job.State.RUNNING
    return job
