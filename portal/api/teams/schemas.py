"""What calls about teams and their members take and answer."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from ninja import Field, Schema

from portal.api.fields import Flag, Line, Whole


class Membership(Schema):
    team: str
    role: str
    tickets: int


class Me(Schema):
    username: str
    name: str
    role: str
    teams: list[Membership]


class MaybeDry(Schema):
    dry_run: Flag = Field(False, description="Only say what it would do to shares; nothing is saved.")


class TeamTickets(MaybeDry):
    tickets: Whole = Field(description="The weight among the teams of the same level.")


class TeamParent(MaybeDry):
    parent: Line | None = Field(description="The team above; null, which must be said, is the top level.")


class TeamArchived(MaybeDry):
    archived: Flag


class NewTeam(TeamTickets, TeamParent):
    name: Line


class Team(Schema):
    team: str
    name: str
    parent: str | None
    tickets: int
    archived_at: datetime | None


class MemberChange(Schema):
    role: Literal["viewer", "member", "manager"] | None = Field(None, description="Null: as it is.")
    tickets: Whole | None = Field(None, description="The weight inside the team. Null: as it is.")


class NewMember(Schema):
    user: Line = Field(description="The exact user name or e-mail address of an existing user.")
    role: Literal["viewer", "member", "manager"] = "member"
    tickets: Whole = 100


class Member(Schema):
    user: str
    role: str
    tickets: int
    is_active: bool


class TeamShare(Schema):
    """The part of all GPUs, while everybody is active, of a team or of a team's own members."""

    name: str
    before: float | None
    after: float | None = Field(description="Null where it has no share.")


class TeamChange(Schema):
    team: Team | None = Field(description="Null where it is not made yet.")
    shares: list[TeamShare] = Field(
        description="Of the team and of all on a level with it, before and after."
    )
