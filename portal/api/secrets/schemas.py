"""What calls about secrets take and answer."""

from __future__ import annotations

from datetime import datetime

from ninja import Field, Schema
from pydantic import SecretStr

from portal.api.fields import Line


class SecretTexts(Schema):
    """One text, or several by key. Never shown again."""

    value: SecretStr | None = None
    values: dict[Line, SecretStr] = Field({}, description="Instead of `value`: texts by key.")


class NewSecret(SecretTexts):
    name: Line = Field(description="Small letters, digits and -.")
    team: Line = Field(
        "", description="Slug of a team whose members may use it; else it is the caller's own."
    )


class Secret(Schema):
    id: int
    name: str
    team: str = Field(description="Whose it is; empty for the caller's own.")
    keys: list[str]
    created_at: datetime
    changed_at: datetime
