"""Base class for simulated components of a cluster, which watch objects of one kind and react to changes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from scheduling.backends.kubernetes.api import Api as OwnApi
from scheduling.backends.kubernetes.api import Gone, Stream, Unreachable
from tests.cluster.api import Api, Object
from tests.waiting import wait_for

A_DAY = 24 * 3600


class Player:
    """Base class of a simulated component. It watches the objects at `path` with the kubeconfig `config`.

    Subclasses implement `_play`, which reads changed objects from the queue `_seen`. None in the queue means the end.
    """

    def __init__(self, config: Path, path: str, **query: str) -> None:
        self._api, self._watching = Api(config), OwnApi(yaml.safe_load(config.read_text()))
        self._path: str = path
        self._query: dict[str, Any] = dict(query)
        self._seen: queue.SimpleQueue[Object | None] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._stream: Stream | None = None
        self.trouble: BaseException | None = None

    @contextmanager
    def _playing(self, *more: Callable[[], None]) -> Iterator[None]:
        """Runs the watch, `_play` and the functions `more` in separate threads during the block. Sets `_stopped` at its
        end."""
        threads = [
            threading.Thread(target=self._run, args=(does,), daemon=True)
            for does in (self._watch, self._play, *more)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stopped.set()
            self._seen.put(None)
            wait_for(lambda: self._stream or not threads[0].is_alive(), what="it watches")
            if self._stream is not None:
                self._stream.cut()
            for thread in threads:
                thread.join()
            self._api.close()
            self._watching.close()

    def _run(self, does: Callable[[], None]) -> None:
        try:
            does()
        except BaseException as trouble:
            if not self._stopped.is_set():
                self.trouble = trouble
                raise

    def _watch(self) -> None:
        while not self._stopped.is_set():
            found, version = self._watching.list_all(self._path, **self._query)
            for thing in found:
                self._seen.put(thing)
            asked = {**self._query, "resourceVersion": version, "timeoutSeconds": A_DAY}
            try:
                with self._watching.watch(self._path, read_seconds=A_DAY, **asked) as stream:
                    self._stream = stream
                    for event in stream:
                        if event["type"] in ("ADDED", "MODIFIED"):
                            self._seen.put(event["object"])
            except (Gone, Unreachable):  # the next pass lists again
                continue

    def _play(self) -> None:
        raise NotImplementedError
