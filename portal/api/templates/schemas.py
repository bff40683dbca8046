"""Request and response schemas of the endpoints for templates."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ninja import Field, Schema
from pydantic import ConfigDict

from portal.api.fields import Flag, Line, Whole, Words

CONTENT: dict[str, Any] = {
    "description": "Trains the baseline of the paper.",
    "spec": {"name": "train", "command": "python train.py --lr {lr}", "gpus_per_worker": 2},
    "parameters": [{"name": "lr", "type": "number", "min": 0, "max": 1, "default": 0.1}],
}


class TemplateContent(Schema):
    """What a version of a template consists of. scheduling/spec/templates.py checks it."""

    model_config = ConfigDict(json_schema_extra={"example": CONTENT})

    description: Words = Field(description="What it does, in plain words.")
    spec: dict[str, Any] | str = Field(
        description="A job specification, as a mapping or as YAML text, in which texts contain `{name}`."
    )
    parameters: list[dict[str, Any]] = Field(
        [],
        max_length=100,
        description="Each has `name` and `type` (text, number, choice, boolean, generation, volume or secret), and may "
        "have `description`, `required`, `default`, `min`, `max`, `whole` and `choices`.",
    )


class NewTemplate(TemplateContent):
    """A template to publish."""

    model_config = ConfigDict(
        json_schema_extra={"example": {"name": "Baseline", "team": "your-team"} | CONTENT}
    )

    name: Line
    team: Line = Field("", description="Slug of the team whose members may use it.")
    for_all: Flag = Field(
        False, description="Whether all teams may use it; then `team` stays empty. For admins."
    )


class Template(Schema):
    id: int
    name: str
    team: str | None = Field(description="Slug of the team whose members may use it; null for all teams.")
    description: str
    version: int = Field(description="Number of the latest version.")
    gpus: int = Field(description="GPUs of a job with the values that the template suggests.")
    expected_hours: float | None
    created_at: datetime
    withdrawn_at: datetime | None


class TemplateVersion(Schema):
    """A template with one of its versions, which `version` numbers."""

    id: int
    name: str
    team: str | None
    description: str
    version: int
    latest: int
    spec: dict[str, Any]
    yaml: str = Field(description="The specification as YAML.")
    parameters: list[dict[str, Any]]
    made_by: str | None
    made_at: datetime
    withdrawn_at: datetime | None


class TemplatePage(Schema):
    """A page of templates, newest first.

    To get the next page, with older templates, call the endpoint again with the parameter `before` set to `next`, which
    is null on the last page.
    """

    items: list[Template]
    next: int | None


class TemplateFilters(Schema):
    team: Line = Field("", description="Slug of a team.")
    q: Line = Field("", description="A part of the name or of the description.")


class TemplateValues(Schema):
    """Values of the parameters of a template. A parameter that is left out has its default."""

    model_config = ConfigDict(json_schema_extra={"example": {"values": {"lr": 0.1}}})

    values: dict[str, Any] = Field({}, description="By name of the parameter; as text or as the right type.")
    version: Whole | None = Field(None, description="Number of the version; null for the latest.")


class TemplateJob(TemplateValues):
    """A job to submit from a template."""

    model_config = ConfigDict(json_schema_extra={"example": {"values": {"lr": 0.1}, "team": "your-team"}})

    team: Line = Field("", description="Slug of the team that the job is billed to.")
    cluster: Line = Field("", description="Name of the cluster on which to run.")
    even_if_never: Flag = Field(
        False,
        description="Whether to queue the job even if it can never run with the current nodes and limits.",
    )


class FilledTemplate(Schema):
    spec: dict[str, Any]
    yaml: str
