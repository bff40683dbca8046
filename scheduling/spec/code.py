"""The field `code` of a job spec: where the files come from in whose folder the command starts."""

from __future__ import annotations

import re
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

DIGEST = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)


class Code(BaseModel):
    """The code of a job: an upload, which its digest names."""

    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True, strict=True)

    upload: Annotated[str, Field(max_length=71)] = ""

    @field_validator("upload")
    @classmethod
    def _is_a_digest(cls, upload: str) -> str:
        if upload and not DIGEST.fullmatch(upload):
            raise ValueError(
                f"{upload!r} is not a digest: write sha256: and 64 digits, as the upload returned it"
            )
        return upload

    @model_validator(mode="after")
    def _has_a_source(self) -> Self:
        if not self.upload:
            raise ValueError("names no upload")
        return self
