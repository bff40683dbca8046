"""Query and answer of the endpoint for the metrics of a job."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from ninja import Field, Schema
from pydantic import AwareDatetime

from portal.api.fields import IN_DIGITS


class MetricsPeriod(Schema):
    """The period of the metrics, and how fine they are."""

    begins: AwareDatetime | None = Field(
        None,
        alias="from",
        description="Begin of the period, such as `2026-03-01T12:00:00Z`. Without it, the first sample.",
    )
    ends: AwareDatetime | None = Field(
        None, alias="to", description="End of the period. Without it, the last sample."
    )
    by: Literal["time", "step"] = Field(
        "time",
        description="`step` returns the values of each step that the program reports, such as `step=3 loss=0.5`. A "
        "program that reports no steps has no series then.",
    )
    most_points: Annotated[int, IN_DIGITS] = Field(
        240,
        ge=2,
        le=2000,
        description="The most points of a series. It decides how long their windows are. By "
        "step, longer series are thinned evenly, with their first and last points.",
    )


class MetricPoint(Schema):
    """The values of a metric in one window, or at one step. `at` is the begin of the window, or when the step was
    reported."""

    at: datetime
    step: float | None = Field(description="The step; null by time, and in `whole`.")
    mean: float
    lowest: float
    highest: float
    last: float
    values: int = Field(description="How many values the window has.")


class MetricSeries(Schema):
    """One metric over time. Windows without values have no point."""

    name: str
    source: Literal["machine", "output", "events"] = Field(
        description="`machine`: measured by Fairlot. `output`: printed by the program. `events`: written by it as "
        "TensorBoard events."
    )
    gpu: str = Field(description="NODE/INDEX of the GPU; empty if the metric belongs to the whole job.")
    unit: str = Field(description="Such as `%` or `bytes`; empty for numbers of the program.")
    whole: MetricPoint = Field(description="The whole period as one window.")
    points: list[MetricPoint]


class JobMetrics(Schema):
    """The metrics of a job. All series have the same windows of `seconds`, or points by step."""

    job: int
    axis: str = Field(
        description="`time`, or the name of the steps, such as `step` or `epoch`; empty if there are none."
    )
    seconds: int = Field(description="The length of the windows; 0 by step.")
    series: list[MetricSeries]
    left_out: dict[str, int] = Field(
        description="What could not be stored, and how often: `names`, `long_names`, `not_numbers`, `bytes` and others."
    )
