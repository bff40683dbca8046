"""Nothing waits for Redis: neither transactions that send messages nor pages that read the position of a stream."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
from django.conf import LazySettings
from django.db import transaction

from scheduling.core import enqueue, pubsub, redis_sender
from scheduling.core.redis_sender import Outgoing
from tests.waiting import PATIENCE


@pytest.fixture
def silent_redis(settings: LazySettings, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Runs a server that accepts connections and never answers, and makes Fairlot use it as Redis."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        settings.REDIS_URL = f"redis://127.0.0.1:{server.getsockname()[1]}/0"
        monkeypatch.setattr(pubsub, "_silent_until", float("-inf"))
        yield


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("silent_redis")
def test_a_transaction_does_not_wait_for_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    own, blocked, sent = Outgoing(), threading.Event(), []
    monkeypatch.setattr(pubsub, "outgoing", own)
    monkeypatch.setattr(enqueue, "outgoing", own)

    def send(*what: object) -> None:
        assert blocked.wait(PATIENCE)
        sent.append(what)

    monkeypatch.setattr(enqueue, "_send", send)
    monkeypatch.setattr(pubsub, "_send", send)
    with transaction.atomic():
        for number in range(50):
            pubsub.publish(f"job:{number}")
            enqueue.wake_rounds(number)
    # Everything is committed at this point, although no message has been sent.
    assert sent == []
    blocked.set()
    assert own.flush(PATIENCE)
    assert len(sent) == 100


@pytest.mark.usefixtures("silent_redis")
def test_a_page_waits_once_and_briefly_for_where_the_news_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    client = pubsub._client
    monkeypatch.setattr(
        pubsub, "_client", lambda url, *seconds: asked.append(seconds) or client(url, *seconds)
    )
    begun = time.monotonic()
    assert [pubsub.position() for _ in range(100)] == [""] * 100
    assert len(asked) == 1  # after one failure Fairlot does not ask Redis again for a while
    assert sum(asked[0]) < 0.1  # the sum of the timeouts for connecting and for the answer, in seconds
    assert time.monotonic() - begun < 20


def test_equal_messages_wait_once_and_excess_ones_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_sender, "MOST_WAITING", 3)
    own, blocked, sent = Outgoing(), threading.Event(), []
    own.put("first", lambda: sent.append(blocked.wait(PATIENCE) and "first"))
    while own._waiting:
        time.sleep(0.01)
    for name in ("a", "b", "a", "c", "d", "d"):
        own.put(name, lambda name=name: sent.append(name))
    assert not own.flush(0.01)
    blocked.set()
    assert own.flush(PATIENCE)
    assert sent == ["first", "b", "c", "d"]


def test_a_message_that_cannot_be_sent_keeps_none_after_it() -> None:
    own, sent = Outgoing(), []
    own.put("bad", lambda: sent.append(1 // 0))
    own.put("good", lambda: sent.append("good"))
    assert own.flush(PATIENCE)
    assert sent == ["good"]
