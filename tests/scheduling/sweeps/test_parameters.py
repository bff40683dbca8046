"""A sweep's description expands to the same members each time, and their values arrive in command and variables."""

from __future__ import annotations

import json
import math
import re
import shlex
import subprocess
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from scheduling.metrics.printed import MOST_METRICS, read_metrics
from scheduling.spec.job_spec import JobSpec, SpecError
from scheduling.sweeps.commands import (
    LONGEST_COMMAND,
    check_lengths,
    check_members,
    check_places,
    render,
    spec_of_member,
)
from scheduling.sweeps.parameters import MOST_MEMBERS, Parameters, text_of

NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True).filter(lambda name: name != "index")
NUMBERS = st.integers(-1000, 1000) | st.floats(-1e6, 1e6)
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["C"]), max_size=12)
RANGES = st.tuples(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6)).map(sorted)


def distributions() -> st.SearchStrategy[dict[str, Any]]:
    spans = st.sampled_from(["uniform", "log_uniform"])
    ints = st.tuples(st.integers(-1000, 1000), st.integers(-1000, 1000)).map(sorted)
    return st.one_of(
        st.builds(lambda kind, ends: {"distribution": kind, "low": ends[0], "high": ends[1]}, spans, RANGES),
        st.builds(lambda ends: {"distribution": "int", "low": ends[0], "high": ends[1]}, ints),
        st.builds(lambda values: {"distribution": "choice", "values": values}, st.lists(TEXTS, min_size=1)),
    )


DESCRIPTIONS = st.one_of(
    st.builds(
        Parameters,
        kind=st.just("grid"),
        grid=st.dictionaries(
            NAMES, st.lists(NUMBERS | TEXTS, min_size=1, max_size=3), min_size=1, max_size=4
        ),
    ),
    st.builds(
        Parameters,
        kind=st.just("random"),
        random=st.dictionaries(NAMES, distributions(), min_size=1, max_size=3),
        count=st.integers(1, 30),
        seed=st.integers(0, 2**31 - 1),
    ),
    st.builds(Parameters, kind=st.just("array"), count=st.integers(1, 30)),
    st.builds(
        lambda names, rows: Parameters(
            kind="list", rows=[dict(zip(names, row, strict=False)) for row in rows]
        ),
        st.just(["a", "b"]),
        st.lists(st.tuples(NUMBERS, TEXTS), min_size=1, max_size=9),
    ),
)


@given(DESCRIPTIONS)
def test_members_depend_only_on_the_description(described: Parameters) -> None:
    described.check()
    members = list(described.expand())
    # The database does not keep the order of keys.
    stored = json.loads(json.dumps(described.to_dict(), sort_keys=True))
    assert members == list(Parameters.stored(stored, described.names).expand())
    assert len(members) == described.size
    assert all(list(values) == described.names for values in members)


@given(st.dictionaries(NAMES, distributions(), min_size=1, max_size=3), st.integers(0, 2**31 - 1))
def test_random_values_lie_in_their_ranges(random: dict[str, dict[str, Any]], seed: int) -> None:
    for values in Parameters(kind="random", random=random, count=20, seed=seed).expand():
        for name, value in values.items():
            how = random[name]
            if how["distribution"] == "choice":
                assert value in how["values"]
            else:
                assert how["low"] <= value <= how["high"]
                assert isinstance(value, int if how["distribution"] == "int" else float)


def test_seeds_differ_and_repeat() -> None:
    def draw(seed: int) -> list[Any]:
        how = {"lr": {"distribution": "log_uniform", "low": 1e-5, "high": 0.1}}
        return list(Parameters(kind="random", random=how, count=3, seed=seed).expand())

    assert draw(7) == draw(7) != draw(8)
    # Published results name a seed, so later releases must draw the same.
    assert draw(7) == [{"lr": 0.000197393}, {"lr": 4.01233e-05}, {"lr": 0.00401548}]


def test_the_last_parameter_of_a_grid_varies_fastest() -> None:
    grid = Parameters(kind="grid", grid={"lr": [0.1, 0.01], "depth": [2, 4]})
    assert [tuple(values.values()) for values in grid.expand()] == [(0.1, 2), (0.1, 4), (0.01, 2), (0.01, 4)]


@pytest.mark.parametrize(
    ("described", "field", "says"),
    [
        (Parameters("maze"), "kind", "grid, random"),
        (Parameters("grid"), "parameters", "at least one"),
        (Parameters("grid", grid={"a": []}), "parameters", "at least one value"),
        (Parameters("grid", grid={"1a": [1]}), "parameters", "not a parameter name"),
        (Parameters("grid", grid={"index": [1]}), "parameters", "set by Fairlot"),
        (Parameters("grid", grid={"FAIRLOT_X": [1]}), "parameters", "set by Fairlot"),
        (Parameters("grid", grid={"RANK": [1]}), "parameters", "set by Fairlot"),
        (Parameters("grid", grid={"a": [True]}), "parameters", "neither a number nor a text"),
        (Parameters("grid", grid={"a": [math.inf]}), "parameters", "not a number from"),
        (Parameters("grid", grid={"a": ["x\0"]}), "parameters", "a: "),
        (Parameters("grid", grid={"a": list(range(101)), "b": list(range(100))}), "parameters", "10 100"),
        (Parameters("array", count=0), "count", "from 1 to"),
        (Parameters("array", count=MOST_MEMBERS + 1), "count", "from 1 to"),
        (Parameters("list", rows=[{"a": 1}, {"b": 1}]), "parameters", "row 2"),
        (Parameters("random", random={"a": {"distribution": "int", "low": 1}}, count=1, seed=1), "parameters", "low"),
        (
            Parameters(
                "random", random={"a": {"distribution": "log_uniform", "low": 0, "high": 1}}, count=1, seed=1
            ),
            "parameters",
            "greater than 0",
        ),
        (
            Parameters(
                "random", random={"a": {"distribution": "uniform", "low": 2, "high": 1}}, count=1, seed=-1
            ),
            "seed",
            "from 0",
        ),
    ],
)  # fmt: skip
def test_a_wrong_description_is_refused_by_its_field(described: Parameters, field: str, says: str) -> None:
    with pytest.raises(SpecError) as refused:
        described.check()
    assert says in refused.value.problems[field].replace("\u202f", " ").replace("\u00a0", " ")


@pytest.mark.parametrize(
    ("command", "becomes"),
    [
        ("train --lr {lr}", "train --lr 0.1"),
        ("train {{lr}} {lr}", "train {lr} 0.1"),
        ("echo ${lr} $lr ${x} {x}", "echo ${lr} $lr ${x} {x}"),
        ("awk '{if ($1 > {lr}) {print}}'", "awk '{if ($1 > 0.1) {print}}'"),
        ("f() { true; }; {lr}{lr}", "f() { true; }; 0.10.1"),
        ("{ lr }", "{ lr }"),
        ("{{{lr}}}", "{{lr}}"),
    ],
)
def test_only_known_names_in_braces_are_replaced(command: str, becomes: str) -> None:
    assert render(command, {"lr": "0.1"}) == becomes


@given(TEXTS)
def test_a_value_arrives_as_one_argument_whatever_it_contains(text: str) -> None:
    assert shlex.split(render("run {name} end", {"name": text})) == ["run", text, "end"]


def test_a_shell_sees_the_value_in_command_and_variable() -> None:
    base = JobSpec(name="try", command='printf "%s|%s|%s" {what} "$what" "$SWEEP_INDEX-"{index}')
    member = spec_of_member(base, 7, {"what": 'it\'s $HOME; `x` \\ "y"'})
    said = subprocess.run(member.argv, env=member.variables, capture_output=True, text=True, check=True)
    assert said.stdout == 'it\'s $HOME; `x` \\ "y"|it\'s $HOME; `x` \\ "y"|7-7'
    assert member.name == "try-7"


def misread(spec: JobSpec, members: list[dict[str, Any]]) -> dict[str, str]:
    try:
        check_places(spec, members)
    except SpecError as refused:
        return dict(refused.problems)
    return {}


# A part of a word, as it is written and as the shell reads it; {what} is the value.
PARTS = st.sampled_from(
    [
        ("{what}", "{what}"), ("'{what}'", "{what}"), ('"{what}"', "{what}"), ("'say \"{what}'", 'say "{what}'),
        ('"it\'s {what}"', "it's {what}"), ("a", "a"), ("7", "7"), ("-x=", "-x="), ("\\ ", " "), ("\\'", "'"),
        ("'a\\'", "a\\"), ('"\\""', '"'), ("''", ""), ("#", "#"), ("\\\n", ""), ("\\\\", "\\"),
    ]
)  # fmt: skip
WORD = st.lists(PARTS, min_size=1, max_size=5)
VALUES = st.text("ab7'\"\\$`;#& *{}>\n", max_size=6) | st.sampled_from(
    ["0.1", "a b", "$HOME", "a;exit 1", "12"]
)


@given(
    words=st.lists(WORD, max_size=3),
    value=VALUES,
    ends=st.sampled_from(["", " # no 'more", " >&1", " {what}>&1"]),
)
@settings(max_examples=150, deadline=None)
def test_the_shell_reads_a_value_as_a_part_of_one_word_or_the_sweep_is_refused(
    words: list[list[tuple[str, str]]], value: str, ends: str
) -> None:
    assume(all(word[0][0] not in ("#", "\\\n") for word in words))
    written = ["".join(part for part, _ in word) for word in words]
    command = " ".join(["printf '%s|' +", *written]) + ends
    base = JobSpec.model_construct(name="try", command=command, roles=[], variables={})
    if problems := misread(base, [{"what": value}]):
        assert shlex.quote(value) != value or value.isdecimal()
        assert "Write {what} without quotes" in problems["command"]
        return
    ran = subprocess.run(
        ["/bin/sh", "-c", spec_of_member(base, 0, {"what": value}).command],
        capture_output=True, check=True, env={},
    )  # fmt: skip
    read = ["+", *("".join(part for _, part in word).replace("{what}", value) for word in words)]
    read += [value] * ("{what}" in ends)
    assert ran.stdout.decode() == "".join(f"{one}|" for one in read)


@pytest.mark.parametrize(
    ("command", "value", "says"),
    [
        ("run '{a}'", "a b", 'contains {a} inside quotes, where the shell would not read the value "a b"'),
        (
            'bash -c "run {a}"',
            "a;b",
            'Write {a} without quotes, as a word of its own, or use the variable: "$a"',
        ),
        ("run \\{a}", "$b", "after a backslash"),
        ("run # {a}", "a\nb", "in a comment"),
        ("run {a}>log", 3, "directly before >"),
        ("run {index}>log", 0.5, 'use the variable: "$SWEEP_INDEX"'),
        ("run '{a}' -x={a}>log $(({a}))", 0.5, ""),
        ("run {a}>log", "a b", ""),
    ],
)
def test_a_sweep_is_refused_where_one_of_its_values_would_be_misread(
    command: str, value: str | float, says: str
) -> None:
    roles = [{"name": "chief", "command": command}, {"name": "worker"}]
    for field, spec in (
        ("command", JobSpec(name="x", command=command)),
        ("roles", JobSpec.parse({"name": "x", "command": "work", "roles": roles})),
    ):
        problems = misread(spec, [{"a": 0.1}, {"a": value}])
        assert list(problems) == ([field] if says else [])
        assert says in problems.get(field, "")
        assert misread(spec, []) == {}


def test_the_commands_of_roles_have_the_values_too() -> None:
    roles = [{"name": "chief", "command": "chief {lr} {index}"}, {"name": "worker"}]
    base = JobSpec.parse({"name": "x", "command": "work {lr}", "roles": roles})
    member = spec_of_member(base, 3, {"lr": "a b"})
    assert (member.command, [role.command for role in member.roles]) == ("work 'a b'", ["chief 'a b' 3", ""])
    long = base.model_copy(
        update={"roles": [base.roles[0].model_copy(update={"command": "{lr}" + "#" * 19_990})]}
    )
    check_lengths(long, [{"lr": "x" * 10}])
    with pytest.raises(SpecError, match="roles: a role's command is too long for member 1"):
        check_lengths(long, [{"lr": "x"}, {"lr": "x" * 11}])


def test_names_of_members_fit() -> None:
    member = spec_of_member(JobSpec(name="x" * 120, command="true"), 9999, {})
    assert member.name == "x" * 115 + "-9999"
    assert JobSpec.parse(member.to_dict()) == member


def test_a_variable_of_the_specification_is_not_overwritten() -> None:
    with pytest.raises(SpecError, match="variables: must not contain lr"):
        check_members(JobSpec(name="x", command="x", variables={"lr": "1"}), ["lr"])


@given(st.floats(-1e15, 1e15) | st.integers(-(10**15), 10**15))
def test_numbers_are_written_so_that_they_read_the_same(value: float) -> None:
    assert float(text_of(value)) == value


# --- metrics -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("log", "found"),
    [
        ("loss=0.5\nloss=0.25 acc=.9\n", {"loss": 0.25, "acc": 0.9}),
        ("epoch=3, val/loss=1e-3; (f1=-2)", {"epoch": 3, "val/loss": 0.001, "f1": -2}),
        ("loss=nan", {}),
        ("loss=0.5 loss=NaN", {}),
        ("loss=1e999", {}),
        ("http://x/?a=1&b=2 path=/a=3 v=1.2.3 n=5x 1a=3", {}),
        ("lr = 3", {}),
        ("x=1", {"x": 1}),
        ("", {}),
    ],
)
def test_the_last_number_of_each_name_counts(log: str, found: dict[str, float]) -> None:
    assert read_metrics(log.encode(), is_whole=True) == found


def test_a_cut_first_line_is_not_read() -> None:
    assert read_metrics(b"s=1 a=2\nb=3", is_whole=False) == {"b": 3}


@given(st.binary(max_size=300))
def test_any_log_can_be_read(data: bytes) -> None:
    found = read_metrics(data, is_whole=True)
    assert all(math.isfinite(value) for value in found.values())


def test_only_the_last_metrics_are_kept() -> None:
    found = read_metrics(b" ".join(b"m%d=%d" % (i, i) for i in range(200)), is_whole=True)
    assert len(found) == MOST_METRICS
    assert "m199" in found
    assert not re.search(r"\bm149\b", " ".join(found))


@pytest.mark.parametrize("command", ["{a} {{a}} ${a} {index} {b}", "{a}{a}", "{{a}}{index}", "plain"])
@pytest.mark.parametrize("value", ["x", "it's", 3, 0.5])
def test_the_length_of_a_command_is_counted_as_it_is_rendered(command: str, value: str | float) -> None:
    members = [{"a": value}] * 12
    for spare in (0, 1):
        longest = len(spec_of_member(JobSpec(name="x", command=command), 11, members[11]).command)
        padding = "#" * (LONGEST_COMMAND - longest + spare)
        base = (
            JobSpec(name="x", command=command + padding)
            if len(command + padding) <= LONGEST_COMMAND
            else None
        )
        if base is None:  # the command itself is too long already
            continue
        if spare:
            with pytest.raises(SpecError, match="too long for member"):
                check_lengths(base, members)
        else:
            check_lengths(base, members)
