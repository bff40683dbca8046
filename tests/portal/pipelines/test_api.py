"""Users create, follow, cancel and repeat pipelines in the API."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client

from scheduling.models import Pipeline
from tests.portal.scene import Scene
from tests.scheduling.piped import make, step

API = "/api/v1/pipelines"
STEPS: dict[str, Any] = {
    "prepare": {"command": "go"},
    "train": {"command": "go", "needs": [{"step": "prepare", "when": "always", "files": False}]},
}


@pytest.fixture
def bob(scene: Scene, browser_of) -> Client:
    return browser_of(scene.people.bob)


def post(client: Client, path: str, body: object, **headers: str) -> Any:
    return client.post(f"{API}{path}", json.dumps(body), content_type="application/json", headers=headers)


def test_the_api_creates_and_lists(scene: Scene, bob: Client) -> None:
    new = {"pipeline": {"name": "digits", "steps": STEPS}}
    made, again = (post(bob, "", new, **{"Idempotency-Key": "k"}) for _ in range(2))
    assert made.status_code == 201, made.content
    body = made.json()
    assert body["id"] == again.json()["id"]
    assert (body["state"], body["counts"], body["owner"], body["team"]) == (
        "running",
        {"pending": 2},
        "bob",
        "astro",
    )
    assert body["steps"][1] == {
        "name": "train",
        "state": "pending",
        "reason": "",
        "attempts": 0,
        "job_id": None,
        "needs": [{"step": "prepare", "job": None, "when": "always", "files": False}],
        "gpus": 1,
        "waited_seconds": None,
        "held_seconds": None,
        "gpu_hours": 0,
        "costs": {},
        "expected_end": None,
    }
    assert (body["gpu_hours"], body["costs"], body["expected_end"]) == (0, {}, None)
    assert post(bob, "", {"pipeline": body["definition"]}).json()["definition"] == body["definition"]
    assert [one["id"] for one in bob.get(f"{API}?limit=1").json()["items"]] != [body["id"]]
    assert len(bob.get(f"{API}?state=running&owner=bob&team=astro").json()["items"]) == 2
    alone = post(bob, "", {"spec": {"name": "after", "command": "go"}, "needs": [scene.job.pk]}).json()
    assert alone["steps"][0]["needs"] == [
        {"step": None, "job": scene.job.pk, "when": "success", "files": True}
    ]


@pytest.mark.parametrize(
    ("new", "field"),
    [
        ({}, "pipeline"),
        ({"pipeline": "a: [", "spec": {}}, "pipeline"),
        ({"pipeline": "a: ["}, "yaml"),
        ({"pipeline": {"name": "x", "steps": {"a": {"command": "x", "needs": ["b"]}}}}, "steps.a.needs"),
        ({"pipeline": {"name": "x", "steps": {"a": {"command": "x"}}}, "needs": [1]}, "needs"),
        ({"spec": {"name": "x", "command": "x"}, "needs": ["a"]}, "needs"),
    ],
)
def test_what_is_wrong_is_named_by_its_field(scene: Scene, bob: Client, new: Any, field: str) -> None:
    refused = post(bob, "", new)
    assert refused.status_code == 422
    assert any(name.startswith(field) for name in refused.json()["problems"])
    assert not Pipeline.objects.exists()


def test_cancelling_and_running_again(scene: Scene, bob: Client) -> None:
    pipeline = make(scene.world)
    assert post(bob, f"/{pipeline.pk}/run-again", {}).status_code == 409
    assert post(bob, f"/{pipeline.pk}/cancel", {}).json()["state"] == "cancelled"
    step(pipeline)
    assert post(bob, f"/{pipeline.pk}/run-again", {"step": "predict"}).status_code == 409
    assert post(bob, f"/{pipeline.pk}/run-again", {"step": "train"}).json()["state"] == "running"


def test_for_others_it_does_not_exist(scene: Scene, browser_of) -> None:
    pipeline, charlie = make(scene.world), browser_of(scene.people.charlie)
    assert charlie.get(f"{API}/{pipeline.pk}").status_code == 404
    for verb in ("cancel", "run-again"):
        assert post(charlie, f"/{pipeline.pk}/{verb}", {}).status_code == 404
    assert charlie.get(API).json()["items"] == []
