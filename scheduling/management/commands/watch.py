"""`manage.py watch`: streams what the clusters do into PostgreSQL; one active, others standing by."""

from __future__ import annotations

import logging
import signal
import threading
import time
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand
from django.db import DatabaseError, connection

from scheduling import heartbeat
from scheduling.backends import backend_for, find_isolation
from scheduling.backends.base import BackendError
from scheduling.locks import try_lock_watch
from scheduling.models import Cluster
from scheduling.output import outlive_full_disks
from scheduling.reconcile import follow, note_use, reconcile

logger = logging.getLogger(__name__)

STAND_BY_SECONDS = 2.0
LOOK_AT_LEAST_EVERY = 1.0
RECONCILE_EVERY = 20.0
LONGEST_PASS = 180.0  # seconds, after which a watcher hangs
NOT_KEPT_AND_TRUSTED = "Everyone may submit jobs all the same, as FAIRLOT_LOCAL_TRUSTS_ALL says."


class Command(BaseCommand):
    help = "Watches every cluster and writes down what is seen, until SIGTERM or SIGINT."

    def handle(self, *args: Any, **options: Any) -> None:
        outlive_full_disks()
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        watchers: dict[int, threading.Thread] = {}
        passes: dict[int, float] = {}  # when each watcher last got on
        self._say_what_keeps_jobs_apart()
        while not stop.wait(0.0 if not watchers else STAND_BY_SECONDS):
            for cluster_id in self._clusters():
                thread = watchers.get(cluster_id)
                if thread is None or not thread.is_alive():
                    passes[cluster_id] = time.monotonic()
                    thread = threading.Thread(target=_watch, args=(cluster_id, stop, passes), daemon=True)
                    thread.start()
                    watchers[cluster_id] = thread
            # The watcher of a detached cluster has ended; it does not hang.
            alive = [number for number, thread in watchers.items() if thread.is_alive()]
            if all(time.monotonic() - passes[number] < LONGEST_PASS for number in alive):
                heartbeat.beat()
            if not watchers:
                stop.wait(STAND_BY_SECONDS)
        for thread in watchers.values():
            thread.join(timeout=5)

    def _say_what_keeps_jobs_apart(self) -> None:
        """Prints a line for each local cluster, which `make up` shows; the last line is that this is ready."""
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
    """Watches one cluster until told to stop or until something breaks; the caller starts it again."""
    try:
        while not try_lock_watch(cluster_id):
            passes[cluster_id] = time.monotonic()
            if stop.wait(STAND_BY_SECONDS):
                return
        cluster = Cluster.objects.get(pk=cluster_id)
        backend = backend_for(cluster)
        backend.prepare()
        logger.info("watching %s", cluster.name)
        reconciled_at = float("-inf")
        for _ in backend.changes(timeout=LOOK_AT_LEAST_EVERY):
            if stop.is_set():
                return
            # What happened while nobody watched is mended first.
            if time.monotonic() - reconciled_at >= RECONCILE_EVERY:
                cluster.refresh_from_db()
                if cluster.detached_at or backend_for(cluster) is not backend:
                    return  # another kubeconfig or other ranges were given, or it was detached
                reconcile(cluster)
                reconciled_at = time.monotonic()
            follow(cluster, backend)
            note_use(cluster, backend)
            passes[cluster_id] = time.monotonic()
    except (DatabaseError, BackendError, OSError) as error:
        logger.warning("watching cluster %s broke off and starts again: %s", cluster_id, error)
    finally:
        connection.close()
