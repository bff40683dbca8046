"""Each Celery task belongs to one queue, and each way to start Fairlot has workers for all queues."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from embedded.services import portal_programs
from portal.celery import app
from portal.queues import QUEUES, TASKS
from tests.ground.test_compose import PORTAL_SERVICES


def queues_of(arguments: list[str]) -> list[str]:
    """Returns the queues that the command line of a Celery worker names."""
    return arguments[arguments.index("--queues") + 1].split(",")


def embedded_workers() -> list[list[str]]:
    programs = portal_programs("127.0.0.1", 8000, Path("/nowhere"), {"PUBLIC_URL": "http://localhost"})
    return [program.arguments for program in programs if "--queues" in program.arguments]


def compose_workers() -> list[list[str]]:
    return [service["command"] for service in PORTAL_SERVICES.values() if "--queues" in service["command"]]


def test_every_task_has_one_queue() -> None:
    app.loader.import_default_modules()
    ours = sorted(name for name in app.tasks if not name.startswith("celery."))
    assert sorted(task for tasks in TASKS.values() for task in tasks) == ours


def test_messages_go_to_the_queue_of_their_task() -> None:
    for queue, tasks in TASKS.items():
        for task in tasks:
            assert app.amqp.router.route({}, task)["queue"].name == queue


def test_a_worker_that_names_no_queue_serves_all() -> None:
    assert set(app.amqp.queues) == set(QUEUES)


@pytest.mark.parametrize("workers", [embedded_workers, compose_workers])
def test_each_queue_has_one_worker_in_each_way_to_start(workers) -> None:
    served = Counter(queue for arguments in workers() for queue in queues_of(arguments))
    assert served == Counter(QUEUES)


@pytest.mark.parametrize("workers", [embedded_workers, compose_workers])
def test_the_worker_of_rounds_serves_nothing_that_reads_much(workers) -> None:
    (rounds,) = [queues_of(arguments) for arguments in workers() if "rounds" in queues_of(arguments)]
    assert not {"books", "mail", "analysis"} & set(rounds)
