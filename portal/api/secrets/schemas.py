"""Request and response schemas of the endpoints for secrets."""

from __future__ import annotations

from datetime import datetime

from ninja import Field, Schema
from pydantic import SecretStr

from portal.api.fields import Line
from portal.api.versions import VERSION


class SecretTexts(Schema):
    """The content of a secret: one value, or several values by key. No response ever contains it."""

    value: SecretStr | None = None
    values: dict[Line, SecretStr] = Field(
        {}, description="Secret values by key. Send either `values` or `value`."
    )


class NewSecret(SecretTexts):
    name: Line = Field(description="Name of the secret: lowercase letters, digits and hyphens.")
    team: Line = Field(
        "",
        description="Slug of the team whose members may use the secret; empty for a personal secret of the caller.",
    )


class Secret(Schema):
    id: int
    version: str = Field(description=VERSION)
    name: str
    team: str = Field(
        description="Slug of the team that owns the secret; empty for a personal secret of the caller."
    )
    keys: list[str]
    created_at: datetime
    changed_at: datetime
