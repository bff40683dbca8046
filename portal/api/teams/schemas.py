"""Request and response schemas of the endpoints for teams and their members."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from ninja import Field, Schema

from portal.api.fields import Flag, Line, Whole
from portal.api.versions import VERSION


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
    dry_run: Flag = Field(
        False, description="True: Fairlot returns how the change would affect shares, and saves nothing."
    )


class TeamTickets(MaybeDry):
    tickets: Whole = Field(
        description="Number of tickets: the weight of the team among the teams with the same parent."
    )


class TeamParent(MaybeDry):
    parent: Line | None = Field(
        description="Slug of the parent team; null for the top level. This field is required."
    )


class TeamArchived(MaybeDry):
    archived: Flag


class NewTeam(TeamTickets, TeamParent):
    name: Line


class Team(Schema):
    version: str = Field(description=VERSION)
    team: str
    name: str
    parent: str | None
    tickets: int
    archived_at: datetime | None


class MemberChange(Schema):
    role: Literal["viewer", "member", "manager"] | None = Field(
        None, description="Role of the member in the team; null leaves the role unchanged."
    )
    tickets: Whole | None = Field(
        None,
        description="Number of tickets: the weight of the member in the team. Null leaves the number unchanged.",
    )


class NewMember(Schema):
    user: Line = Field(description="Exact user name or e-mail address of an existing user.")
    role: Literal["viewer", "member", "manager"] = "member"
    tickets: Whole = 100


class Member(Schema):
    version: str = Field(description=VERSION)
    user: str
    role: str
    tickets: int = Field(description="Without effect for viewers, who run no jobs.")
    is_active: bool


class NewInvitation(Schema):
    role: Literal["viewer", "member", "manager"] = "member"
    tickets: Whole = 100
    email: Line = Field(
        "", description="Address to which Fairlot sends the link; empty: Fairlot sends no mail."
    )
    most_uses: Whole = Field(1, description="How many people can accept the invitation, 1 to 100.")
    days: Whole = Field(7, description="How many days the invitation is valid, 1 to 90.")


class Invitation(Schema):
    id: int
    email: str
    role: str
    tickets: int
    uses: int = Field(description="How many people have accepted the invitation.")
    most_uses: int
    created_at: datetime
    expires_at: datetime
    invited_by: str | None


class NewInvitationLink(Invitation):
    link: str = Field(description="Address with which people join. Fairlot does not return it again.")


class AcceptedInvitation(Schema):
    invitation: Line = Field(description="Link of an invitation, or the last part of its path.")


class TeamShare(Schema):
    """The share of a team, or of a team's direct members, before and after a change.

    A share is a fraction of all GPUs (0 to 1). It is calculated as if all teams were active.
    """

    name: str
    before: float | None
    after: float | None = Field(description="Share after the change; null if the team has no share.")


class TeamChange(Schema):
    team: Team | None = Field(description="The team after the change; null for a dry run of creating a team.")
    shares: list[TeamShare] = Field(
        description="Shares of the team and of the teams with the same parent, before and after the change."
    )
