"""Reflectors, which keep a local copy (mirror) of all objects of one kind up to date despite network failures.

A reflector works like those of client-go (k8s.io/client-go/tools/cache). It lists the objects in pages. It then
watches, with bookmarks, from the resourceVersion where the last watch ended. It lists again only if the API server no
longer has that version.
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

# Pauses in seconds after failures: doubled each time, with jitter so that many watchers do not return at the same time.
FIRST_PAUSE, LONGEST_PAUSE = 0.8, 30.0
# A watch that ends sooner, in seconds, and without any event counts as a failure.
SHORTEST_WATCH = 1.0
# The API server ends a watch after a random time in this range, in seconds. A longer silence means a dead connection.
WATCH_SECONDS = (240, 480)
SILENCE_BEYOND_SECONDS = 15.0


class Mirror(Protocol):
    """A local store that a reflector fills with the objects of one kind."""

    def replace(self, objects: Sequence[Object], age: float = 0.0) -> None:
        """Replaces the store's content with `objects`, the objects that existed in the cluster `age` seconds ago."""

    def put(self, thing: Object) -> None:
        """Stores a new or changed object."""

    def remove(self, thing: Object) -> None:
        """Removes an object from the store, because it was deleted in the cluster."""

    def heard(self) -> None:
        """Records that the API server has just answered. The stored objects are therefore known to be current."""


@dataclass
class Reflector:
    """Keeps `mirror` (a local store) up to date with the objects at the API path `path`, while a thread executes `run`.

    The thread returns from `run` after a call of `stop`.
    """

    api: Api
    path: str
    mirror: Mirror
    query: Mapping[str, Any] = field(default_factory=dict)  # label and field selectors
    page: int = PAGE
    watch_seconds: tuple[int, int] = WATCH_SECONDS
    silence_beyond: float = SILENCE_BEYOND_SECONDS
    chance: random.Random = field(default_factory=random.Random)

    def __post_init__(self) -> None:
        self.lists = self.watches = 0  # numbers of lists and watches so far
        # ResourceVersion of the last object or bookmark; None if a list is needed.
        self._version: str | None = None
        self._failures = 0
        self._stopped = threading.Event()
        self._stream: Stream | None = None

    def stop(self) -> None:
        """Makes `run` return soon. Any thread may call this method."""
        self._stopped.set()
        if (stream := self._stream) is not None:
            stream.cut()

    def run(self) -> None:
        """Lists and watches the objects until `stop` is called.

        Raises Unauthorized if the API server refuses the credentials twice in a row. The first refusal may only mean
        that the credentials have expired; the client refreshes them before the second request.
        """
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
                # After `stop`, the error only means that `stop` cut the stream.
                if not self._stopped.is_set():
                    logger.warning("%s: %s", self.path, trouble)
                    self._pause(0.0)

    def _step(self) -> None:
        """Watches the objects from the last known resourceVersion until the watch ends. If no resourceVersion is known,
        first lists all objects."""
        if self._version is None:
            self._version = self._list()
        began, before = time.monotonic(), self._version
        self._watch()
        if time.monotonic() - began >= SHORTEST_WATCH:
            self._failures = 0
        elif self._version == before:
            self._pause(0.0)

    def _list(self) -> str:
        """Lists all objects, passes them to the mirror, and returns the resourceVersion of the list."""
        began = time.monotonic()  # all pages show the state at the time of the first page
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
                if self._stopped.is_set():  # `stop` was called before it could cut this stream
                    return
                for event in stream:
                    self._take(event)
                    self.mirror.heard()
                    self._failures = 0
                # A watch that the API server ended after the requested time proves that nothing else happened. On a
                # quiet cluster this may be the only proof.
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
                raise Unreachable(f"the API server sent an event of the unknown type {unknown}")
        self._version = str(thing["metadata"]["resourceVersion"])

    def _pause(self, at_least: float) -> None:
        """Waits for a pause that grows with each consecutive failure and is at least `at_least` seconds. `stop` ends
        the wait."""
        longest = min(FIRST_PAUSE * 2**self._failures, LONGEST_PAUSE)
        self._failures = min(self._failures + 1, 16)
        self._stopped.wait(max(at_least, self.chance.uniform(longest / 2, longest)))
