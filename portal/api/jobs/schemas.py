"""Request and response schemas of the endpoints for jobs. Times are ISO 8601 in UTC; GPU time is in GPU-seconds."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from ninja import Field, Schema
from pydantic import BaseModel, ConfigDict, WithJsonSchema

from portal.api.fields import AskedFlag, AskedWhole, Figure, Flag, Line, Number, Whole
from portal.api.inlining import inlined
from portal.api.old_names import WithOldNames, answered_too, read_as, with_old_properties
from portal.api.versions import VERSION
from scheduling.jobs.submitting import MOST_AT_ONCE
from scheduling.spec.job_spec import NEW_NAMES, JobSpec

EXAMPLE: dict[str, Any] = {
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


# JobSpec checks the content. It refuses other fields of Kubernetes pods by name (docs/jobs.md).
Spec = Annotated[
    dict[str, Any] | str,
    WithJsonSchema(
        {
            "anyOf": [
                with_old_properties(inlined(JobSpec.model_json_schema()), NEW_NAMES),
                {"type": "string", "description": "The specification as YAML."},
            ]
        }
    ),
]


class NewJob(Schema):
    """A job to submit: the job specification, as a mapping or as YAML text, with its team and its cluster.

    `team` may be left out if the caller is a member of only one team, and `cluster` if only one cluster is attached.
    """

    model_config = ConfigDict(json_schema_extra={"example": EXAMPLE})

    spec: Spec
    team: Line = Field("", description="Slug of the team that the job is billed to.")
    cluster: Line = Field("", description="Name of the cluster on which to run.")
    even_if_never: Flag = Field(
        False,
        description="Whether to queue the job even if it can never run with the current nodes and limits. "
        "If false, such a job is refused.",
    )


class Clone(Schema):
    """How a job differs from the one that it is like."""

    changes: dict[str, Any] = Field(
        default_factory=dict, description="Fields of the job specification; they replace those of the job."
    )
    team: Line = Field("", description="Slug of the team that the job is billed to. Empty: the same team.")
    cluster: Line = Field("", description="Name of the cluster on which to run. Empty: the same cluster.")
    even_if_never: Flag = Field(False, description="Whether to queue the job even if it can never run now.")


class JobChanges(Schema):
    """New values of a job's fields. A field that is left out is not changed."""

    priority: Whole | None = Field(
        None, description="From -100 to 100; higher goes first among the owner's jobs."
    )
    labels: dict[str, Line] | None = Field(
        None, description="All labels of the job; they replace the present ones."
    )
    generations: list[Line] | None = Field(
        None, description="Accepted GPU types; empty for every type. Only while the job waits."
    )
    max_workers: Whole | None = Field(
        None, description="Most workers of an elastic job; null for a fixed number."
    )
    expected_hours: Number | None = Field(None, description="Expected total hours on GPUs; null if unknown.")
    deadline_hours: Number | None = Field(
        None, description="Hours from the submit to the deadline; null for no deadline."
    )
    time_limit_hours: Number | None = Field(
        None,
        description="Hours on GPUs, over all attempts, after which the job is stopped; null for no limit.",
    )


class NewJobs(Schema):
    """Up to 1000 job specifications for one team and cluster, each a mapping or YAML text."""

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
    team: Line = Field("", description="Slug of the team that the job is billed to.")
    cluster: Line = Field("", description="Name of the cluster on which to run.")
    even_if_never: Flag = Field(
        False,
        description="Whether to queue jobs even if they can never run with the current nodes and limits. "
        "If false, such jobs are refused.",
    )
    atomic: Flag = Field(
        True,
        description="True: if one job is refused, no job is queued. False: accepted jobs are queued, and "
        "refused jobs are reported.",
    )


class BulkAnswer(Schema):
    id: int | None = Field(
        None, description="The id of the queued job; null if the specification was refused."
    )
    problems: dict[str, str] = Field(
        {}, description="Why the specification was refused and what is accepted, by field."
    )


class BulkAnswers(Schema):
    accepted: int
    refused: int
    items: list[BulkAnswer] = Field(
        description="One result for each specification, in the order of the request."
    )


class Job(WithOldNames):
    # No ninja Schema: it reads each field in Python, which is slow for lists of jobs.
    id: int
    kind: str = Field(description="Kind of the job: `training`, `replica` or `session`.")
    name: str
    state: str
    service_id: int | None = Field(
        description="Id of the service that a replica belongs to; null for other jobs."
    )
    reason: str = Field("", description="Why the job waits, in a few words; empty if it does not wait.")
    team: str
    owner: str
    cluster: str
    workers: int = Field(description="Number of workers; of an elastic job the least with which it runs.")
    max_workers: int | None = Field(
        None, description="Most workers of an elastic job; null if the number of workers is fixed."
    )
    gpus_per_worker: int
    gpus: int
    priority: int
    preemptible: bool = Field(
        description="Whether the job is preemptible: it runs only on GPUs that nobody else wants, and "
        "takes no part in the fair share."
    )
    only_idle: bool = answered_too("preemptible")
    labels: dict[str, str]
    spec: dict[str, Any]
    created_at: datetime
    first_started_at: datetime | None
    ended_at: datetime | None
    files_removed_at: datetime | None = Field(
        description="When the log and the checkpoints were deleted; null if they still exist."
    )
    exit_code: int | None
    end_reason: str
    end_message: str
    steps_done: Figure | None
    failures: int = Field(
        description="How often the program has failed in all attempts, including those that were retried."
    )


class Preemptible(WithOldNames, Schema):
    preemptible: Flag = Field(
        description="True: the job runs only on GPUs that nobody else wants. False: it takes part in the fair share."
    )
    only_idle: Flag | None = read_as("preemptible")


class JobFilters(WithOldNames, Schema):
    state: Line = ""
    kind: Line = ""
    team: Line = Field("", description="Slug of a team.")
    owner: Line = Field("", description="User name of the owner.")
    q: Line = Field("", description="Only jobs whose name contains this text.")
    label: Line = Field("", description="Only jobs with this label: `key=value`, or `key` for any value.")
    preemptible: AskedFlag | None = Field(
        None, description="True: only preemptible jobs. False: only jobs that are not preemptible."
    )
    only_idle: AskedFlag | None = read_as("preemptible")
    generation: Line = Field("", description="Only jobs that ask for this GPU type or have held it.")
    sweep: AskedWhole | None = Field(None, description="Only jobs of the sweep with this id.")
    pipeline: AskedWhole | None = Field(None, description="Only jobs of the pipeline with this id.")
    service: AskedWhole | None = Field(None, description="Only replicas of the service with this id.")
    view: Line = Field(
        "",
        description="Id or name of a saved view, whose filters apply, too, and whose order applies without `sort`.",
    )
    sort: Line = Field(
        "",
        description="Column of the job list to sort by, such as `name`, `state`, `gpus`, `owner`, `created`, `held` or "
        "`label:KEY`, with a leading `-` for descending order. Jobs without a value come last. Without it, the newest "
        "job comes first.",
    )


class JobGroup(Schema):
    value: str = Field(description="What the jobs have in common; `-` if they have no value.")
    label: str
    jobs: int
    gpus: int = Field(description="The GPUs that the jobs need together.")
    held_gpus: int = Field(description="The GPUs that they hold now.")


class JobInFull(Job):
    version: str = Field(description=VERSION)
    exit_meaning: str = Field(
        description="What the exit code of a failed job means; empty if the code has no known meaning."
    )
    last_lines: list[str] = Field(description="The end of the log of a failed job: at most 20 lines or 4 KB.")
    worker_names: list[str] = Field(
        description="The names of all workers by rank: `ps 0` for the first worker of the role ps. In a job without "
        "roles, the ranks."
    )
    stops_at: datetime | None = Field(
        description="Time by which a time limit, that of the job or one of its team, stops the job if it keeps its "
        "GPUs; null if it holds none or has no time limit. Limits of teams that the caller may not see do not count."
    )


class JobPage(BaseModel):
    """A page of jobs, in the order of `sort`, or newest first.

    To get the next page, call the endpoint again with the parameter `before` set to `next`, which is
    null on the last page.
    """

    items: list[Job]
    next: int | None


class Event(WithOldNames, Schema):
    id: int
    at: datetime
    kind: str
    code: str = Field(
        description="Fixed code of the kind of event, for API clients; empty for events that earlier releases "
        "of Fairlot recorded."
    )
    text: str = Field(description="Description of the event for people; the wording may change.")
    attempt: int = Field(
        description="Number of the attempt that the event belongs to; 0 before the first attempt."
    )
    epoch: int = answered_too("attempt")


class EventPage(Schema):
    """A page of events, oldest first.

    To get the next page, with newer events, call the endpoint again with the parameter `after` set to `next`, which is
    null on the last page.
    """

    items: list[Event]
    next: int | None


class Log(Schema):
    """A piece of the log of one worker. `text` begins at the byte offset `offset`. The next piece begins at
    `next_offset`."""

    rank: int
    offset: int
    next_offset: int
    complete: bool
    text: str


class Remedy(Schema):
    """Something that would let a waiting job start, or start sooner, or that helps a job that does its work again."""

    code: str
    kind: Literal["change", "clone", "page"] = Field(
        description="`change`: send `changes` with PATCH to the job. `clone`: submit the job's specification again, "
        "with `changes`. `page`: somebody has to act, as `effect` says."
    )
    label: str
    effect: str
    changes: dict[str, Any] = Field(description="Values of the job specification.")


class RepeatedWork(Schema):
    """The work that a job's attempts did again, because they began where an earlier one had begun."""

    sentence: str
    attempts: int = Field(description="Number of interrupted attempts whose work was done again.")
    step: float | None = Field(description="Step at which the latest attempt began; null without steps.")
    reached: float | None = Field(description="Highest step that earlier attempts had reached.")
    gpu_seconds: float
    costs: dict[str, Figure] = Field(description="What this time cost, about, by currency.")


class AheadInQueue(Schema):
    """A waiting job that is ahead of another one."""

    id: int
    name: str
    owner: str
    gpus: int


class QueuePlace(Schema):
    """The place of a job among the waiting jobs that can use one of its GPU types.

    Every round computes the order again, and a job behind may start first on GPUs that fit it.
    """

    sentence: str
    position: int = Field(description="1 for the job that goes first.")
    of: int = Field(description="Waiting jobs that can use one of the job's GPU types, with this job.")
    team_position: int = Field(description="Place among the job's team alone.")
    team_of: int
    ahead: list[AheadInQueue] = Field(description="The first jobs ahead that the caller may see; at most 5.")
    ahead_known: int = Field(description="Number of jobs ahead that the caller may see.")
    ahead_others: int = Field(description="Number of other jobs ahead.")
    ahead_others_gpus: int = Field(description="GPUs that the other jobs ahead need together.")
    note: str = Field(description="How the order comes about.")


class CostOfType(Schema):
    generation: str
    gpu_seconds: Figure
    cost: Figure
    currency: str


class JobCost(Schema):
    """The GPU time and the cost of a job until now, as far as they were billed to teams that the caller may see."""

    gpu_seconds: Figure
    unbooked_gpu_seconds: Figure = Field(description="GPU time that is not booked yet; included everywhere.")
    costs: dict[str, Figure] = Field(description="Cost by currency; empty if the job never held GPUs.")
    generations: list[CostOfType] = Field(description="By GPU type and currency.")


class Scheduling(Schema):
    """The explanation of a job's state, and the times at which Fairlot expects the job to start and end.

    A predicted time is null if Fairlot cannot predict it.
    """

    state: str
    sentence: str
    never: bool
    detail: list[str]
    unblock: list[str]
    remedies: list[Remedy] = Field(description="What the caller can do about it.")
    queue: QueuePlace | None = Field(
        description="The place of a waiting job in the queue, or of a running job for its next turn; null if "
        "the job has no place, such as one that a limit holds back."
    )
    repeated_work: RepeatedWork | None = Field(
        description="The work that the job did again after suspensions; null if it goes on where it was, or if that is "
        "not known."
    )
    starts_by: datetime | None = Field(
        description="End of the interval in which a waiting job is expected to start: in one of ten cases it "
        "starts later. Null if the job is not expected to start within two weeks."
    )
    not_before: datetime | None = Field(
        description="Begin of the interval in which a waiting job is expected to start: in one of ten cases it "
        "starts earlier."
    )
    deadline: datetime | None = Field(description="Time by which the job should end, as set by its owner.")
    ends_by: datetime | None = Field(
        description="Expected end of the job, calculated from the run time that its owner expects. For a "
        "waiting job, this run time is added to `starts_by`. Null if unknown, or if the job "
        "has already run longer than expected."
    )
    stops_at: datetime | None = Field(
        description="Time by which a time limit stops the job if it keeps its GPUs, as in the answer of the job; null "
        "if it holds none or has no time limit."
    )
    is_late: bool = Field(description="Whether the job ended, or is expected to end, after its deadline.")


class Preflight(Schema):
    verdict: Literal["never", "now", "later"]
    sentences: list[str]
    expected_start_seconds: list[float] | None = Field(
        description="Earliest and latest start in seconds from now: one of ten jobs starts earlier, one of ten "
        "later. Null if unknown.",
        min_length=2,
        max_length=2,
    )
    starts_by_generation: dict[str, list[float | None]] = Field(
        description="The same interval if the job accepted only this GPU type, by name. The latest start is null if it "
        "is later than in two weeks. Empty if the job accepts only one, or if it starts now."
    )
    cost_per_hour: dict[str, Figure] = Field(
        description="Cost of running all workers of the job for one hour, by generation."
    )
    detail: list[str]
    currencies: dict[str, str] = Field(description="Currency of each cost in `cost_per_hour`, by generation.")
    currency: str = Field(description="Currency in which new prices are set.")
