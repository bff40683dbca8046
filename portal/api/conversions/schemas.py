"""Request and response schemas of the endpoint that converts files of other systems."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from ninja import Field, Schema
from pydantic import ConfigDict

from portal.api.fields import Line
from scheduling.importers.reading import LONGEST


class NewConversion(Schema):
    """A text of another system, such as a Slurm batch script or a Kubernetes Job."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "text": "#!/bin/bash\n#SBATCH --job-name=train\n#SBATCH --gres=gpu:4\npython train.py\n"
            }
        }
    )

    text: Annotated[str, Field(max_length=LONGEST)]
    format: Line = Field(
        "", description="Name of the format, such as `slurm`. If it is empty, the format is recognised."
    )
    cluster: Line = Field(
        "",
        description="Name of the cluster that will run the jobs. Fields that jobs cannot have there are dropped, such"
        " as `memory` on a local cluster. If it is empty, the only attached cluster counts.",
    )


class FoundWork(Schema):
    """A job, service, schedule, sweep or pipeline that the text describes. `POST` its `spec` with `options` to create
    it, or the `options` alone for a pipeline."""

    kind: Literal["job", "service", "schedule", "sweep", "pipeline"]
    name: str
    spec: dict[str, Any] = Field(description="The job specification; empty for a pipeline.")
    options: dict[str, Any] = Field(
        description="The other fields of a service, schedule, sweep or pipeline, as `POST /api/v1/services`,"
        " `POST /api/v1/schedules`, `POST /api/v1/sweeps` and `POST /api/v1/pipelines` take them; empty for a job."
    )
    yaml: str = Field(description="The job specification, or the definition of a pipeline, as YAML.")


class ReportLine(Schema):
    fate: Literal["mapped", "defaulted", "approximated", "dropped", "refused"] = Field(
        description="What became of the field: `mapped` (the result says the same), `defaulted` (the text says nothing,"
        " and a value was chosen), `approximated` (the result says something similar), `dropped` (it has no effect), or"
        " `refused` (it cannot be imported, so there is no result)."
    )
    source: str = Field(
        description="Path or line of the field in the text; empty if the text has no such field."
    )
    target: str = Field(description="Field of the result; empty if there is none.")
    text: str = Field(description="The consequence in plain words.")


class Conversion(Schema):
    format: str = Field(description="Name of the format; empty if it was not recognised.")
    label: str = Field(description="The format in plain words; empty if it was not recognised.")
    works: list[FoundWork] = Field(
        description="What the text describes. Empty if a line of the report is `refused`."
    )
    report: list[ReportLine] = Field(
        description="What became of each field of the text; refused fields first."
    )
