"""Paths of refused values in a spec, such as variables.DEBUG or volumes.0.path, for use in error messages."""

from __future__ import annotations

from itertools import pairwise

from pydantic_core import ErrorDetails

# By list of a spec, what one of its items is.
ITEMS = {"roles": "role", "volumes": "volume", "secret_files": "secret", "generations": "GPU type",
         "exit_codes": "entry"}  # fmt: skip
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


def _in_words(part: str, of: str) -> str:
    """Returns a step of a path in the words of the form: a key, or the number of an item of the list `of`."""
    return f"{ITEMS.get(of, 'item')} {int(part) + 1}" if part.isdecimal() else part


def by_top_field(problems: dict[str, str]) -> dict[str, str]:
    """Groups error messages by the spec's top-level fields, for forms. The keys of `problems` are the paths of invalid
    values.

    For example, the message for volumes.0.path is returned under `volumes`, and begins with "volume 1, path: ".
    Several messages for a field are lines of its text.
    """
    told: dict[str, list[str]] = {}
    for path, text in problems.items():
        field, *rest = path.split(".")
        where = ", ".join(_in_words(part, of) for of, part in pairwise((field, *rest)))
        told.setdefault(field, []).append(f"{where}: {text}" if rest else text)
    return {field: "\n".join(texts) for field, texts in told.items()}
