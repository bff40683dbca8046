"""Converts the parameters of a sweep to lines of text, and back.

- grid: `lr = 0.1, 0.01`
- random: `lr = log_uniform(1e-5, 0.1)` or `opt = choice(adam, sgd)`; scheduling/sweeps/distributions.py reads these
- list: CSV, whose first line has the names
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from scheduling.spec.job_spec import SpecError
from scheduling.spec.members import MOST_MEMBERS
from scheduling.sweeps.distributions import read_cells, read_distribution, read_value
from scheduling.sweeps.parameters import (
    ARRAY,
    DISTRIBUTIONS,
    GRID,
    LIST,
    RANDOM,
    Parameters,
    Value,
    text_of,
)


def read_parameters(kind: str, text: str, *, count: int | None, seed: int | None) -> Parameters:
    """Returns the parameters that the text describes. Raises SpecError, for the field `parameters`, if it cannot be
    read."""
    match kind:
        case "grid":
            return Parameters(GRID, grid={name: read_cells(given) for name, given in _lines(text)})
        case "random":
            drawn = {name: read_distribution(name, given) for name, given in _lines(text)}
            return Parameters(RANDOM, random=drawn, count=count, seed=seed)
        case "list":
            return Parameters(LIST, rows=_rows(text))
        case "array":
            return Parameters(ARRAY, count=count)
    return Parameters(kind)


def write_parameters(parameters: Parameters) -> str:
    """Returns the parameters as text. `read_parameters` converts this text back to equal members."""
    match parameters.kind:
        case "grid":
            return "\n".join(f"{name} = {_line(values)}" for name, values in parameters.grid.items())
        case "random":
            lines = []
            for name, how in parameters.random.items():
                kind = how["distribution"]
                given = how["values"] if kind == "choice" else [how[end] for end in DISTRIBUTIONS[kind]]
                lines.append(f"{name} = {kind}({_line(given)})")
            return "\n".join(lines)
        case "list":
            rows: list[list[Value]] = [[*parameters.names], *([*row.values()] for row in parameters.rows)]
            return "\n".join(_line(row, separator=",") for row in rows)
    return ""


def _lines(text: str) -> list[tuple[str, str]]:
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        name, equals, given = (part.strip() for part in line.partition("="))
        if not equals or not given:
            raise SpecError({"parameters": f"line {number} must be a name, “=” and values: lr = 0.1, 0.01"})
        if name in found:
            raise SpecError({"parameters": f"line {number} names {name} a second time"})
        found[name] = given
    return list(found.items())


def _rows(text: str) -> list[dict[str, Value]]:
    try:
        lines = [line for line in csv.reader(io.StringIO(text), skipinitialspace=True) if line]
    except csv.Error as error:
        raise SpecError({"parameters": f"must be CSV: {error}"}) from None
    if not lines:
        return []
    names = [name.strip() for name in lines[0]]
    if len(set(names)) != len(names):
        raise SpecError({"parameters": "line 1 must name each parameter once"})
    if len(lines) > MOST_MEMBERS + 1:
        raise SpecError({"parameters": f"must have at most {MOST_MEMBERS} rows"})
    rows = []
    for number, cells in enumerate(lines[1:], start=2):
        if len(cells) != len(names):
            raise SpecError(
                {
                    "parameters": f"row {number} has {len(cells)} values, but line 1 names {len(names)} parameters"
                }
            )
        rows.append({name: read_value(cell.strip()) for name, cell in zip(names, cells, strict=True)})
    if not rows:
        raise SpecError({"parameters": "must have at least one row below the names"})
    return rows


def _line(values: Sequence[Value], separator: str = ", ") -> str:
    return separator.join(map(_cell, values))


def _cell(value: Value) -> str:
    text = text_of(value)
    if text and text == text.strip() and not set(text) & set(',"\r\n'):
        return text
    return '"' + text.replace('"', '""') + '"'
