"""Request and response schemas of the endpoints for volumes."""

from __future__ import annotations

from datetime import datetime

from ninja import Field, Schema

from portal.api.fields import Flag, Line


class NewVolume(Schema):
    name: Line = Field(
        description="Name by which jobs refer to the volume: lowercase letters, digits and hyphens."
    )
    source: Line = Field(
        description="Name of a PersistentVolumeClaim in the team's namespace; on a local cluster, the path of a folder."
    )
    read_only: Flag = True
    team: Line = Field(
        "",
        description="Slug of the team whose jobs may mount the volume. Empty if the jobs of all teams "
        "may mount it.",
    )


class Volume(Schema):
    id: int
    name: str
    cluster: str
    team: str = Field(
        description="Slug of the team whose jobs may mount the volume. Empty if the jobs of all teams "
        "may mount it."
    )
    read_only: bool
    created_at: datetime


class GrantedVolume(Volume):
    source: str
