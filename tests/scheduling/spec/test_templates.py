"""Values of templates stay where the author placed them: one text, one word of the shell, one number."""

from __future__ import annotations

import shlex
import subprocess
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.spec.job_spec import JobSpec, SpecError
from scheduling.spec.placeholders import insert, names_in, why_not_in_command
from scheduling.spec.templates import TYPED, check_template, fill, read_parameters, read_template, read_values

SPEC: dict[str, Any] = {
    "name": "train {who}",
    "command": "printf '%s\\n' {who} --lr={lr} ${who} \"$WHO\" {{who}}",
    "gpus_per_worker": "{gpus}",
    "generations": ["{gpu}"],
    "variables": {"WHO": "{who}", "LR": "{lr}", "{who}": "{gpus}", "workers": "{gpus}"},
    "volumes": [{"name": "{data}"}],
    "expected_hours": "{hours}",
    "preemptible": "{spare}",
    "retries": {"times": "{gpus}"},
    "requirements": "torch\n",
}
PARAMETERS: list[dict[str, Any]] = [
    {"name": "who", "type": "text", "default": "me"},
    {"name": "lr", "type": "number", "min": 0, "max": 1, "default": 0.1},
    {"name": "gpus", "type": "number", "whole": True, "min": 1, "max": 8, "default": 2},
    {"name": "gpu", "type": "generation", "required": False},
    {"name": "data", "type": "volume", "required": False},
    {"name": "hours", "type": "number", "required": False},
    {"name": "spare", "type": "boolean", "default": False},
]
# Texts that would do harm if a shell, YAML or a list read them.
TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp")), max_size=40),
    st.sampled_from(
        ["'; touch /tmp/x #", "$(id)", "`id`", "a: b", "- x", "{lr}", "{{who}}", "\\", "'", '"', "*"]
    ),
)


def problems_of(spec: dict[str, Any], *parameters: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(SpecError) as caught:
        check_template(spec, read_parameters(list(parameters)))
    return caught.value.problems


def values(**given: object) -> dict[str, Any]:
    return read_values(read_parameters(PARAMETERS), given)


def test_values_get_the_types_of_their_fields() -> None:
    filled = fill(SPEC, values(gpus="4", gpu="V100", data="sky", hours="1.5", spare="true"))
    assert (filled["gpus_per_worker"], filled["expected_hours"], filled["preemptible"]) == (4, 1.5, True)
    assert (filled["generations"], filled["volumes"]) == (["V100"], [{"name": "sky"}])
    assert filled["variables"] == {"WHO": "me", "LR": "0.1", "{who}": "4", "workers": "4"}
    assert filled["retries"] == {"times": 4}
    assert filled["command"] == "printf '%s\\n' me --lr=0.1 ${who} \"$WHO\" {who}"


def test_fields_of_numbers_and_switches_are_known_from_the_specification() -> None:
    numbers = {
        "workers",
        "max_workers",
        "expected_hours",
        "preemptible",
        "retries.exit_codes",
        "roles.cpu",
        "roles.ends_job",
    }
    assert numbers <= TYPED
    assert not TYPED & {
        "name",
        "command",
        "generations",
        "variables",
        "roles",
        "roles.command",
        "labels",
        "code.ref",
    }


def test_without_a_value_a_field_or_item_is_left_out() -> None:
    filled = fill(SPEC, values())
    assert (filled["generations"], filled["volumes"], "expected_hours" in filled) == ([], [], False)
    assert fill({"command": "run {x}", "name": "a{x}"}, {"x": None}) == {"command": "run ''", "name": "a"}


@given(first=TEXTS, second=TEXTS)
def test_a_value_changes_nothing_but_the_texts_in_which_it_stands(first: str, second: str) -> None:
    one, other = (fill(SPEC, {**values(), "who": text}) for text in (first, second))
    assert list(one) == list(other) == [name for name in SPEC if name != "expected_hours"]
    differing = {name for name in one if one[name] != other[name]}
    assert differing <= {"name", "command", "variables"}
    assert one["variables"] | {"WHO": second} == other["variables"]
    assert (one["name"], one["variables"]["WHO"]) == (f"train {first}", first)


@given(text=TEXTS)
@settings(max_examples=40, deadline=None)
def test_the_shell_reads_each_value_as_one_word(text: str) -> None:
    command = "printf '%s|' a{who}b {who} -x={who} # no more"
    assert why_not_in_command(command, ["who"]) == ""
    filled = fill({"command": command}, {"who": text})["command"]
    said = subprocess.run(["/bin/sh", "-c", filled], capture_output=True, check=True, env={}).stdout.decode()
    assert said == f"a{text}b|{text}|-x={text}|"
    assert shlex.split(filled, comments=True)[2:] == [f"a{text}b", text, f"-x={text}"]


@pytest.mark.parametrize(
    ("command", "where"),
    [
        ('echo "{x}"', "inside quotes"),
        ("echo '{x}'", "inside quotes"),
        ("echo \\{x}", "after a backslash"),
        ("true # {x}", "in a comment"),
        ("# don't\necho '{x}'", "inside quotes"),
        ('echo "$(date)" {x}', "after $("),
        ('echo "${HOME}" {x}', "after ${"),
        ("echo `date` {x}", "after `"),
        ("cat <<END\n{x}\nEND", "after <<"),
        ("echo $(( {x} ))", "after (("),
        ("[[ {x} -eq 1 ]]", "after [["),
        ("echo $'a' {x}", "after $'"),
        ("echo {x}>file", "directly before >"),
    ],
)
def test_a_place_where_a_value_may_not_stay_one_word_is_refused(command: str, where: str) -> None:
    problems = problems_of({"name": "a", "command": command}, {"name": "x", "type": "text"})
    assert where in problems["command"]


@pytest.mark.parametrize(
    "command",
    [
        "echo 'a' \"b\" {x}",
        "echo $(date) {x}",
        "echo a#{x} $# {x}",
        "(echo {x}); echo '\\' {x}",
        "# don't\ngo {x}",
        "go -x={x}>file",
    ],
)
def test_a_bare_word_of_a_command_is_accepted(command: str) -> None:
    check_template({"name": "a", "command": command}, read_parameters([{"name": "x", "type": "text"}]))


@pytest.mark.parametrize(
    ("spec", "field", "why"),
    [
        ({"requirements": "torch=={x}"}, "requirements", "has no parameters"),
        ({"code": {"git": "https://a.org/{x}"}}, "code.git", "has no parameters"),
        ({"workers": {"x": None}}, "workers", "in quotes"),
        ({}, "parameters", "x is not used"),
        ({"command": "go {x}", "wrkers": 1}, "wrkers", "is not a field"),
        ({"command": "go {x}", "name": "\0"}, "name", "zero bytes"),
    ],
)
def test_a_template_that_could_not_work_is_refused(spec: dict[str, Any], field: str, why: str) -> None:
    problems = problems_of({"name": "a", "command": "go"} | spec, {"name": "x", "type": "text"})
    assert why in problems[field]


@pytest.mark.parametrize(
    ("parameter", "field"),
    [
        ({"name": "X", "type": "text"}, "name"),
        ({"name": "x", "type": "house"}, "type"),
        ({"name": "x", "type": "choice"}, "choices"),
        ({"name": "x", "type": "choice", "choices": ["a", "a"]}, "choices.1"),
        ({"name": "x", "type": "choice", "choices": ["a\nb"]}, "choices.0"),
        ({"name": "x", "type": "text", "choices": ["a"]}, "choices"),
        ({"name": "x", "type": "text", "min": 1}, "type"),
        ({"name": "x", "type": "number", "min": 2, "max": 1}, "min"),
        ({"name": "x", "type": "number", "max": 1, "default": 2}, "default"),
        ({"name": "x", "type": "text", "default": "a\nb"}, "default"),
        ({"name": "x", "type": "text", "more": 1}, "more"),
    ],
)
def test_a_parameter_that_could_not_work_is_refused(parameter: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_parameters([parameter])
    assert f"parameters.0.{field}" in caught.value.problems


def test_parameters_are_a_list_of_few_different_names() -> None:
    one = {"name": "x", "type": "text"}
    for wrong in ({"x": "text"}, [one, one], [one | {"name": f"x{at}"} for at in range(21)], ["\0"]):
        with pytest.raises(SpecError):
            read_parameters(wrong)


@pytest.mark.parametrize(
    ("name", "given", "why"),
    [
        ("who", "", "is required"), ("who", "a\nb", "one line"), ("who", "x" * 501, "at most 500"), ("who", 1, "text"),
        ("who", "\ud800", "surrogates"), ("gpus", "1.5", "whole number"), ("gpus", 1.5, "whole number"),
        ("gpus", "9", "from 1 to 8"), ("gpus", True, "whole number"), ("lr", "much", "number"),
        ("lr", "nan", "number"), ("spare", "yes", "true or false"), ("nobody", "x", "not a parameter"),
    ],
)  # fmt: skip
def test_wrong_values_are_named(name: str, given: object, why: str) -> None:
    with pytest.raises(SpecError) as caught:
        values(**{name: given})
    assert why in caught.value.problems[name]
    assert list(caught.value.problems) == [name]


def test_values_are_read_from_texts_and_from_json_alike() -> None:
    texts = values(gpus="3", lr="0.5", spare="true")
    assert texts == values(gpus=3, lr=0.5, spare=True) == values(gpus=3.0, lr=0.5, spare=True)
    with pytest.raises(SpecError, match="one of a, b"):
        read_values(read_parameters([{"name": "x", "type": "choice", "choices": ["a", "b"]}]), {"x": "c"})


def test_a_template_is_checked_with_values_that_it_suggests() -> None:
    parameters = [
        {"name": "a", "type": "number", "min": 5}, {"name": "b", "type": "number", "max": -5},
        {"name": "c", "type": "choice", "choices": ["x"]}, {"name": "d", "type": "boolean"},
        {"name": "e", "type": "secret"},
    ]  # fmt: skip
    spec = {"name": "n", "command": "go {a} {b} {c} {d}", "secrets": {"KEY": "{e}"}}
    assert check_template(spec, read_parameters(parameters)).command == "go 5 -5 x false"
    named = SPEC | {"variables": {"WHO": "{who}"}}
    full = check_template(named, read_parameters(PARAMETERS))
    assert isinstance(full, JobSpec)


def test_yaml_of_a_template_is_a_mapping() -> None:
    assert read_template("name: a\ncommand: go {x}")["command"] == "go {x}"
    for wrong in ("- a", "a: [", "x" * 70_000):
        with pytest.raises(SpecError):
            read_template(wrong)


def test_texts_without_names_stay() -> None:
    assert insert("{a} {{b}} ${a}", {}) == "{a} {{b}} ${a}"
    assert insert("{a} {{a}} ${a} {b}", {"a": "1"}) == "1 {a} ${a} {b}"
    assert names_in("{a} {{b}} ${c}", ["a", "b", "c"]) == {"a"}
