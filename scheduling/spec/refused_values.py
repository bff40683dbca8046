"""Paths of refused values in a spec, such as variables.DEBUG or volumes.0.path, for use in error messages."""

from __future__ import annotations

from pydantic_core import ErrorDetails

LONGEST = 120  # characters of a key that messages quote at most


class RefusedAt(ValueError):
    """Raised when a value inside a field is invalid. `place` is the path from the field to the value."""

    def __init__(self, place: tuple[str | int, ...], message: str) -> None:
        super().__init__(message)
        self.place = place


def path_of(item: ErrorDetails) -> tuple[str, ...]:
    """Returns the path (keys and positions) of the value to which a pydantic error refers."""
    error = item.get("ctx", {}).get("error")
    inside = error.place if isinstance(error, RefusedAt) else ()
    return tuple(str(step)[:LONGEST] for step in (*item["loc"], *inside) if step != "[key]")


def by_top_field(problems: dict[str, str]) -> dict[str, str]:
    """Groups error messages by the spec's top-level fields, for forms. The keys of `problems` are the paths of invalid
    values.

    For example, the message for the path volumes.0.path is returned under `volumes`, and begins with "item 1, path: ".
    Several messages for a field are lines of its text.
    """
    told: dict[str, list[str]] = {}
    for path, text in problems.items():
        field, _, rest = path.partition(".")
        where = ", ".join(f"item {int(part) + 1}" if part.isdecimal() else part for part in rest.split("."))
        told.setdefault(field, []).append(f"{where}: {text}" if rest else text)
    return {field: "\n".join(texts) for field, texts in told.items()}
