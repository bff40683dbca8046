"""`manage.py watch`: streams what the clusters do into PostgreSQL; one active, others standing by."""

from __future__ import annotations

import logging
import signal
import threading
import time
from typing import Any

from django.core.management.base import BaseCommand
from django.db import DatabaseError, connection

from scheduling.backends import backend_for
from scheduling.backends.base import BackendError
from scheduling.locks import try_lock_watch
from scheduling.models import Cluster
from scheduling.output import outlive_full_disks
from scheduling.reconcile import follow, note_use, reconcile

logger = logging.getLogger(__name__)

STAND_BY_SECONDS = 2.0
LOOK_AT_LEAST_EVERY = 1.0
RECONCILE_EVERY = 20.0


class Command(BaseCommand):
    help = "Watches every cluster and writes down what is seen, until SIGTERM or SIGINT."

    def handle(self, *args: Any, **options: Any) -> None:
        outlive_full_disks()
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        watchers: dict[int, threading.Thread] = {}
        while not stop.wait(0.0 if not watchers else STAND_BY_SECONDS):
            for cluster_id in self._clusters():
                thread = watchers.get(cluster_id)
                if thread is None or not thread.is_alive():
                    thread = threading.Thread(target=_watch, args=(cluster_id, stop), daemon=True)
                    thread.start()
                    watchers[cluster_id] = thread
            if not watchers:
                stop.wait(STAND_BY_SECONDS)
        for thread in watchers.values():
            thread.join(timeout=5)

    def _clusters(self) -> list[int]:
        try:
            return list(Cluster.objects.attached().values_list("id", flat=True))
        except DatabaseError as error:
            logger.warning("the database does not answer: %s", error)
            connection.close()
            return []


def _watch(cluster_id: int, stop: threading.Event) -> None:
    """Watches one cluster until told to stop or until something breaks; the caller starts it again."""
    try:
        while not try_lock_watch(cluster_id):
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
    except (DatabaseError, BackendError, OSError) as error:
        logger.warning("watching cluster %s broke off and starts again: %s", cluster_id, error)
    finally:
        connection.close()
