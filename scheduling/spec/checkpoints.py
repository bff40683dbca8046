"""The field `checkpoint` of a job spec: a pattern of the names that complete checkpoints have."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from scheduling.spec.paths import UNFINISHED

# A name with * and ? and, after a slash, the name of the file that marks a folder as complete.
PATTERN = re.compile(r"[-\w.*?=+,@]{1,200}(/[-\w.=+,@]{1,99})?", re.ASCII)


def _pattern(text: str) -> str:
    if text and (not PATTERN.fullmatch(text) or {".", ".."} & set(text.split("/"))):
        raise ValueError(f"{text!r} is not a pattern of names")
    if text.partition("/")[0].endswith(UNFINISHED):
        raise ValueError(f"names that end in {' or '.join(UNFINISHED)} count as unfinished checkpoints")
    return text


Checkpoint = Annotated[str, AfterValidator(_pattern), Field(max_length=300)]
