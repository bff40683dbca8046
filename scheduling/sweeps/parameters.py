"""The parameters of a sweep: a description that expands to one set of values for each member.

The expansion depends only on the description, which includes the seed of random parameters.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias

from accounting.core.texts import not_storable
from accounting.core.wording import fixed, shown
from scheduling.spec.job_spec import SpecError
from scheduling.spec.members import LARGEST, LONGEST_VALUE, MOST_MEMBERS, MOST_PARAMETERS, why_no_parameter

GRID, RANDOM, LIST, ARRAY = KINDS = ("grid", "random", "list", "array")
LARGEST_SEED = 2**31 - 1
DIGITS = 6  # significant digits of random numbers
# By distribution: the fields with which it is described.
DISTRIBUTIONS = {
    "uniform": ("low", "high"),
    "log_uniform": ("low", "high"),
    "int": ("low", "high"),
    "choice": ("values",),
}

Value: TypeAlias = "str | int | float"
Values: TypeAlias = Mapping[str, Value]


@dataclass(frozen=True)
class Parameters:
    """The description of a sweep's members.

    - `grid`: by parameter, its values. Each combination is a member; the last parameter varies fastest.
    - `random`: by parameter, its distribution, for example {"distribution": "log_uniform", "low": 1e-5, "high": 0.1}.
      There are `count` members, whose values follow from `seed`.
    - `rows`: the values of each member of a list. All rows have the same parameters.
    - `count`: the number of members of `random`, and of a plain array, which has no parameters.
    """

    kind: str
    grid: Mapping[str, Sequence[Value]] = field(default_factory=dict)
    random: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    rows: Sequence[Values] = ()
    count: int | None = None
    seed: int | None = None

    @classmethod
    def stored(cls, data: Mapping[str, Any], names: Sequence[str]) -> Self:
        """Returns the description that `to_dict` wrote. `names` are its parameters in order, because the database does
        not keep the order of keys."""
        ordered: dict[str, Any] = dict(data)
        for field_name in ("grid", "random"):
            if field_name in ordered:
                ordered[field_name] = {name: ordered[field_name][name] for name in names}
        if "rows" in ordered:
            ordered["rows"] = [{name: row[name] for name in names} for row in ordered["rows"]]
        return cls(**ordered)

    def to_dict(self) -> dict[str, Any]:
        """Returns the description without what its kind does not use. `stored` restores an equal one."""
        used = {GRID: ("grid",), RANDOM: ("random", "count", "seed"), LIST: ("rows",), ARRAY: ("count",)}
        return {"kind": self.kind} | {name: getattr(self, name) for name in used[self.kind]}

    @property
    def names(self) -> list[str]:
        """Returns the names of the parameters, in order."""
        match self.kind:
            case "grid":
                return list(self.grid)
            case "random":
                return list(self.random)
            case "list" if self.rows:
                return list(self.rows[0])
        return []

    @property
    def size(self) -> int:
        """Returns the number of members."""
        match self.kind:
            case "grid":
                return math.prod(len(values) for values in self.grid.values())
            case "list":
                return len(self.rows)
        return self.count or 0

    def check(self) -> None:
        """Raises SpecError, with each invalid field, unless the description expands to 1 to MOST_MEMBERS members."""
        if self.kind not in KINDS:
            raise SpecError({"kind": f"must be one of {', '.join(KINDS)}"})
        problems = self._problems_of_names() | self._problems_of_values()
        if self.kind in (RANDOM, ARRAY) and not _is_whole(self.count, 1, MOST_MEMBERS):
            problems["count"] = f"must be a whole number from 1 to {fixed(MOST_MEMBERS)}"
        if self.kind == RANDOM and not _is_whole(self.seed, 0, LARGEST_SEED):
            problems["seed"] = f"must be a whole number from 0 to {fixed(LARGEST_SEED)}"
        if not problems and self.size > MOST_MEMBERS:
            problems["parameters"] = (
                f"give {fixed(self.size)} members; a sweep has at most {fixed(MOST_MEMBERS)}"
            )
        if problems:
            raise SpecError(problems)

    def expand(self) -> Iterator[Values]:
        """Yields the values of each member, in the order of the members' numbers."""
        match self.kind:
            case "grid":
                for combination in itertools.product(*self.grid.values()):
                    yield dict(zip(self.grid, combination, strict=True))
            case "random":
                source = random.Random(self.seed)  # noqa: S311 - to be reproducible, not secret
                for _ in range(self.size):
                    yield {name: _draw(source.random(), how) for name, how in self.random.items()}
            case "list":
                yield from self.rows
            case _:
                yield from itertools.repeat({}, self.size)

    def _problems_of_names(self) -> dict[str, str]:
        names = self.names
        if self.kind != ARRAY and not names:
            return {"parameters": "must name at least one parameter with its values"}
        if len(names) > MOST_PARAMETERS:
            return {"parameters": f"must be at most {MOST_PARAMETERS}, not {len(names)}"}
        for name in names:
            if why := why_no_parameter(name):
                return {"parameters": why}
        return {}

    def _problems_of_values(self) -> dict[str, str]:
        if self.kind == GRID:
            return _first(_problem_of_grid(name, values) for name, values in self.grid.items())
        if self.kind == RANDOM:
            return _first(_problem_of_distribution(name, how) for name, how in self.random.items())
        if self.kind == LIST:
            names = self.names
            return _first(
                _problem_of_row(number, row, names) for number, row in enumerate(self.rows, start=1)
            )
        return {}


def text_of(value: Value) -> str:
    """Returns the value as variables and commands contain it."""
    return value if isinstance(value, str) else repr(value)


def _draw(part: float, how: Mapping[str, Any]) -> Value:
    """Returns the value of a distribution that lies at `part`, a random number from 0 to less than 1."""
    if how["distribution"] == "choice":
        chosen: Value = how["values"][int(part * len(how["values"]))]
        return chosen
    low, high = how["low"], how["high"]
    match how["distribution"]:
        case "int":
            whole: int = min(high, low + int(part * (high - low + 1)))
            return whole
        case "log_uniform":
            value = math.exp(math.log(low) + part * (math.log(high) - math.log(low)))
        case _:
            value = low * (1 - part) + high * part
    return min(max(float(f"{value:.{DIGITS}g}"), float(low)), float(high))


def _first(problems: Iterator[str]) -> dict[str, str]:
    found = next((problem for problem in problems if problem), "")
    return {"parameters": found} if found else {}


def _problem_of_grid(name: str, values: Any) -> str:
    if not isinstance(values, list | tuple) or not values:
        return f"{name} must have at least one value"
    if len(values) > MOST_MEMBERS:
        return f"{name} has more than {fixed(MOST_MEMBERS)} values"
    return next((f"{name}: {why}" for value in values if (why := _why_no_value(value))), "")


def _problem_of_row(number: int, row: Any, names: Sequence[str]) -> str:
    if not isinstance(row, Mapping) or list(row) != list(names):
        return f"row {number} must have the same parameters as the first row, in the same order: {', '.join(names)}"
    return next(
        (f"row {number}, {name}: {why}" for name, value in row.items() if (why := _why_no_value(value))), ""
    )


def _problem_of_distribution(name: str, how: Any) -> str:
    kind = how.get("distribution") if isinstance(how, Mapping) else None
    if kind not in DISTRIBUTIONS:
        return f"{name} must have one of the distributions {', '.join(DISTRIBUTIONS)}"
    wanted = DISTRIBUTIONS[kind]
    if set(how) != {"distribution", *wanted}:
        return f"{name}: {kind} needs {' and '.join(wanted)}, and nothing else"
    if kind == "choice":
        return _problem_of_grid(name, how["values"])
    low, high = how["low"], how["high"]
    if kind == "int":
        if not all(_is_whole(one, -LARGEST, LARGEST) for one in (low, high)):
            return f"{name}: low and high of int must be whole numbers from -1e15 to 1e15"
    elif any(isinstance(one, bool) or not isinstance(one, int | float) for one in (low, high)):
        return f"{name}: low and high must be numbers"
    elif not all(abs(one) <= LARGEST for one in (low, high)):
        return f"{name}: low and high must be numbers from -1e15 to 1e15"
    if low > high:
        return f"{name}: low must not be greater than high"
    if kind == "log_uniform" and low <= 0:
        return f"{name}: low of log_uniform must be greater than 0"
    return ""


def _why_no_value(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return f"{shown(value)} is neither a number nor a text; put it in quotes"
    if isinstance(value, int | float) and not abs(value) <= LARGEST:
        return f"{value} is not a number from -1e15 to 1e15; write it as text, in quotes"
    if isinstance(value, str):
        if len(value) > LONGEST_VALUE:
            return f"a text has at most {LONGEST_VALUE} characters"
        if flaw := not_storable(value):
            return flaw[1]
    return ""


def _is_whole(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
