"""What a cluster says of jobs besides their state, in plain words: objects in, words out.

Of the events of Kubernetes (core/v1) the warnings matter, and few others. Clusters keep them for an hour, count
those that come again, and may tell them to whoever asks later; the notes of a job are to say each thing once.
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

LONGEST = 500  # characters of a note
# What repeats others, or tells of what Fairlot itself does.
NOISE = frozenset({"BackOff", "FailedKillPod", "FailedSync", "DNSConfigForming", "Preempted"})
ERROR_ALREADY_TOLD = re.compile(r"Error: (ErrImagePull|ImagePullBackOff|ErrImageNeverPull)")
IMAGE = re.compile(r'(?:Failed to pull image|Container image) "([^"]+)"(?:: )?(.*)', re.DOTALL)
QUOTA = re.compile(r"exceeded quota: ([^,]+), requested: (.+?), used: (.+?), limited: (.+)$")
POLICY = re.compile(r"ValidatingAdmissionPolicy '([^']+)'.*? denied request: (.+)$", re.DOTALL)
DENIED = re.compile(r'pods "[^"]*" is forbidden: (.+)$', re.DOTALL)
COMBINED = "(combined from similar events): "
# By reason, what is put before the cluster's own words.
OF_PODS = {
    "FailedScheduling": "no node takes it",
    "Evicted": "it was evicted",
    "TaintManagerEviction": "it is taken off its node, which has got a taint",
    "NodeNotReady": "its node is not ready",
    "NodeLost": "its node is lost",
    "FailedMount": "a volume cannot be mounted",
    "FailedAttachVolume": "a volume cannot be attached",
    "FailedMapVolume": "a volume cannot be mounted",
    "FailedCreatePodSandBox": "its node cannot make room for it",
    "UnexpectedAdmissionError": "its node refused it",
    "NodeAffinity": "its node refused it",
    "Unhealthy": "it does not answer as one that is ready",
    "ExceededGracePeriod": "it did not stop in time and was killed",
}
OF_NODES = {
    "SystemOOM": "ran out of memory",
    "OOMKilling": "ran out of memory",
    "Rebooted": "was restarted",
    "FreeDiskSpaceFailed": "has no room left on its disk",
    "EvictionThresholdMet": "is short of something",
}
# Of these the words say no more than the reason.
WORDLESS = frozenset({"TaintManagerEviction", "NodeNotReady", "NodeLost"})


@dataclass(frozen=True, slots=True)
class Denial:
    """Why the Job controller could not make a pod."""

    words: str
    at: datetime  # by the cluster's clock, to the second
    is_final: bool  # no waiting mends it


def job_of_pod(name: str) -> tuple[int, int] | None:
    """The job and the rank of a pod of ours by its name; None for others.

    That is `fairlot-<job>-<rank>-<chance>`, of a bare pod `fairlot-<job>-<rank>`.
    """
    parts = name.split("-")
    if len(parts) not in (3, 4) or parts[0] != "fairlot" or not parts[2].isdecimal():
        return None
    try:
        number = base64.b32decode(parts[1].upper())
    except binascii.Error:
        return None
    return (int.from_bytes(number, "big"), int(parts[2])) if len(number) == 5 else None


def job_of(about: Object) -> int | None:
    """The job whose Job an event is about; None when it is about something else."""
    ours = job_of_pod(f"{about.get('name', '')}-0-x") if about.get("kind") == "Job" else None
    return ours[0] if ours else None


def moment_of(event: Object) -> datetime:
    """When it happened last."""
    series = event.get("series") or {}
    for told in (
        event.get("lastTimestamp"),
        series.get("lastObservedTime"),
        event.get("eventTime"),
        event.get("firstTimestamp"),
        event["metadata"].get("creationTimestamp"),
    ):
        if told:
            return datetime.fromisoformat(told)
    return datetime.now(UTC)


def of_a_pod(event: Object) -> str:
    """What became of a pod, in plain words; empty when it is nothing to people."""
    reason, said = event.get("reason", ""), _said(event)
    if reason in NOISE or said.startswith(("Cancelling deletion", "skip schedule deleting pod")):
        return ""
    if reason == "FailedScheduling" and podgroups.only_waits(said):  # for another, of which it is said why
        return ""
    if found := IMAGE.match(said):
        return _short(f"the image {found[1]} cannot be pulled", found[2])
    if reason in ("Failed", "InspectFailed", "ErrImageNeverPull", "FailedPostStartHook"):
        if ERROR_ALREADY_TOLD.match(said):
            return ""
        return _short("its container cannot be started", said.removeprefix("Error: "))
    if reason == "FailedScheduling":  # what the scheduler thought of displacing others is of no use here
        said = said.partition(" preemption:")[0]
    if reason in OF_PODS:
        return _short(OF_PODS[reason], "" if reason in WORDLESS else said)
    if reason.startswith("OutOf"):
        return _short("its node has too little left for it", said)
    return _short(f"its node reports {reason}" if event.get("type") == "Warning" else "", said)


def of_a_node(event: Object) -> str:
    """What became of a node that workers are on; empty when it is nothing to them."""
    words = OF_NODES.get(event.get("reason", ""), "")
    if not words:
        return ""
    name = event["involvedObject"].get("name", "")
    return _short(f"the node {name} {words}", "" if event["reason"] in WORDLESS else _said(event))


def denial(event: Object) -> Denial | None:
    """Why a Job's pod could not be made; None when the event is about something else."""
    if event.get("reason") != "FailedCreate":
        return None
    said = _said(event).removeprefix("Error creating: ")
    at = moment_of(event)
    if found := QUOTA.search(said):
        quota, asked, used, limit = found.groups()
        words = f"the quota {quota} denies a pod: it asks for {asked}, {used} is used, {limit} is the limit"
        return Denial(_short(words, ""), at, is_final=False)
    if found := POLICY.search(said):
        return Denial(_short(f"the policy {found[1]} denies its pods", found[2]), at, is_final=True)
    is_denied = DENIED.search(said)
    if is_denied and "violates PodSecurity" in said:
        return Denial(_short("the rules for pods deny its pods", is_denied[1]), at, is_final=True)
    if "admission webhook" in said and "denied the request" in said:
        return Denial(_short("a policy denies its pods", said), at, is_final=True)
    if " is invalid: " in said:
        return Denial(_short("its pods are not as pods must be", said), at, is_final=True)
    return Denial(_short("a pod could not be made", is_denied[1] if is_denied else said), at, is_final=False)


def _said(event: Object) -> str:
    return str(event.get("message") or "").strip().removeprefix(COMBINED)


def _short(words: str, said: str) -> str:
    text = f"{words}: {said}" if words and said else words
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


@dataclass(frozen=True, slots=True)
class Word:
    """One event, as far as it concerns a job."""

    uid: str  # of the event
    namespace: str
    job_id: int | None  # None: whoever is on the node
    node: str
    text: str
    at: datetime


@dataclass
class Events:
    """A reflector's mirror of events: what is new in them, until it is taken."""

    changed: Callable[[], None]
    filled: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: set[str] = set()  # uids
        self._words: list[Word] = []
        self._denials: list[tuple[int, str, Denial]] = []  # with job and uid of its Job

    def take(self) -> tuple[Sequence[Word], Sequence[tuple[int, str, Denial]]]:
        """What is new since this was last asked; denials also when they come again: it is still so.

        Together, so that who ends a turn for a denial has taken its word before.
        """
        with self._lock:
            words, self._words = self._words, []
            denials, self._denials = self._denials, []
        return words, denials

    def heard(self) -> None:
        """How old events are does not matter."""

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
            if uid not in self._seen and (word := _word(thing, about)):
                self._words.append(word)
            self._seen.add(uid)
        self.changed()


def _word(event: Object, about: Object) -> Word | None:
    kind, name, namespace = about.get("kind"), about.get("name", ""), about.get("namespace", "")
    uid, at = event["metadata"]["uid"], moment_of(event)
    if kind == "Pod" and (ours := job_of_pod(name)):
        text = of_a_pod(event)
        return Word(uid, namespace, ours[0], "", f"worker {ours[1]}: {text}", at) if text else None
    if kind == "Node":
        text = of_a_node(event)
        return Word(uid, "", None, name, text, at) if text else None
    if (job_id := job_of(about)) is not None and (why := denial(event)):
        return Word(uid, namespace, job_id, "", why.words, at)
    return None
