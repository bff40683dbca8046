"""Old names in the API and in job specifications still work for one version and are marked as deprecated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.urls import resolve
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from portal.api.api import api
from portal.api.old_names import RENAMED_TO, WithOldNames
from scheduling.models import IdleRule, Job
from scheduling.spec.job_spec import NEW_NAMES, JobSpec, SpecError
from tests.portal.scene import Scene

SPEC = {"name": "old", "command": "true"}


def subclasses(of: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for one in of.__subclasses__():
        yield one
        yield from subclasses(one)


def old_fields() -> list[tuple[type[BaseModel], str, str]]:
    """Returns (schema, old name, new name) for each renamed field of the API's schemas."""
    return [
        (model, name, str(field.json_schema_extra[RENAMED_TO]))
        for model in dict.fromkeys(subclasses(WithOldNames))
        for name, field in model.model_fields.items()
        if isinstance(field.json_schema_extra, dict) and RENAMED_TO in field.json_schema_extra
    ]


def marked(node: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any, dict[str, Any]]]:
    """Yields (path, parent, part) for each part of the OpenAPI document that is marked as deprecated or renamed."""
    parts = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in parts:
        if key == "schema" or not isinstance(value, dict | list):
            continue
        if isinstance(value, dict):
            said = value | (value.get("schema", {}) if isinstance(value.get("in"), str) else {})
            if said.get("deprecated") is True or isinstance(said.get(RENAMED_TO), str):
                yield (*place, key), node, said
        yield from marked(value, (*place, key))


def test_every_old_name_is_marked_and_stands_beside_its_new_name() -> None:
    document = api.get_openapi_schema()
    found = {place: (beside, value) for place, beside, value in marked(document)}
    in_schemas = {place[2] for place in found if place[:2] == ("components", "schemas")}
    assert {model.__name__ for model, *_ in old_fields()} <= in_schemas
    assert len(found) > 20
    for place, (beside, value) in found.items():
        new = value[RENAMED_TO]
        assert value["deprecated"] is True, place
        assert new in value["description"], place
        if place[0] == "paths" and len(place) == 3:
            assert place[2] in document["paths"][f"/api/v1{new}"], place
        elif isinstance(beside, dict):
            assert new in beside, place
        else:  # a list of parameters or of the variants of a type
            names = [one.get("name") for one in beside]
            assert new in names or new in beside[0].get("enum", ()), place


@given(st.sampled_from(old_fields()), *[st.one_of(st.booleans(), st.integers(), st.text(max_size=5))] * 2)
def test_an_old_field_is_read_as_its_new_one_unless_both_contradict(alias, value, other) -> None:
    model, old, new = alias
    for given_name in (old, new):
        both = model._fill_both_names({given_name: value})
        assert both[old] is both[new] is value
    assert model._fill_both_names({old: value, new: value}) == {old: value, new: value}
    if type(value) is not type(other) or value != other:
        with pytest.raises(ValidationError) as refused:
            model.model_validate({old: value, new: other})
        assert {item["loc"] for item in refused.value.errors()} == {(old,)}


@pytest.mark.parametrize("old", NEW_NAMES)
def test_a_job_specification_is_read_by_old_names(old: str) -> None:
    new = NEW_NAMES[old]
    assert JobSpec.parse(SPEC | {old: True}) == JobSpec.parse(SPEC | {new: True}) != JobSpec.parse(SPEC)
    assert JobSpec.from_yaml(f"name: old\ncommand: 'true'\n{old}: true") == JobSpec.parse(SPEC | {new: True})
    assert JobSpec.stored(SPEC | {old: True}) == JobSpec.stored(SPEC | {new: True}) != JobSpec.stored(SPEC)
    with pytest.raises(SpecError) as refused:
        JobSpec.parse(SPEC | {old: True, new: False})
    assert refused.value.problems == {
        old: f"{old} is the old name of {new}, but their values differ: true and false. Send only {new}."
    }


def test_a_client_of_the_last_version_submits_finds_and_changes_jobs(scene: Scene, browser_of) -> None:
    bob = browser_of(scene.people.bob)
    made = bob.post(
        "/api/v1/jobs", {"spec": SPEC | {"only_idle": True}}, content_type="application/json"
    ).json()
    assert (made["only_idle"], made["preemptible"], made["spec"]["preemptible"]) == (True, True, True)
    for name in ("only_idle", "preemptible"):
        assert [one["id"] for one in bob.get(f"/api/v1/jobs?{name}=true").json()["items"]] == [made["id"]]
    wrong = bob.get("/api/v1/jobs?only_idle=true&preemptible=false")
    assert wrong.status_code == 422
    assert wrong.json()["problems"] == {
        "only_idle": 'only_idle is the old name of preemptible, but their values differ: "true" and "false". Send'
        " only preemptible."
    }
    url = f"/api/v1/jobs/{made['id']}/sharing"
    changed = bob.post(url, {"only_idle": False}, content_type="application/json").json()
    assert (changed["only_idle"], changed["preemptible"]) == (False, False)
    assert not Job.objects.get(pk=made["id"]).preemptible
    wrong = bob.post(url, {"only_idle": True, "preemptible": False}, content_type="application/json")
    assert (wrong.status_code, set(wrong.json()["problems"])) == (422, {"only_idle"})


def test_old_paths_answer_like_the_new_ones_and_old_fields_like_theirs(scene: Scene, browser_of) -> None:
    bob = browser_of(scene.people.bob)
    [cluster] = bob.get("/api/v1/cluster").json()
    assert [cluster] == bob.get("/api/v1/gpu-map").json()
    assert any(node["held"] for node in cluster["nodes"])
    for node in cluster["nodes"]:
        assert node["held"] == node["allocations"]
        assert node["held_by_others"] == node["gpus_of_others"]
    for path in ("/api/v1/jobs/1/sharing", "/api/v1/clusters/lab/bare-pods"):
        assert resolve(path).url_name.endswith("_at_old_path")


def test_an_old_value_is_stored_as_the_new_one(scene: Scene, browser_of) -> None:
    rule = {"action": "only_idle", "after_minutes": 30}
    made = browser_of(scene.people.ada).put("/api/v1/idle-rules", rule, content_type="application/json")
    assert (made.status_code, made.json()["action"]) == (200, "preemptible")
    assert IdleRule.objects.get().action == "preemptible"
