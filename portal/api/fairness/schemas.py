"""What calls about the fairness report take and answer."""

from __future__ import annotations

from datetime import datetime

from ninja import Field, Schema

from portal.api.fields import Figure
from portal.api.old_names import WithOldNames, answered_too


class FairAmounts(Schema):
    """In GPU-seconds. due = entitled - lent - unused + borrowed - sold + bought; owed = due - received."""

    entitled: float
    lent: float
    unused: float
    borrowed: float
    sold: float
    bought: float
    due: float
    received: float
    owed: float
    delivered: float | None = Field(description="received / due; null where nothing was due.")


class FairnessRow(Schema):
    team: str
    generation: str
    amounts: FairAmounts


class ComparedTeam(Schema):
    """Over all generations, each GPU-second counted by its published weight."""

    team: str
    amounts: FairAmounts
    of_entitlement: float | None


class FairnessIndices(Schema):
    """Over the delivered ratios of all teams to which something was due."""

    begins: datetime
    ends: datetime
    teams: int
    jain: float | None
    max_min: float | None


class FinishedJobs(WithOldNames, Schema):
    """Finish-time fairness of training jobs: time from submit to end / time alone on the own part."""

    team: str
    ended: int
    rated: int = Field(description="Jobs of which the ratio is known, as they ended by themselves.")
    told: int = answered_too("rated")
    median: float | None
    worst: float | None
    worse_off: int
    left_out: int


class SpokenRow(Schema):
    """In GPU-seconds of the team's slowest generation; null where no job was measured beside others."""

    generation: str
    speed: float | None
    jobs: int
    amounts: FairAmounts | None


class FairnessStatement(Schema):
    team: str
    generations: list[SpokenRow]
    total: FairAmounts


class Fairness(Schema):
    """Teams are compared, by the published weights, for operators alone; a statement is of one team's own speeds."""

    begins: datetime
    ends: datetime
    weights: dict[str, Figure]
    rows: list[FairnessRow]
    compared: list[ComparedTeam]
    indices: FairnessIndices | None
    over_time: list[FairnessIndices]
    finished: list[FinishedJobs]
    statement: FairnessStatement | None
