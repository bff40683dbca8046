"""Reads the distribution of a random parameter, in the notations of forms, command lines and the API.

- as a call: `log_uniform(1e-5, 0.1)`, `choice(adam, sgd)`
- with colons, which no shell changes: `log_uniform:1e-5:0.1`, `choice:adam:sgd`
- as fields: `{"distribution": "log_uniform", "low": 1e-5, "high": 0.1}`

It also understands the names that Optuna, Ray Tune, Weights & Biases and Determined give to the same distributions, and
refuses their other ones by saying what to write instead.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Mapping
from typing import Any

from accounting.core.wording import shown
from scheduling.spec.job_spec import SpecError
from scheduling.spec.members import LARGEST
from scheduling.sweeps.parameters import Value, text_of

NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
# A name may begin with a module or an object, such as `tune.` or `trial.`.
CALL = re.compile(r"(?:[A-Za-z_]+\.)*(?P<name>[A-Za-z_]+) *\((?P<given>.*)\)", re.DOTALL)
COLONS = re.compile(r"(?P<name>[A-Za-z_]+):(?P<given>.*)", re.DOTALL)
# Other names of each distribution: those of other programs for the same values.
ALIASES = {
    "uniform": ("float", "double", "suggest_float", "suggest_uniform"),
    "log_uniform": ("loguniform", "log_uniform_values", "suggest_loguniform"),
    "int": ("integer", "int_uniform", "suggest_int"),
    "choice": ("categorical", "suggest_categorical"),
}
NAMES = {alias: name for name, aliases in ALIASES.items() for alias in (name, *aliases)}
STEPS = "values in steps: write int(low, high), or choice with the values"
UNBOUNDED = "a range without ends: write uniform(low, high) or log_uniform(low, high)"
# What other programs have, and what to write instead.
OTHERS = {
    "randint": "a range that other programs count without its end: write int(low, high), which includes high",
    "lograndint": "whole numbers on a logarithmic scale: write choice with the values",
    "log": "exponents: write log_uniform(low, high) with the values themselves",
    "normal": UNBOUNDED,
    "randn": UNBOUNDED,
    "log_normal": UNBOUNDED,
    "lognormal": UNBOUNDED,
    "grid_search": "every value: choose the kind grid",
}
# Other names of the fields.
FIELDS = {
    "distribution": ("type",),
    "low": ("min", "minval", "lower"),
    "high": ("max", "maxval", "upper"),
    "values": ("vals", "choices", "categories"),
}
FIELD_NAMES = {alias: name for name, aliases in FIELDS.items() for alias in (name, *aliases)}
ACCEPTED = "uniform(low, high), log_uniform(low, high), int(low, high) or choice(…)"


def read_distribution(name: str, given: object) -> dict[str, Any]:
    """Returns the distribution of the parameter `name` with the fields that `Parameters.random` has.

    Raises SpecError, for the field `parameters`, if it cannot be read. Whether its ends are allowed is checked by
    `Parameters.check`.
    """
    if isinstance(given, str):
        return _of_text(name, given.strip())
    if not isinstance(given, Mapping):
        raise _refused(f"{name}: {shown(given)} is no distribution. Write {ACCEPTED}")
    found: dict[str, Any] = {}
    for key, value in given.items():
        field = FIELD_NAMES.get(str(key), str(key))
        if field in found:
            raise _refused(f"{name}: {key} says the same as another field; leave one of them out")
        found[field] = value
    usual = "choice" if "values" in found else None
    return {**found, "distribution": _kind(name, found.get("distribution", usual))}


def read_value(text: str) -> Value:
    """Returns the number that the text is in JSON's notation, otherwise the text itself.

    A text such as 3.10, which the number would change to 3.1, stays a text: it may be a version.
    """
    if NUMBER.fullmatch(text):
        number: int | float = json.loads(text) if len(text) <= 30 else math.inf
        if abs(number) <= LARGEST and (text_of(number) == text or "e" in text.lower()):
            return number
    return text


def read_cells(text: str, separator: str = ",") -> list[Value]:
    """Returns the values of a text between separators. Raises SpecError if it is no line of CSV."""
    try:
        [cells] = csv.reader([text], skipinitialspace=True, delimiter=separator)
    except (csv.Error, ValueError) as error:
        raise SpecError({"parameters": f"must be values with commas between them: {error}"}) from None
    return [read_value(cell.strip()) for cell in cells]


def _of_text(name: str, text: str) -> dict[str, Any]:
    call = CALL.fullmatch(text)
    found = call or COLONS.fullmatch(text)
    kind = _kind(name, found["name"] if found else text)
    if found is None:
        raise _refused(f"{name}: {kind} needs its values in parentheses. Write {ACCEPTED}")
    given = found["given"].strip()
    if kind == "choice" and given.startswith("[") and given.endswith("]"):  # a list of Python or JSON
        cells = [_unquoted(cell) for cell in read_cells(given[1:-1])]
    else:
        cells = read_cells(given, "," if call else ":")
    if kind == "choice":
        return {"distribution": kind, "values": cells}
    if len(cells) != 2:
        raise _refused(f"{name}: {kind} needs two numbers, such as {kind}(1, 10)")
    return {"distribution": kind, "low": cells[0], "high": cells[1]}


def _kind(name: str, written: object) -> str:
    """Returns Fairlot's name of a distribution. Raises SpecError, with what to write instead, if there is none."""
    word = written.strip().lower().replace("-", "_") if isinstance(written, str) else ""
    if kind := NAMES.get(word):
        return kind
    meaning = OTHERS.get(word) or (STEPS if word.removeprefix("suggest_").startswith("q") else "")
    if meaning:
        raise _refused(f"{name}: {word} is {meaning}")
    raise _refused(f"{name} must be {ACCEPTED}" + (f", not {shown(written)}" if written else ""))


def _unquoted(cell: Value) -> Value:
    if isinstance(cell, str) and len(cell) > 1 and cell[0] == cell[-1] == "'":
        return cell[1:-1]
    return cell


def _refused(text: str) -> SpecError:
    return SpecError({"parameters": text})
