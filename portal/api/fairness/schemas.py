"""Response schemas of the endpoint for the fairness report."""

from __future__ import annotations

from datetime import datetime

from ninja import Field, Schema

from portal.api.fields import Figure
from portal.api.old_names import WithOldNames, answered_too


class FairAmounts(Schema):
    """A team's amounts of GPU time, in GPU-seconds.

    - `entitled`: the GPU time that the team's tickets earned.
    - `lent`: the part of `entitled` that the team did not need and that other teams used.
    - `unused`: the part of `entitled` that the team did not need and that nobody used.
    - `borrowed`: the GPU time beyond `entitled` that other teams lent to the team.
    - `sold` and `bought`: the GPU time that the team gave and got in trades.
    - `due` = entitled - lent - unused + borrowed - sold + bought: the GPU time that the team should have received.
    - `received`: the GPU time that the team's jobs held.
    - `owed` = due - received.
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
    delivered: float | None = Field(
        description="Received GPU time divided by due GPU time; null if no GPU time was due."
    )


class FairnessRow(Schema):
    team: str
    generation: str
    amounts: FairAmounts


class ComparedTeam(Schema):
    """The amounts of a team, as totals over all generations.

    GPU-seconds of each generation are multiplied by the weight of the generation before they are added up.
    `of_entitlement` is `received` divided by `entitled`; null if the team was entitled to nothing.
    """

    team: str
    amounts: FairAmounts
    of_entitlement: float | None


class FairnessIndices(Schema):
    """Two measures of how equally the teams were treated in one interval.

    Both compare one ratio of each team: its received GPU time divided by its due GPU time. `jain` is Jain's index of
    these ratios. `max_min` is the lowest ratio of a team divided by the highest. Teams to which no GPU time was due are
    left out.
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
    rated: int = Field(description="Number of ended jobs whose finish-time fairness is known.")
    told: int = answered_too("rated")
    median: float | None
    worst: float | None
    worse_off: int
    left_out: int


class StatementLine(Schema):
    """A team's amounts for one generation, converted to GPU-seconds of the team's slowest generation.

    `speed` is the measured speed of the team's jobs on this generation, as a multiple of their speed on the slowest
    one. The amounts are multiplied by `speed`: an hour at speed 2 counts as two hours. If the speed is unknown, `speed`
    and `amounts` are null. A speed is known only if a job was measured on this generation and on another one.
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

    To add up different generations, the comparison multiplies GPU time by the weights in `weights`. The statement
    multiplies it by the speeds measured for the team's jobs.
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
