"""The heartbeat file of `manage.py watch` stops being updated when a watcher hangs, and only then."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.conf import LazySettings

from scheduling.management.commands import watch

LOOPS = 12


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(watch, "STAND_BY_SECONDS", 0.05)
    monkeypatch.setattr(watch, "LONGEST_PASS", 0.2)
    monkeypatch.setattr(watch.Command, "_say_what_keeps_jobs_apart", lambda self: None)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def hangs(cluster_id: int, stop: threading.Event, passes: dict[int, float]) -> None:
    stop.wait()


def gets_on(cluster_id: int, stop: threading.Event, passes: dict[int, float]) -> None:
    while not stop.wait(0.01):
        passes[cluster_id] = time.monotonic()


def dies(cluster_id: int, stop: threading.Event, passes: dict[int, float]) -> None:
    """Stands in for a watcher that fails at its start, for example because the database is away: returns immediately.
    The command must start the watcher again."""


@pytest.mark.parametrize(
    ("watcher", "clusters_later", "beats"),
    [(gets_on, [7], True), (dies, [7], True), (hangs, [7], False), (dies, [], True)],
    ids=["gets on", "dies and is started again", "hangs", "ends with a cluster that is detached"],
)
def test_it(
    *, monkeypatch: pytest.MonkeyPatch, settings: LazySettings, tmp_path: Path,
    watcher: Callable[..., None], clusters_later: list[int], beats: bool,
) -> None:  # fmt: skip
    heartbeat = tmp_path / "watch"
    settings.FAIRLOT_HEARTBEAT_FILE = str(heartbeat)
    looks = 0

    def clusters(self: watch.Command) -> list[int]:
        nonlocal looks
        looks += 1
        if looks == LOOPS - 1:  # by now a watcher that hangs has hung for longer than allowed
            os.utime(heartbeat, (0, 0))
        if looks == LOOPS:
            os.kill(os.getpid(), signal.SIGTERM)
        return clusters_later if looks > 1 else [7]

    monkeypatch.setattr(watch, "_watch", watcher)
    monkeypatch.setattr(watch.Command, "_clusters", clusters)
    watch.Command().handle()
    assert (heartbeat.stat().st_mtime > 0) is beats
