"""A server imports its pages and prepares its connections before the first request."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
from django.db import OperationalError
from django.test import Client

from portal import middleware, warm_up
from portal.warm_up import load_pages, start_local_cluster_check
from tests.waiting import PATIENCE


@pytest.fixture
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_permanent_objects_are_excluded_from_garbage_collection(thawed: None) -> None:
    gc.unfreeze()
    load_pages()
    assert gc.get_freeze_count() > len(gc.get_objects())


@pytest.mark.django_db(transaction=True)
def test_static_files_are_served_to_all_clients_from_the_start(client: Client) -> None:
    start_local_cluster_check().join(PATIENCE)
    assert middleware.knows_of_local_cluster()
    with closing(client.get("/static/img/mark.svg", REMOTE_ADDR="203.0.113.7")) as answer:
        assert answer.status_code == 200


def test_a_server_starts_while_the_database_is_away_and_asks_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_back = threading.Event()

    def learn() -> bool:
        if not is_back.is_set():
            raise OperationalError("connection refused")
        monkeypatch.setattr(middleware, "_local_cluster", (0.0, False))
        return False

    monkeypatch.setattr(middleware, "learn_of_local_cluster", learn)
    monkeypatch.setattr(warm_up, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(warm_up, "AGAIN_SECONDS", 0.01)
    thread = start_local_cluster_check()
    assert thread.is_alive()
    assert not middleware.knows_of_local_cluster()
    is_back.set()
    thread.join(PATIENCE)
    assert middleware.knows_of_local_cluster()
