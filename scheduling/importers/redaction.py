"""Takes parts of credentials out of a report. A sentence that quotes a value may quote the beginning of one."""

from __future__ import annotations

from collections.abc import Iterable

from scheduling.importers.credentials import found_in
from scheduling.importers.report import Line


def without_parts(lines: Iterable[Line], text: str) -> tuple[Line, ...]:
    """Returns the lines without parts of the credentials that the foreign text contains."""
    secrets = found_in(text)
    if not secrets:
        return tuple(lines)
    return tuple(
        Line(line.fate, *(without(one, secrets) for one in (line.source, line.target, line.text)))
        for line in lines
    )


def without(text: str, secrets: list[tuple[str, int]]) -> str:
    """Returns the text with "…" in place of each beginning of a secret. Each secret comes with the number of characters
    that already give a part of it away."""
    for secret, least in secrets:
        while (at := text.find(secret[:least])) >= 0:
            end = at + least
            while end < len(text) and end - at < len(secret) and text[end] == secret[end - at]:
                end += 1
            text = f"{text[:at]}…{text[end:]}"
    return text
