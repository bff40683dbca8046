"""What the API says and hears. Times are ISO 8601 in UTC, GPU time is in GPU-seconds."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Literal

from ninja import Field, Schema
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    SecretStr,
    Strict,
    WithJsonSchema,
)

from accounting.core.numbers import DECIMAL, DECIMAL_IN_WORDS, WHOLE, why_not_decimal, why_not_whole
from accounting.core.wording import in_millionths
from portal.api.inlining import inlined
from scheduling.jobs.submitting import MOST_AT_ONCE
from scheduling.spec.job_spec import JobSpec

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
                inlined(JobSpec.model_json_schema()),
                {"type": "string", "description": "The same as YAML."},
            ]
        }
    ),
]


def _in_digits(value: object) -> object:
    """ValueError for a text of a query that is no whole number in the digits 0 to 9."""
    if isinstance(value, str) and not WHOLE.fullmatch(value):
        raise ValueError(why_not_whole(value))
    return value


def _true_or_false(value: object) -> object:
    """ValueError for a text of a query that is neither."""
    if isinstance(value, str) and value not in {"true", "false"}:
        raise ValueError("must be true or false")
    return value


def _amount(value: object) -> object:
    """ValueError for true, false, and texts that are no number."""
    if isinstance(value, bool):
        raise ValueError(f"must be {DECIMAL_IN_WORDS}")
    if isinstance(value, str) and not DECIMAL.fullmatch(value):
        raise ValueError(why_not_decimal(value))
    return value


# What is sent fits into the columns that hold it: numbers of 32 bits, money and names. Actions check what it means.
# In a body true is no number, and neither is a text; amounts may be texts, as they are answered.
Whole = Annotated[int, Strict(), Field(ge=-(2**31), le=2**31 - 1)]
Key = Annotated[int, Strict(), Field(ge=1, le=2**63 - 1)]
Number = Annotated[float, Strict(), Field(ge=-1e12, le=1e12, allow_inf_nan=False)]
Amount = Annotated[Decimal, BeforeValidator(_amount), Field(ge=-(10**12), le=10**12)]
Flag = Annotated[bool, Strict()]
# In a query all are texts.
IN_DIGITS = BeforeValidator(_in_digits)
AskedWhole = Annotated[int, IN_DIGITS, Field(ge=0, le=2**63 - 1)]
AskedFlag = Annotated[bool, BeforeValidator(_true_or_false)]
# What is answered is as exact as the ledger counts, without the digits that a division leaves.
Figure = Annotated[Decimal, AfterValidator(in_millionths)]
Line = Annotated[str, Field(max_length=500)]
Words = Annotated[str, Field(max_length=4000)]


class Me(Schema):
    username: str
    name: str
    role: str
    teams: list[Membership]


class Membership(Schema):
    team: str
    role: str
    tickets: int


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


class Job(BaseModel):
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


class Sharing(Schema):
    preemptible: Flag = Field(description="True: only GPUs that nobody else wants. False: by tickets.")


class JobFilters(Schema):
    state: Line = ""
    kind: Line = ""
    team: Line = Field("", description="Slug of a team.")
    owner: Line = Field("", description="User name.")
    q: Line = Field("", description="Part of the name.")
    label: Line = Field("", description="key=value, or a key with any value.")
    preemptible: AskedFlag | None = Field(None, description="Whether they take no part in the sharing.")


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


class NewSchedule(NewJob):
    """What a job is submitted with, and when that is to be done again and again."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": EXAMPLE | {"expression": "30 2 * * MON-FRI", "time_zone": "Europe/Berlin"}
        }
    )

    expression: Line = Field(description="Cron of five fields, or R[n]/start/period of ISO 8601.")
    time_zone: Line = Field("UTC", description="A name of IANA's, such as Europe/Berlin.")
    begins: AwareDatetime | None = None
    ends: AwareDatetime | None = None
    missed: Literal["skip", "once", "all"] = Field(
        "once", description="What becomes of runs that were missed."
    )
    catch_up_seconds: Whole = Field(86_400, description="What was missed longer ago is left out.")
    overlap: Literal["allow", "forbid", "replace"] = Field(
        "forbid", description="What becomes of a run while an earlier one has not ended."
    )
    even_if_never: Literal[False] = Field(
        False, description="A run that could never start is refused, and told so in the schedule's runs."
    )


class Schedule(Schema):
    id: int
    name: str
    team: str
    owner: str
    cluster: str
    spec: dict[str, Any]
    expression: str
    time_zone: str
    begins: datetime | None
    ends: datetime | None
    missed: str
    catch_up_seconds: int
    overlap: str
    next_due_at: datetime | None = Field(description="Null when there is no run left.")
    refusals: int = Field(description="Runs refused in a row; after five it pauses itself.")
    paused_at: datetime | None
    paused_reason: str
    deleted_at: datetime | None
    created_at: datetime


class ScheduleInFull(Schedule):
    words: str = Field(description="The expression in words.")
    notes: list[str] = Field(description="What its steps do that is easily overlooked.")
    next_runs: list[datetime]


class ScheduleFilters(Schema):
    team: Line = Field("", description="Slug of a team.")
    owner: Line = Field("", description="User name.")


class SchedulePage(Schema):
    """Latest schedules first; ask again with `before` = `next` for older ones."""

    items: list[Schedule]
    next: int | None


class ScheduleRun(Schema):
    """What became of the due times from `due_from` to `due_at`, most often one and the same."""

    id: int
    due_from: datetime
    due_at: datetime
    outcome: Literal["submitted", "skipped", "refused"]
    text: str
    job_id: int | None
    asked_by: str | None = Field(description="Who ran it by hand.")
    at: datetime


class ScheduleRunPage(Schema):
    """Latest runs first; ask again with `before` = `next` for older ones."""

    items: list[ScheduleRun]
    next: int | None


class ServiceRules(Schema):
    replicas: Whole | None = Field(None, description="How many there should be; 1 where nothing is said.")
    max_surge: Whole | None = Field(None, description="So many more while revisions change; 1.")
    max_unavailable: Whole | None = Field(None, description="So many fewer ready while revisions change; 0.")
    progress_deadline_seconds: Whole | None = Field(
        None, description="A revision that gets no further for so long has failed; 600."
    )
    auto_rollback: Flag | None = Field(None, description="Go back from a revision that has failed; true.")


class NewService(NewJob, ServiceRules):
    """A job spec with a port, and how many replicas of it there should be."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "spec": {
                    "name": "chat",
                    "command": "python -m http.server $PORT",
                    "port": 8000,
                    "readiness_path": "/",
                },
                "replicas": 2,
            }
        }
    )


class ServiceChange(ServiceRules):
    """What is left out stays as it is. Another spec is another revision, which is rolled out."""

    spec: Spec | None = None
    stopped: Flag | None = None


class ServiceRevision(Schema):
    number: int
    spec: dict[str, Any]
    author: str
    at: datetime
    proved_at: datetime | None = Field(description="When all replicas had been ready, first.")
    failed_at: datetime | None
    why_failed: str


class Interruption(Schema):
    job_id: int = Field(description="Of who answered before.")
    name: str
    cause: str = Field(
        description="claimed, own_jobs, limit, moved, drained, lost, team_archived, owner_may_not, portal_stopped, "
        "person, ended or not_ready."
    )
    text: str = Field(description="In plain words.")
    began_at: datetime
    ended_at: datetime | None = Field(description="Null while nobody answers.")
    seconds: float = Field(description="How long it lasted, until now at most.")


class ServiceReplica(Schema):
    job_id: int
    name: str
    slot: int
    attempt: int
    revision: int
    state: str
    reason: str = Field(description="Why it waits, in a few words; empty for what does not wait.")
    ready: bool
    address: str = Field(description="Host and port; empty while it does not run.")
    why_not_ready: str
    claimable_from: datetime | None = Field(
        description="When others' claims may preempt it; null while it has no more than what is guaranteed."
    )


class Service(Schema):
    id: int
    name: str
    team: str
    owner: str
    cluster: str
    replicas: int
    ready: int
    living: int
    max_surge: int
    max_unavailable: int
    progress_deadline_seconds: int
    auto_rollback: bool
    revision: int
    good_revision: int | None = Field(description="The last one of which all replicas have been ready.")
    stopped_at: datetime | None
    removed_at: datetime | None
    created_at: datetime
    status: str = Field(description="In a word or two, as its page has it.")
    url: str = Field(
        description="Where members of its team reach it, whichever replicas it has, with an API token that may write. "
        "Empty where the portal has no host names for programs."
    )
    trouble: str = Field(description="What keeps it from being up as it should; empty while nothing does.")


class ReplicaFailure(Schema):
    job_id: int
    name: str
    ended_at: datetime
    end_message: str
    exit_meaning: str = Field(description="What its exit code means; empty where that says nothing.")
    last_lines: list[str] = Field(description="The end of its log, as plain text: 20 lines or 4 KB at most.")


class ServiceInFull(Service):
    last_failure: ReplicaFailure | None = Field(
        description="Of the current revision, while not all replicas are ready."
    )
    sentences: list[str] = Field(description="What is up, and what waits and why.")
    revisions: list[ServiceRevision]
    members: list[ServiceReplica]
    interruptions: list[Interruption] = Field(description="The latest 20, latest first.")
    expected_back_at: datetime | None = Field(
        description="When the first replica that waits starts at the latest, as far as that can be told."
    )


class ServiceFilters(Schema):
    team: Line = Field("", description="Slug of a team.")
    owner: Line = Field("", description="User name.")


class ServicePage(Schema):
    """Latest services first; ask again with `before` = `next` for older ones."""

    items: list[Service]
    next: int | None


class NewSession(NewJob):
    """A job spec of one worker with a port, and how long it lasts."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "spec": {"name": "notes", "command": "python -m http.server $PORT", "port": 8000},
                "idle_minutes": 60,
                "longest_hours": 12,
            }
        }
    )

    idle_minutes: Whole = Field(60, description="Unused for so long it is stopped, after a warning.")
    longest_hours: Whole = Field(12, description="So long after its first start it is stopped in any case.")


class Session(Schema):
    id: int = Field(description="Also its job's.")
    name: str
    state: str
    team: str
    owner: str
    cluster: str
    ready: bool
    reason: str = Field(description="Why it waits or does not answer; empty when it does neither.")
    sentence: str = Field(description="How it is, in plain words.")
    warned: bool = Field(description="Nobody uses it, and it is stopped soon.")
    idle_minutes: int
    longest_hours: int
    idle_ends_at: datetime | None = Field(
        description="When it is stopped if it goes on and nobody uses it. Null while it does not run."
    )
    ends_at: datetime | None = Field(description="When it is stopped in any case.")
    claimable_from: datetime | None = Field(
        description="When others' claims may preempt it; null while it has no more than what is guaranteed."
    )
    created_at: datetime
    end_message: str


class SessionInFull(Session):
    interruptions: list[Interruption] = Field(description="The latest 20, latest first.")
    expected_back_at: datetime | None = Field(
        description="When it starts at the latest if it waits, as far as that can be told."
    )
    exit_meaning: str = Field(
        description="What the exit code of a failed one means; empty where that says nothing."
    )
    last_lines: list[str] = Field(
        description="Of a failed one, the end of its log: 20 lines or 4 KB at most."
    )


class SessionPage(Schema):
    """Latest sessions first; ask again with `before` = `next` for older ones."""

    items: list[Session]
    next: int | None


class Rollback(Schema):
    revision: Whole


class ServiceEvent(Schema):
    id: int
    at: datetime
    kind: str
    text: str


class ServiceEventPage(Schema):
    """Latest first; ask again with `before` = `next` for older ones."""

    items: list[ServiceEvent]
    next: int | None


class Event(Schema):
    id: int
    at: datetime
    kind: str
    text: str
    epoch: int


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


class Node(Schema):
    name: str
    generation: str
    gpus: int
    state: str
    state_reason: str
    drain_deadline: datetime | None = Field(
        description="When what still runs on a drained node is stopped; null: it finishes."
    )
    held: list[Held]
    held_by_others: int


class Held(Schema):
    """GPUs of a node held by a job that the caller may see."""

    job: int
    team: str
    gpu_indices: list[int]


class Cluster(Schema):
    name: str
    paused: bool
    paused_reason: str = Field(description="What the operator said; empty while it is not paused.")
    quantum_seconds: float
    nodes: list[Node]


class Drain(Schema):
    reason: str = Field(
        min_length=1, max_length=200, description="Shown on the node and to owners of its jobs."
    )
    mode: Literal["finish", "deadline", "now"] = Field(
        "finish",
        description="What becomes of running jobs: they finish, run until `deadline`, or are stopped with their grace.",
    )
    deadline: AwareDatetime | None = Field(
        None, description="Required with mode deadline, refused otherwise."
    )


class DrainedJob(Schema):
    job: int
    name: str
    kind: str
    service: str | None
    team: str
    owner: str
    gpus: int
    gpus_elsewhere: int = Field(description="GPUs of the same gang on other nodes; it stops as a whole.")
    since: datetime | None
    ends: datetime | None = Field(description="When it ends at the latest, as far as that is known.")


class DrainedNode(Schema):
    name: str
    state: str
    state_reason: str
    drain_deadline: datetime | None
    jobs: list[DrainedJob] = Field(
        description="What holds GPUs of the node now, as far as the caller may see it."
    )
    hidden_jobs: int = Field(description="How many more there are.")


class NewKubeconfig(Schema):
    kubeconfig: SecretStr = Field(
        description="Its YAML, with a token or certificate embedded. Never shown again."
    )


class NewCluster(NewKubeconfig):
    name: Line
    namespace_prefix: Line = Field("fairlot", description="Each team's namespace begins with it.")
    writes_per_second: Number = Field(50, description="Changes that Fairlot makes there at most.")
    writes_at_once: Whole = 100
    checkpoint_claim: Line = Field("", description="In each team's namespace; each job gets a folder in it.")


class Reachable(Schema):
    ranges: list[Line] = Field(description="In CIDR notation; none: nothing outside of the team's namespace.")


class BarePods(Schema):
    bare_pods: Flag = Field(description="Jobs of one worker run as pods without a Job over them.")


class ClusterAccess(Schema):
    server: str
    user: str = Field(description="As the API server names Fairlot.")
    version: str
    namespace_prefix: str
    checkpoint_claim: str
    reachable: list[str] = Field(description="Ranges of addresses that jobs may reach from there.")
    bare_pods: bool = Field(description="New jobs of one worker run as pods without a Job over them.")
    checked_at: datetime | None
    trouble: str = Field(description="In plain words; empty when all is well.")
    rights: dict[str, bool] = Field(description="Those that Fairlot needs: whether each is there.")
    beyond: list[str] = Field(description="What Fairlot may do there and should not.")
    podgroups: str = Field(
        description="Version of PodGroups that it offers for gangs; empty when there are none."
    )


class AttachedCluster(Schema):
    name: str
    backend: str
    detached_at: datetime | None
    access: ClusterAccess | None = Field(description="Of attached Kubernetes clusters.")


class SecretTexts(Schema):
    """One text, or several by key. Never shown again."""

    value: SecretStr | None = None
    values: dict[Line, SecretStr] = Field({}, description="Instead of `value`: texts by key.")


class NewSecret(SecretTexts):
    name: Line = Field(description="Small letters, digits and -.")
    team: Line = Field(
        "", description="Slug of a team whose members may use it; else it is the caller's own."
    )


class Secret(Schema):
    id: int
    name: str
    team: str = Field(description="Whose it is; empty for the caller's own.")
    keys: list[str]
    created_at: datetime
    changed_at: datetime


class NewVolume(Schema):
    name: Line = Field(description="By which jobs name it: small letters, digits and -.")
    source: Line = Field(description="A PersistentVolumeClaim in the team's namespace; locally a folder.")
    read_only: Flag = True
    team: Line = Field("", description="Slug of the team whose jobs may mount it; empty: every team.")


class Volume(Schema):
    id: int
    name: str
    cluster: str
    team: str = Field(description="Whose jobs may mount it; empty: every team's.")
    read_only: bool
    created_at: datetime


class GrantedVolume(Volume):
    source: str


class Amounts(Schema):
    """Of a team with teams below it, what these lend and sell each other is left out."""

    entitled: float
    received: float
    lent: float = Field(description="Not needed by the team, used by others.")
    unused: float = Field(description="Not needed by the team, used by nobody.")
    borrowed: float
    bought: float
    sold: float


class ShareOfGeneration(Schema):
    generation: str
    total: Amounts
    owed: float = Field(
        description="Balance that the next rounds make good, of all GPUs, divided as the share is."
    )
    points: list[Amounts]


class Share(Schema):
    """GPU-seconds on one cluster in equal stretches of `step_seconds`, oldest first."""

    team: str
    cluster: str | None = Field(description="Null while there is no cluster.")
    begins: datetime
    ends: datetime
    step_seconds: float
    generations: list[ShareOfGeneration]


class TradeSide(Schema):
    team: str
    gave: float
    gave_generation: str
    got: float
    got_generation: str
    speedup: float
    without: float = Field(
        description="What was given, as GPUs of the slow generation by the side's own speed-up."
    )
    with_trade: float = Field(description="What was got, in the same measure.")
    gain: float


class Trade(Schema):
    """A trade with the sides that the caller may see; the other one stays without a name."""

    id: int
    begins: datetime
    ends: datetime | None
    fast: str
    slow: str
    price: float
    sides: list[TradeSide]
    counterpart: str


class BookedTrades(Schema):
    """GPU-seconds of one generation in the ledger, exact; over all teams the sum is zero."""

    generation: str
    gave: Figure
    got: Figure
    sum: Figure


class TradePage(Schema):
    items: list[Trade]
    next: int | None


class TradeLimit(Schema):
    """For a generation, or with an empty one for all that nothing else is said of."""

    generation: Line = ""
    trades: Flag = Field(True, description="False: it is neither given nor taken.")
    most_gpus: Amount | None = Field(
        None, description="Most GPUs given away at once, on all clusters together; null: no limit."
    )
    most_part: Amount | None = Field(
        None, description="The same as a part of the entitlement on each cluster, 0 to 1."
    )


class Fact(Schema):
    """In words, as in the head of the report's files; `State` and `Not booked yet` are there where more is to come."""

    label: str
    text: str


class UsageRow(Schema):
    """One group of the report; only what it is grouped by is filled in. Amounts are exact decimals."""

    gpu_seconds: Figure
    cost: Figure
    currency: str
    begins: datetime | None
    tenant: str | None
    user: str | None
    job_id: int | None
    job: str | None
    generation: str | None
    label: str | None


class Usage(Schema):
    begins: datetime
    ends: datetime
    facts: list[Fact]
    rows: list[UsageRow]
    totals: list[UsageRow]
    lacks_before: datetime | None = Field(
        description="What was held before is archived, and parts of hours (by job: of days, UTC) are not counted."
    )


class Days(Schema):
    """Whole days. Dates that cannot be read, unknown zones and periods that end before they begin are refused."""

    period: Literal["this-month", "last-month", "dates"] | None = Field(
        None, description="`dates` where `from` or `to` is given, else `this-month`."
    )
    first: Line = Field("", alias="from", description="The first day: 2026-11-21. Of this month without.")
    to: Line = Field("", description="The last day, which counts. Today without.")
    zone: Line = Field("UTC", description="Whose days these are, a name of IANA's, such as Europe/Berlin.")


class StatementQuery(Days):
    team: Line = Field("", description="Slug of a team; else the first that the caller may see.")
    part: Line = Field("", description="With csv: the key of one table.")
    format: Literal["json", "csv", "xlsx", "pdf"] = "json"


class NewSubscription(Schema):
    report: Literal[
        "statement",
        "usage",
        "fairness",
        "idle",
        "trades",
        "anomalies",
        "use",
        "nodes",
        "waits",
        "waste",
        "prices",
        "chargeback",
        "capacity",
    ] = "statement"
    team: Line = Field(
        "",
        description="Of a statement; of usage, fairness, idle, trades and anomalies, too, or of all teams that the "
        "caller sees. All other reports are for operators.",
    )
    by: Literal["", "user", "job", "generation", "day", "label", "tenant"] = Field(
        "", description="Of usage; by user unless told otherwise."
    )
    label: Line = Field("", description="Of usage by label: its key.")
    rhythm: Literal["weekly", "monthly"]
    form: Literal["pdf", "xlsx", "csv", "link"] = "pdf"


class Subscription(NewSubscription):
    id: int


class StatementTable(Schema):
    """Amounts are exact decimals, as text. Of money there is a total a currency; currencies are never added up."""

    title: str
    rows: list[dict[str, Any]]
    totals: list[dict[str, Any]]


class Tables(Schema):
    """A report as its files have it."""

    title: str
    facts: list[Fact]
    tables: dict[str, StatementTable] = Field(
        description="By key: lines, held, users, jobs, days, waits, waste, …"
    )


class Statement(Tables):
    team: str
    begins: datetime
    ends: datetime


class CapacityOfGeneration(Schema):
    generation: str
    gpu_seconds: dict[str, Figure] = Field(
        description="By class: busy, idle, assembling, free, others, drained, down; they sum to capacity."
    )
    capacity_gpu_seconds: Figure
    value: Figure = Field(description="Capacity times price.")
    currency: str


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


class FinishedJobs(Schema):
    """Finish-time fairness of training jobs: time from submit to end / time alone on the own part."""

    team: str
    ended: int
    told: int
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


class Bearing(Schema):
    tenant: str
    cost: Figure


class CapacityIdentity(Schema):
    """tenants + taken back + classes + unallocated + drained + down = value, to the last digit."""

    currency: str
    tenants: list[Bearing]
    taken_back: Figure = Field(description="By corrections, and billed to nobody else.")
    classes: Figure = Field(description="What prices of classes took from bills; below zero, added.")
    unallocated: Figure = Field(description="Free, used by others than Fairlot, and rounding.")
    used_by_others: Figure = Field(description="A part of unallocated.")
    rounding: Figure = Field(description="A part of unallocated: what many rounded bills leave.")
    drained: Figure
    down: Figure
    value: Figure
    closes: bool


class Capacity(Schema):
    """Of the full UTC hours between both moments that are closed."""

    begins: datetime
    ends: datetime
    closed_until: datetime | None
    facts: list[Fact]
    generations: list[CapacityOfGeneration]
    identities: list[CapacityIdentity]


class AnomalyHolder(Schema):
    """A job that held GPUs that another lacked; those of teams that the caller may not see are told together."""

    job_id: int | None
    job: str
    team: str
    gpu_seconds: float


class SharingAnomaly(Schema):
    """A job that waited longer, or ended later, than on the private cluster that its team's tickets would buy."""

    id: int
    job_id: int
    job: str
    team: str
    cause: str = Field(
        description="The main one: over_borrowing, fragmentation, reservation, priority, failure, …"
    )
    causes: dict[str, float] = Field(description="Seconds by cause.")
    late_seconds: float = Field(description="The least that it can be while the job has not started.")
    at_end: bool = Field(description="Late at its end rather than at its start.")
    started_at: datetime | None
    ended_at: datetime | None
    private_started_at: datetime
    private_ended_at: datetime | None
    holders: list[AnomalyHolder]


class TradePeriod(Days):
    period: Literal["1h", "24h", "7d", "30d", "this-month", "last-month", "dates"] | None = Field(
        None, description="`dates` where `from` or `to` is given, else `24h`."
    )


class TradeQuestion(TradePeriod):
    team: Line = Field("", description="Slug of a team; with all teams below it.")
    generation: Line = ""
    before: AskedWhole | None = Field(None, ge=0, le=2**63 - 1)
    limit: AskedWhole = Field(50, ge=1, le=200)
    format: Literal["json", "csv", "xlsx", "pdf"] = "json"


class AnomalyQuestion(Schema):
    team: Line = Field("", description="Slug of a team; with all teams below it.")
    cluster: Line = Field("", description="By name; the first if none is named.")
    analysis: AskedWhole | None = Field(
        None, ge=1, le=2**63 - 1, description="The latest finished if none is named."
    )
    cause: Line = ""
    offset: AskedWhole = Field(0, ge=0, le=2**31 - 1)
    limit: AskedWhole = Field(50, ge=1, le=200)
    format: Literal["json", "csv", "xlsx", "pdf"] = "json"


class SilentTeam(Schema):
    """A team of which nothing can be said: its analysis failed, or it had no jobs to compare."""

    team: str = Field(description="Its slug.")
    why: str


class NewAnalysis(Schema):
    cluster: Line = Field(description="By name; attached.")
    days: Whole = Field(7, description="The last days, up to the last full hour: 1 to 31.")


class Analysis(Schema):
    """What was asked for; its findings are in GET as teams are done."""

    analysis: int
    cluster: str
    begins: datetime
    ends: datetime
    finished_at: datetime | None


class FalseRate(Schema):
    load: float = Field(description="What the jobs need of what the cluster has.")
    part: float = Field(description="Of the jobs compared.")


class SharingAnomalies(Schema):
    """One analysis, as far as it is done, of the caller's teams."""

    analysis: int | None = Field(description="None: nothing is analysed yet.")
    cluster: str | None
    begins: datetime | None
    ends: datetime | None
    teams: int
    teams_done: int
    finished_at: datetime | None
    compared: int = Field(description="Jobs, of the caller's teams.")
    too_large: int = Field(description="Jobs that could never run on their team's private cluster.")
    false_rates: list[FalseRate] = Field(
        description="What part of the jobs compared is found where nothing went wrong, by load; as simulated."
    )
    nothing_said: list[SilentTeam] = Field(description="Teams of which nothing can be said, and why.")
    items: list[SharingAnomaly]
    total: int


LimitKind = Literal["gpus", "gpu_hours", "money", "queued_jobs", "longest_run", "borrowed"]
AtLimit = Literal["block", "idle", "warn"]


class LimitTerms(Schema):
    kind: LimitKind = Field(description="longest_run is in hours, borrowed a part of the entitlement.")
    limit: Amount
    generation: Line | None = Field(None, description="Of all together without.")
    user: Line | None = Field(None, description="Of this user in each team, instead of the whole team.")
    each_user: Flag = False
    period: Literal["", "month", "quarter", "rolling"] = Field(
        "", description="Of gpu_hours and money: a calendar month unless told otherwise."
    )
    days: Whole | None = Field(None, description="Of a rolling period.")
    at_limit: AtLimit = Field(
        "block", description="What happens: nothing more runs, only on idle GPUs, or a warning."
    )


class NewLimit(LimitTerms):
    team: Line


class Limit(NewLimit):
    id: int
    used: Figure | None = Field(
        description="In the period, or now; of each user's limit by who has used most. Null in what was just set."
    )


class NewTickets(Schema):
    team: Line
    user: Line | None = Field(None, description="Of a member of the team, by name; else of the team itself.")
    tickets: Whole


class MaybeDry(Schema):
    dry_run: Flag = Field(False, description="Only say what it would do to shares; nothing is saved.")


class TeamTickets(MaybeDry):
    tickets: Whole = Field(description="The weight among the teams of the same level.")


class TeamParent(MaybeDry):
    parent: Line | None = Field(description="The team above; null, which must be said, is the top level.")


class TeamArchived(MaybeDry):
    archived: Flag


class NewTeam(TeamTickets, TeamParent):
    name: Line


class Team(Schema):
    team: str
    name: str
    parent: str | None
    tickets: int
    archived_at: datetime | None


class MemberChange(Schema):
    role: Literal["viewer", "member", "manager"] | None = Field(None, description="Null: as it is.")
    tickets: Whole | None = Field(None, description="The weight inside the team. Null: as it is.")


class NewMember(Schema):
    user: Line = Field(description="The exact user name or e-mail address of an existing user.")
    role: Literal["viewer", "member", "manager"] = "member"
    tickets: Whole = 100


class Member(Schema):
    user: str
    role: str
    tickets: int
    is_active: bool


class TeamShare(Schema):
    """The part of all GPUs, while everybody is active, of a team or of a team's own members."""

    name: str
    before: float | None
    after: float | None = Field(description="Null where it has no share.")


class TeamChange(Schema):
    team: Team | None = Field(description="Null where it is not made yet.")
    shares: list[TeamShare] = Field(
        description="Of the team and of all on a level with it, before and after."
    )


class ShareChange(Schema):
    """GPUs that a team with all below it, or a member, has by tickets, and with what others leave, within limits."""

    cluster: str
    team: str
    user: str | None = Field(description="Where it is of a member of the team.")
    generation: str
    entitled_before: float
    entitled_after: float
    share_before: float
    share_after: float


class PolicyChoice(Schema):
    name: Line
    options: dict[str, Flag | float | Line] = Field(
        default_factory=dict,
        description="Those that are not as by default; `choices` of the policy lists them.",
    )


class PolicyVersion(Schema):
    name: Line
    version: Whole = Field(ge=1, le=32_767)


class NewPolicy(PolicyChoice):
    shadow: PolicyVersion | None = Field(
        None, description="Asked on the same views after each round, without effect; null: none is."
    )


class PolicyOption(Schema):
    name: str
    default: bool | float | str
    description: str
    choices: list[str] = Field(description="What is accepted, where it is a word.")
    least: float | None
    most: float | None


class PolicyOptions(Schema):
    name: str
    options: list[PolicyOption]


class Policy(Schema):
    """Decides who runs next on a cluster. Its options have draw and trading, too, which are settings of the cluster."""

    name: str
    version: int
    options: dict[str, bool | float | str]
    shadow: PolicyVersion | None
    choices: list[PolicyOptions] = Field(description="The policies there are.")


class ComparedFigure(Schema):
    name: str
    policy: float
    shadow: float


class ComparedShare(Schema):
    """GPUs on average."""

    team: str
    generation: str
    policy: float
    shadow: float


class Comparison(Schema):
    policy: str
    shadow: str
    rounds: int
    since: datetime | None
    figures: list[ComparedFigure]
    shares: list[ComparedShare]


class NewBudget(Schema):
    team: Line
    amount: Amount
    period: Literal["month", "quarter"] = "month"
    percentages: list[Whole] | None = Field(
        None,
        description="At which managers are warned, once each a period. Null: as set before, else 80 and 100.",
    )
    by_forecast: Flag | None = Field(
        None,
        description="Warn when it will not last if it goes on like this. Null: as set before, else true.",
    )
    webhook_url: Line | None = Field(None, description="Null: as set before, else none.")


class SetBudget(Schema):
    id: int
    signing_key: str | None = Field(
        description="Webhooks are signed with it; see docs/limits.md. Null: none is called, or who set it knows."
    )


class Budget(Schema):
    id: int
    team: str
    period: Literal["month", "quarter"]
    amount: Figure
    percentages: list[int]
    by_forecast: bool
    begins: datetime
    ends: datetime
    spent: Figure
    forecast: Figure | None = Field(description="By the end of the period; none in its first two days.")


class GpuUse(Schema):
    measured_until: datetime
    measure: Literal["gpu", "cpu"] = Field(description="cpu: where GPUs tell nothing, its processes' time.")
    percent: float = Field(description="Of its GPUs' time, or of one processor's, when last seen.")
    idle_since: datetime | None = Field(description="Null: its GPUs are used.")
    idle_seconds: float = Field(description="Held without use since then, as measured.")
    processless_since: datetime | None = Field(
        description="Since then no process is on its GPUs; null: there is one, or nobody can tell."
    )
    warned_at: datetime | None
    then: Literal["stop", "preemptible"] | None = Field(
        description="What follows the warning: it is stopped, or takes no part in the sharing any more."
    )
    acts_at: datetime | None = Field(
        description="Not before then, and not at all where somebody uses its GPUs; later the later it gets them."
    )
    snoozed_until: datetime | None
    snooze_reason: str
    snooze_at_most: datetime | None = Field(description="Until when it may be put off; null: not at all.")


class IdleJob(GpuUse):
    job: int
    name: str
    team: str
    owner: str
    cluster: str
    gpus: int
    generation: str


class IdleTeam(Schema):
    """What a team held without use, as booked; `processless` is a part of it, as observed where GPUs tell."""

    team: str
    idle_gpu_seconds: Figure
    processless_gpu_seconds: Figure
    held_gpu_seconds: Figure
    part: float = Field(description="Of what it held.")
    idle_cost: Figure = Field(description="Of each hour's cost as much as was idle of the hour.")
    cost: Figure = Field(description="Of all that it held.")
    currency: str


class Snooze(Schema):
    until: AwareDatetime
    reason: Words


class NewIdleRule(Schema):
    team: Line = Field("", description="With all below it that have no rule of their own.")
    cluster: Line = Field("", description="By its name; where no team has a rule.")
    action: Literal["nothing", "warn", "preemptible", "stop"]
    after_minutes: Whole
    grace_minutes: Whole = 30
    snooze_hours: Whole = Field(24, description="For so long owners may put it off; 0: not at all.")
    services: Flag = Field(False, description="Warn of replicas of services, too; they are never stopped.")


class IdleRule(NewIdleRule):
    id: int


class NewRequest(Schema):
    team: Line = Field(description="Of a new team the one above it.")
    kind: Literal["tickets", "limit", "extension", "team"]
    reason: Words
    until: AwareDatetime | None = Field(None, description="When it shall end; without, it stays.")
    tickets: Whole | None = None
    name: Line | None = Field(None, description="Of a new team.")
    limit: LimitTerms | None = None
    extends: Key | None = Field(None, description="The granted request that shall last longer.")


class Approval(Schema):
    """What is not said is as it was asked for."""

    answer: Words = ""
    tickets: Whole | None = None
    name: Line | None = None
    limit: Amount | None = None
    until: AwareDatetime | None = None


class Refusal(Schema):
    answer: Words


class Request(Schema):
    id: int
    team: str
    kind: str
    state: Literal["open", "approved", "declined", "withdrawn"]
    reason: str
    wanted: dict[str, Any]
    until: datetime | None
    extends: int | None
    asked_by: str
    asked_at: datetime
    decided_by: str | None
    decided_at: datetime | None
    answer: str
    granted: dict[str, Any] | None
    ends_at: datetime | None
    overtaken_at: datetime | None = Field(
        description="When somebody changed by hand what it set: its end changes nothing of that."
    )
    ended_at: datetime | None
    ending: str = Field(description="What became of it at its end, or why it cannot end yet.")


class RequestPage(Schema):
    items: list[Request]
    next: int | None


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


Me.model_rebuild()
Node.model_rebuild()
Cluster.model_rebuild()


class Work(Schema):
    """What a user has in a team that has not ended."""

    running_jobs: int = 0
    waiting_jobs: int = 0
    sessions: int = 0
    services: int = 0
    schedules: int = 0


class HandOver(Schema):
    team: Line
    to: Line = Field(description="Name of a user who may submit jobs in the team.")


class HandedOver(Schema):
    jobs: int
    services: int
    schedules: int
    kept: list[str] = Field(description="Names of what stays, as it names secrets.")
