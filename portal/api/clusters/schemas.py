"""What calls about clusters, their nodes and policies take and answer."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from ninja import Field, Schema
from pydantic import AwareDatetime, SecretStr

from portal.api.fields import Flag, Line, Number, Whole
from portal.api.old_names import WithOldNames, answered_too, read_as


class Allocation(Schema):
    """GPUs of a node that are allocated to a job that the caller may see."""

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
        description="When what still runs on a drained node is stopped; null: it finishes."
    )
    allocations: list[Allocation]
    held: list[Allocation] = answered_too("allocations")
    gpus_of_others: int = Field(description="GPUs that are allocated to jobs that the caller may not see.")
    held_by_others: int = answered_too("gpus_of_others")


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


class StandalonePods(WithOldNames, Schema):
    standalone_pods: Flag = Field(description="Jobs of one worker run as pods without a Job over them.")
    bare_pods: Flag | None = read_as("standalone_pods")


class ClusterAccess(WithOldNames, Schema):
    server: str
    user: str = Field(description="As the API server names Fairlot.")
    version: str
    namespace_prefix: str
    checkpoint_claim: str
    reachable: list[str] = Field(description="Ranges of addresses that jobs may reach from there.")
    standalone_pods: bool = Field(description="New jobs of one worker run as pods without a Job over them.")
    bare_pods: bool = answered_too("standalone_pods")
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
    """Decides who runs next on a cluster. Its options include ordering and trading, also settings of the cluster."""

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
