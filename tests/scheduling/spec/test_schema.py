"""The published JSON Schema is made from the model, stays in draft 07, and accepts every valid specification."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st
from jsonschema_rs import Draft7Validator, meta

from scheduling.spec.job_spec import NEW_NAMES, JobSpec, SpecError
from scheduling.spec.schema import FILE, PUBLISHED_AT, job_schema, written

KEYWORDS = {
    "$schema", "$id", "$ref", "title", "description", "type", "required", "additionalProperties", "properties",
    "definitions", "items", "maxItems", "default", "minimum", "maximum", "exclusiveMinimum", "minLength", "maxLength",
    "maxProperties", "enum", "anyOf",
}  # fmt: skip
VALIDATOR = Draft7Validator(job_schema())
values = st.recursive(
    st.none() | st.booleans() | st.integers(-10, 10**6) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)
fields = st.sampled_from([*JobSpec.model_fields, *NEW_NAMES])


def keywords(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        for key, inner in schema.items():
            yield key
            named = key in {"properties", "definitions"}
            for one in inner.values() if named else [inner] if key not in {"default", "enum"} else ():
                yield from keywords(one)
    elif isinstance(schema, list):
        for one in schema:
            yield from keywords(one)


def test_the_committed_file_is_what_the_model_says() -> None:
    assert FILE.read_text() == written(), (
        "Run: python -c 'from scheduling.spec import schema; schema.FILE.write_text(schema.written())'"
    )


def test_the_schema_stays_in_draft_07() -> None:
    meta.validate(job_schema())
    assert set(keywords(job_schema())) <= KEYWORDS
    assert "$defs" not in written()


@given(st.dictionaries(fields, values, max_size=5))
def test_a_valid_specification_is_valid_by_the_schema(more: dict[str, Any]) -> None:
    data = {"name": "x", "command": "y", **more}
    try:
        spec = JobSpec.parse(data)
    except SpecError:
        return
    assert VALIDATOR.is_valid(data), str(data)
    assert VALIDATOR.is_valid(spec.to_dict())


@pytest.mark.parametrize(
    "wrong", [{"workers": "2"}, {"workers": 0}, {"nodes": 2}, {"volumes": [{"path": "/x"}]}, {"cpu": True}]
)
def test_the_schema_finds_a_wrong_field(wrong: dict[str, Any]) -> None:
    assert not VALIDATOR.is_valid({"name": "x", "command": "y", **wrong})


def test_anybody_can_read_the_schema(client: Client) -> None:
    answer = client.get(PUBLISHED_AT)
    assert answer.status_code == 200
    assert json.loads(answer.content)["$id"] == PUBLISHED_AT
    assert answer["Content-Type"] == "application/schema+json"
