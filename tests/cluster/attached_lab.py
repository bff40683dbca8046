"""An environment for tests: Fairlot with an attached cluster, real rounds, a real database and a real control plane."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from scheduling.backends.kubernetes import objects
from scheduling.backends.kubernetes.backend import KubernetesBackend
from scheduling.clusters import attached
from scheduling.clusters.attaching import attach_cluster
from scheduling.clusters.backend_factory import backend_for
from scheduling.core.event_texts import text_of
from scheduling.execution.operations import perform_operations
from scheduling.execution.reconcile import follow
from scheduling.jobs.submitting import submit_job
from scheduling.models import Job, Operation
from scheduling.spec.job_spec import JobSpec
from tests.cluster.api import PODS, Api, Object
from tests.cluster.emptying import remove
from tests.make import cast
from tests.scheduling.world import World
from tests.waiting import wait_for

EVENTS = "/api/v1/namespaces/{}/events"


@dataclass
class Lab(World):
    """Fairlot with one attached cluster, for tests.

    The method `until` repeatedly does the work of Celery worker and watch process, until a condition is true.
    """

    admin: Api
    backend: KubernetesBackend
    changes: Generator[None, None, None]

    def work(self) -> None:
        perform_operations(cluster=self.cluster, log_limit_bytes=10_000_000)
        self.watch()

    def watch(self) -> None:
        next(self.changes)
        follow(self.cluster, self.backend)

    def watch_until(self, probe: Callable[[], object], what: str | Callable[[], str]) -> None:
        """Watches the cluster until `probe` returns a true value. Unlike `until`, carries out no orders of the
        outbox."""

        self._repeat(self.watch, probe, what)

    def until(self, probe: Callable[[], object], what: str | Callable[[], str]) -> None:
        self._repeat(self.work, probe, what)

    @staticmethod
    def _repeat(step: Callable[[], None], probe: Callable[[], object], what: str | Callable[[], str]) -> None:
        def probe_after_step() -> object:
            step()
            return probe()

        wait_for(probe_after_step, what=what, every=0.0)

    def reaches(self, job: Job, state: str) -> Job:
        def there() -> bool:
            job.refresh_from_db()
            return job.state == state

        self.until(there, lambda: f"job {job.pk} is {state}, not {self.story(job)}")
        return job

    def story(self, job: Job) -> str:
        """Returns a description of the job's state, for the message of a failed test."""
        told = [(event.kind, text_of(event)) for event in job.events.order_by("id")]
        orders = list(Operation.objects.filter(lease__job=job).values_list("verb", "attempts", "error"))
        said = [
            event.get("note") or event.get("message")
            for event in self.admin.items(EVENTS.format(self.home(job)))
        ]
        return f"{job.state}: {told}, {orders}, {said}, {self.backend.observe()}, {self.pods(job)}"

    def send(self, owner: str = "bob", *, gpus: int = 1, workers: int = 1) -> Job:
        tenant = self.people.bio if owner == "charlie" else self.people.astro
        spec = JobSpec(
            name=f"{owner}'s {workers} x {gpus}",
            command="python train.py",
            environment="example/train",
            gpus_per_worker=gpus,
            workers=workers,
        )
        return submit_job(actor=getattr(self.people, owner), tenant=tenant, cluster=self.cluster, spec=spec)

    def pods(self, job: Job) -> list[Object]:
        found = self.admin.items(PODS.format(self.home(job)), labelSelector=f"{objects.JOB}={job.pk}")
        return sorted(found, key=objects.rank_of)

    def home(self, job: Job) -> str:
        return f"fairlot-{job.tenant_id}"

    def annotate(self, job: Job, **marks: str) -> None:
        annotations = {f"test.fairlot/{name.replace('_', '-')}": value for name, value in marks.items()}
        for pod in self.pods(job):
            path = f"{PODS.format(self.home(job))}/{pod['metadata']['name']}"
            self.admin.merge(path, {"metadata": {"annotations": annotations}})


@contextmanager
def attached_lab(kubeconfig: str, admin: Api, *, clean_up: bool = True, **settings: Any) -> Iterator[Lab]:
    """Attaches a cluster as the admin Ada, watches it and yields the lab. `settings` are arguments of attach_cluster.

    Deletes the teams' namespaces afterwards. With `clean_up=False` it leaves the namespaces, for tests whose control
    plane ends with the test.
    """
    attached._backend.cache_clear()
    people = cast()
    cluster = attach_cluster(actor=people.ada, name="lab", kubeconfig=kubeconfig, **settings)
    backend = backend_for(cluster)
    assert isinstance(backend, KubernetesBackend)
    changes = backend.changes(timeout=0.1)
    lab = Lab(people, cluster, admin, backend, changes)
    try:
        lab.work()
        yield lab
    finally:
        lab.changes.close()
        for tenant in (people.astro, people.bio) if clean_up else ():
            name = f"fairlot-{tenant.pk}"
            if admin.items("/api/v1/namespaces", fieldSelector=f"metadata.name={name}"):
                remove(admin, name)
