"""The comparison of two specs names each field that differs, and nothing else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scheduling.spec.differences import CONTEXT, Difference, differences
from scheduling.spec.job_spec import JobSpec

BASE = {"name": "a", "command": "true"}


def spec(**fields: object) -> JobSpec:
    return JobSpec.parse(BASE | fields)


def test_values_are_compared_field_by_field_and_key_by_key() -> None:
    was = spec(workers=2, variables={"LR": "0.1", "SEED": "1"}, generations=["A100"], cpu=4)
    now = spec(workers=4, variables={"LR": "0.2", "SEED": "1", "NEW": "x"}, retries={"times": 3})
    assert differences(was, now) == [
        Difference("workers", "2", "4"),
        Difference("generations", '["A100"]', ""),
        Difference("variables.LR", "0.1", "0.2"),
        Difference("variables.NEW", "", "x"),
        Difference("cpu", "4.0", ""),
        Difference("retries.times", "0", "3"),
    ]
    assert differences(was, was) == []


def test_of_a_script_only_the_changed_lines_and_their_neighbours_are_shown() -> None:
    lines = [f"line {number}" for number in range(10)]
    [found] = differences(
        spec(command="\n".join(lines)), spec(command="\n".join([*lines[:5], "x", *lines[6:]]))
    )
    assert found.lines == [
        *((" ", line) for line in lines[3:5]), ("-", "line 5"), ("+", "x"), *((" ", line) for line in lines[6:8])
    ]  # fmt: skip


scripts = st.lists(st.sampled_from("abc"), min_size=1, max_size=8).map("\n".join)


@given(scripts, scripts)
def test_the_shown_lines_turn_one_script_into_the_other(was: str, now: str) -> None:
    found = differences(spec(command=was), spec(command=now))
    if was == now:
        assert found == []
        return
    [one] = found
    assert (one.was, one.now) == (was, now)
    if not one.lines:
        assert "\n" not in was + now
        return
    old = "\n".join(line for sign, line in one.lines if sign != "+")
    new = "\n".join(line for sign, line in one.lines if sign != "-")
    assert was.replace(old, new, 1) == now or now in _replaced(was, old, new)
    assert sum(sign == " " for sign, _ in one.lines) <= 2 * CONTEXT


def _replaced(text: str, old: str, new: str) -> set[str]:
    """Returns what the text becomes if `old`, at any of its places, is replaced by `new`."""
    places = range(len(text) + 1)
    return {text[:at] + new + text[at + len(old) :] for at in places if text.startswith(old, at)}
