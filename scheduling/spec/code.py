"""The field `code` of a job spec: where the files come from in whose folder the command starts."""

from __future__ import annotations

import re
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from scheduling.spec.attachments import check_reference
from scheduling.spec.refused_values import RefusedAt

DIGEST = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?", re.ASCII)
URL = re.compile(r"https?://[!#-&(-;=?-_a-z~]+", re.ASCII)
# A part of git's own rules (git help check-ref-format), which are checked again by git.
REF = re.compile(r"[A-Za-z0-9_+][-A-Za-z0-9_+./@#=]*", re.ASCII)


def _digest(text: str) -> str:
    if text and not DIGEST.fullmatch(text):
        raise ValueError(f"{text!r} is not a digest: write sha256: and 64 digits, as the upload returned it")
    return text


def _url(text: str) -> str:
    if text and not URL.fullmatch(text):
        raise ValueError(f"{text!r} is not an address of a repository: write https://HOST/PATH")
    return text


def _ref(text: str) -> str:
    if text and (not REF.fullmatch(text) or ".." in text or "//" in text or "@{" in text):
        raise ValueError(f"{text!r} is not a branch, a tag or a commit")
    return text


def _commit(text: str) -> str:
    if text and not COMMIT.fullmatch(text):
        raise ValueError(f"{text!r} is not a commit: write its 40 or 64 digits")
    return text


def _folder(text: str) -> str:
    parts = text.split("/") if text else []
    if not text.isprintable() or "\\" in text or {"", ".", ".."} & set(parts):
        raise ValueError(f"{text!r} is not a folder of the repository: write it as src/models")
    return text


def _secret(text: str) -> str:
    if text:
        check_reference(text)
    return text


class Code(BaseModel):
    """The code of a job: an upload, which its digest names, or a folder of a git repository.

    Fairlot fetches a repository when the job is submitted, and then sets `commit` and `upload`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True, strict=True)

    upload: Annotated[str, Field(max_length=71), AfterValidator(_digest)] = ""
    git: Annotated[str, Field(max_length=1000), AfterValidator(_url)] = ""
    ref: Annotated[str, Field(max_length=200), AfterValidator(_ref)] = ""
    commit: Annotated[str, Field(max_length=64), AfterValidator(_commit)] = ""
    folder: Annotated[str, Field(max_length=400), AfterValidator(_folder)] = ""
    secret: Annotated[str, Field(max_length=127), AfterValidator(_secret)] = ""

    @model_validator(mode="after")
    def _has_a_source(self) -> Self:
        if not self.upload and not self.git:
            raise ValueError("names neither an upload nor a git repository")
        for name in ("ref", "commit", "folder", "secret"):
            if getattr(self, name) and not self.git:
                raise RefusedAt((name,), f"{name} is only for a git repository: set the field “git”, too")
        return self

    @property
    def is_unfetched(self) -> bool:
        """Returns whether the code is in a repository that has not been fetched yet."""
        return bool(self.git) and not self.upload
