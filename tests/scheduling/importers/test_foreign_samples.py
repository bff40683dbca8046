"""What holds for every foreign format: nothing is lost, nothing confidential is shown, no text raises."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.importers.reading import Source
from scheduling.importers.registry import FORMATS, convert
from tests.scheduling.importers.foreign_samples import CONFIDENTIAL, SAMPLES, check

STRANGE = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 10**12), st.floats(allow_nan=False), st.text(max_size=20),
    st.sampled_from(["", "0", "-1", "1e99", "{{ x }}", "${X}", "<% $p.x %>", "A100:8", "80GB", "/", "a=b", "R1/x/P1D"]),
    st.lists(st.integers() | st.text(max_size=5), max_size=3), st.dictionaries(st.text(max_size=6), st.integers(),
    max_size=2),
)  # fmt: skip


@pytest.mark.parametrize("name", SAMPLES)
def test_each_sample_keeps_the_promises_of_an_import(name: str) -> None:
    for known in ((), ("A100-80GB", "V100", "H100")):
        found = convert(SAMPLES[name], known_generations=known)
        assert found.format == name.split("/", maxsplit=1)[0]
        check(SAMPLES[name], found)


@pytest.mark.parametrize("name", SAMPLES)
def test_each_sample_is_recognised_as_its_own_format_only(name: str) -> None:
    assert [one.name for one in FORMATS if one.recognise(Source(SAMPLES[name]))] == [
        name.split("/", maxsplit=1)[0]
    ]


def test_there_is_a_sample_with_a_credential_and_one_that_is_refused() -> None:
    assert any(CONFIDENTIAL in text for text in SAMPLES.values())
    assert any(convert(text).refused for text in SAMPLES.values())


@settings(max_examples=150, deadline=None)
@given(name=st.sampled_from(sorted(SAMPLES)), data=st.data())
def test_no_change_of_a_sample_breaks_the_promises(name: str, data: st.DataObject) -> None:
    documents = [one for one in yaml.load_all(SAMPLES[name], Loader=yaml.BaseLoader) if one is not None]
    for _ in range(data.draw(st.integers(1, 3))):
        _change(data.draw(st.sampled_from(documents)), data)
    text = json.dumps(documents[0]) if len(documents) == 1 else yaml.safe_dump_all(documents)
    check(text, convert(text, name=name.split("/", maxsplit=1)[0]))


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(sorted(SAMPLES)),
    at=st.integers(0, 4000),
    length=st.integers(0, 60),
    new=st.text(max_size=9),
)
def test_no_damage_of_a_sample_raises(name: str, at: int, length: int, new: str) -> None:
    text = SAMPLES[name]
    at %= len(text)
    damaged = text[:at] + new + text[at + length :]
    check(damaged, convert(damaged, name=name.split("/", maxsplit=1)[0]))
    convert(damaged)


def _change(value: Any, data: st.DataObject) -> None:
    """Replaces, removes or adds a value somewhere inside a mapping or list."""
    while isinstance(value, dict | list) and value:
        key = data.draw(st.sampled_from(sorted(value) if isinstance(value, dict) else range(len(value))))
        if isinstance(value[key], dict | list) and value[key] and data.draw(st.integers(0, 3)):
            value = value[key]
            continue
        match data.draw(st.sampled_from(["replace", "remove", "add"])):
            case "replace":
                value[key] = data.draw(STRANGE)
            case "remove":
                del value[key]
            case _ if isinstance(value, dict):
                value[f"new{data.draw(st.integers(0, 9))}"] = data.draw(STRANGE)
            case _:
                value.append(data.draw(STRANGE))
        return
