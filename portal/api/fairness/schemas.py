"""What calls about the fairness report take and answer."""

from __future__ import annotations

from datetime import datetime

from ninja import Field, Schema

from portal.api.fields import Figure
from portal.api.old_names import WithOldNames, answered_too


class FairAmounts(Schema):
    """GPU-seconds. due = entitled - lent - unused + borrowed - sold + bought; owed = due - received."""

    entitled: float
    lent: float
    unused: float
    borrowed: float
    sold: float
    bought: float
    due: float
    received: float
    owed: float
    delivered: float | None = Field(description="received / due; null if nothing was due.")


class FairnessRow(Schema):
    team: str
    generation: str
    amounts: FairAmounts


class ComparedTeam(Schema):
    """A team over all generations: each GPU-second is counted by its published weight."""

    team: str
    amounts: FairAmounts
    of_entitlement: float | None


class FairnessIndices(Schema):
    """Fairness indices over the delivered ratios of all teams to which something was due."""

    begins: datetime
    ends: datetime
    teams: int
    jain: float | None
    max_min: float | None


class FinishedJobs(WithOldNames, Schema):
    """Finish-time fairness of training jobs: time from submit to end, divided by the time alone on the team's share."""

    team: str
    ended: int
    rated: int = Field(description="Number of jobs whose ratio is known.")
    told: int = answered_too("rated")
    median: float | None
    worst: float | None
    worse_off: int
    left_out: int


class StatementLine(Schema):
    """GPU-seconds in those of the team's slowest generation; null if no job was measured there and elsewhere."""

    generation: str
    speed: float | None
    jobs: int
    amounts: FairAmounts | None


class FairnessStatement(Schema):
    team: str
    generations: list[StatementLine]
    total: FairAmounts


class Fairness(Schema):
    """The fairness report. For operators, weights compare teams; the statement uses a team's own speeds."""

    begins: datetime
    ends: datetime
    weights: dict[str, Figure]
    rows: list[FairnessRow]
    compared: list[ComparedTeam]
    indices: FairnessIndices | None
    over_time: list[FairnessIndices]
    finished: list[FinishedJobs]
    statement: FairnessStatement | None
