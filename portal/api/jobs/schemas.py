"""What calls about jobs take and answer. Times are ISO 8601 in UTC, GPU time is in GPU-seconds."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from ninja import Field, Schema
from pydantic import BaseModel, ConfigDict, WithJsonSchema

from portal.api.fields import AskedFlag, Figure, Flag, Line
from portal.api.inlining import inlined
from portal.api.old_names import WithOldNames, answered_too, read_as, with_old_properties
from scheduling.jobs.submitting import MOST_AT_ONCE
from scheduling.spec.job_spec import NEW_NAMES, JobSpec

EXAMPLE = {
    "spec": {
        "name": "resnet-50",
        "command": "python train.py --epochs 90",
        "workers": 2,
        "gpus_per_worker": 4,
        "generations": ["A100"],
        "variables": {"LR": "0.1"},
    },
    "team": "your-team",
}


# As JobSpec checks it; what else Kubernetes' pods have is refused by name (docs/jobs.md).
Spec = Annotated[
    dict[str, Any] | str,
    WithJsonSchema(
        {
            "anyOf": [
                with_old_properties(inlined(JobSpec.model_json_schema()), NEW_NAMES),
                {"type": "string", "description": "The same as YAML."},
            ]
        }
    ),
]


class NewJob(Schema):
    """A job spec as a mapping, or as YAML text; `team` and `cluster` may be left out if there is one only."""

    model_config = ConfigDict(json_schema_extra={"example": EXAMPLE})

    spec: Spec
    team: Line = Field("", description="Slug of the team that pays.")
    cluster: Line = Field("", description="Name of the cluster.")
    even_if_never: Flag = Field(
        False,
        description="Queue it even if it can never run with today's nodes and limits; refused otherwise.",
    )


class NewJobs(Schema):
    """Up to 1000 job specs for the same team and cluster, each a mapping or YAML text as in a call for one job."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "specs": [{"name": f"sweep-{n}", "command": f"python train.py --seed {n}"} for n in (1, 2)],
                "team": "your-team",
                "atomic": True,
            }
        }
    )

    specs: list[Spec] = Field(min_length=1, max_length=MOST_AT_ONCE)
    team: Line = Field("", description="Slug of the team that pays.")
    cluster: Line = Field("", description="Name of the cluster.")
    even_if_never: Flag = Field(
        False,
        description="Queue jobs even if they can never run with today's nodes and limits; refused otherwise.",
    )
    atomic: Flag = Field(
        True,
        description="True: all jobs are queued, or none. False: each that is accepted, and each gets its answer.",
    )


class BulkAnswer(Schema):
    id: int | None = Field(None, description="Of the queued job; empty where the spec was refused.")
    problems: dict[str, str] = Field(
        {}, description="By field, why the spec was refused, and what is accepted."
    )


class BulkAnswers(Schema):
    accepted: int
    refused: int
    items: list[BulkAnswer] = Field(description="One for each spec, in the order of the call.")


class Job(WithOldNames):
    # Not ninja's Schema, which reads each field of an object or dictionary in Python.
    id: int
    kind: str = Field(description="training, replica or session.")
    name: str
    state: str
    service_id: int | None = Field(description="Of a replica: the service that it is of.")
    reason: str = Field("", description="Why it waits, in a few words; empty for jobs that do not wait.")
    team: str
    owner: str
    cluster: str
    workers: int
    gpus_per_worker: int
    gpus: int
    priority: int
    preemptible: bool = Field(
        description="It takes no part in the sharing: only GPUs that nobody else wants."
    )
    only_idle: bool = answered_too("preemptible")
    labels: dict[str, str]
    spec: dict[str, Any]
    created_at: datetime
    first_started_at: datetime | None
    ended_at: datetime | None
    files_removed_at: datetime | None = Field(description="When its log and checkpoints were deleted.")
    exit_code: int | None
    end_reason: str
    end_message: str
    steps_done: Figure | None


class Preemptible(WithOldNames, Schema):
    preemptible: Flag = Field(description="True: only GPUs that nobody else wants. False: by tickets.")
    only_idle: Flag | None = read_as("preemptible")


class JobFilters(WithOldNames, Schema):
    state: Line = ""
    kind: Line = ""
    team: Line = Field("", description="Slug of a team.")
    owner: Line = Field("", description="User name.")
    q: Line = Field("", description="Part of the name.")
    label: Line = Field("", description="key=value, or a key with any value.")
    preemptible: AskedFlag | None = Field(None, description="Whether they take no part in the sharing.")
    only_idle: AskedFlag | None = read_as("preemptible")


class JobInFull(Job):
    exit_meaning: str = Field(
        description="What the exit code of a failed one means; empty where that says nothing."
    )
    last_lines: list[str] = Field(
        description="Of a failed one, the end of its log: 20 lines or 4 KB at most."
    )


class JobPage(BaseModel):
    """Latest jobs first; ask again with `before` = `next` for older ones."""

    items: list[Job]
    next: int | None


class Event(WithOldNames, Schema):
    id: int
    at: datetime
    kind: str
    code: str = Field(description="What happened, for programs; empty for events of earlier releases.")
    text: str = Field(description="The same for people; its wording may change.")
    attempt: int = Field(description="The attempt to run the job that it belongs to; 0 before the first.")
    epoch: int = answered_too("attempt")


class EventPage(Schema):
    """Oldest events first; ask again with `after` = `next` for newer ones."""

    items: list[Event]
    next: int | None


class Log(Schema):
    """A piece of one rank's log; `text` begins at byte `offset`, the next piece at `next_offset`."""

    rank: int
    offset: int
    next_offset: int
    complete: bool
    text: str


class Scheduling(Schema):
    """Why a job is where it is."""

    state: str
    sentence: str
    never: bool
    detail: list[str]
    unblock: list[str]
    starts_by: datetime | None = Field(
        description="While it waits: when it starts at the latest if nothing else happens; sooner when a job ends."
    )
    not_before: datetime | None = Field(
        description="In place of `starts_by`: so far was looked ahead, and it did not start."
    )
    deadline: datetime | None = Field(description="By when it should have ended.")
    ends_by: datetime | None = Field(
        description="By the run time that its owner expects, from `starts_by` or from now on, if it is not stopped; "
        "null when it has run longer."
    )
    is_late: bool = Field(description="It ended after its deadline, or will as far as is known.")


class Preflight(Schema):
    verdict: Literal["never", "now", "later"]
    sentences: list[str]
    expected_start_seconds: list[float] | None = Field(
        description="From and to, from now on; null where nobody can tell.", min_length=2, max_length=2
    )
    cost_per_hour: dict[str, Figure] = Field(description="Of the whole gang, by generation.")
    detail: list[str]
    currencies: dict[str, str] = Field(description="Of what it costs, by generation.")
    currency: str = Field(description="In which prices are set now.")
