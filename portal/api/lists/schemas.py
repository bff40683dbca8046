"""Request and response schemas of the endpoints for saved views of lists."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from ninja import Field, Schema

from portal.api.fields import Flag, Line

Listed = Literal["jobs", "sweeps", "pipelines", "services", "schedules", "sessions"]


class ViewFilters(Schema):
    list: Listed = "jobs"


class NewView(Schema):
    list: Listed = "jobs"
    name: Line = Field(description="Name of the view. The caller's view of this name is replaced.")
    query: Annotated[str, Field(max_length=2000)] = Field(
        description="Filters, order and columns, as in the address of the list in the portal, such as "
        "`state=waiting&team=astro&sort=-gpus`. Other parameters are left out."
    )
    team: Line = Field("", description="Slug of a team that the caller manages, whose members see the view.")
    is_default: Flag = Field(False, description="Whether the list opens with this view for the caller.")


class View(Schema):
    id: int
    list: str
    name: str
    query: str
    owner: str
    team: str = Field(description="Slug of the team whose members see the view; empty for none.")
    is_default: bool
    changed_at: datetime
