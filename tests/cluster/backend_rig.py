"""Test setup for the Kubernetes backend: a backend in one namespace, and a thread that does the work of the watch
process."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import yaml

from scheduling.backends.base import ClusterEvent, Gang, Observation, Phase, Worker
from scheduling.backends.kubernetes.api import Api as OwnApi
from scheduling.backends.kubernetes.backend import KubernetesBackend
from scheduling.backends.kubernetes.gang_ungater import GangUngater
from tests.cluster.api import PODS, Api, Object
from tests.cluster.jobs import Work
from tests.waiting import wait_for


class Rig:
    """Test setup with one Kubernetes backend in one namespace.

    `seen` maps the token of each lease to the last observation of its gang. With `bare`, jobs run as pods without a
    Job.
    """

    def __init__(
        self,
        admin: Api,
        kubeconfig: Path,
        namespace: str,
        logs: Path,
        *,
        log_streams: int = 8,
        bare: bool = False,
        **ungater: Any,
    ) -> None:
        self.admin, self.namespace = admin, namespace
        self.work = Work(admin, namespace)
        content = yaml.safe_load(kubeconfig.read_text())
        self.backend = KubernetesBackend(
            api=lambda: OwnApi(content),
            owner=namespace,  # so that each test ignores the objects of tests that run in parallel
            namespace_of=lambda job_id: namespace,
            is_bare=lambda job_id: bare,
            logs=logs,
            log_limit_bytes=10_000_000,
            log_streams=log_streams,
            ungater=GangUngater(**ungater),
        )
        self.seen: dict[uuid.UUID, Observation] = {}
        self.told: list[Observation] = []
        self.cluster_events: list[ClusterEvent] = []
        self.trouble: BaseException | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        stop = threading.Event()
        thread = threading.Thread(target=self._watch, args=(stop,), daemon=True)
        thread.start()
        try:
            yield
        except BaseException as error:
            if self.trouble is not None:  # the watcher's error explains why the condition never held
                error.add_note(f"its watcher had ended: {self.trouble!r}")
            raise
        finally:
            stop.set()
            thread.join()
        assert self.trouble is None, self.trouble

    def _watch(self, stop: threading.Event) -> None:
        try:
            for _ in self.backend.changes(timeout=0.2):
                for observation in self.backend.changed():
                    self.told.append(observation)
                    self.seen[observation.token] = observation
                self.cluster_events += self.backend.cluster_events()
                self.backend.advance()
                if stop.is_set():
                    return
        except BaseException as error:
            self.trouble = error

    def gang(self, *nodes: str, job: int = 1, epoch: int = 1, gpus: int = 1, **changes: Any) -> Gang:
        workers = [
            Worker(rank, node, tuple(range(gpus)), (), virtual_speed=None) for rank, node in enumerate(nodes)
        ]
        fields: dict[str, Any] = {
            "job_id": job,
            "epoch": epoch,
            "token": uuid.uuid4(),
            "generation": "A100",
            "command": ["/bin/sh", "-c", "true"],
            "environment_name": "example/train",
            "environment": {},
            "progress_pattern": r"step (\d+)",
            "grace_seconds": 30.0,
            "log_limit_bytes": 10_000_000,
            "workers": workers,
        }
        return Gang(**(fields | changes))

    def start(self, gang: Gang) -> Gang:
        self.backend.start(gang)
        return gang

    def stop(self, gang: Gang, grace: float = 30.0) -> None:
        self.backend.stop(job_id=gang.job_id, epoch=gang.epoch, token=gang.token, grace_seconds=grace)

    def wait(self, gang: Gang, phase: Phase = Phase.ENDED) -> Observation:
        def there() -> Observation | None:
            assert self.trouble is None, self.trouble
            seen = self.seen.get(gang.token)
            return seen if seen and seen.phase is phase else None

        seen = wait_for(there, what=lambda: f"{phase}, not {self.seen.get(gang.token)}; {self.pods(gang)}")
        assert seen
        return seen

    def pods(self, gang: Gang) -> list[Object]:
        """Returns the pods of all attempts of the gang's job, ordered by name."""
        found = self.admin.items(PODS.format(self.namespace), labelSelector=f"fairlot.io/job={gang.job_id}")
        return sorted(found, key=lambda pod: pod["metadata"]["name"])

    def evict(self, pod: Object) -> None:
        """Evicts the pod as a drain of its node would."""
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod["metadata"]["name"]},
        }
        self.admin.create(f"{self.work.pod(pod)}/eviction", eviction)

    def annotate(self, gang: Gang, **marks: str) -> None:
        """Sets annotations on the gang's pods that control how kwok simulates them: `run_for`, `exit_code`,
        `stop_after` and others."""
        annotations = {f"test.fairlot/{name.replace('_', '-')}": value for name, value in marks.items()}
        for pod in self.pods(gang):
            self.admin.merge(self.work.pod(pod), {"metadata": {"annotations": annotations}})


class Rigging(Protocol):
    """A function that creates test setups (Rig). Each Rig watches the cluster until the test ends."""

    def __call__(self, **settings: Any) -> Rig:
        """Returns a new Rig with these arguments."""


@contextmanager
def rigs(admin: Api, kubeconfig: Path, namespace: str, logs: Path, **usual: Any) -> Iterator[Rigging]:
    """Yields a function that creates Rigs, all with the arguments `usual`."""
    with ExitStack() as stack:

        def make(**settings: Any) -> Rig:
            made = Rig(admin, kubeconfig, namespace, logs, **usual, **settings)
            stack.enter_context(made.watching())
            return made

        yield make
