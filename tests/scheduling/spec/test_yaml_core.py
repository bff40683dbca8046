"""Fairlot reads YAML as version 1.2, and writes YAML that readers of version 1.1 and of 1.2 read as the same values."""

from __future__ import annotations

import math
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from scheduling.spec.yaml_core import NotYaml, read, write

SCALARS: list[tuple[str, Any]] = [
    ("010", 10), ("0777", 777), ("0o10", 8), ("0x1F", 31), ("+5", 5), ("-0", 0), ("0b11", "0b11"), ("1_000", "1_000"),
    ("1:30", "1:30"), ("22:30:15", "22:30:15"), ("1e3", 1000.0), ("1.", 1.0), (".5", 0.5), ("1.5E-3", 0.0015),
    (".inf", math.inf), ("-.INF", -math.inf), ("+.Inf", math.inf), ("inf", "inf"), ("nan", "nan"), ("yes", "yes"),
    ("No", "No"), ("on", "on"), ("y", "y"), ("true", True), ("True", True), ("FALSE", False), ("tRUE", "tRUE"),
    ("~", None), ("null", None), ("", None), ("None", "None"), ("2026-11-25", "2026-11-25"), ("=", "="), ("<<", "<<"),
    ("１", "１"), ("٣", "٣"), ("'5'", "5"), ('"true"', "true"), ("!!str 5", "5"), ("!!int '010'", 10),
    ("!!float 5", 5.0),
]  # fmt: skip
REFUSED = [
    "{a: 1, a: 2}", "{a: 1, 'a': 2}", "[&x 1, *x]", "{1: a}", "{true: a}", "{? [a] : b}", "!!int yes", "!!bool yes",
    "!!null x", "!!binary YQ==", "!!timestamp 2026-11-25", "!!set {a}", "!!omap [a: 1]", "!!python/name:os.system x",
    "!mine x", "!!str [a]", "!!map [a]", "!!seq {a: b}", "a: 1\n---\nb: 2", "[" * 51 + "]" * 51, "9" * 5000, "[",
    "\t- a", "{<<: {a: 1}}", "a: 1\n<<: {b: 2}",
]  # fmt: skip
plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
data = st.recursive(
    plain,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


@pytest.mark.parametrize(("text", "value"), SCALARS)
def test_scalars_are_read_as_in_yaml_1_2(text: str, value: Any) -> None:
    found = read(f"k: {text}\n")["k"]
    assert (found, type(found)) == (value, type(value))
    assert math.isnan(read("k: .nan")["k"])


@pytest.mark.parametrize("text", REFUSED)
def test_ambiguous_yaml_is_refused(text: str) -> None:
    with pytest.raises(NotYaml, match=r"^cannot be read"):
        read(text)


@pytest.mark.parametrize(
    "text", ["a: 5 \t\nb: 6", "a: 5\t# five\nb: 6\t", "a: 5\n \t\nb: 6", "{a: 5, \t\n b: 6}"]
)
def test_tabs_at_the_end_of_a_line_say_nothing(text: str) -> None:
    assert read(text) == {"a": 5, "b": 6}
    assert read("{'<<': 1}") == {"<<": 1}


def test_the_line_is_said() -> None:
    with pytest.raises(NotYaml, match="in line 3: the key 'a' occurs twice"):
        read("a: 1\nb: 2\na: 3\n")
    with pytest.raises(NotYaml, match="in line 2: the key 1 must be a text: write '1'"):
        read("a: 1\n1: 2\n")


@pytest.mark.parametrize("depth", [51, 500, 20_000])
def test_depth_has_a_bound(depth: int) -> None:
    with pytest.raises(NotYaml, match="nested too deeply"):
        read("[" * depth)


@given(data)
@example(
    {
        "a": [
            "1e3",
            "010",
            "0o7",
            "yes",
            "~",
            "",
            "1:30",
            "=",
            "<<",
            ".5",
            "1_0",
            "0x1",
            "2026-11-25",
            "tRue",
            "-",
        ]
    }
)
@example([1e16, 1e300, -0.0, math.inf, 10**400, "\x85", "a\nb\n", "\n", " a", "'", '"'])
def test_written_yaml_is_read_back_unchanged(value: Any) -> None:
    text = write(value)
    for reader in (read, yaml.safe_load):
        assert _typed(reader(text)) == _typed(value), text


def _typed(value: Any) -> Any:
    """Returns the value with each scalar replaced by (type, value). Otherwise 1, 1.0 and True would be equal in
    Python."""
    if isinstance(value, dict):
        return {key: _typed(one) for key, one in value.items()}
    return [_typed(one) for one in value] if isinstance(value, list) else (type(value), value)
