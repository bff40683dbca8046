"""Converts fields of a job specification that are mappings or lists to lines of text, and back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scheduling.spec.attachments import Mounted
from scheduling.spec.job_spec import SpecError


def read_variables(text: str, field: str = "variables", *, hidden: bool = False) -> dict[str, str]:
    """Returns the variables in lines of KEY=VALUE.

    Raises SpecError for the field `field` with the number of a wrong line. A value in double quotes is a JSON
    string, so that it can contain line ends. With `hidden`, errors contain no typed text.
    """
    variables: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        name, equals, value = line.partition("=")
        if not equals:
            raise SpecError({field: f"line {number} has no “=” (accepted: one KEY=VALUE on each line)"})
        if name.strip() in variables:
            raise SpecError(
                {field: f"line {number} names {'a key' if hidden else name.strip()} a second time"}
            )
        variables[name.strip()] = _unquote(value.strip(), number, field)
    return variables


def write_variables(variables: Mapping[str, str]) -> str:
    """Returns KEY=VALUE lines that `read_variables` reads back unchanged."""
    return "\n".join(f"{name}={_quote(value)}" for name, value in variables.items())


def read_labels(text: str) -> dict[str, str]:
    """Returns the labels in lines of key=value; a line with only a key gives an empty value.

    Raises SpecError if a key occurs twice.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        key, _, value = (part.strip() for part in line.partition("="))
        if key in found:
            raise SpecError({"labels": f"line {number} names {key} a second time"})
        if line.strip():
            found[key] = value
    return found


def write_labels(labels: Mapping[str, str]) -> str:
    """Returns lines that `read_labels` reads back unchanged."""
    return "\n".join(f"{key}={value}" if value else key for key, value in labels.items())


def read_mounts(text: str) -> list[dict[str, str]]:
    """Returns the mounts in lines of name=/path, or of only a name for the default path."""
    found = []
    for line in text.split("\n"):
        if line.strip():
            name, equals, path = line.partition("=")
            found.append({"name": name.strip()} | ({"path": path.strip()} if equals else {}))
    return found


def write_mounts(mounts: Sequence[Mounted]) -> str:
    """Returns lines that `read_mounts` reads back unchanged."""
    return "\n".join(f"{one.name}={one.path}" if one.path else one.name for one in mounts)


@dataclass(frozen=True)
class Lines:
    """A pair of functions that read and write the lines of a field."""

    read: Callable[[str], Any]
    write: Callable[[Any], str]


# The fields that contain lines, by name.
LINES = {
    "variables": Lines(read_variables, write_variables),
    "secrets": Lines(lambda text: read_variables(text, "secrets"), write_variables),
    "secret_files": Lines(read_mounts, write_mounts),
    "volumes": Lines(read_mounts, write_mounts),
    "labels": Lines(read_labels, write_labels),
}


def read_all(typed: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns two mappings by name of the field: the values, and the problems. A field with a problem has no value."""
    found: dict[str, Any] = {}
    problems: dict[str, str] = {}
    for name, lines in LINES.items():
        try:
            found[name] = lines.read(typed[name])
        except SpecError as error:
            problems |= error.problems
    return found, problems


def _quote(value: str) -> str:
    plain = value.isprintable() and not value.startswith('"') and value == value.strip()
    return value if plain else json.dumps(value)


def _unquote(value: str, number: int, field: str) -> str:
    if not value.startswith('"'):
        return value
    try:
        text = json.loads(value)
    except json.JSONDecodeError:
        text = None
    if not isinstance(text, str):
        raise SpecError(
            {field: f"line {number}: a value that begins with a quotation mark must end with one"}
        )
    return text
