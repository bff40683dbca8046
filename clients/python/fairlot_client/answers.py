"""Types of the objects that the API takes and returns.

Written by `make client` from the API's OpenAPI document. Times are ISO 8601 in UTC; amounts are exact decimals as text.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict


class AdvanceReservation(TypedDict):
    """An advance reservation. With `dry_run`, `id` is null and `effect` says whom it would hit."""

    version: str | None
    id: int | None
    name: str
    state: str
    cluster: str
    team: str
    generation: str
    gpus: int
    nodes: dict[str, int]
    lends: bool
    begins: str
    ends: str
    weekly_until: str | None
    windows: list[ReservationWindow]
    reserved_gpu_hours: float
    used_gpu_hours: float
    effect: ReservationEffect | None


class AheadInQueue(TypedDict):
    """A waiting job that is ahead of another one."""

    id: int
    name: str
    owner: str
    gpus: int


class Allocation(TypedDict):
    """GPUs of one node that are allocated to one job. The caller may see the job."""

    job: int
    team: str
    gpu_indices: list[int]


class Amounts(TypedDict):
    """The GPU-seconds that a team, together with the teams below it, was entitled to and received. GPU time that these
    teams lent or sold to each other does not count."""

    entitled: float
    received: float
    lent: float
    unused: float
    borrowed: float
    bought: float
    sold: float


class Analysis(TypedDict):
    """An analysis that was started and runs in the background. Each team's results can be read as soon as they are
    ready."""

    analysis: int
    cluster: str
    begins: str
    ends: str
    finished_at: str | None


class Announcement(TypedDict):
    """An announcement. Empty `roles`, `teams` and `clusters` fit every user; of the others, each must fit."""

    version: str
    id: int
    text: str
    severity: Literal["info", "warning", "critical"]
    begins_at: str
    ends_at: str | None
    dismissible: bool
    roles: list[Literal["viewer", "member", "manager", "operator", "admin"]]
    teams: list[str]
    clusters: list[str]
    withdrawn_at: str | None


class AnomalyHolder(TypedDict):
    """A job that held GPUs while a delayed job needed them.

    All jobs of teams that the caller may not see are combined in one entry with `job_id` null."""

    job_id: int | None
    job: str
    team: str
    gpu_seconds: float


class AttachedCluster(TypedDict):
    name: str
    backend: str
    detached_at: str | None
    access: ClusterAccess | None


class AuditEvent(TypedDict):
    id: int
    at: str
    actor: str
    verb: str
    action: str
    target_type: str
    target_id: str
    target: str
    team: str | None
    before: dict[str, Any]
    after: dict[str, Any]


class Bearing(TypedDict):
    tenant: str
    cost: str


class BookedTrades(TypedDict):
    """The exact GPU-seconds of one generation that teams gave and got in trades, as booked in the ledger.

    `sum` is `got` minus `gave`. It is zero if all teams are included."""

    generation: str
    gave: str
    got: str
    sum: str


class Budget(TypedDict):
    version: str
    id: int
    team: str
    period: Literal["month", "quarter"]
    amount: str
    percentages: list[int]
    by_forecast: bool
    begins: str
    ends: str
    spent: str
    forecast: str | None


class BulkAnswer(TypedDict):
    id: int | None
    problems: dict[str, str]


class BulkAnswers(TypedDict):
    accepted: int
    refused: int
    items: list[BulkAnswer]


class Capacity(TypedDict):
    """The capacity of one cluster or of all clusters in a period.

    It covers those full hours (UTC) of the period that the ledger has already closed."""

    begins: str
    ends: str
    closed_until: str | None
    facts: list[Fact]
    generations: list[CapacityOfGeneration]
    identities: list[CapacityIdentity]


class CapacityIdentity(TypedDict):
    """The value of all GPU time (GPU-hours times price) in one currency, and its parts. The parts add up exactly:

    tenants + written_off + classes + unallocated + drained + down = value.

    - `tenants`: the sum of the costs of all tenants.
    - `written_off`: the value of usage that corrections took back and billed to nobody else.
    - `classes`: the amount by which the prices of idle, preemptible and borrowed time reduced the costs.
    - `unallocated`, `drained` and `down`: the value of the GPU time in which GPUs were unallocated, drained or down."""

    currency: str
    tenants: list[Bearing]
    written_off: str
    classes: str
    unallocated: str
    used_by_others: str
    rounding: str
    drained: str
    down: str
    value: str
    closes: bool


class CapacityLeft(TypedDict):
    generation: str
    before: int
    after: int


class CapacityOfGeneration(TypedDict):
    generation: str
    gpu_seconds: dict[str, str]
    capacity_gpu_seconds: str
    value: str
    currency: str


class Changed(TypedDict):
    changed: int


class Channel(TypedDict):
    version: str
    id: int
    kind: Literal["slack", "teams", "webhook"]
    name: str
    team: str
    host: str
    signing_key: str | None
    state: Literal["new", "works", "fails", "paused"]
    error: str
    sent_at: str | None
    failing_since: str | None


class Cluster(TypedDict):
    name: str
    paused: bool
    paused_reason: str
    quantum_seconds: float
    nodes: list[Node]


class ClusterAccess(TypedDict):
    server: str
    user: str
    version: str
    namespace_prefix: str
    checkpoint_claim: str
    reachable: list[str]
    standalone_pods: bool
    checked_at: str | None
    trouble: str
    rights: dict[str, bool]
    beyond: list[str]
    podgroups: str


class ComparedFigure(TypedDict):
    name: str
    policy: float
    shadow: float


class ComparedShare(TypedDict):
    """A team's average number of GPUs under the cluster's policy, and under its shadow policy."""

    team: str
    generation: str
    policy: float
    shadow: float


class ComparedTeam(TypedDict):
    """The amounts of a team, as totals over all generations.

    GPU-seconds of each generation are multiplied by the weight of the generation before they are added up.
    `of_entitlement` is `received` divided by `entitled`; null if the team was entitled to nothing."""

    team: str
    amounts: FairAmounts
    of_entitlement: float | None


class Comparison(TypedDict):
    policy: str
    shadow: str
    rounds: int
    since: str | None
    figures: list[ComparedFigure]
    shares: list[ComparedShare]


class Consumer(TypedDict):
    """Booked GPU time and cost of a team, or of a user in a team, in one currency."""

    team: str
    user: str | None
    gpu_seconds: str
    idle_gpu_seconds: str
    cost: str
    currency: str


class Consumers(TypedDict):
    begins: str
    ends: str
    count: int
    consumers: list[Consumer]


class Conversion(TypedDict):
    format: str
    label: str
    works: list[FoundWork]
    report: list[ReportLine]


class CostOfType(TypedDict):
    generation: str
    gpu_seconds: str
    cost: str
    currency: str


class Deletion(TypedDict):
    """The wish to delete the files of a job, which a worker fulfils soon."""

    wanted_at: str
    bytes: int


class Draft(TypedDict):
    id: int
    kind: Literal["job", "sweep", "pipeline", "schedule"]
    name: str
    created_at: str
    saved_at: str


class DraftInFull(TypedDict):
    """A draft with its content. A job, sweep, pipeline or schedule that is submitted with the `Idempotency-Key`
    `request_key` takes the draft's place."""

    id: int
    kind: Literal["job", "sweep", "pipeline", "schedule"]
    name: str
    created_at: str
    saved_at: str
    team: str
    cluster: str
    yaml: str
    parameters: str
    problems: dict[str, str]
    request_key: str


class DrainedJob(TypedDict):
    job: int
    name: str
    kind: str
    service: str | None
    team: str
    owner: str
    gpus: int
    gpus_elsewhere: int
    since: str | None
    ends: str | None


class DrainedNode(TypedDict):
    """A node, and the jobs that its drain affects."""

    name: str
    state: str
    state_reason: str
    drain_deadline: str | None
    jobs: list[DrainedJob]
    hidden_jobs: int
    left: LeftByDrain


class DrainedNodes(TypedDict):
    """Some nodes, and the jobs that their drain affects. A gang on several of the nodes is listed once."""

    jobs: list[DrainedJob]
    hidden_jobs: int
    left: LeftByDrain
    nodes: list[NodeState]


class EntitlementLoss(TypedDict):
    team: str
    entitled: float
    less: float


class Event(TypedDict):
    id: int
    at: str
    kind: str
    code: str
    text: str
    attempt: int


class Fact(TypedDict):
    """A line in the header of a report: a label and a text.

    The lines `State` and `Usage not booked yet` appear only while figures may still change."""

    label: str
    text: str


class FairAmounts(TypedDict):
    """A team's amounts of GPU time, in GPU-seconds.

    - `entitled`: the GPU time that the team's tickets earned.
    - `lent`: the part of `entitled` that the team did not need and that other teams used.
    - `unused`: the part of `entitled` that the team did not need and that nobody used.
    - `borrowed`: the GPU time beyond `entitled` that other teams lent to the team.
    - `sold` and `bought`: the GPU time that the team gave and got in trades.
    - `due` = entitled - lent - unused + borrowed - sold + bought: the GPU time that the team should have received.
    - `received`: the GPU time that the team's jobs held.
    - `owed` = due - received."""

    entitled: float
    lent: float
    unused: float
    borrowed: float
    sold: float
    bought: float
    due: float
    received: float
    owed: float
    delivered: float | None


class Fairness(TypedDict):
    """The fairness report: a comparison of teams, which only operators get, and the statement of one team.

    To add up different generations, the comparison multiplies GPU time by the weights in `weights`. The statement
    multiplies it by the speeds measured for the team's jobs."""

    begins: str
    ends: str
    weights: dict[str, str]
    rows: list[FairnessRow]
    compared: list[ComparedTeam]
    indices: FairnessIndices | None
    over_time: list[FairnessIndices]
    finished: list[FinishedJobs]
    statement: FairnessStatement | None


class FairnessIndices(TypedDict):
    """Two measures of how equally the teams were treated in one interval.

    Both compare one ratio of each team: its received GPU time divided by its due GPU time. `jain` is Jain's index of
    these ratios. `max_min` is the lowest ratio of a team divided by the highest. Teams to which no GPU time was due are
    left out."""

    begins: str
    ends: str
    teams: int
    jain: float | None
    max_min: float | None


class FairnessRow(TypedDict):
    team: str
    generation: str
    amounts: FairAmounts


class FairnessStatement(TypedDict):
    team: str
    generations: list[StatementLine]
    total: FairAmounts


class FalseRate(TypedDict):
    load: float
    part: float


class FileEntry(TypedDict):
    """A file or folder in a folder of a job."""

    name: str
    path: str
    kind: Literal["folder", "file", "link", "other"]
    size: int
    changed_at: str
    why_not: str


class FilePage(TypedDict):
    """A page of a folder: folders first, then the rest, each in the order of names.

    To get the next page, call the endpoint again with the parameter `after` set to `next`, which is null on the last
    page."""

    path: str
    items: list[FileEntry]
    next: str | None
    is_cut: bool


class FilledTemplate(TypedDict):
    spec: dict[str, Any]
    yaml: str


class FinishedJobs(TypedDict):
    """Finish-time fairness of training jobs: the actual time divided by the time on a private cluster.

    The actual time is the time from submission to end. The time on a private cluster is the time that the same job
    would have taken alone on its team's share."""

    team: str
    ended: int
    rated: int
    median: float | None
    worst: float | None
    worse_off: int
    left_out: int


class FoundWork(TypedDict):
    """A job, service, schedule, sweep or pipeline that the text describes. `POST` its `spec` with `options` to create
    it, or the `options` alone for a pipeline."""

    kind: Literal["job", "service", "schedule", "sweep", "pipeline"]
    name: str
    spec: dict[str, Any]
    options: dict[str, Any]
    yaml: str


class GpuUse(TypedDict):
    measured_until: str
    measure: Literal["gpu", "cpu"]
    percent: float
    idle_since: str | None
    idle_seconds: float
    processless_since: str | None
    warned_at: str | None
    then: Literal["stop", "preemptible"] | None
    acts_at: str | None
    snoozed_until: str | None
    snooze_reason: str
    snooze_at_most: str | None


class GpusOfGeneration(TypedDict):
    generation: str
    gpus: int
    free: int


class GrantedVolume(TypedDict):
    id: int
    name: str
    cluster: str
    team: str
    read_only: bool
    created_at: str
    source: str


class HandedOver(TypedDict):
    jobs: int
    services: int
    schedules: int
    sweeps: int
    pipelines: int
    kept: list[str]


class HeldOfGeneration(TypedDict):
    gpus: int
    idle_gpus: int | None
    jobs: int | None
    generation: str
    entitled: float | None


class HitJob(TypedDict):
    id: int
    name: str
    team: str
    owner: str
    gpus: int
    ends: str | None


class Holder(TypedDict):
    """A team, or a user in a team, with the GPUs that its jobs hold now. The teams below a team are separate rows."""

    gpus: int
    idle_gpus: int | None
    jobs: int | None
    team: str | None
    user: str | None
    by_generation: list[HeldOfGeneration]


class IdleJob(TypedDict):
    measured_until: str
    measure: Literal["gpu", "cpu"]
    percent: float
    idle_since: str | None
    idle_seconds: float
    processless_since: str | None
    warned_at: str | None
    then: Literal["stop", "preemptible"] | None
    acts_at: str | None
    snoozed_until: str | None
    snooze_reason: str
    snooze_at_most: str | None
    job: int
    name: str
    team: str
    owner: str
    cluster: str
    gpus: int
    generation: str


class IdleRule(TypedDict):
    team: str
    cluster: str
    action: Literal["nothing", "warn", "preemptible", "stop"] | Literal["only_idle"]
    after_minutes: int
    grace_minutes: int
    snooze_hours: int
    services: bool
    version: str
    id: int


class IdleRuleEffect(TypedDict):
    """What an idle rule would do now to running jobs, if it replaced the rule for the same team or cluster."""

    running: int
    idle: int
    warned: int
    then: Literal["stop", "preemptible"] | None
    due: int
    grace_minutes: int


class IdleTeam(TypedDict):
    """A team's idle GPU time, as the ledger has booked it, and its cost. Idle time is time in which allocated GPUs were
    not used.

    `processless_gpu_seconds` is the part of the idle time in which no process was observed on the GPUs."""

    team: str
    idle_gpu_seconds: str
    processless_gpu_seconds: str
    allocated_gpu_seconds: str
    part: float
    idle_cost: str
    cost: str
    currency: str


class Interruption(TypedDict):
    job_id: int
    name: str
    cause: str
    text: str
    began_at: str
    ended_at: str | None
    seconds: float


class Invitation(TypedDict):
    id: int
    email: str
    role: str
    tickets: int
    uses: int
    most_uses: int
    created_at: str
    expires_at: str
    invited_by: str | None


class Job(TypedDict):
    id: int
    kind: str
    name: str
    state: str
    service_id: int | None
    reason: str
    team: str
    owner: str
    cluster: str
    workers: int
    max_workers: int | None
    gpus_per_worker: int
    gpus: int
    priority: int
    preemptible: bool
    labels: dict[str, str]
    spec: dict[str, Any]
    created_at: str
    first_started_at: str | None
    ended_at: str | None
    files_removed_at: str | None
    exit_code: int | None
    end_reason: str
    end_message: str
    steps_done: str | None
    failures: int


class JobCost(TypedDict):
    """The GPU time and the cost of a job until now, as far as they were billed to teams that the caller may see."""

    gpu_seconds: str
    unbooked_gpu_seconds: str
    costs: dict[str, str]
    generations: list[CostOfType]


class JobGroup(TypedDict):
    value: str
    label: str
    jobs: int
    gpus: int
    held_gpus: int


class JobInFull(TypedDict):
    id: int
    kind: str
    name: str
    state: str
    service_id: int | None
    reason: str
    team: str
    owner: str
    cluster: str
    workers: int
    max_workers: int | None
    gpus_per_worker: int
    gpus: int
    priority: int
    preemptible: bool
    labels: dict[str, str]
    spec: dict[str, Any]
    created_at: str
    first_started_at: str | None
    ended_at: str | None
    files_removed_at: str | None
    exit_code: int | None
    end_reason: str
    end_message: str
    steps_done: str | None
    failures: int
    version: str
    exit_meaning: str
    last_lines: list[str]
    worker_names: list[str]
    stops_at: str | None


class JobMetrics(TypedDict):
    """The metrics of a job. All series have the same windows of `seconds`, or points by step."""

    job: int
    axis: str
    seconds: int
    series: list[MetricSeries]
    left_out: dict[str, int]


class JobStorage(TypedDict):
    """The disk space that the files of a job take, as it was measured last."""

    job: int
    name: str
    team: str
    owner: str
    state: str
    bytes: int
    parts: dict[str, int]
    files: int
    is_complete: bool
    measured_at: str | None
    deletion_wanted_at: str | None
    deleted_at: str | None


class LeftByDrain(TypedDict):
    """What a drain of the nodes leaves."""

    waiting: list[StrandedJob]
    more_waiting: int
    stuck: list[StrandedJob]
    keeps_nodes: bool
    services: list[ReplicasOnNodes]
    reservations: list[ReservationOnNodes]
    capacity: list[CapacityLeft]


class Limit(TypedDict):
    kind: Literal["gpus", "gpu_hours", "money", "queued_jobs", "longest_run", "borrowed", "storage"]
    limit: str
    generation: str | None
    user: str | None
    each_user: bool
    period: Literal["", "month", "quarter", "rolling"]
    days: int | None
    at_limit: Literal["block", "idle", "warn"]
    team: str
    version: str
    id: int
    by_managers: bool
    used: str | None
    of_former_member: bool


class LimitTerms(TypedDict):
    kind: Literal["gpus", "gpu_hours", "money", "queued_jobs", "longest_run", "borrowed", "storage"]
    limit: float | str
    generation: NotRequired[str | None]
    user: NotRequired[str | None]
    each_user: NotRequired[bool]
    period: NotRequired[Literal["", "month", "quarter", "rolling"]]
    days: NotRequired[int | None]
    at_limit: NotRequired[Literal["block", "idle", "warn"]]


class Log(TypedDict):
    """A piece of the log of one worker. `text` begins at the byte offset `offset`. The next piece begins at
    `next_offset`."""

    rank: int
    offset: int
    next_offset: int
    complete: bool
    text: str


class LogLine(TypedDict):
    """A line of the log of one worker, or a part of a long line. `text` includes the line end."""

    rank: int
    offset: int
    at: str | None
    attempt: int | None
    text: str


class LogLines(TypedDict):
    """Lines of the logs of several workers. `next` continues after them, as the parameter `after`.

    The lines are merged by time as far as they are there: those that a running job writes later come later."""

    items: list[LogLine]
    next: str
    complete: bool


class LogMatch(TypedDict):
    """A line that a search found, with lines of the same worker before and after it."""

    rank: int
    offset: int
    at: str | None
    attempt: int | None
    text: str
    before: list[str]
    after: list[str]


class Login(TypedDict):
    user_code: str
    device_code: str
    url: str
    expires_in: int
    interval: int


class LoginAnswer(TypedDict):
    state: str
    token: str


class Me(TypedDict):
    username: str
    name: str
    role: str
    teams: list[Membership]


class Member(TypedDict):
    version: str
    user: str
    role: str
    tickets: int
    is_active: bool


class Membership(TypedDict):
    team: str
    role: str
    tickets: int


class MetricPoint(TypedDict):
    """The values of a metric in one window, or at one step. `at` is the begin of the window, or when the step was
    reported."""

    at: str
    step: float | None
    mean: float
    lowest: float
    highest: float
    last: float
    values: int


class MetricSeries(TypedDict):
    """One metric over time. Windows without values have no point."""

    name: str
    source: Literal["machine", "output", "events"]
    gpu: str
    unit: str
    whole: MetricPoint
    points: list[MetricPoint]


class NewInvitationLink(TypedDict):
    id: int
    email: str
    role: str
    tickets: int
    uses: int
    most_uses: int
    created_at: str
    expires_at: str
    invited_by: str | None
    link: str


class Node(TypedDict):
    name: str
    generation: str
    gpus: int
    state: str
    state_reason: str
    drain_deadline: str | None
    allocations: list[Allocation]
    gpus_of_others: int


class NodeState(TypedDict):
    name: str
    state: str
    state_reason: str
    drain_deadline: str | None


class Notification(TypedDict):
    id: int
    event: Literal[
        "job.failed",
        "job.ended",
        "job.waiting",
        "job.warned",
        "job.started",
        "job.suspended",
        "sweep.ended",
        "service.failed",
        "budget.warning",
        "request.open",
        "request.answered",
        "channel.failed",
        "token.revoked",
        "team.member",
    ]
    title: str
    text: str
    team: str
    job: int | None
    path: str
    at: str
    read_at: str | None


class Notifications(TypedDict):
    """A page of notifications, newest first. To get the next page, call the endpoint again with the parameter `before`
    set to `next`, which is null on the last page."""

    notifications: list[Notification]
    unread: int
    next: int | None


class OwnLimit(TypedDict):
    kind: Literal["gpus", "gpu_hours", "money", "queued_jobs", "longest_run", "borrowed", "storage"]
    limit: str
    generation: str | None
    user: str | None
    each_user: bool
    period: Literal["", "month", "quarter", "rolling"]
    days: int | None
    at_limit: Literal["block", "idle", "warn"]
    team: str
    version: str
    id: int
    by_managers: bool
    used: str | None
    of_former_member: bool
    used_in: str


class Pipeline(TypedDict):
    id: int
    name: str
    team: str
    owner: str
    cluster: str
    state: Literal["running", "succeeded", "failed", "cancelled"]
    counts: dict[str, int]
    trouble: str
    created_at: str
    ended_at: str | None


class PipelineInFull(TypedDict):
    id: int
    name: str
    team: str
    owner: str
    cluster: str
    state: Literal["running", "succeeded", "failed", "cancelled"]
    counts: dict[str, int]
    trouble: str
    created_at: str
    ended_at: str | None
    steps: list[PipelineStep]
    gpu_hours: float
    costs: dict[str, str]
    expected_end: str | None
    definition: str


class PipelineStep(TypedDict):
    """A step of a pipeline. `job_id` is its latest job; null before the first one is submitted."""

    name: str
    state: Literal["pending", "active", "succeeded", "failed", "cancelled", "skipped"]
    reason: str
    needs: list[StepNeed]
    attempts: int
    job_id: int | None
    gpus: int
    waited_seconds: float | None
    held_seconds: float | None
    gpu_hours: float
    costs: dict[str, str]
    expected_end: str | None


class Policy(TypedDict):
    """The scheduling policy of a cluster, which decides which jobs run next.

    `options` also contains `ordering` and `trading`, although these are settings of the cluster, not of the policy."""

    name: str
    version: int
    options: dict[str, bool | float | str]
    shadow: PolicyVersion | None
    choices: list[PolicyOptions]


class PolicyOption(TypedDict):
    name: str
    default: bool | float | str
    description: str
    choices: list[str]
    least: float | None
    most: float | None


class PolicyOptions(TypedDict):
    name: str
    options: list[PolicyOption]


class PolicyVersion(TypedDict):
    name: str
    version: int


class Preflight(TypedDict):
    verdict: Literal["never", "now", "later"]
    sentences: list[str]
    expected_start_seconds: list[float] | None
    starts_by_generation: dict[str, list[float | None]]
    cost_per_hour: dict[str, str]
    detail: list[str]
    currencies: dict[str, str]
    currency: str


class PreviewedSweepMember(TypedDict):
    parameters: dict[str, Any]
    name: str
    command: str


class Price(TypedDict):
    id: int
    generation: str
    state: Literal["past", "now", "planned"]
    since: str
    until: str | None
    per_gpu_hour: str
    idle: str | None
    preemptible: str | None
    borrowed: str | None
    currency: str


class Proposals(TypedDict):
    """Values for the fields of a job specification, found in the files. An empty text proposes nothing."""

    name: str
    command: str
    requirements: str


class QueuePlace(TypedDict):
    """The place of a job among the waiting jobs that can use one of its GPU types.

    Every round computes the order again, and a job behind may start first on GPUs that fit it."""

    sentence: str
    position: int
    of: int
    team_position: int
    team_of: int
    ahead: list[AheadInQueue]
    ahead_known: int
    ahead_others: int
    ahead_others_gpus: int
    note: str


class Remedy(TypedDict):
    """Something that would let a waiting job start, or start sooner, or that helps a job that does its work again."""

    code: str
    kind: Literal["change", "clone", "page"]
    label: str
    effect: str
    changes: dict[str, Any]


class RepeatedWork(TypedDict):
    """The work that a job's attempts did again, because they began where an earlier one had begun."""

    sentence: str
    attempts: int
    step: float | None
    reached: float | None
    gpu_seconds: float
    costs: dict[str, str]


class ReplicaFailure(TypedDict):
    job_id: int
    name: str
    revision: int
    ended_at: str | None
    end_message: str
    exit_meaning: str
    last_lines: list[str]


class ReplicaLogLine(TypedDict):
    """A line of the log of a replica, or a part of a long line. `text` includes the line end."""

    job_id: int
    replica: str
    offset: int
    at: str | None
    text: str


class ReplicaLogLines(TypedDict):
    """Lines of the logs of the replicas of a service. `next` continues after them, as the parameter `after`.

    The lines are merged by time as far as they are there: those that replicas write later come later."""

    items: list[ReplicaLogLine]
    next: str
    complete: bool
    problems: list[str]


class ReplicasOnNodes(TypedDict):
    service: str
    lost: int
    wanted: int


class ReportLine(TypedDict):
    fate: Literal["mapped", "defaulted", "approximated", "dropped", "refused"]
    source: str
    target: str
    text: str


class Request(TypedDict):
    id: int
    team: str
    kind: str
    state: Literal["open", "approved", "declined", "withdrawn"]
    reason: str
    wanted: dict[str, Any]
    until: str | None
    extends: int | None
    asked_by: str
    asked_at: str
    decided_by: str | None
    decided_at: str | None
    answer: str
    granted: dict[str, Any] | None
    ends_at: str | None
    overtaken_at: str | None
    ended_at: str | None
    ending: str


class ReservationEffect(TypedDict):
    """Whom a reservation would hit now."""

    gpu_hours: float
    most_cost: str
    running: list[HitJob]
    hidden: int
    waiting: list[WaitingJobs]
    losses: list[EntitlementLoss]


class ReservationOnNodes(TypedDict):
    id: int
    name: str
    team: str
    gpus: int
    begins: str
    ends: str


class ReservationWindow(TypedDict):
    begins: str
    ends: str


class ReservedAhead(TypedDict):
    """A window of an advance reservation of another team on nodes on which a service or session runs."""

    begins_at: str
    ends_at: str
    stops_at: str
    gpus: int
    nodes: list[str]
    jobs: list[str]
    team: str


class Results(TypedDict):
    """The files that a job wrote or changed, newest first."""

    items: list[FileEntry]
    count: int
    is_complete: bool


class Rule(TypedDict):
    about: Literal["me", "team", "job"]
    team: str
    job: int | None
    events: list[
        Literal[
            "job.failed",
            "job.ended",
            "job.waiting",
            "job.warned",
            "job.started",
            "job.suspended",
            "sweep.ended",
            "service.failed",
            "budget.warning",
            "request.open",
            "request.answered",
            "channel.failed",
            "token.revoked",
            "team.member",
        ]
    ]
    way: Literal["bell", "mail", "channel"]
    channel: int | None
    rhythm: Literal["at_once", "hourly", "daily"]
    wait_minutes: Literal[15, 60, 240, 1440]
    version: str
    id: int
    is_of_team: bool


class Schedule(TypedDict):
    id: int
    version: str
    name: str
    team: str
    owner: str
    cluster: str
    spec: dict[str, Any]
    expression: str
    time_zone: str
    begins: str | None
    ends: str | None
    missed: str
    catch_up_seconds: int
    overlap: str
    next_due_at: str | None
    refusals: int
    paused_at: str | None
    paused_reason: str
    deleted_at: str | None
    created_at: str


class ScheduleInFull(TypedDict):
    id: int
    version: str
    name: str
    team: str
    owner: str
    cluster: str
    spec: dict[str, Any]
    expression: str
    time_zone: str
    begins: str | None
    ends: str | None
    missed: str
    catch_up_seconds: int
    overlap: str
    next_due_at: str | None
    refusals: int
    paused_at: str | None
    paused_reason: str
    deleted_at: str | None
    created_at: str
    words: str
    notes: list[str]
    next_runs: list[str]


class ScheduleRun(TypedDict):
    """A run of a schedule. It covers all due times from `due_from` to `due_at`.

    Usually `due_from` and `due_at` are the same time. They differ if several missed due times are combined into one
    run."""

    id: int
    due_from: str
    due_at: str
    outcome: Literal["submitted", "skipped", "refused"]
    text: str
    job_id: int | None
    asked_by: str | None
    at: str


class Scheduling(TypedDict):
    """The explanation of a job's state, and the times at which Fairlot expects the job to start and end.

    A predicted time is null if Fairlot cannot predict it."""

    state: str
    sentence: str
    never: bool
    detail: list[str]
    unblock: list[str]
    remedies: list[Remedy]
    queue: QueuePlace | None
    repeated_work: RepeatedWork | None
    starts_by: str | None
    not_before: str | None
    deadline: str | None
    ends_by: str | None
    stops_at: str | None
    is_late: bool


class Secret(TypedDict):
    id: int
    version: str
    name: str
    team: str
    keys: list[str]
    created_at: str
    changed_at: str


class Service(TypedDict):
    id: int
    version: str
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
    good_revision: int | None
    stopped_at: str | None
    removed_at: str | None
    created_at: str
    status: str
    url: str
    trouble: str


class ServiceEvent(TypedDict):
    id: int
    at: str
    kind: str
    text: str


class ServiceInFull(TypedDict):
    id: int
    version: str
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
    good_revision: int | None
    stopped_at: str | None
    removed_at: str | None
    created_at: str
    status: str
    url: str
    trouble: str
    last_failure: ReplicaFailure | None
    sentences: list[str]
    revisions: list[ServiceRevision]
    members: list[ServiceReplica]
    interruptions: list[Interruption]
    expected_back_at: str | None
    reserved_ahead: list[ReservedAhead]
    next_try_at: str | None
    gives_up_at: str | None
    rolls_back_to: int | None


class ServiceReplica(TypedDict):
    job_id: int
    name: str
    slot: int
    attempt: int
    revision: int
    state: str
    reason: str
    ready: bool
    address: str
    why_not_ready: str
    claimable_from: str | None


class ServiceRevision(TypedDict):
    number: int
    spec: dict[str, Any]
    author: str
    at: str
    proved_at: str | None
    failed_at: str | None
    why_failed: str
    failed_job_id: int | None


class Session(TypedDict):
    id: int
    name: str
    kind: Literal["notebook", "vscode"]
    state: str
    team: str
    owner: str
    cluster: str
    ready: bool
    reason: str
    sentence: str
    warned: bool
    idle_timeout_minutes: int
    time_limit_hours: int
    idle_ends_at: str | None
    ends_at: str | None
    claimable_from: str | None
    created_at: str
    end_message: str


class SessionInFull(TypedDict):
    id: int
    name: str
    kind: Literal["notebook", "vscode"]
    state: str
    team: str
    owner: str
    cluster: str
    ready: bool
    reason: str
    sentence: str
    warned: bool
    idle_timeout_minutes: int
    time_limit_hours: int
    idle_ends_at: str | None
    ends_at: str | None
    claimable_from: str | None
    created_at: str
    end_message: str
    files_from: int | None
    files_sentence: str
    files_kept_until: str | None
    interruptions: list[Interruption]
    expected_back_at: str | None
    reserved_ahead: list[ReservedAhead]
    exit_meaning: str
    last_lines: list[str]


class SetBudget(TypedDict):
    version: str
    id: int
    signing_key: str | None


class SettingChange(TypedDict):
    name: str
    before: str
    after: str
    effect: str


class Settings(TypedDict):
    """The scheduling settings of a cluster. Null amounts: the GPUs' part of the node, or no limit."""

    version: str
    ordering: Literal["stride", "lottery"]
    slicing: Literal["checkpoint", "freeze", "auto"]
    quantum_seconds: float
    effective_quantum: float
    min_hold_seconds: float
    notice_seconds: float
    overhead_limit: float
    cpu_per_gpu: float | None
    memory_per_gpu: float | None
    cpu_limit_per_gpu: float | None
    memory_limit_per_gpu: float | None
    trading: bool


class SettingsAnswer(TypedDict):
    """The settings, after the change if it was saved, and what the change does."""

    version: str
    settings: Settings
    changes: list[SettingChange]


class Share(TypedDict):
    """A team's entitlement and use of one cluster over time, in GPU-seconds, with a time series for each generation.

    The points of a time series are `step_seconds` apart. The oldest point comes first."""

    team: str
    cluster: str | None
    begins: str
    ends: str
    step_seconds: float
    generations: list[ShareOfGeneration]


class ShareChange(TypedDict):
    """The numbers of GPUs of a team (including the teams below it), or of a member, before and after a change.

    `entitled_before` and `entitled_after` are the numbers that the tickets earn. `share_before` and `share_after` also
    count borrowed GPUs."""

    cluster: str
    team: str
    user: str | None
    generation: str
    entitled_before: float
    entitled_after: float
    share_before: float
    share_after: float


class ShareOfGeneration(TypedDict):
    generation: str
    total: Amounts
    owed: float
    points: list[Amounts]


class SharingAnomalies(TypedDict):
    """The results of one analysis for the teams that the caller may see."""

    analysis: int | None
    cluster: str | None
    begins: str | None
    ends: str | None
    teams: int
    teams_done: int
    finished_at: str | None
    compared: int
    too_large: int
    false_rates: list[FalseRate]
    without_result: list[TeamWithoutResult]
    items: list[SharingAnomaly]
    total: int


class SharingAnomaly(TypedDict):
    """A job that started or ended later than it would have on its team's private cluster, which has only the GPUs of
    the team's share."""

    id: int
    job_id: int
    job: str
    team: str
    cause: str
    causes: dict[str, float]
    late_seconds: float
    at_end: bool
    started_at: str | None
    ended_at: str | None
    private_started_at: str
    private_ended_at: str | None
    holders: list[AnomalyHolder]


class Statement(TypedDict):
    title: str
    facts: list[Fact]
    tables: dict[str, StatementTable]
    team: str
    begins: str
    ends: str


class StatementLine(TypedDict):
    """A team's amounts for one generation, converted to GPU-seconds of the team's slowest generation.

    `speed` is the measured speed of the team's jobs on this generation, as a multiple of their speed on the slowest
    one. The amounts are multiplied by `speed`: an hour at speed 2 counts as two hours. If the speed is unknown, `speed`
    and `amounts` are null. A speed is known only if a job was measured on this generation and on another one."""

    generation: str
    speed: float | None
    jobs: int
    amounts: FairAmounts | None


class StatementTable(TypedDict):
    """A table of a report. Amounts are exact decimals as text. `totals` has one row for each currency."""

    title: str
    rows: list[dict[str, Any]]
    totals: list[dict[str, Any]]


class StepNeed(TypedDict):
    """What a step needs: the end of another step, or of a job outside the pipeline."""

    step: str | None
    job: int | None
    when: Literal["success", "failure", "always"]
    files: bool


class StrandedJob(TypedDict):
    """A job that could run on no other node."""

    job: int
    name: str
    team: str
    owner: str
    gpus: int


class Subscription(TypedDict):
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
    ]
    team: str
    by: Literal["", "user", "job", "generation", "day", "label", "tenant"]
    label: str
    rhythm: Literal["weekly", "monthly"]
    form: Literal["pdf", "xlsx", "csv", "link"]
    id: int


class Sweep(TypedDict):
    id: int
    name: str
    team: str
    owner: str
    cluster: str
    state: Literal["running", "finished", "stopped", "cancelled"]
    size: int
    counts: dict[str, int]
    at_once: int | None
    metric: str
    goal: str
    stop_at: float | None
    stop_cancels: bool
    median_after: int | None
    stopped_by: int | None
    trouble: str
    created_at: str
    ended_at: str | None


class SweepEstimate(TypedDict):
    """What all members of a sweep use and cost together if each runs for `hours`."""

    gpus_per_member: int
    at_once: int | None
    hours: float
    basis: Literal["expected", "last_run", "an_hour"]
    assumption: str
    last_run: int | None
    gpu_hours: float
    cost: dict[str, str]
    cost_per_hour: dict[str, str]
    currencies: dict[str, str]


class SweepInFull(TypedDict):
    id: int
    name: str
    team: str
    owner: str
    cluster: str
    state: Literal["running", "finished", "stopped", "cancelled"]
    size: int
    counts: dict[str, int]
    at_once: int | None
    metric: str
    goal: str
    stop_at: float | None
    stop_cancels: bool
    median_after: int | None
    stopped_by: int | None
    trouble: str
    created_at: str
    ended_at: str | None
    spec: dict[str, Any]
    parameters: dict[str, Any]
    names: list[str]
    metric_names: list[str]
    best: SweepMember | None


class SweepMember(TypedDict):
    """A member of a sweep. `job_id` is its latest job; null before the first one is submitted."""

    index: int
    state: Literal["pending", "active", "succeeded", "failed", "cancelled", "stopped", "skipped"]
    parameters: dict[str, Any]
    metrics: dict[str, float]
    attempts: int
    job_id: int | None
    outdone_at: float | None
    cause: str


class SweepParameters(TypedDict):
    """The members of a sweep, in one of four forms."""

    kind: Literal["grid", "random", "list", "array"]
    grid: NotRequired[dict[str, list[Any]]]
    random: NotRequired[dict[str, dict[str, Any] | str]]
    rows: NotRequired[list[dict[str, Any]]]
    count: NotRequired[int | None]
    seed: NotRequired[int | None]


class SweepPreview(TypedDict):
    """What a sweep would submit: the number of members, the first five, and what all would cost."""

    size: int
    first: list[PreviewedSweepMember]
    notes: list[str]
    estimate: SweepEstimate | None


class Tables(TypedDict):
    """A report as tables, with the same figures as the report's files."""

    title: str
    facts: list[Fact]
    tables: dict[str, StatementTable]


class Team(TypedDict):
    version: str
    team: str
    name: str
    parent: str | None
    tickets: int
    archived_at: str | None


class TeamChange(TypedDict):
    team: Team | None
    shares: list[TeamShare]


class TeamShare(TypedDict):
    """The share of a team, or of a team's direct members, before and after a change.

    A share is a fraction of all GPUs (0 to 1). It is calculated as if all teams were active."""

    name: str
    before: float | None
    after: float | None


class TeamWithoutResult(TypedDict):
    """A team for which the analysis has no result. `why` is the reason: the analysis of the team failed, or the team
    had no jobs to compare."""

    team: str
    why: str


class Template(TypedDict):
    id: int
    name: str
    team: str | None
    description: str
    version: int
    gpus: int
    expected_hours: float | None
    created_at: str
    withdrawn_at: str | None


class TemplateVersion(TypedDict):
    """A template with one of its versions, which `version` numbers."""

    id: int
    name: str
    team: str | None
    description: str
    version: int
    latest: int
    spec: dict[str, Any]
    yaml: str
    parameters: list[dict[str, Any]]
    made_by: str | None
    made_at: str
    withdrawn_at: str | None


class Terminal(TypedDict):
    """An open shell beside a worker of a running job."""

    id: str
    worker: int
    user: str
    own: bool
    attached: bool
    opened_from: str
    opened_at: str
    may_end: bool


class Terminals(TypedDict):
    items: list[Terminal]


class Tested(TypedDict):
    works: bool
    error: str


class Trade(TypedDict):
    """A trade between two teams. `sides` has an entry for each of the two teams that the caller may see.

    `counterpart` is the name of the team with which the team in the first entry trades, or the text `another team` if
    the caller may not see that team."""

    id: int
    begins: str
    ends: str | None
    fast: str
    slow: str
    price: float
    sides: list[TradeSide]
    counterpart: str


class TradeLimit(TypedDict):
    """A team's trade limit for one generation: whether the team trades these GPUs, and how many it may give away.

    If `generation` is empty, the limit applies to each generation for which the team has no separate trade limit."""

    generation: NotRequired[str]
    trades: NotRequired[bool]
    most_gpus: NotRequired[float | str | None]
    most_part: NotRequired[float | str | None]


class TradeSide(TypedDict):
    team: str
    gave: float
    gave_generation: str
    got: float
    got_generation: str
    speedup: float
    without: float
    with_trade: float
    gain: float


class Traffic(TypedDict):
    """The requests to a service that passed Fairlot, in windows of `seconds`.

    Windows without requests have no point."""

    service: int
    seconds: int
    begins: str
    ends: str
    whole: TrafficPoint
    points: list[TrafficPoint]
    not_counted: str


class TrafficPoint(TypedDict):
    """The requests in one window. `at` is the begin of the window."""

    at: str
    requests: int
    requests_per_second: float
    client_errors: int
    server_errors: int
    no_replica: int
    no_answer: int
    timed_out: int
    left: int
    p50_seconds: float | None
    p95_seconds: float | None
    p99_seconds: float | None


class Upload(TypedDict):
    digest: str
    team: str
    size: int
    unpacked: int
    files: int
    paths: list[str]
    proposals: Proposals


class Usage(TypedDict):
    begins: str
    ends: str
    facts: list[Fact]
    rows: list[UsageRow]
    totals: list[UsageRow]
    lacks_before: str | None


class UsageRow(TypedDict):
    """One group of the usage report, with exact decimal amounts.

    A field that can name a group, such as `user` or `generation`, is null unless the report is grouped by it."""

    gpu_seconds: str
    cost: str
    currency: str
    begins: str | None
    tenant: str | None
    user: str | None
    job_id: int | None
    job: str | None
    generation: str | None
    label: str | None


class View(TypedDict):
    id: int
    list: str
    name: str
    query: str
    owner: str
    team: str
    is_default: bool
    changed_at: str


class Volume(TypedDict):
    id: int
    name: str
    cluster: str
    team: str
    read_only: bool
    created_at: str


class WaitingJobs(TypedDict):
    team: str
    jobs: int


class WhoHolds(TypedDict):
    generations: list[GpusOfGeneration]
    holders: list[Holder]


class Work(TypedDict):
    """The numbers of unfinished jobs, sweeps, pipelines and sessions, services and schedules of a user in a team."""

    running_jobs: int
    waiting_jobs: int
    sessions: int
    services: int
    schedules: int
    sweeps: int
    pipelines: int
