"""Request and response schemas of the endpoints for drafts."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from ninja import Field, Schema
from pydantic import ConfigDict

from portal.api.fields import Line

Kind = Literal["job", "sweep", "pipeline", "schedule"]
EXAMPLE: dict[str, Any] = {"spec": {"name": "resnet-50", "command": ""}, "team": "your-team"}


class NewDraft(Schema):
    """A job to keep as a draft. Its specification may be incomplete or wrong."""

    model_config = ConfigDict(json_schema_extra={"example": EXAMPLE})

    spec: dict[str, Any] | str = Field(description="A job specification, as a mapping or as YAML text.")
    team: Line = Field("", description="Slug of the team for which to submit the job.")
    cluster: Line = Field("", description="Name of the cluster on which to run.")


class Draft(Schema):
    id: int
    kind: Kind
    name: str = Field(description="Name of the job as typed so far; may be empty.")
    created_at: datetime
    saved_at: datetime


class DraftInFull(Draft):
    """A draft with its content. A job, sweep, pipeline or schedule that is submitted with the `Idempotency-Key`
    `request_key` takes the draft's place."""

    team: str = Field(description="Slug of the chosen team; empty if none is chosen.")
    cluster: str = Field(description="Name of the chosen cluster; empty if none is chosen.")
    yaml: str = Field(description="The specification as YAML, which may be incomplete or wrong.")
    parameters: str = Field(
        description="The parameters of a sweep as they were typed; empty for other kinds."
    )
    problems: dict[str, str] = Field(description="What must change before it can be submitted, by field.")
    request_key: str
