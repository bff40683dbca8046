"""`manage.py watch`: streams observations of the clusters into PostgreSQL. One process is active; others stand by."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand
from django.db import Error as DatabaseError
from django.db import connection

from scheduling.backends.base import Backend, BackendError
from scheduling.clusters.backend_factory import backend_for, find_isolation
from scheduling.core import heartbeat
from scheduling.core.locks import try_lock_watch
from scheduling.core.run_apart import OUT_OF_REACH, note_failure
from scheduling.core.safe_streams import outlive_full_disks
from scheduling.execution.reconcile import FOLLOWING, note_metrics, note_use, reconcile
from scheduling.models import Cluster

logger = logging.getLogger(__name__)

STAND_BY_SECONDS = 2.0
LOOK_AT_LEAST_EVERY = 1.0
RECONCILE_EVERY = 20.0
LONGEST_PASS = 180.0  # a watcher whose pass takes longer than this many seconds counts as hung
LONGEST_REST = 60.0  # seconds of rest after a failure, at most
NOT_KEPT_AND_TRUSTED = (
    "All users may submit jobs although jobs are not isolated, because FAIRLOT_LOCAL_TRUSTS_ALL is set."
)


class Command(BaseCommand):
    help = "Watches every cluster and records its changes in the database, until SIGTERM or SIGINT."
    requires_system_checks = ()  # they would import every page; `make lint` makes these checks

    def handle(self, *args: Any, **options: Any) -> None:
        outlive_full_disks()
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        watchers: dict[int, threading.Thread] = {}
        passes: dict[int, float] = {}  # by cluster id: when its watcher last completed a pass
        self._say_what_keeps_jobs_apart()
        while not stop.wait(0.0 if not watchers else STAND_BY_SECONDS):
            for cluster_id in self._clusters():
                thread = watchers.get(cluster_id)
                if thread is None or not thread.is_alive():
                    passes[cluster_id] = time.monotonic()
                    thread = threading.Thread(target=_watch, args=(cluster_id, stop, passes), daemon=True)
                    thread.start()
                    watchers[cluster_id] = thread
            # Only living watchers are checked: that of a detached cluster has ended and does not hang.
            alive = [number for number, thread in watchers.items() if thread.is_alive()]
            if all(time.monotonic() - passes[number] < LONGEST_PASS for number in alive):
                heartbeat.beat()
            if not watchers:
                stop.wait(STAND_BY_SECONDS)
        for thread in watchers.values():
            thread.join(timeout=5)

    def _say_what_keeps_jobs_apart(self) -> None:
        """Prints how each local cluster isolates jobs, and then that the watcher is ready. `make up` shows this
        output."""
        try:
            for cluster in Cluster.objects.attached().filter(backend=Cluster.Backend.LOCAL):
                isolation = find_isolation(cluster)
                self.stdout.write(f"watch: {cluster.name}: {isolation.short}")
                if not isolation.keeps_apart:
                    told = NOT_KEPT_AND_TRUSTED if settings.FAIRLOT_LOCAL_TRUSTS_ALL else isolation.refusal
                    self.stdout.write(f"watch: {cluster.name}: {' '.join(isolation.why_not)} {told}")
        except (DatabaseError, BackendError) as error:
            logger.warning("what keeps local jobs apart is not known: %s", error)
            connection.close()
        self.stdout.write("watch: ready")
        self.stdout.flush()

    def _clusters(self) -> list[int]:
        try:
            return list(Cluster.objects.attached().values_list("id", flat=True))
        except DatabaseError as error:
            logger.warning("the database does not answer: %s", error)
            connection.close()
            return []


def _watch(cluster_id: int, stop: threading.Event, passes: dict[int, float]) -> None:
    """Watches one cluster until `stop` is set, the cluster is detached, or its backend changes.

    After a failure, starts again, with a delay that grows with the number of consecutive failures.

    `passes` has, by cluster id, the time (`time.monotonic`) at which the watch was last known to be alive. This
    function updates it after each pass over all steps, after each failure, and while another process watches the
    cluster.
    """
    failures = 0

    def gets_on() -> None:
        nonlocal failures
        failures, passes[cluster_id] = 0, time.monotonic()

    while not stop.is_set():
        try:
            _follow(cluster_id, stop, gets_on)
            return
        except Exception as error:
            failures += 1
            _tell(cluster_id, "Fairlot failed to watch this cluster and tries again", error)
        finally:
            connection.close()
        passes[cluster_id] = time.monotonic()
        stop.wait(_rest(failures))


def _follow(cluster_id: int, stop: threading.Event, gets_on: Callable[[], None]) -> None:
    while not try_lock_watch(cluster_id):
        gets_on()
        if stop.wait(STAND_BY_SECONDS):
            return
    cluster = Cluster.objects.get(pk=cluster_id)
    backend = backend_for(cluster)
    backend.prepare()
    logger.info("watching %s", cluster.name)
    # Reconciling comes first, because it repairs what went wrong while nobody watched.
    first = _Step(lambda cluster, _: reconcile(cluster), every=RECONCILE_EVERY)
    steps = [first, *map(_Step, (*FOLLOWING, note_use, note_metrics))]
    for _ in backend.changes(timeout=LOOK_AT_LEAST_EVERY):
        if stop.is_set():
            return
        if first.is_due():
            cluster.refresh_from_db()
            if cluster.detached_at or backend_for(cluster) is not backend:
                return  # the kubeconfig or the ranges changed, or the cluster was detached
        for step in steps:
            step.take(cluster, backend)
        gets_on()


class _Step:
    """One step of watching a cluster. If it fails, the other steps continue, and this step is retried later."""

    def __init__(self, do: Callable[[Cluster, Backend], None], *, every: float = 0.0) -> None:
        self._do, self._every = do, every
        self._failures = 0
        self._due = float("-inf")

    def is_due(self) -> bool:
        return time.monotonic() >= self._due

    def take(self, cluster: Cluster, backend: Backend) -> None:
        """Runs the step if it is due. If the step fails, logs the error; a later call retries the step.

        Raises only errors that mean that the database cannot be reached.
        """
        if not self.is_due():
            return
        try:
            self._do(cluster, backend)
        except OUT_OF_REACH:
            raise
        except Exception as error:
            self._failures += 1
            _tell(
                cluster.pk,
                "A step failed while Fairlot watched this cluster; Fairlot tries the step again",
                error,
            )
        else:
            self._failures = 0
        self._due = time.monotonic() + max(self._every, _rest(self._failures))


def _rest(failures: int) -> float:
    """Returns the number of seconds to wait after `failures` consecutive failures; 0 if there are none."""
    return min(STAND_BY_SECONDS * 2 ** min(failures - 1, 10), LONGEST_REST) if failures else 0.0


def _tell(cluster_id: int, what: str, error: Exception) -> None:
    """Logs the error. Also shows it on the cluster's page, if the database answers."""
    expected = isinstance(error, DatabaseError | BackendError | OSError)
    logger.log(
        logging.WARNING if expected else logging.ERROR,
        "cluster %s: %s: %s", cluster_id, what, error, exc_info=None if expected else error,
    )  # fmt: skip
    try:
        note_failure(cluster_id=cluster_id, what=what, error=error)
    except DatabaseError as trouble:
        logger.warning("the database does not answer: %s", trouble)
