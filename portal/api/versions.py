"""Reads the header If-Match, which names the versions of an object that the caller has seen."""

from __future__ import annotations

import re
from typing import Annotated

from ninja import Header

from scheduling.models.versions import ANY

TAG = re.compile(r'(?:W/)?"([^"]*)"')
IfMatch = Annotated[
    str | None,
    Header(
        alias="If-Match",
        max_length=500,
        description="Versions that you have seen. If the object has another version, nothing changes (412).",
    ),
]
VERSION = "Changes whenever somebody changes the object. Send it as If-Match to overwrite no change of somebody else."


def versions_in(if_match: str | None) -> list[str] | None:
    """Returns the versions that a header If-Match names; None without header.

    Entity tags are quoted; a version without quotes is accepted, too.
    """
    if if_match is None:
        return None
    text = if_match.strip()
    return [ANY] if text == ANY else (TAG.findall(text) or [text])
