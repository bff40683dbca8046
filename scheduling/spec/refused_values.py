"""Where in a spec a value is refused: each refusal names its whole path, such as variables.DEBUG or volumes.0.path."""

from __future__ import annotations

from pydantic_core import ErrorDetails

LONGEST = 120  # characters of a key that messages quote


class RefusedAt(ValueError):
    """An invalid value inside the checked field; `place` is the path from the field to it."""

    def __init__(self, place: tuple[str | int, ...], message: str) -> None:
        super().__init__(message)
        self.place = place


def path_of(item: ErrorDetails) -> tuple[str, ...]:
    """Returns the keys and positions that lead to what pydantic refuses."""
    error = item.get("ctx", {}).get("error")
    inside = error.place if isinstance(error, RefusedAt) else ()
    return tuple(str(step)[:LONGEST] for step in (*item["loc"], *inside) if step != "[key]")


def by_top_field(problems: dict[str, str]) -> dict[str, str]:
    """Groups problems by the spec's top-level fields, for forms; messages about inner values name their path."""
    told: dict[str, list[str]] = {}
    for path, text in problems.items():
        field, _, rest = path.partition(".")
        told.setdefault(field, []).append(f"{rest}: {text}" if rest else text)
    return {field: ". ".join(texts) for field, texts in told.items()}
