"""Keeps a mirror of one kind of object current by a list followed by watches, whatever the network does.

Works like client-go's reflectors (k8s.io/client-go/tools/cache): it lists in pages and watches with bookmarks from
where the last watch ended. It lists again only when the API server no longer remembers that version.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from scheduling.backends.kubernetes.api import (
    PAGE,
    Api,
    Gone,
    Object,
    Refused,
    Stream,
    Unauthorized,
    Unreachable,
)

logger = logging.getLogger(__name__)

# Seconds after a failure, doubled each time, with jitter so that many watchers do not return together.
FIRST_PAUSE, LONGEST_PAUSE = 0.8, 30.0
# A shorter watch without any event counts as a failure.
SHORTEST_WATCH = 1.0
# The API server ends a watch within this many seconds. A somewhat longer silence means a dead connection.
WATCH_SECONDS = (240, 480)
SILENCE_BEYOND_SECONDS = 15.0


class Mirror(Protocol):
    """The place where the objects are stored."""

    def replace(self, objects: Sequence[Object], age: float = 0.0) -> None:
        """Takes all objects that existed `age` seconds ago."""

    def put(self, thing: Object) -> None:
        """Takes an object that is new or changed."""

    def remove(self, thing: Object) -> None:
        """Takes an object that is gone."""

    def heard(self) -> None:
        """Notes that the API server has answered, so the stored state is current."""


@dataclass
class Reflector:
    """Keeps `mirror` current with the objects at `path` while `run` runs in one thread, until `stop`."""

    api: Api
    path: str
    mirror: Mirror
    query: Mapping[str, Any] = field(default_factory=dict)  # label and field selectors
    page: int = PAGE
    watch_seconds: tuple[int, int] = WATCH_SECONDS
    silence_beyond: float = SILENCE_BEYOND_SECONDS
    chance: random.Random = field(default_factory=random.Random)

    def __post_init__(self) -> None:
        self.lists = self.watches = 0  # so far
        self._version: str | None = None  # of the last object or bookmark; None when a list is needed
        self._failures = 0
        self._stopped = threading.Event()
        self._stream: Stream | None = None

    def stop(self) -> None:
        """Makes `run` return soon. Called from another thread."""
        self._stopped.set()
        if (stream := self._stream) is not None:
            stream.cut()

    def run(self) -> None:
        """Follows the objects. Raises Unauthorized when a fresh token was refused too: then only a restart helps."""
        refused_before = False
        while not self._stopped.is_set():
            try:
                self._step()
                refused_before = False
            except Gone:
                self._version = None
                self._pause(0.0)
            except Unauthorized:
                if refused_before:
                    raise
                refused_before = True
            except Refused as refusal:
                logger.warning("%s: %s", self.path, refusal)
                self._pause(refusal.retry_after)
            except Unreachable as trouble:
                if not self._stopped.is_set():  # otherwise `stop` has cut the stream
                    logger.warning("%s: %s", self.path, trouble)
                    self._pause(0.0)

    def _step(self) -> None:
        """Lists if needed, then watches once."""
        if self._version is None:
            self._version = self._list()
        began, before = time.monotonic(), self._version
        self._watch()
        if time.monotonic() - began >= SHORTEST_WATCH:
            self._failures = 0
        elif self._version == before:
            self._pause(0.0)

    def _list(self) -> str:
        """Passes all objects to the mirror and returns the version of the list."""
        began = time.monotonic()  # all pages show the state at the time of the first
        found, version = self.api.list_all(self.path, page=self.page, **self.query)
        self.mirror.replace(found, time.monotonic() - began)
        self.lists += 1
        return version

    def _watch(self) -> None:
        seconds = self.chance.randint(*self.watch_seconds)
        query = {
            **self.query,
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": seconds,
        }
        began = time.monotonic()
        with self.api.watch(self.path, read_seconds=seconds + self.silence_beyond, **query) as stream:
            self._stream = stream
            self.watches += 1
            try:
                if self._stopped.is_set():  # `stop` came before there was a stream to cut
                    return
                for event in stream:
                    self._take(event)
                    self.mirror.heard()
                    self._failures = 0
                # A watch that the server ended after the requested time proves that nothing else happened. On a quiet
                # cluster this may be the only sign of life.
                if time.monotonic() - began >= seconds and not self._stopped.is_set():
                    self.mirror.heard()
            finally:
                self._stream = None

    def _take(self, event: Object) -> None:
        thing = event.get("object") or {}
        match event.get("type"):
            case "ADDED" | "MODIFIED":
                self.mirror.put(thing)
            case "DELETED":
                self.mirror.remove(thing)
            case "BOOKMARK":
                pass
            case "ERROR":
                code = int(thing.get("code") or 500)
                raise (Gone if code == 410 else Refused)(code, thing)
            case unknown:
                raise Unreachable(f"an event of type {unknown}")
        self._version = str(thing["metadata"]["resourceVersion"])

    def _pause(self, at_least: float) -> None:
        """Waits longer after each consecutive failure, or until `stop`."""
        longest = min(FIRST_PAUSE * 2**self._failures, LONGEST_PAUSE)
        self._failures = min(self._failures + 1, 16)
        self._stopped.wait(max(at_least, self.chance.uniform(longest / 2, longest)))
