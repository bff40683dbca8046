"""Numbers, texts and booleans in a spec keep their type, in YAML as in JSON.

A value of another type than the field's is refused with the name of the field.
"""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.spec.attachments import read_bytes
from scheduling.spec.job_spec import ACCEPTED, JobSpec, SpecError

BASE = {"name": "n", "command": "c", "port": 8000}


def kind_of(field: str) -> type | None:
    """Returns int, float, str or bool, the type of the field's value; None for lists and mappings."""
    kinds = [JobSpec.model_fields[field].annotation]
    found: set[Any] = set()
    while kinds:
        kind = kinds.pop()
        kinds += get_args(kind)
        found.add(kind)
    return next((one for one in (int, float, str, bool) if one in found), None)


KINDS = {name: kind_of(name) for name in JobSpec.model_fields}
NUMBERS = sorted(name for name, kind in KINDS.items() if kind in (int, float))
WHOLE = sorted(name for name in NUMBERS if KINDS[name] is int)
TEXTS = [
    "name",
    "command",
    "environment",
    "memory",
    "shm",
    "working_directory",
    "readiness_path",
    "progress_pattern",
]
# Values that are no numbers in YAML 1.2 and JSON, and numbers that every field refuses.
NO_NUMBERS = [
    "true", "False", "yes", "on", "1_0", "1:30", "0b1", "１", "٣", "'5'", '"5"', "five", "[5]", "{a: 5}", ".inf",
    "-.inf", ".nan", "nan", "inf", "Infinity", "5,0", "5 0", "1e400", "0x", "0o9", "5%", "5s", "!!str 5", "1__0",
    "99999999999999999999",
]  # fmt: skip
NOT_WHOLE = ["5.5", "5.0", "5e0", "1e3", "2."]


def problems(**fields: Any) -> dict[str, str]:
    with pytest.raises(SpecError) as refused:
        JobSpec.parse(BASE | fields)
    return refused.value.problems


def problems_of_yaml(field: str, text: str) -> dict[str, str]:
    rest = "".join(f"{name}: {value}\n" for name, value in BASE.items() if name != field)
    with pytest.raises(SpecError) as refused:
        JobSpec.from_yaml(f"{rest}{field}: {text}\n")
    return refused.value.problems


def test_all_numeric_fields_are_known() -> None:
    assert {"workers", "gpus_per_worker", "cpu", "port", "user_id", "checkpoint_grace_seconds"} <= set(
        NUMBERS
    )
    assert {name for name, kind in KINDS.items() if kind is None} == {
        "launch", "roles", "code", "image_pull_policy", "retries", "secret_files", "volumes"
    }  # fmt: skip


@pytest.mark.parametrize("field", NUMBERS)
@pytest.mark.parametrize("text", NO_NUMBERS)
def test_yaml_that_is_not_a_number_is_refused_with_the_accepted_values(field: str, text: str) -> None:
    told = problems_of_yaml(field, text)
    assert list(told) == [field]
    assert ACCEPTED[field] in told[field]


@pytest.mark.parametrize("field", WHOLE)
@pytest.mark.parametrize("text", NOT_WHOLE)
def test_a_whole_number_has_no_point_and_no_exponent(field: str, text: str) -> None:
    assert ACCEPTED[field] in problems_of_yaml(field, text)[field]


@given(
    st.sampled_from(NUMBERS),
    st.booleans() | st.text() | st.binary() | st.lists(st.integers(0, 9), max_size=2) | st.just(float("nan"))
    | st.sampled_from([float("inf"), float("-inf"), 10**400, -(10**400), {}, 1j]),
)  # fmt: skip
def test_no_data_but_a_number_is_a_number(field: str, value: Any) -> None:
    told = problems(**{field: value})
    assert field in told
    assert (
        ACCEPTED[field] in told[field]
        or "zero byte" in told[field]
        or "surrogate" in told[field]
        or told[field]
    )


@pytest.mark.parametrize(
    ("text", "number"), [("010", 10), ("0x10", 16), ("0o10", 8), ("+5", 5), ("007", 7), ("'5'", None)]
)
def test_a_number_is_as_yaml_1_2_has_it(text: str, number: int | None) -> None:
    if number is None:
        assert "workers" in problems_of_yaml("workers", text)
    else:
        assert JobSpec.from_yaml(f"name: n\ncommand: c\nworkers: {text}\n").workers == number


def test_a_refusal_shows_the_value_as_it_was_read() -> None:
    assert problems_of_yaml("workers", "yes")["workers"] == 'must be a whole number from 1 to 4096, not "yes"'
    assert problems_of_yaml("workers", "true")["workers"] == "must be a whole number from 1 to 4096, not true"
    assert problems_of_yaml("workers", "1_0")["workers"] == 'must be a whole number from 1 to 4096, not "1_0"'
    assert problems(version=True) == {"version": "must be 1, not true"}


@pytest.mark.parametrize("field", TEXTS)
@pytest.mark.parametrize(
    ("text", "shown"), [("010", "10"), ("1e3", "1000.0"), ("true", "true"), ("0x1", "1")]
)
def test_text_that_yaml_reads_as_another_type_is_refused(field: str, text: str, shown: str) -> None:
    told = problems_of_yaml(field, text)[field]
    assert told == f"must be {ACCEPTED[field]}, not {shown}; put what you wrote in quotes"


@pytest.mark.parametrize(
    "text", ["yes", "no", "on", "off", "1:30", "1_000", "2026-11-25", "None", "=", "'010'"]
)
def test_text_does_not_change(text: str) -> None:
    assert JobSpec.from_yaml(f"name: {text}\ncommand: c\n").name == text.strip("'")


@pytest.mark.parametrize("text", ["yes", "1", "0", "'true'", "on", "~", "2"])
def test_a_switch_is_true_or_false(text: str) -> None:
    assert "true or false" in problems_of_yaml("preemptible", text)["preemptible"]


@pytest.mark.parametrize("field", ["variables", "labels", "secrets"])
@pytest.mark.parametrize("value", [True, 1, 0.5, None])
def test_a_refusal_in_a_mapping_names_the_key(field: str, value: Any) -> None:
    told = problems(**{field: {"FINE": "a", "DEBUG": value}})
    assert list(told) == [f"{field}.DEBUG"]
    assert f"not {json.dumps(value)}" in told[f"{field}.DEBUG"]


@pytest.mark.parametrize(
    "text", ["１Gi", "٣Gi", "1Ｇi", "1 Gi", "1e3Gi", "+1Gi", "1_0Gi", "0x1Gi", "1gi", ".5Gi"]
)
@pytest.mark.parametrize("field", ["memory", "shm"])
def test_an_amount_has_ascii_digits(field: str, text: str) -> None:
    with pytest.raises(ValueError, match="not an amount of memory"):
        read_bytes(text)
    assert ACCEPTED[field] in problems(**{field: text})[field]


good = st.fixed_dictionaries(
    {"name": st.sampled_from(["010", "yes", "1e3", "~", "null", "true", "1:30", "n"]), "command": st.sampled_from(
        ["0x10", "a\nb\n", " - c", "no", "1_0", "0o7", "#", "'"])},
    optional={
        "workers": st.integers(1, 64), "gpus_per_worker": st.integers(1, 64), "priority": st.integers(-100, 100),
        "checkpoint_grace_seconds": st.integers(0, 3600) | st.floats(0, 3600), "cpu": st.floats(0.1, 1024),
        "expected_hours": st.integers(1, 8760) | st.floats(1e-6, 8760), "deadline_hours": st.floats(1e-6, 8760),
        "time_limit_hours": st.floats(1e-6, 8760),
        "user_id": st.integers(1, 2**31 - 1), "port": st.integers(1024, 65_535), "preemptible": st.booleans(),
        "variables": st.dictionaries(
            st.sampled_from(["A", "yes", "n", "Y"]), st.sampled_from(["1", "010", "", "~", "1e3", "off"])),
        "labels": st.dictionaries(st.sampled_from(["1", "true", "0x1"]), st.sampled_from(["1e3", "null", ""])),
        "memory": st.sampled_from(["1Gi", "1048576", "1.5G"]), "environment": st.sampled_from(["1.10", "python", "3"]),
    },
)  # fmt: skip


@given(good)
def test_a_written_spec_is_read_back_unchanged(data: dict[str, Any]) -> None:
    spec = JobSpec.parse(data)
    assert JobSpec.from_yaml(spec.to_yaml()) == spec
    assert JobSpec.parse(spec.to_dict()) == spec
    assert JobSpec.stored(spec.to_dict()) == spec
