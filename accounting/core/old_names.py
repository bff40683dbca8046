"""Accepts the old names of renamed request fields for one more version of the API."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from accounting.core.wording import shown


def contradictions(data: Mapping[str, Any], new_names: Mapping[str, str]) -> dict[str, str]:
    """Returns an error message for each field whose old and new name are both in `data`, with different values.

    The keys of the result are the old names. `new_names` maps each old name to the new name.
    """
    return {
        old: (
            f"{old} is the old name of {new}, but their values differ: {shown(data[old])} and {shown(data[new])}. Send"
            f" only {new}."
        )
        for old, new in new_names.items()
        if _is_given(data, old) and _is_given(data, new) and _as_json(data[old]) != _as_json(data[new])
    }


def with_both_names(data: Mapping[str, Any], new_names: Mapping[str, str]) -> dict[str, Any]:
    """Returns a copy of `data` in which each value of a renamed field appears under both its old and its new name.

    `new_names` maps each old name to the new name.
    """
    both = dict(data)
    for old, new in new_names.items():
        for given, other in ((old, new), (new, old)):
            if _is_given(data, given) and not _is_given(data, other):
                both[other] = data[given]
    return both


def _as_json(value: object) -> str:
    # In Python, True would equal 1.
    return json.dumps(value, default=str)


def _is_given(data: Mapping[str, Any], name: str) -> bool:
    return data.get(name) is not None
