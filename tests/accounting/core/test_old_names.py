"""Tests that an API field is accepted under its old name and its new name together, unless the two values differ."""

from __future__ import annotations

import pytest

from accounting.core.old_names import contradictions

NEW_NAMES = {"old": "new"}


@pytest.mark.parametrize(("old", "new"), [(True, 1), ("a" * 60 + "x", "a" * 60 + "y"), ([1] * 40, [1] * 41)])
def test_values_contradict_even_if_messages_would_show_them_alike(old: object, new: object) -> None:
    assert set(contradictions({"old": old, "new": new}, NEW_NAMES)) == {"old"}


def test_the_same_value_twice_is_no_contradiction() -> None:
    assert contradictions({"old": "a" * 60, "new": "a" * 60}, NEW_NAMES) == {}
