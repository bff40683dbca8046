"""Texts with braces that are no parameters pass through the substitution of parameters unchanged."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scheduling.spec.placeholders import escape, render, unknown_in

PARTS = st.lists(st.sampled_from(["{", "}", "$", "index", "lr", "{index}", "{{lr}}", " ", "x"]), max_size=12)


@given(PARTS.map("".join))
def test_an_escaped_command_is_the_same_again_after_the_values_are_put_in(command: str) -> None:
    assert render(escape(command, ["index", "lr"]), {"index": "3", "lr": "0.1"}) == command


@given(PARTS.map("".join))
def test_a_name_is_unknown_only_if_no_value_can_be_put_in(command: str) -> None:
    assert not set(unknown_in(command, ["index"])) & {"index"}
    assert not unknown_in(render(command, {"index": "3", "lr": "0.1"}).replace("{", ""), [])
    assert unknown_in(f"{command} {{rate}}", ["index", "lr"]) == ["rate"]
