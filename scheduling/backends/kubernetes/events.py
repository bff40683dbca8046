"""Functions that turn Kubernetes events (core/v1) about jobs and nodes into messages for users.

Only warnings and a few other events matter. A cluster keeps events for an hour, counts repetitions, and may deliver an
event again to a new watch. This module therefore remembers events, so that a job shows each message once.
"""

from __future__ import annotations

import base64
import binascii
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from scheduling.backends.kubernetes import podgroups
from scheduling.backends.kubernetes.api import Object

LONGEST = 500  # characters of a description
# Reasons of events that repeat other events or report actions of Fairlot.
NOISE = frozenset({"BackOff", "FailedKillPod", "FailedSync", "DNSConfigForming", "Preempted"})
ERROR_ALREADY_TOLD = re.compile(r"Error: (ErrImagePull|ImagePullBackOff|ErrImageNeverPull)")
IMAGE = re.compile(r'(?:Failed to pull image|Container image) "([^"]+)"(?:: )?(.*)', re.DOTALL)
QUOTA = re.compile(r"exceeded quota: ([^,]+), requested: (.+?), used: (.+?), limited: (.+)$")
POLICY = re.compile(r"ValidatingAdmissionPolicy '([^']+)'.*? denied request: (.+)$", re.DOTALL)
DENIED = re.compile(r'pods "[^"]*" is forbidden: (.+)$', re.DOTALL)
COMBINED = "(combined from similar events): "
# Text that Fairlot puts before the event's own message, by reason.
OF_PODS = {
    "FailedScheduling": "no node accepts the pod",
    "Evicted": "the pod was evicted",
    "TaintManagerEviction": "the pod is removed because its node has a new taint",
    "NodeNotReady": "the pod's node is not ready",
    "NodeLost": "the pod's node is lost",
    "FailedMount": "a volume cannot be mounted",
    "FailedAttachVolume": "a volume cannot be attached",
    "FailedMapVolume": "a volume cannot be mounted",
    "FailedCreatePodSandBox": "the node cannot create the pod's sandbox",
    "UnexpectedAdmissionError": "the node refused the pod",
    "NodeAffinity": "the node refused the pod",
    "Unhealthy": "the pod's readiness probe fails",
    "ExceededGracePeriod": "the pod did not stop within its grace period and was killed",
}
OF_NODES = {
    "SystemOOM": "the node {name} ran out of memory",
    "OOMKilling": "the node {name} ran out of memory",
    "Rebooted": "the node {name} was restarted",
    "FreeDiskSpaceFailed": "the node {name} has no disk space left",
    "EvictionThresholdMet": "the node {name} is short of memory, disk space or process IDs",
}
# Reasons of events whose message adds nothing to Fairlot's text.
WORDLESS = frozenset({"TaintManagerEviction", "NodeNotReady", "NodeLost"})


@dataclass(frozen=True, slots=True)
class Denial:
    """The reason why the Job controller could not create a pod, for example a quota."""

    words: str
    at: datetime  # by the cluster's clock, to the second
    is_final: bool  # whether waiting is useless


def job_of_pod(name: str) -> tuple[int, int, int] | None:
    """Returns a triple from the name of one of Fairlot's pods: the job ID, the part of its gang and the pod's index in
    it. Returns None for other names.

    The name is `fairlot-<job>-<index>-<random>`, or `fairlot-<job>-<index>` for a bare pod. `<job>` is the job ID in
    base32, which the number of the part follows (objects.job_name) if it is not 0.
    """
    parts = name.split("-")
    if len(parts) not in (3, 4) or parts[0] != "fairlot" or not parts[2].isdecimal():
        return None
    of_job, mark, part = parts[1][:8], parts[1][8:9], parts[1][9:]
    if mark and (mark != "r" or not part.isdecimal()):
        return None
    try:
        number = base64.b32decode(of_job.upper())
    except binascii.Error:
        return None
    found = int.from_bytes(number, "big"), int(part or 0), int(parts[2])
    return found if len(number) == 5 else None


def job_of(about: Object) -> int | None:
    """Returns the ID of one of Fairlot's jobs if `about` refers to the Kubernetes Job of that job; None if it does not.

    `about`: the reference to the object that an event concerns.
    """
    ours = job_of_pod(f"{about.get('name', '')}-0-x") if about.get("kind") == "Job" else None
    return ours[0] if ours else None


def moment_of(event: Object) -> datetime:
    """Returns the time of the event's last occurrence."""
    series = event.get("series") or {}
    for moment in (
        event.get("lastTimestamp"),
        series.get("lastObservedTime"),
        event.get("eventTime"),
        event.get("firstTimestamp"),
        event["metadata"].get("creationTimestamp"),
    ):
        if moment:
            return datetime.fromisoformat(moment)
    return datetime.now(UTC)


def describe_pod_event(event: Object) -> str:
    """Describes a pod's event in words for users. Returns "" for events that do not matter to users."""
    reason, said = event.get("reason", ""), _said(event)
    if reason in NOISE or said.startswith(("Cancelling deletion", "skip schedule deleting pod")):
        return ""
    # The pod waits for another pod of its gang, whose own event gives the reason.
    if reason == "FailedScheduling" and podgroups.only_waits(said):
        return ""
    if found := IMAGE.match(said):
        return _short(f"the image {found[1]} cannot be pulled", found[2])
    if reason in ("Failed", "InspectFailed", "ErrImageNeverPull", "FailedPostStartHook"):
        if ERROR_ALREADY_TOLD.match(said):
            return ""
        return _short("the container cannot be started", said.removeprefix("Error: "))
    if reason == "FailedScheduling":  # cuts the scheduler's remarks about preemption, which do not help users
        said = said.partition(" preemption:")[0]
    if reason in OF_PODS:
        return _short(OF_PODS[reason], "" if reason in WORDLESS else said)
    if reason.startswith("OutOf"):
        return _short("the node has too few resources left for the pod", said)
    return _short(f"the node reports {reason}" if event.get("type") == "Warning" else "", said)


def describe_node_event(event: Object) -> str:
    """Describes a node's event in words for users. Returns "" for events that do not matter to workers on the node."""
    words = OF_NODES.get(event.get("reason", ""), "")
    if not words:
        return ""
    name = event["involvedObject"].get("name", "")
    return _short(words.format(name=name), "" if event["reason"] in WORDLESS else _said(event))


def denial(event: Object) -> Denial | None:
    """Returns why the Job controller could not create a pod, if the event reports this. Otherwise returns None."""
    if event.get("reason") != "FailedCreate":
        return None
    said = _said(event).removeprefix("Error creating: ")
    at = moment_of(event)
    if found := QUOTA.search(said):
        quota, asked, used, limit = found.groups()
        words = f"the quota {quota} denies a pod: {asked} requested, {used} used, {limit} allowed"
        return Denial(_short(words, ""), at, is_final=False)
    if found := POLICY.search(said):
        return Denial(_short(f"the policy {found[1]} denies the job's pods", found[2]), at, is_final=True)
    is_denied = DENIED.search(said)
    if is_denied and "violates PodSecurity" in said:
        return Denial(
            _short("the pod security standard denies the job's pods", is_denied[1]), at, is_final=True
        )
    if "admission webhook" in said and "denied the request" in said:
        return Denial(_short("a policy denies the job's pods", said), at, is_final=True)
    if " is invalid: " in said:
        return Denial(_short("the job's pods are invalid", said), at, is_final=True)
    return Denial(
        _short("a pod could not be created", is_denied[1] if is_denied else said), at, is_final=False
    )


def _said(event: Object) -> str:
    return str(event.get("message") or "").strip().removeprefix(COMBINED)


def _short(words: str, said: str) -> str:
    text = f"{words}: {said}" if words and said else words
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


@dataclass(frozen=True, slots=True)
class EventText:
    """The description of one event in words for users, with the job or the node that the event concerns."""

    uid: str  # UID of the event
    namespace: str
    job_id: int | None  # None: the event concerns all jobs on the node
    node: str
    text: str
    at: datetime


@dataclass
class Events:
    """A store of Kubernetes events, filled by a reflector. Keeps the descriptions of new events until the next call of
    `take`."""

    changed: Callable[[], None]
    filled: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: set[str] = set()  # UIDs of events
        self._texts: list[EventText] = []
        self._denials: list[tuple[int, str, Denial]] = []  # (job ID, UID of its Job, denial)

    def take(self) -> tuple[Sequence[EventText], Sequence[tuple[int, str, Denial]]]:
        """Returns a pair with what is new since the last call: the texts of events, and the denials.

        A denial says why a pod could not be created. It is a triple: the job's ID, the UID of its Kubernetes Job, and
        the reason.

        If Kubernetes reports an event several times, its text is returned only once. Its denial is returned each time,
        because the pod still cannot be created.
        """
        with self._lock:
            words, self._texts = self._texts, []
            denials, self._denials = self._denials, []
        return words, denials

    def heard(self) -> None:
        """Does nothing. A reflector calls this method at each answer of the API server, but this store does not need
        the time of the last answer."""

    def replace(self, objects: Sequence[Object], age: float = 0.0) -> None:
        there = {event["metadata"]["uid"] for event in objects}
        with self._lock:
            self._seen &= there
        for event in objects:
            self.put(event)
        self.filled.set()

    def remove(self, thing: Object) -> None:
        with self._lock:
            self._seen.discard(thing["metadata"]["uid"])

    def put(self, thing: Object) -> None:
        uid, about = thing["metadata"]["uid"], thing.get("involvedObject") or {}
        job_id, why = job_of(about), denial(thing)
        with self._lock:
            if job_id is not None and why:
                self._denials.append((job_id, about.get("uid", ""), why))
            elif uid in self._seen:
                return
            if uid not in self._seen and (word := _event_text(thing, about)):
                self._texts.append(word)
            self._seen.add(uid)
        self.changed()


def _event_text(event: Object, about: Object) -> EventText | None:
    kind, name, namespace = about.get("kind"), about.get("name", ""), about.get("namespace", "")
    uid, at = event["metadata"]["uid"], moment_of(event)
    if kind == "Pod" and (ours := job_of_pod(name)):
        text = describe_pod_event(event)
        job_id, part, index = ours
        # In later parts of a gang with roles, the index is not the worker's rank.
        worker = f"pod {name}" if part else f"worker {index}"
        return EventText(uid, namespace, job_id, "", f"{worker}: {text}", at) if text else None
    if kind == "Node":
        text = describe_node_event(event)
        return EventText(uid, "", None, name, text, at) if text else None
    if (of_job := job_of(about)) is not None and (why := denial(event)):
        return EventText(uid, namespace, of_job, "", why.words, at)
    return None
