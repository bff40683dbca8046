"""Replaces references to variables, such as ${TAG:-latest}, as Docker Compose does."""

from __future__ import annotations

import re

REFERENCE = re.compile(
    r"\$(?:(?P<escaped>\$)|(?P<plain>[A-Za-z_]\w*)|"
    r"\{(?P<name>[A-Za-z_]\w*)(?:(?P<kind>:?[-?+])(?P<rest>[^{}]*))?\})",
    re.ASCII,
)


def filled(text: str) -> tuple[str, list[str]]:
    """Returns the text with references to variables replaced by their defaults, and the names of variables without
    one. Those stay as ${NAME}."""
    missing: list[str] = []

    def value_of(found: re.Match[str]) -> str:
        if found["escaped"]:
            return "$"
        name, kind = found["plain"] or found["name"], found["kind"] or ""
        if kind.endswith("-"):
            return str(found["rest"])
        if kind.endswith("+"):
            return ""
        missing.append(name)
        return f"${{{name}}}"

    return REFERENCE.sub(value_of, text), missing
