"""Compares two job specs field by field."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from scheduling.spec.job_spec import JobSpec

CONTEXT = 2  # equal lines that are shown before and after changed lines


@dataclass(frozen=True, slots=True)
class Difference:
    """A field with different values in two specs, such as `workers` or `variables.LR`.

    - `was`, `now`: the values as text; "" for a value that is missing or empty.
    - `lines`: not empty if a value has several lines. It then has pairs of a sign and a line: "-" for removed lines,
      "+" for added lines, " " for equal lines beside them.
    """

    field: str
    was: str
    now: str
    lines: Sequence[tuple[str, str]] = ()


def differences(was: JobSpec, now: JobSpec) -> list[Difference]:
    """Returns the fields in which two specs differ, in the order of a spec's fields. Values inside a mapping, such as
    variables, count as fields."""
    old, new = dict(_values(was.to_dict())), dict(_values(now.to_dict()))
    order = {name: place for place, name in enumerate(JobSpec.model_fields)}
    paths = sorted(old | new, key=lambda path: (order[path[0]], path))
    return [
        _difference(".".join(path), old.get(path, ""), new.get(path, ""))
        for path in paths
        if old.get(path, "") != new.get(path, "")
    ]


def _values(spec: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    for name, value in spec.items():
        if isinstance(value, dict):
            yield from (((name, key), _as_text(one)) for key, one in value.items())
        else:
            yield (name,), _as_text(value)


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value in (None, []) else json.dumps(value, ensure_ascii=False)


def _difference(field: str, was: str, now: str) -> Difference:
    several = "\n" in was or "\n" in now
    return Difference(field, was, now, _changed_lines(was, now) if several else ())


def _changed_lines(was: str, now: str) -> list[tuple[str, str]]:
    """Returns the lines of two texts between their common beginning and end, with CONTEXT common lines around them.

    Takes linear time, because the page compares again while the user types.
    """
    old, new = was.split("\n"), now.split("\n")
    before = _equal(zip(old, new, strict=False))
    most = min(len(old), len(new)) - before
    after = min(most, _equal(zip(reversed(old), reversed(new), strict=False)))
    shown = [(" ", line) for line in old[max(0, before - CONTEXT) : before]]
    shown += [("-", line) for line in old[before : len(old) - after]]
    shown += [("+", line) for line in new[before : len(new) - after]]
    return shown + [(" ", line) for line in old[len(old) - after :][:CONTEXT]]


def _equal(pairs: Iterator[tuple[str, str]]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
