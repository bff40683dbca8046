"""One test run with random faults in a small cluster. Afterwards invariants must be true.

A seed decides what users, nodes and Fairlot's processes do, which process is killed at which step, and which requests
fail. It does not decide how threads and servers interleave, so a failure may need several runs with the same seed to
appear again. Fairlot's waits are shortened (`HASTE`), so that a run takes seconds.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml

from accounting.models import UsageSegment
from scheduling.backends.base import BackendError
from scheduling.backends.kubernetes import objects, reflector
from scheduling.backends.kubernetes.api import Api as OwnApi
from scheduling.backends.kubernetes.backend import FILL_SECONDS, KubernetesBackend
from scheduling.backends.kubernetes.gang_ungater import GangUngater
from scheduling.clusters import attached
from scheduling.clusters.actions import update_cluster
from scheduling.clusters.attaching import attach_cluster
from scheduling.core.event_texts import text_of
from scheduling.execution.operations import perform_operations
from scheduling.execution.reconcile import follow, reconcile
from scheduling.jobs.actions import cancel_job
from scheduling.jobs.submitting import submit_job
from scheduling.leases.actions import bill_running
from scheduling.models import Cluster, ClusterAccess, HeldGpu, Job, Lease, Operation, Round
from scheduling.rounds.actions import run_round
from scheduling.spec.job_spec import JobSpec
from tests.cluster.api import JOBS, NODES, PODS, Api, Refused
from tests.cluster.controlplane import ControlPlane
from tests.cluster.faulty import Proxy, Seeded, no_faults
from tests.cluster.history import (
    AuditTail,
    Held,
    Moment,
    Witness,
    check_every_moment,
    held_by_pods,
    last_touched,
)
from tests.cluster.kubelets import Kubelets
from tests.cluster.mortal import Fate, Killed, MortalApi
from tests.make import Cast
from tests.scheduling.world import World
from tests.waiting import wait_for

NODE_COUNT, GPUS = 2, 4
# (workers, GPUs of each worker): two large jobs or a few small jobs fill the nodes, so that jobs must take turns.
SHAPES = [(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 4), (3, 1), (3, 2), (4, 2)]
GRACE = 1.0
SECOND = 1.0  # the resolution of Kubernetes' timestamps
MOST_JOBS = 5
LAB = "test.fairlot/lab"
SHORT, LONG = 0.7, 30.0  # seconds that a client waits for an answer: during the faults, and after them
# Constants with waits of Fairlot's, and their values in these tests.
# With these values, an outage of fractions of a second corresponds to five minutes.
HASTE: Mapping[str, Any] = {
    "scheduling.execution.operations.CLAIM": timedelta(seconds=0.4),
    "scheduling.execution.operations.RETRY_SECONDS": (0.1, 0.2, 0.4),
    "scheduling.execution.operations.CANCEL_GRACE_SECONDS": GRACE,
    "scheduling.leases.actions.BACK_OFF_SECONDS": (0.1, 0.2, 0.4),
    "scheduling.leases.actions.SEEN_EVERY": timedelta(seconds=0.2),
    "scheduling.execution.reconcile.PATIENCE": timedelta(seconds=2),
    "scheduling.execution.reconcile.HEARD_EVERY": timedelta(seconds=0.1),
    "scheduling.backends.kubernetes.reflector.FIRST_PAUSE": 0.05,
    "scheduling.backends.kubernetes.reflector.LONGEST_PAUSE": 0.4,
    "scheduling.backends.kubernetes.backend.Reflector": partial(
        reflector.Reflector, watch_seconds=(1, 2), silence_beyond=1.0
    ),
    "scheduling.backends.kubernetes.backend.GangUngater": partial(
        GangUngater, start_seconds=8.0, gather_seconds=4.0
    ),
}


@contextmanager
def in_haste() -> Iterator[None]:
    """Shortens Fairlot's waits in this process for the block."""
    with ExitStack() as stack:
        for name, value in HASTE.items():
            stack.enter_context(patch(name, value))
        stack.enter_context(patch("scheduling.clusters.attached.KubernetesBackend", OfItsNodes))
        stack.enter_context(patch("scheduling.clusters.attached.Limited", MortalApi))
        for asks in (
            "scheduling.execution.operations.backend_for",
            "scheduling.execution.reconcile.backend_for",
        ):
            stack.enter_context(patch(asks, lambda cluster: BACKENDS[cluster.pk]))
        yield


# Maps the owner of a lab's objects (the cluster's UID) to the name of the lab.
LABS: dict[str, str] = {}


class OfItsNodes(KubernetesBackend):
    """A Kubernetes backend that sees only the nodes of one lab, because several labs share a control plane."""

    def _kinds(self, view: Any) -> Any:
        kinds = super()._kinds(view)
        nodes = {"labelSelector": f"{LAB}={LABS[self._owner]}"}
        return [(mirror, path, nodes if path == NODES else query) for mirror, path, query in kinds]


def make_backend(cluster: Cluster) -> OfItsNodes:
    """Returns a new backend. Each call creates another one, as if another process had started."""
    attached._backend.cache_clear()
    made = attached.attached_backend(cluster)
    assert isinstance(made, OfItsNodes)
    return made


@dataclass
class Look:
    """An observation of the cluster by the watcher.

    `known`: the Unix time at which the observed data was up to date. `done`: the Unix time at which the data was in the
    database.
    """

    known: float
    done: float
    everything: bool  # whether it was a reconciliation, which covers all leases


@dataclass
class Lab(World):
    """The environment that several runs use one after another: a cluster in the database, nodes, a faulty proxy and a
    witness.

    The witness records all events of pods, so that a run can be checked afterwards.
    """

    plane: ControlPlane
    proxy: Proxy
    witness: Witness
    audit: AuditTail
    kubelets: Kubelets
    prefix: str

    @property
    def admin(self) -> Api:
        return self.plane.admin

    @property
    def nodes(self) -> list[str]:
        return self.kubelets.names

    def home(self, job: Job) -> str:
        return f"{self.prefix}-{job.tenant_id}"


@contextmanager
def lab(plane: ControlPlane, fairlot: Path, people: Cast, folder: Path, name: str) -> Iterator[Lab]:
    """Yields a lab with its own nodes, so that several labs can be used in parallel."""
    with ExitStack() as stack:
        proxy = stack.enter_context(Proxy(plane.server, _authority(plane), folder).started())
        prefix = f"storm-{name}"
        cluster = attach_cluster(
            actor=people.ada,
            name=prefix,
            kubeconfig=proxy.kubeconfig(fairlot),
            namespace_prefix=prefix,
            writes_per_second=10_000,
            writes_at_once=10_000,
        )
        # these attempts are shorter than the usual limit of overhead allows
        update_cluster(actor=people.ada, cluster=cluster, overhead_limit=1.0)
        # A unique identity lets several labs attach the same control plane.
        ClusterAccess.objects.filter(cluster=cluster).update(identity=prefix)
        LABS[str(cluster.uid)] = name
        named = [f"{prefix}-{number}" for number in range(NODE_COUNT)]
        kubelets = Kubelets(plane, named, selector=f"{objects.OWNER}={cluster.uid}")
        stack.enter_context(kubelets.started(gpus=GPUS, labels={LAB: name}))
        api = OwnApi(yaml.safe_load(plane.kubeconfig("test-admin").read_text()))
        stack.callback(api.close)
        witness = stack.enter_context(Witness(api, str(cluster.uid)).watching())
        audit = AuditTail(plane.audit_log)
        stack.callback(audit.close)
        yield Lab(people, cluster, plane, proxy, witness, audit, kubelets, prefix)


def _authority(plane: ControlPlane) -> Path:
    return plane.certificates / "apiserver.crt"


@dataclass
class Storm:
    """One run with random faults in a lab."""

    lab: Lab
    seed: int
    dice: random.Random = field(init=False)
    fate: Fate = field(default_factory=Fate)
    done: list[str] = field(default_factory=list)
    jobs: list[int] = field(default_factory=list)
    # IDs of jobs that a user cancelled, or deleted in the cluster.
    cancelled: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)  # IDs of jobs whose program was made to fail or lost a pod
    looks: list[Look] = field(default_factory=list)
    late: bool = False  # whether requests took effect after their clients had given up

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        self._worker: OfItsNodes | None = None
        self._watcher: OfItsNodes | None = None
        self._changes: Generator[None, None, None] | None = None
        self._patience = SHORT
        self.faults = Seeded(self.seed, part=self.dice.choice([0.0, 0.05, 0.15, 0.3]))
        self.mortality = self.dice.choice([0.0, 0.2, 0.4])

    @property
    def cluster(self) -> Cluster:
        return self.lab.cluster

    # --- the run ---------------------------------------------------------------------------------

    def run(self) -> None:
        self.lab.audit.events(about="\0")  # skips the events before this run
        first = len(self.lab.witness.moments)
        try:
            with self.fate.over_statements():
                self.rage(self.dice.randint(30, 70))
            self.calm_down()
            self.come_to_rest()
            self.end_all()
            self.lab.witness.catch_up()
            self.check(self.lab.witness.moments[first:])
        finally:
            self.fate.left = None
            self.lab.proxy.plan = no_faults
            self.lab.proxy.up()
            self.kill_worker()
            self.kill_watcher()
            self.clean()

    def rage(self, steps: int) -> None:
        self.lab.proxy.plan = self.faults
        for _ in range(self.dice.randint(1, 4)):
            self.submit()
        script = [self.round, self.work, self.look, self.work, self.look] * self.dice.randint(0, 3)
        for step in range(steps):
            act = script[step] if step < len(script) else self._next()
            self.done.append(act.__name__)
            mortal = act in (
                self.submit,
                self.round,
                self.work,
                self.look,
                self.reconcile,
                self.cancel,
                self.bill,
            )
            self.fate.left = (
                self.dice.randint(0, 60) if mortal and self.dice.random() < self.mortality else None
            )
            try:
                act()
            except Killed:
                self.done[-1] += " †"
                self.kill_worker()
                if act in (self.look, self.reconcile):
                    self.kill_watcher()
            finally:
                self.fate.left = None

    def _next(self) -> Callable[[], None]:
        weighted: dict[Callable[[], None], int] = {
            self.submit: 3,
            self.round: 4,
            self.work: 9,
            self.look: 12,
            self.reconcile: 3,
            self.bill: 1,
            self.cancel: 1,
            self.delete: 1,
            self.take_a_pod: 1,
            self.finish: 2,
            self.slow_down: 2,
            self.cordon: 1,
            self.outage: 2,
            self.cut: 1,
            self.kill_watcher: 1,
            self.slice: 4,
        }
        return self.dice.choices([*weighted], [*weighted.values()])[0]

    # --- Fairlot's processes ---------------------------------------------------------------------

    def _backend(self) -> OfItsNodes:
        """Returns a new backend with the current request timeout, as a new process of Fairlot would have."""
        made = make_backend(self.cluster)
        made.fill_seconds = 1.0 if self._patience == SHORT else FILL_SECONDS
        api = made.api
        assert isinstance(api, MortalApi)
        api.fate, api.patience = self.fate, self._patience
        return made

    def work(self) -> None:
        """Runs a worker that carries out the orders in the outbox."""
        self._worker = self._worker or self._backend()
        with using(self.cluster, self._worker):
            perform_operations(cluster=self.cluster, log_limit_bytes=1000)

    def look(self) -> None:
        """Runs one step of the watcher. Starts the watcher first if it was killed."""
        self._watched(
            lambda backend: follow(Cluster.objects.get(pk=self.cluster.pk), backend), everything=False
        )

    def reconcile(self) -> None:
        self._watched(lambda backend: reconcile(Cluster.objects.get(pk=self.cluster.pk)), everything=True)

    def _watched(self, do: Callable[[KubernetesBackend], None], *, everything: bool) -> None:
        try:
            if self._changes is None:
                self._watcher = self._backend()
                self._changes = self._watcher.changes(timeout=0.05)
                next(self._changes)
                with using(self.cluster, self._watcher):
                    # As `manage.py watch` does at its start.
                    reconcile(Cluster.objects.get(pk=self.cluster.pk))
            next(self._changes)
            assert self._watcher
            known = time.time() - self._watcher.staleness()
            with using(self.cluster, self._watcher):
                do(self._watcher)
            self.looks.append(Look(known, time.time(), everything))
        except BackendError as error:  # handled as in `manage.py watch`
            self.done.append(f"the watcher breaks off: {error}")
            self.kill_watcher()

    def round(self) -> None:
        kind = self.dice.choice([None, Round.Kind.FILL, Round.Kind.FILL, Round.Kind.QUANTUM])
        run_round(cluster_id=self.cluster.pk, force=kind)

    def slice(self) -> None:
        """Runs two quantum rounds, so that jobs without GPUs get their turn."""
        for _ in range(2):  # jobs come to be owed time in the first round, and the debt counts in the second
            self.lab.pass_time(self.cluster.effective_quantum)
            run_round(cluster_id=self.cluster.pk, force=Round.Kind.QUANTUM)

    def bill(self) -> None:
        bill_running(cluster_id=self.cluster.pk)

    def kill_worker(self) -> None:
        if self._worker is not None:
            self._worker.api.close()
        self._worker = None

    def kill_watcher(self) -> None:
        if self._changes is not None:
            self._changes.close()
        if self._watcher is not None:
            self._watcher.api.close()
        self._changes = self._watcher = None

    # --- users, nodes and the network --------------------------------------------------------------

    def submit(self) -> None:
        if Job.objects.filter(cluster=self.cluster).unfinished().count() >= MOST_JOBS:
            return
        people = self.lab.people
        # A job of one worker may run as a bare pod, while other jobs run as Jobs.
        ClusterAccess.objects.filter(cluster=self.cluster).update(bare_pods=self.dice.random() < 0.5)
        owner, tenant = self.dice.choice([(people.bob, people.astro), (people.charlie, people.bio)])
        workers, gpus = self.dice.choice(SHAPES)
        spec = JobSpec(
            name="storm",
            command="true",
            environment="example/train",
            workers=workers,
            gpus_per_worker=gpus,
            checkpoint_grace_seconds=GRACE,
        )
        job = submit_job(actor=owner, tenant=tenant, cluster=self.cluster, spec=spec)
        self.jobs.append(job.pk)

    def cancel(self) -> None:
        if job := self._any_job():
            self.cancelled.add(job.pk)
            cancel_job(actor=self.lab.people.olga, job=job)

    def delete(self) -> None:
        """Deletes a random Job of Fairlot, as a user with kubectl might do."""
        how = self.dice.choice(["Background", "Foreground", "Orphan"])
        if job := self._any_job():
            path = f"{JOBS.format(self.lab.home(job))}/{objects.job_name(job.pk)}"
            if self._admin(lambda: self.lab.admin.delete(path, propagationPolicy=how)):
                self.done[-1] += f" {job.pk} {how}"
                self.cancelled.add(job.pk)

    def take_a_pod(self) -> None:
        """Deletes a random pod, as a user or the drain of a node might do."""
        pods = self._pods()
        if pods:
            one = self.dice.choice(pods)
            self.failed.add(one.job)  # the program is stopped, and its exit code is that of SIGTERM
            pod = one.pod["metadata"]
            path = f"{PODS.format(pod['namespace'])}/{pod['name']}"
            self._admin(lambda: self.lab.admin.delete(path))

    def finish(self) -> None:
        """Ends all programs of a random job, in two of three cases with exit code 0, otherwise with 3."""
        code = self.dice.choice(["0", "0", "3"])
        if pods := self._pods():
            job = self.dice.choice(pods).job
            if code != "0":
                self.failed.add(job)
            for one in pods:
                if one.job == job and runs(one):
                    self._mark(one, {"run-for": "0", "exit-code": code})

    def slow_down(self) -> None:
        """Makes some of the running programs take between 0.2 seconds and an hour to stop."""
        for one in self._pods():
            if self.dice.random() < 0.5 and runs(one):
                self._mark(one, {"stop-after": str(self.dice.choice([0.2, 0.6, 3600]))})

    def cordon(self) -> None:
        node = self.dice.choice(self.lab.nodes)
        closed = self.dice.choice([True, None])
        self._admin(lambda: self.lab.admin.merge(f"{NODES}/{node}", {"spec": {"unschedulable": closed}}))

    def outage(self) -> None:
        """Begins an outage of the API server or ends the current one, at random."""
        self.dice.choice([self.lab.proxy.down, self.lab.proxy.up, self.lab.proxy.up])()

    def cut(self) -> None:
        self.lab.proxy.cut()

    def _any_job(self) -> Job | None:
        jobs = list(Job.objects.filter(pk__in=self.jobs).unfinished().select_related("tenant").order_by("pk"))
        return self.dice.choice(jobs) if jobs else None

    def _pods(self) -> list[Moment]:
        alive = [one for one in self.lab.witness.alive() if one.job in self.jobs]
        return sorted(alive, key=lambda one: (one.job, objects.epoch_of(one.pod), objects.rank_of(one.pod)))

    def _mark(self, one: Moment, marks: Mapping[str, str]) -> None:
        about = one.pod["metadata"]
        annotations = {f"test.fairlot/{name}": value for name, value in marks.items()}
        path = f"{PODS.format(about['namespace'])}/{about['name']}"
        self._admin(lambda: self.lab.admin.merge(path, {"metadata": {"annotations": annotations}}))

    def _admin(self, do: Callable[[], object]) -> bool:
        """Calls `do`, which changes an object as an admin.

        Returns False if the API server refuses the change because the object no longer exists (404) or has changed
        (409).
        """
        try:
            do()
        except Refused as refusal:
            if refusal.code not in (404, 409):
                raise
            return False
        return True

    # --- after the faults ---------------------------------------------------------------------------

    def calm_down(self) -> None:
        """Ends all faults: waits for delayed requests, and restarts Fairlot's processes with their usual timeouts."""
        self.lab.proxy.plan = no_faults
        self.lab.proxy.up()
        self.lab.proxy.cut()
        self.late = "late" in self.faults.met
        wait_for(lambda: not self.lab.proxy.late, what="late requests have come")
        self._patience = LONG
        self.kill_worker()
        self.kill_watcher()
        for node in self.lab.nodes:
            self.lab.admin.merge(f"{NODES}/{node}", {"spec": {"unschedulable": None}})

    def proceed(self) -> None:
        """Runs one round, then the worker, then the watcher. Sometimes also reconciles."""
        run_round(cluster_id=self.cluster.pk)
        self.work()
        self.look()
        if self.dice.random() < 0.2:
            self.reconcile()

    def come_to_rest(self) -> None:
        """Runs Fairlot until no lease or order is about to change and the database agrees with the cluster."""

        def rests() -> bool:
            self.proceed()
            return not self.unrest()

        wait_for(rests, what=self.story, every=0.0)

    def unrest(self) -> str:
        open_ = Lease.objects.filter(cluster=self.cluster, state__in=Lease.OPEN)
        if moving := [
            lease for lease in open_ if lease.state not in (Lease.State.RUNNING, Lease.State.RESERVED)
        ]:
            return f"leases on their way: {moving}"
        if orders := Operation.objects.filter(cluster=self.cluster, done_at=None):
            return f"orders to be given: {list(orders)}"
        held = Counter(
            HeldGpu.objects.filter(lease__in=open_, during__endswith=None, during__isempty=False).values_list(
                "lease__job_id", "rank", "node__host"
            )
        )
        bound: Counter[tuple[int, int, str]] = Counter()
        for one in self._of_gangs_there():
            bound[one.job, objects.rank_of(one.pod), one.node] += one.gpus
        return "" if held == bound else f"the database has {held}, the cluster has {bound}"

    def _of_gangs_there(self) -> Iterator[Moment]:
        """Yields the last event of each pod that is alive, or that has succeeded while another pod of its gang is
        alive."""
        last = self.lab.witness.last().values()
        there = {(one.job, objects.epoch_of(one.pod)) for one in last if one.is_alive}
        for one in last:
            did_its_part = one.kind != "DELETED" and one.pod["status"]["phase"] == "Succeeded"
            if one.is_alive or (did_its_part and (one.job, objects.epoch_of(one.pod)) in there):
                yield one

    def end_all(self) -> None:
        """Runs Fairlot, and lets all running programs succeed, until all jobs have ended.

        Jobs that wait for GPUs start when other jobs have ended.
        """

        def ended() -> bool:
            for one in self._pods():
                if runs(one) and "test.fairlot/run-for" not in one.pod["metadata"]["annotations"]:
                    self._mark(one, {"run-for": "0", "stop-after": "0"})
            self.proceed()
            unfinished = Job.objects.filter(cluster=self.cluster).unfinished().exists()
            return not unfinished and not self.unrest()

        wait_for(ended, what=self.story, every=0.0)

    def clean(self) -> None:
        for job in Job.objects.filter(pk__in=self.jobs):
            path = f"{JOBS.format(self.lab.home(job))}/{objects.job_name(job.pk)}"
            self._admin(partial(self.lab.admin.delete, path, propagationPolicy="Background"))

    def story(self) -> str:
        told = [
            (job.pk, job.state, [(event.kind, text_of(event)) for event in job.events.order_by("id")])
            for job in Job.objects.filter(pk__in=self.jobs)
        ]
        leases = [
            (lease.pk, lease.job_id, lease.epoch, lease.end_reason, lease.held_from, lease.held_until)
            for lease in Lease.objects.filter(job__in=self.jobs).order_by("pk")
        ]
        seen = self._watcher.observe() if self._watcher else None
        there = [one.pod for one in self.lab.witness.alive()]
        orders = list(
            Operation.objects.filter(lease__job__in=self.jobs)
            .order_by("id")
            .values_list("lease__job", "verb", "attempts", "done_at", "lease__state", "lease__last_seen_at")
        )
        stale = self._watcher.staleness() if self._watcher else None
        return f"{self.unrest()};\n{stale} {orders};\n{told};\n{leases};\n{self.done};\n{seen};\n{there}"

    def ends(self) -> Counter[str]:
        """Returns the number of the run's jobs in each final state."""
        return Counter(Job.objects.filter(pk__in=self.jobs).values_list("state", flat=True))

    def lease_ends(self) -> Counter[str]:
        return Counter(Lease.objects.filter(job__in=self.jobs).values_list("end_reason", flat=True))

    # --- invariants ---------------------------------------------------------------------------------

    def check(self, moments: list[Moment]) -> None:
        moments = [moment for moment in moments if moment.job in self.jobs]
        check_every_moment(moments, lambda node: GPUS)
        last = {moment.uid: moment for moment in moments}
        for job in Job.objects.filter(pk__in=self.jobs):
            self._check_job(job, [one for one in last.values() if one.job == job.pk])
        # For a deleted pod, the last event that has a node.
        bound = {moment.uid: moment for moment in moments if moment.node}
        events = self.lab.audit.events(about=f'"namespace":"{self.lab.prefix}-')
        held, words = held_by_pods(bound.values(), events), last_touched(events)
        for lease in Lease.objects.filter(job__in=self.jobs).exclude(held_from=None):
            attempt = lease.job_id, lease.epoch
            waited = [
                words.get(one.pod["metadata"]["name"], 0.0)
                for uid, one in last.items()
                if uid not in bound and (one.job, objects.epoch_of(one.pod)) == attempt
            ]
            self._check_lease(lease, [one for one in held if one.attempt == attempt], waited)

    def _check_job(self, job: Job, pods: list[Moment]) -> None:
        state = job.state
        if state == Job.State.SUCCEEDED:
            lease = job.leases.latest("epoch")
            well = {
                objects.rank_of(one.pod)
                for one in pods
                if objects.epoch_of(one.pod) == lease.epoch and one.pod["status"]["phase"] == "Succeeded"
            }
            assert well == set(range(JobSpec.parse(job.spec).workers)), f"job {job.pk} did not succeed"
        elif state == Job.State.CANCELLED:
            assert job.pk in self.cancelled, f"nobody cancelled job {job.pk}"
        else:
            assert state == Job.State.FAILED, job.state
            told = job.end_reason in ("start_failed", "lost") or job.pk in self.failed
            assert told, f"job {job.pk} failed: {job.end_reason} {job.end_message}"

    def _check_lease(self, lease: Lease, pods: list[Held], waited: list[float]) -> None:
        """Checks that the bill equals the lease, and that the lease covers the time for which its pods held GPUs.

        - The lease begins before any of its pods is bound.
        - It ends when its last pod ends, to the second. If the watcher did not observe this end, the lease ends between
          the observations before and after it.
        - A delayed request may start pods after the end of the lease. They are not billed.

        `waited`: for each pod of the lease that got no node, the Unix time of the last request about the pod. The lease
        may last until then.
        """
        assert lease.state == Lease.State.CLOSED
        assert lease.held_from
        assert lease.held_until
        segments = UsageSegment.objects.filter(lease_id=lease.pk)
        billed = sum((segment.gpu_seconds for segment in segments), Decimal(0))
        held = int((lease.held_until - lease.held_from) / timedelta(microseconds=1)) * lease.gpus
        assert billed == Decimal(held).scaleb(-6), f"lease {lease.pk}: {billed} billed, {held} held"
        begins, ends = lease.held_from.timestamp(), lease.held_until.timestamp()
        ours = [one for one in pods if one.bound <= ends + SECOND]
        came = f"lease {lease.pk} ended at {ends}, and pods came after that: {[(one.bound, one.ended) for one in pods]}"
        assert len(ours) == len(pods) or self.late, came
        if not ours:
            return
        assert begins <= min(one.bound for one in ours), f"lease {lease.pk}: a pod was bound before it began"
        gone = max(one.ended for one in ours)
        slow = SECOND + self.slowness()
        known = [look for look in self.looks if look.everything or lease.end_reason != "lost"]
        before = max((look.known for look in known if look.done <= gone), default=begins)
        left = max([gone, *waited])
        after = min((look.done for look in self.looks if look.known >= left + slow), default=None)
        earliest = min(gone, before) - slow
        assert earliest <= ends, f"lease {lease.pk} ({lease.end_reason}) ended {gone - ends:.3f} s too early"
        if after is not None:
            assert ends <= after, f"lease {lease.pk} ({lease.end_reason}) ended {ends - left:.3f} s too late"

    def slowness(self) -> float:
        """Returns the longest delay between a change of a container and its watch event in this run, in seconds."""
        return max(self.lab.witness.delays, default=0.0)


def runs(one: Moment) -> bool:
    return bool(one.pod["status"]["phase"] == "Running")


@contextmanager
def using(cluster: Cluster, backend: KubernetesBackend) -> Iterator[None]:
    """Makes this process use `backend` for the cluster during the block."""
    BACKENDS[cluster.pk] = backend
    try:
        yield
    finally:
        del BACKENDS[cluster.pk]


BACKENDS: dict[int, KubernetesBackend] = {}
