"""Records the history of pods: their states in the order of the API server's revisions, and times from the audit
log."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from scheduling.backends.kubernetes import objects
from scheduling.backends.kubernetes.api import Api as OwnApi
from scheduling.backends.kubernetes.api import Object, Stream
from tests.cluster import kubelets
from tests.waiting import wait_for

PODS = "/api/v1/pods"


@dataclass(frozen=True)
class Moment:
    """A watch event of a pod, with the state of the pod at that time."""

    version: int
    kind: str
    pod: Object

    @property
    def uid(self) -> str:
        return str(self.pod["metadata"]["uid"])

    @property
    def job(self) -> int:
        return objects.job_id_of(self.pod)

    @property
    def is_alive(self) -> bool:
        """Returns whether the pod runs or can still run.

        Pods that cannot run are gated, or are terminating and have no node.
        """
        is_out = "deletionTimestamp" in self.pod["metadata"] and not self.node
        can_run = not is_out and not objects.is_gated(self.pod)
        return self.kind != "DELETED" and not objects.has_ended(self.pod) and can_run

    @property
    def node(self) -> str:
        return str(self.pod["spec"].get("nodeName", ""))

    @property
    def gpus(self) -> int:
        return sum(int(box["resources"]["limits"][objects.NVIDIA]) for box in self.pod["spec"]["containers"])


@dataclass
class Witness:
    """Records every watch event of the pods of one lab. It watches the API server directly, without the faulty
    proxy."""

    api: OwnApi
    owner: str
    moments: list[Moment] = field(default_factory=list)
    # Seconds between a container's start or end and the watch event about it.
    delays: list[float] = field(default_factory=list)
    trouble: BaseException | None = None
    _stream: Stream | None = None

    @contextmanager
    def watching(self) -> Iterator[Witness]:
        selector = {"labelSelector": f"{objects.OWNER}={self.owner}"}
        version = self.api.get(PODS, limit=1, **selector)["metadata"]["resourceVersion"]
        stopped = threading.Event()
        thread = threading.Thread(target=self._watch, args=(version, selector, stopped), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            stopped.set()
            wait_for(lambda: self._stream or not thread.is_alive(), what="the witness watches")
            if self._stream is not None:
                self._stream.cut()
            thread.join()

    def _watch(self, version: str, selector: dict[str, str], stopped: threading.Event) -> None:
        query = {**selector, "resourceVersion": version, "timeoutSeconds": 24 * 3600}
        try:
            with self.api.watch(PODS, read_seconds=24 * 3600, **query) as stream:
                self._stream = stream
                for event in stream:
                    pod = event["object"]
                    self.moments.append(Moment(int(pod["metadata"]["resourceVersion"]), event["type"], pod))
                    self.delays.append(_delay(pod))
            assert stopped.is_set(), "the watch of the witness has ended"
        except BaseException as trouble:
            if not stopped.is_set():
                self.trouble = trouble

    def catch_up(self) -> None:
        """Waits until the watch has delivered everything that a list of pods currently shows."""

        def has() -> bool:
            assert self.trouble is None, self.trouble
            listed = self.api.get(PODS, labelSelector=f"{objects.OWNER}={self.owner}")["items"]
            there = {pod["metadata"]["uid"]: int(pod["metadata"]["resourceVersion"]) for pod in listed}
            last = {moment.uid: moment for moment in list(self.moments)}
            known = {uid: moment.version for uid, moment in last.items() if moment.kind != "DELETED"}
            return known == there

        wait_for(has, what="the witness knows what there is")

    def last(self) -> dict[str, Moment]:
        """Returns the last event of each pod, by UID."""
        return {moment.uid: moment for moment in list(self.moments)}

    def alive(self) -> list[Moment]:
        return [moment for moment in self.last().values() if moment.is_alive]


def _delay(pod: Object) -> float:
    """Returns the seconds between a change of a container and the watch event about it; 0 for events about other
    changes."""
    written = [
        entry["time"]
        for entry in pod["metadata"].get("managedFields", ())
        if entry.get("manager") == kubelets.MANAGER and entry.get("subresource") == "status"
    ]
    newest = max((entry["time"] for entry in pod["metadata"].get("managedFields", ())), default="")
    if not written or max(written) != newest or "deletionTimestamp" in pod["metadata"]:
        return 0.0
    return max(0.0, time.time() - datetime.fromisoformat(newest).timestamp() - 1.0)


def check_every_moment(moments: Iterable[Moment], gpus_of: Callable[[str], int]) -> None:
    """Asserts that each worker has at most one pod at any time, and that pods bound to a node fit on its GPUs."""
    alive: dict[str, Moment] = {}
    for moment in moments:
        if moment.is_alive:
            alive[moment.uid] = moment
        else:
            alive.pop(moment.uid, None)
        ranks = Counter((one.job, objects.rank_of(one.pod)) for one in alive.values())
        twice = {rank: count for rank, count in ranks.items() if count > 1}
        assert not twice, (
            f"pods of one rank at once: {twice} at {moment.version}: {[*map(_said, alive.values())]}"
        )
        bound: Counter[str] = Counter()
        for one in alive.values():
            if one.node:
                bound[one.node] += one.gpus
        over = {node: count for node, count in bound.items() if count > gpus_of(node)}
        assert not over, f"more GPUs bound than there are: {over} at {moment.version}"


def _said(moment: Moment) -> str:
    about = moment.pod["metadata"]
    return f"{about['name']} (epoch {objects.epoch_of(moment.pod)}, on {moment.node or 'no node'})"


@dataclass
class Held:
    """The time for which a pod held its GPUs, from its binding to the end of its containers, according to the audit
    log."""

    pod: Moment
    bound: float
    ended: float

    @property
    def attempt(self) -> tuple[int, int]:
        """Returns the job ID and the epoch."""
        return self.pod.job, objects.epoch_of(self.pod.pod)


class AuditTail:
    """Reads new lines of the audit log, beginning at its current end. Follows log rotations."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open()
        self._file.seek(0, os.SEEK_END)

    def close(self) -> None:
        self._file.close()

    def events(self, about: str) -> list[dict[str, Any]]:
        """Returns the events since the last call whose log line contains the text `about`."""
        lines = self._file.readlines()
        while os.fstat(self._file.fileno()).st_ino != self._path.stat().st_ino:
            self._file.close()
            self._file = self._path.open()
            lines += self._file.readlines()
        return [json.loads(line) for line in lines if about in line]


def last_touched(events: Iterable[dict[str, Any]]) -> dict[str, float]:
    """Maps each pod name to the time of the last request about that name, in Unix time."""
    return {
        event["objectRef"].get("name", ""): datetime.fromisoformat(event["stageTimestamp"]).timestamp()
        for event in events
        if event.get("objectRef", {}).get("resource") == "pods" and event["responseStatus"]["code"] < 300
    }


def held_by_pods(pods: Iterable[Moment], events: Iterable[dict[str, Any]]) -> list[Held]:
    """Returns, for each bound pod, the Unix times of its binding and of the end of its containers."""
    bound: dict[str, float] = {}
    ended: dict[str, float] = {}
    named: dict[tuple[str, str], str] = {}
    # By arrival, because the response to a binding may be logged after its effects.
    for event in sorted(events, key=lambda event: str(event["requestReceivedTimestamp"])):
        about = event.get("objectRef", {})
        if about.get("resource") != "pods" or event["responseStatus"].get("code", 500) >= 300:
            continue
        at = datetime.fromisoformat(event["stageTimestamp"]).timestamp()
        name = about["namespace"], about.get("name", "")
        if about.get("subresource") == "binding":
            # Several pods can have the same name one after another: later requests are about the last one bound.
            uid = named[name] = event["requestObject"]["metadata"]["uid"]
            bound[uid] = at
        elif about.get("subresource") == "status" and event["user"]["username"] == kubelets.USER:
            ended[named[name]] = at  # overwritten until the last event, which reports the end
    held = []
    for moment in pods:
        if moment.node:
            assert moment.uid in bound, f"the audit log does not know how {moment.uid} came to {moment.node}"
            held.append(Held(moment, bound[moment.uid], ended.get(moment.uid, time.time())))
    return held
