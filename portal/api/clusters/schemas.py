"""Request and response schemas of the endpoints for clusters, their nodes and their policies."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from ninja import Field, Schema
from pydantic import AwareDatetime, SecretStr

from portal.api.fields import AskedWhole, Figure, Flag, Line, Number, Whole
from portal.api.old_names import WithOldNames, answered_too, read_as
from portal.api.versions import VERSION


class Allocation(Schema):
    """GPUs of one node that are allocated to one job. The caller may see the job."""

    job: int
    team: str
    gpu_indices: list[int]


class Node(WithOldNames, Schema):
    name: str
    generation: str
    gpus: int
    state: str
    state_reason: str
    drain_deadline: datetime | None = Field(
        description="Deadline of a drain, at which jobs that still run on the node are stopped; "
        "null if there is no deadline."
    )
    allocations: list[Allocation]
    held: list[Allocation] = answered_too("allocations")
    gpus_of_others: int = Field(description="Number of GPUs allocated to jobs that the caller may not see.")
    held_by_others: int = answered_too("gpus_of_others")


class Cluster(Schema):
    name: str
    paused: bool
    paused_reason: str = Field(
        description="Why an operator paused the cluster; empty if the cluster is not paused."
    )
    quantum_seconds: float
    nodes: list[Node]


class Drain(Schema):
    reason: str = Field(
        min_length=1,
        max_length=200,
        description="Why the node is drained. Shown on the node and to the owners of its jobs.",
    )
    mode: Literal["finish", "deadline", "now"] = Field(
        "finish",
        description="What happens to running jobs: `finish` lets them finish, `deadline` stops "
        "them at the time in the field `deadline`, `now` stops them now. Stopped jobs get their grace period.",
    )
    deadline: AwareDatetime | None = Field(
        None,
        description="Time at which running jobs are stopped. Required if `mode` is `deadline`; "
        "refused in other modes.",
    )


class SomeNodes(Schema):
    nodes: list[Line] = Field(min_length=1, max_length=1000, description="Names of nodes of the cluster.")


class DrainOfNodes(Drain, SomeNodes):
    dry_run: Flag = Field(
        False, description="True: Fairlot returns the jobs that the drain would affect, and changes nothing."
    )


class DrainedJob(Schema):
    job: int
    name: str
    kind: str
    service: str | None
    team: str
    owner: str
    gpus: int
    gpus_elsewhere: int = Field(
        description="Number of GPUs that the job has on other nodes. When the job stops, these GPUs "
        "become free too, because a gang stops as a whole."
    )
    since: datetime | None
    ends: datetime | None = Field(description="Latest time at which the job ends; null if unknown.")


class NodeState(Schema):
    name: str
    state: str
    state_reason: str
    drain_deadline: datetime | None


class StrandedJob(Schema):
    """A job that could run on no other node."""

    job: int
    name: str
    team: str
    owner: str
    gpus: int


class ReplicasOnNodes(Schema):
    service: str
    lost: int = Field(description="Number of replicas that hold GPUs of the nodes.")
    wanted: int = Field(description="Number of replicas that the service should have.")


class ReservationOnNodes(Schema):
    id: int
    name: str
    team: str
    gpus: int = Field(description="Number of reserved GPUs on the nodes.")
    begins: datetime = Field(description="Begin of the window that is open or comes next.")
    ends: datetime


class CapacityLeft(Schema):
    generation: str
    before: int = Field(description="GPUs on which jobs may start, with the nodes.")
    after: int = Field(description="GPUs on which jobs may start, without the nodes.")


class LeftByDrain(Schema):
    """What a drain of the nodes leaves."""

    waiting: list[StrandedJob] = Field(
        description="Waiting jobs that could start on no other node, at most 50."
    )
    more_waiting: int = Field(
        description="Number of such jobs that are not listed, or that the caller may not see."
    )
    stuck: list[StrandedJob] = Field(
        description="Jobs that run on the nodes and, once stopped, could continue on no other node."
    )
    keeps_nodes: bool = Field(
        description="Whether a node of the cluster stays in use. Without one, no job starts."
    )
    services: list[ReplicasOnNodes]
    reservations: list[ReservationOnNodes]
    capacity: list[CapacityLeft]


class JobsOnNodes(Schema):
    jobs: list[DrainedJob] = Field(description="Jobs that run there and that the caller may see.")
    hidden_jobs: int = Field(description="Number of jobs that run there but that the caller may not see.")
    left: LeftByDrain


class DrainedNode(JobsOnNodes, NodeState):
    """A node, and the jobs that its drain affects."""


class DrainedNodes(JobsOnNodes):
    """Some nodes, and the jobs that their drain affects. A gang on several of the nodes is listed once."""

    nodes: list[NodeState]


class NewKubeconfig(Schema):
    kubeconfig: SecretStr = Field(
        description="The kubeconfig as YAML, with an embedded token or certificate. It is never shown again."
    )


class NewCluster(NewKubeconfig):
    name: Line
    namespace_prefix: Line = Field("fairlot", description="Prefix of the name of each team's namespace.")
    writes_per_second: Number = Field(
        50, description="Maximum number of writes per second to the Kubernetes API of the cluster."
    )
    writes_at_once: Whole = 100
    checkpoint_claim: Line = Field(
        "",
        description="Name of the PersistentVolumeClaim for checkpoints in each team's namespace; each job "
        "gets a folder in it.",
    )


class Reachable(Schema):
    ranges: list[Line] = Field(
        description="Address ranges that jobs may reach, in CIDR notation. If empty, jobs reach only the "
        "namespace of their team."
    )


class StandalonePods(WithOldNames, Schema):
    standalone_pods: Flag = Field(
        description="Whether new jobs with one worker run as pods without a Kubernetes Job."
    )
    bare_pods: Flag | None = read_as("standalone_pods")


class ClusterAccess(WithOldNames, Schema):
    server: str
    user: str = Field(description="Name of the Kubernetes user as which Fairlot acts in the cluster.")
    version: str
    namespace_prefix: str
    checkpoint_claim: str
    reachable: list[str] = Field(
        description="Address ranges that jobs in the cluster may reach, in CIDR notation."
    )
    standalone_pods: bool = Field(
        description="Whether new jobs with one worker run as pods without a Kubernetes Job."
    )
    bare_pods: bool = answered_too("standalone_pods")
    checked_at: datetime | None
    trouble: str = Field(description="Problems of the cluster in plain words; empty if there is no problem.")
    rights: dict[str, bool] = Field(
        description="For each Kubernetes right that Fairlot needs: whether Fairlot has the right."
    )
    beyond: list[str] = Field(description="Kubernetes rights that Fairlot has but does not need.")
    podgroups: str = Field(
        description="Version of the PodGroup API that the cluster offers for gangs; empty if the cluster "
        "has no such API."
    )


class AttachedCluster(Schema):
    name: str
    backend: str
    detached_at: datetime | None
    access: ClusterAccess | None = Field(
        description="How Fairlot reaches the Kubernetes cluster; null for clusters that do not use "
        "Kubernetes, and for detached clusters."
    )


class Settings(Schema):
    """The scheduling settings of a cluster. Null amounts: the GPUs' part of the node, or no limit."""

    version: str = Field(description=VERSION)
    ordering: Literal["stride", "lottery"]
    slicing: Literal["checkpoint", "freeze", "auto"]
    quantum_seconds: float
    effective_quantum: float = Field(
        description="Seconds between two rounds, after slow switches stretched them."
    )
    min_hold_seconds: float
    notice_seconds: float
    overhead_limit: float = Field(description="Largest part of the time to spend on switching, 0 to 1.")
    cpu_per_gpu: float | None
    memory_per_gpu: float | None = Field(description="GiB.")
    cpu_limit_per_gpu: float | None
    memory_limit_per_gpu: float | None = Field(description="GiB.")
    trading: bool


class NewSettings(Schema):
    """Settings to change; a field that is left out keeps its value."""

    ordering: Literal["stride", "lottery"] | None = None
    slicing: Literal["checkpoint", "freeze", "auto"] | None = None
    quantum_seconds: Number | None = None
    min_hold_seconds: Number | None = None
    notice_seconds: Number | None = None
    overhead_limit: Number | None = None
    cpu_per_gpu: Number | None = None
    memory_per_gpu: Number | None = Field(None, description="GiB.")
    cpu_limit_per_gpu: Number | None = None
    memory_limit_per_gpu: Number | None = Field(None, description="GiB.")
    trading: Flag | None = None
    dry_run: Flag = Field(False, description="Only return what would change; nothing is saved.")


class SettingChange(Schema):
    name: str
    before: str
    after: str
    effect: str = Field(description="What follows from the change, as a sentence.")


class SettingsAnswer(Schema):
    """The settings, after the change if it was saved, and what the change does."""

    version: str = Field(description=VERSION)
    settings: Settings
    changes: list[SettingChange]


class PolicyChoice(Schema):
    name: Line
    options: dict[str, Flag | float | Line] = Field(
        default_factory=dict,
        description="Values of the policy's options, by name. An option that is left out takes its "
        "default value. `choices` lists all options.",
    )


class PolicyVersion(Schema):
    name: Line
    version: Whole = Field(ge=1, le=32_767)


class NewPolicy(PolicyChoice):
    shadow: PolicyVersion | None = Field(
        None,
        description="Shadow policy: a second policy whose decisions have no effect and serve only for "
        "comparison. Null for no shadow policy.",
    )


class PolicyOption(Schema):
    name: str
    default: bool | float | str
    description: str
    choices: list[str] = Field(
        description="Accepted values, if the value of this policy option is a text; empty for numbers and booleans."
    )
    least: float | None
    most: float | None


class PolicyOptions(Schema):
    name: str
    options: list[PolicyOption]


class Policy(Schema):
    """The scheduling policy of a cluster, which decides which jobs run next.

    `options` also contains `ordering` and `trading`, although these are settings of the cluster, not of the policy.
    """

    name: str
    version: int
    options: dict[str, bool | float | str]
    shadow: PolicyVersion | None
    choices: list[PolicyOptions] = Field(description="All policies and their options.")


class ComparedFigure(Schema):
    name: str
    policy: float
    shadow: float


class ComparedShare(Schema):
    """A team's average number of GPUs under the cluster's policy, and under its shadow policy."""

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


class HoldersQuestion(Schema):
    by: Literal["team", "user"] = Field("team", description="What each row stands for.")
    cluster: Line = Field("", description="Name of a cluster; by default all attached clusters.")
    generation: Line = Field("", description="Name of a GPU type; by default all.")
    team: Line = Field("", description="Slug of a team; the teams below it are included.")
    node: Line = Field("", description="A part of the names of nodes; by default all nodes.")


class GpusOfGeneration(Schema):
    generation: str
    gpus: int = Field(description="GPUs of this type on nodes that are present.")
    free: int = Field(description="GPUs of ready nodes that no job holds.")


class HeldGpus(Schema):
    gpus: int
    idle_gpus: int | None = Field(
        description="Those of the GPUs that were idle at the last measurement; null if hidden."
    )
    jobs: int | None = Field(description="Number of jobs that hold the GPUs; null if hidden.")


class HeldOfGeneration(HeldGpus):
    generation: str
    entitled: float | None = Field(
        description="GPUs to which the team's own users are entitled, as of the last rounds; null if unknown, for "
        "users, and with a choice of nodes."
    )


class Holder(HeldGpus):
    """A team, or a user in a team, with the GPUs that its jobs hold now. The teams below a team are separate rows."""

    team: str | None = Field(description="Slug of the team; null for all teams that the caller may not see.")
    user: str | None
    by_generation: list[HeldOfGeneration]


class WhoHolds(Schema):
    generations: list[GpusOfGeneration]
    holders: list[Holder]


class ConsumersQuestion(Schema):
    period: Literal["day", "week"] = Field("day", description="The last 24 hours, or the last 7 days.")
    by: Literal["team", "user"] = Field("team", description="What each row stands for.")
    generation: Line = Field("", description="Name of a GPU type; by default all.")
    team: Line = Field("", description="Slug of a team; the teams below it are included.")
    limit: AskedWhole = Field(50, ge=1, le=200, description="How many consumers to return.")


class Consumer(Schema):
    """Booked GPU time and cost of a team, or of a user in a team, in one currency."""

    team: str
    user: str | None
    gpu_seconds: Figure
    idle_gpu_seconds: Figure
    cost: Figure
    currency: str


class Consumers(Schema):
    begins: datetime
    ends: datetime
    count: int = Field(description="Number of all consumers, including those beyond `limit`.")
    consumers: list[Consumer]
