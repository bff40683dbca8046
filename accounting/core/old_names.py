"""Renamed fields of requests: the old names are accepted for one version."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from accounting.core.wording import shown


def contradictions(data: Mapping[str, Any], new_names: Mapping[str, str]) -> dict[str, str]:
    """Returns error messages, by old name, for fields whose value differs from the value under the new name.

    `new_names` maps each old name to its new name.
    """
    return {
        old: (
            f"{shown(data[old])} contradicts {new}: {shown(data[new])}. Send only {new}: {old} is the old name of the"
            " same field."
        )
        for old, new in new_names.items()
        if _is_given(data, old) and _is_given(data, new) and _as_json(data[old]) != _as_json(data[new])
    }


def with_both_names(data: Mapping[str, Any], new_names: Mapping[str, str]) -> dict[str, Any]:
    """Returns a copy of `data` in which a value given under the old or the new name appears under both names."""
    both = dict(data)
    for old, new in new_names.items():
        for given, other in ((old, new), (new, old)):
            if _is_given(data, given) and not _is_given(data, other):
                both[other] = data[given]
    return both


def _as_json(value: object) -> str:
    """Returns a value in full; as JSON, because in Python True equals 1."""
    return json.dumps(value, default=str)


def _is_given(data: Mapping[str, Any], name: str) -> bool:
    return data.get(name) is not None
