"""Response schemas of the endpoint for the fairness report."""

from __future__ import annotations

from datetime import datetime

from ninja import Field, Schema

from portal.api.fields import Figure
from portal.api.old_names import WithOldNames, answered_too


class FairAmounts(Schema):
    """A team's amounts in GPU-seconds: its entitlement, what was due to it after lending and trading, and what it
    received.

    due = entitled - lent - unused + borrowed - sold + bought; owed = due - received.
    """

    entitled: float
    lent: float
    unused: float
    borrowed: float
    sold: float
    bought: float
    due: float
    received: float
    owed: float
    delivered: float | None = Field(description="Ratio of received to due GPU time; null if nothing was due.")


class FairnessRow(Schema):
    team: str
    generation: str
    amounts: FairAmounts


class ComparedTeam(Schema):
    """The amounts of a team, each as a total over all generations.

    Before amounts of different generations are added, GPU-seconds are multiplied by the published weight of their
    generation. `of_entitlement` is `received` divided by `entitled`; null if the team was entitled to nothing.
    """

    team: str
    amounts: FairAmounts
    of_entitlement: float | None


class FairnessIndices(Schema):
    """Fairness indices of one interval, computed from the ratio `delivered` of each team.

    Teams to which no GPU time was due are left out.
    """

    begins: datetime
    ends: datetime
    teams: int
    jain: float | None
    max_min: float | None


class FinishedJobs(WithOldNames, Schema):
    """Finish-time fairness of training jobs: the actual time divided by the time on a private cluster.

    The actual time is the time from submission to end. The time on a private cluster is the time that the same job
    would have taken alone on its team's share.
    """

    team: str
    ended: int
    rated: int = Field(description="Number of ended jobs whose finish-time ratio is known.")
    told: int = answered_too("rated")
    median: float | None
    worst: float | None
    worse_off: int
    left_out: int


class StatementLine(Schema):
    """A team's amounts for one generation, converted to GPU-seconds of the team's slowest generation.

    They are converted by `speed`: the measured speed of the team's jobs relative to their slowest generation. `speed`
    and `amounts` are null if no job was measured both on this generation and on another one.
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
    """The fairness report: a comparison of teams, which only operators get, and the statement of one team.

    The comparison weights generations by their published weights. The statement weights them by the speeds measured for
    this team.
    """

    begins: datetime
    ends: datetime
    weights: dict[str, Figure]
    rows: list[FairnessRow]
    compared: list[ComparedTeam]
    indices: FairnessIndices | None
    over_time: list[FairnessIndices]
    finished: list[FinishedJobs]
    statement: FairnessStatement | None
