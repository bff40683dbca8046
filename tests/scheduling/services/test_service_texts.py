"""Each kind of an event of a service has a sentence."""

from __future__ import annotations

import pytest

from scheduling.core.service_texts import TEXTS, service_text_of
from scheduling.models import ServiceEvent
from scheduling.models.event_codes import ServiceEventKind as Kind

ENDED = {"replica": "api-0-1", "by": "api-0-2", "state": "failed", "code": "", "detail": {}, "message": ""}
SENTENCES = [
    (Kind.CREATED, {"user": "bob", "replicas": 1}, "Created by bob with 1 replica"),
    (Kind.SCALED, {"user": "bob", "before": 1, "replicas": 3}, "bob scaled the service from 1 to 3 replicas"),
    (Kind.CHANGED, {"user": "bob", "settings": {"max_surge": 2}}, "bob changed settings: max surge 2"),
    (Kind.STOPPED, {"user": "bob"}, "Stopped by bob"),
    (Kind.STOPPED, {"leaver": "bob"}, "Stopped because the owner bob may no longer run services in the team"),
    (Kind.STARTED, {"user": "bob"}, "Started by bob"),
    (Kind.REMOVED, {"user": "bob"}, "Removed by bob"),
    (Kind.UPDATED, {"user": "bob", "revision": 2}, "bob created revision 2"),
    (
        Kind.ROLLED_BACK,
        {"user": "bob", "before": 2, "revision": 1},
        "bob rolled the service back from revision 2 to 1",
    ),
    (
        Kind.ROLLED_BACK,
        {"user": "bob", "before": 1, "revision": 2},
        "bob changed the service from revision 1 to 2",
    ),
    (
        Kind.ROLLED_BACK,
        {"failed": 2, "why": "no replica became ready", "revision": 1},
        "Revision 2 has failed: no replica became ready. Rolled back to revision 1",
    ),
    (Kind.PROVED, {"revision": 1, "replicas": 3}, "Revision 1 works: 3 replicas became ready"),
    (Kind.FAILED, {"revision": 2, "why": "nothing is ready"}, "Revision 2 has failed: nothing is ready"),
    (Kind.REPLACED, ENDED, "api-0-1 ended by itself (Failed); api-0-2 replaces it"),
    (
        Kind.REPLACED,
        ENDED | {"message": "exit code 1"},
        "api-0-1 ended by itself (exit code 1); api-0-2 replaces it",
    ),
    (
        Kind.CRASHES,
        {"text": "Replica api-0 ended by itself 3 times within an hour"},
        "Replica api-0 ended by itself 3 times within an hour",
    ),
    (
        Kind.TROUBLE,
        {"trouble": "the team may have 10 jobs"},
        "No replicas can be created: the team may have 10 jobs",
    ),
    (Kind.HANDED_OVER, {"before": "bob", "user": "alice"}, "Handed over from bob to alice"),
    (
        Kind.WARNED,
        {"replica": "api-0-1", "at": "2026-05-01T12:00:00+00:00"},
        "api-0-1: The job holds GPUs that are not guaranteed. From 12:00:00 UTC on, the job is suspended if other jobs"
        " claim its GPUs",
    ),
]


@pytest.mark.parametrize(("kind", "detail", "sentence"), SENTENCES)
def test_a_kind_with_its_parameters_is_a_sentence(
    kind: Kind, detail: dict[str, object], sentence: str
) -> None:
    assert service_text_of(ServiceEvent(kind=kind, detail=detail)) == sentence


def test_each_kind_is_among_them() -> None:
    assert {kind for kind, _, _ in SENTENCES} == set(Kind) == set(TEXTS)


def test_an_event_of_an_earlier_release_keeps_its_text() -> None:
    assert service_text_of(ServiceEvent(kind="proved", text="Revision 1 works")) == "Revision 1 works"
