"""What calls about volumes take and answer."""

from __future__ import annotations

from datetime import datetime

from ninja import Field, Schema

from portal.api.fields import Flag, Line


class NewVolume(Schema):
    name: Line = Field(description="By which jobs name it: small letters, digits and -.")
    source: Line = Field(description="A PersistentVolumeClaim in the team's namespace; locally a folder.")
    read_only: Flag = True
    team: Line = Field("", description="Slug of the team whose jobs may mount it; empty: every team.")


class Volume(Schema):
    id: int
    name: str
    cluster: str
    team: str = Field(description="Whose jobs may mount it; empty: every team's.")
    read_only: bool
    created_at: datetime


class GrantedVolume(Volume):
    source: str
