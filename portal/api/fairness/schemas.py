"""Response schemas of the endpoint for the fairness report."""

from __future__ import annotations

from datetime import datetime

from ninja import Field, Schema

from portal.api.fields import Figure
from portal.api.old_names import WithOldNames, answered_too


class FairAmounts(Schema):
    """Amounts in GPU-seconds: due = entitled - lent - unused + borrowed - sold + bought; owed = due - received."""

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
    """The amounts of a team, summed over all generations. Each GPU-second is multiplied by its generation's published
    weight."""

    team: str
    amounts: FairAmounts
    of_entitlement: float | None


class FairnessIndices(Schema):
    """Fairness indices in one interval, over the ratios `delivered` of all teams to which something was due."""

    begins: datetime
    ends: datetime
    teams: int
    jain: float | None
    max_min: float | None


class FinishedJobs(WithOldNames, Schema):
    """Finish-time fairness of training jobs: the time from submission to end, divided by the time that the job would
    have taken alone on the team's share."""

    team: str
    ended: int
    rated: int = Field(description="Number of jobs whose ratio is known.")
    told: int = answered_too("rated")
    median: float | None
    worst: float | None
    worse_off: int
    left_out: int


class StatementLine(Schema):
    """Amounts of one generation, converted to GPU-seconds of the team's slowest generation.

    `amounts` is null if no job was measured both on this generation and on another one.
    """

    generation: str
    speed: float | None
    jobs: int
    amounts: FairAmounts | None


class FairnessStatement(Schema):
    team: str
    generations: list[StatementLine]
    total: FairAmounts


class Fairness(Schema):
    """The fairness report. The comparison of teams, for operators, uses published weights; the statement uses the
    speeds measured for one team."""

    begins: datetime
    ends: datetime
    weights: dict[str, Figure]
    rows: list[FairnessRow]
    compared: list[ComparedTeam]
    indices: FairnessIndices | None
    over_time: list[FairnessIndices]
    finished: list[FinishedJobs]
    statement: FairnessStatement | None
