"""Converts those fields of a job specification that are mappings or lists to lines of text, and back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scheduling.spec import yaml_core
from scheduling.spec.attachments import Mounted
from scheduling.spec.job_spec import SpecError
from scheduling.spec.roles import Role


def read_variables(text: str, field: str = "variables", *, hidden: bool = False) -> dict[str, str]:
    """Parses lines of KEY=VALUE and returns the variables.

    A value in double quotes is read as a JSON string, so that it can contain line ends. Raises SpecError, for the field
    named `field`, with the number of the first invalid line. With `hidden`, errors do not repeat what the user typed,
    because it may be secret.
    """
    variables: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        name, equals, value = line.partition("=")
        if not equals:
            raise SpecError({field: f"line {number} has no “=”; write one KEY=VALUE on each line"})
        if name.strip() in variables:
            raise SpecError(
                {field: f"line {number} names {'a key' if hidden else name.strip()} a second time"}
            )
        variables[name.strip()] = _unquote(value.strip(), number, field)
    return variables


def write_variables(variables: Mapping[str, str]) -> str:
    """Returns the variables as KEY=VALUE lines. `read_variables` converts these lines back to the same variables."""
    return "\n".join(f"{name}={_quote(value)}" for name, value in variables.items())


def read_labels(text: str) -> dict[str, str]:
    """Parses lines of key=value and returns the labels. A line with only a key gives an empty value.

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
    """Returns the labels as lines of text. `read_labels` converts these lines back to the same labels."""
    return "\n".join(f"{key}={value}" if value else key for key, value in labels.items())


def read_mounts(text: str) -> list[dict[str, str]]:
    """Parses lines of name=/path and returns the mounts. A line with only a name uses the default path."""
    found = []
    for line in text.split("\n"):
        if line.strip():
            name, equals, path = line.partition("=")
            found.append({"name": name.strip()} | ({"path": path.strip()} if equals else {}))
    return found


def write_mounts(mounts: Sequence[Mounted]) -> str:
    """Returns the mounts as lines of text. `read_mounts` converts these lines back to the same mounts."""
    return "\n".join(f"{one.name}={one.path}" if one.path else one.name for one in mounts)


def read_roles(text: str) -> Any:
    """Parses a list of roles in YAML. An empty text has none. Raises SpecError if the text is not valid YAML."""
    try:
        return yaml_core.read(text) or []
    except yaml_core.NotYaml as error:
        raise SpecError({"roles": str(error)}) from None


def write_roles(roles: Sequence[Role]) -> str:
    """Returns the roles as YAML, without fields that have their default value."""
    data = [role.model_dump(mode="json", exclude_defaults=True) for role in roles]
    return yaml_core.write(data).rstrip("\n") if data else ""


@dataclass(frozen=True)
class Lines:
    """Converts the value of one field to and from lines of text: `write` returns the lines, and `read` parses them."""

    read: Callable[[str], Any]
    write: Callable[[Any], str]


# The fields that contain lines, by name.
LINES = {
    "variables": Lines(read_variables, write_variables),
    "secrets": Lines(lambda text: read_variables(text, "secrets"), write_variables),
    "secret_files": Lines(read_mounts, write_mounts),
    "volumes": Lines(read_mounts, write_mounts),
    "labels": Lines(read_labels, write_labels),
    "roles": Lines(read_roles, write_roles),
}


def read_all(typed: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Parses all multi-line fields. Returns two mappings by field name: the values, and the problems.

    A field with a problem has no value.
    """
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
