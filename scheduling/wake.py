"""Celery messages that leave after commit. If the broker is away, beat's next tick does the same."""

from __future__ import annotations

import logging
from typing import Any

from celery import current_app
from django.db import transaction
from kombu.exceptions import OperationalError

from scheduling.outgoing import outgoing

logger = logging.getLogger(__name__)

# What lies in the queue for longer, because no worker is there, beat asks for anew.
EXPIRES_SECONDS = 30
RETRY = {"max_retries": 1, "interval_start": 0.1, "interval_max": 0.2}


def wake_rounds(cluster_id: int) -> None:
    """Asks for a round soon."""
    _after_commit("scheduling.tasks.run_round", cluster_id)


def wake_operations(cluster_id: int) -> None:
    """Asks a worker to do what the outbox holds."""
    _after_commit("scheduling.tasks.run_operations", cluster_id)


def wake_service(service_id: int) -> None:
    """Asks for a look at a service's replicas."""
    _after_commit("scheduling.tasks.step_service", service_id)


def wake_analyses() -> None:
    """Asks a worker to go on with what analyses there are."""
    _after_commit("scheduling.tasks.analyse_sharing")


def _after_commit(task: str, *args: Any) -> None:
    transaction.on_commit(lambda: outgoing.put((task, args), lambda: _send(task, args)), robust=True)


def _send(task: str, args: tuple[Any, ...]) -> None:
    try:
        current_app.send_task(
            task, args=args, retry_policy=RETRY, ignore_result=True, expires=EXPIRES_SECONDS
        )
    except OperationalError as error:
        logger.warning("%s was not sent, beat will do it: %s", task, error)
