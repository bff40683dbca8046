"""Request and response schemas of the endpoints for clusters, their nodes and their policies."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from ninja import Field, Schema
from pydantic import AwareDatetime, SecretStr

from portal.api.fields import Flag, Line, Number, Whole
from portal.api.old_names import WithOldNames, answered_too, read_as


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
        description="When jobs that still run on a drained node are stopped; null if they may finish."
    )
    allocations: list[Allocation]
    held: list[Allocation] = answered_too("allocations")
    gpus_of_others: int = Field(description="GPUs that are allocated to jobs that the caller may not see.")
    held_by_others: int = answered_too("gpus_of_others")


class Cluster(Schema):
    name: str
    paused: bool
    paused_reason: str = Field(
        description="The reason that the operator gave; empty if the cluster is not paused."
    )
    quantum_seconds: float
    nodes: list[Node]


class Drain(Schema):
    reason: str = Field(
        min_length=1, max_length=200, description="Shown on the node and to the owners of its jobs."
    )
    mode: Literal["finish", "deadline", "now"] = Field(
        "finish",
        description="Running jobs finish, run until `deadline`, or are stopped now with their grace period.",
    )
    deadline: AwareDatetime | None = Field(
        None, description="Required with mode `deadline`, refused with other modes."
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
        description="GPUs of the same gang on other nodes. The gang stops as a whole."
    )
    since: datetime | None
    ends: datetime | None = Field(description="When the job ends at the latest; null if unknown.")


class DrainedNode(Schema):
    name: str
    state: str
    state_reason: str
    drain_deadline: datetime | None
    jobs: list[DrainedJob] = Field(description="Jobs with GPUs of the node that the caller may see.")
    hidden_jobs: int = Field(description="Number of jobs with GPUs of the node that the caller may not see.")


class NewKubeconfig(Schema):
    kubeconfig: SecretStr = Field(
        description="The kubeconfig as YAML, with an embedded token or certificate. It is never shown again."
    )


class NewCluster(NewKubeconfig):
    name: Line
    namespace_prefix: Line = Field("fairlot", description="Prefix of the namespace of each team.")
    writes_per_second: Number = Field(
        50, description="Most changes a second that Fairlot makes in the cluster."
    )
    writes_at_once: Whole = 100
    checkpoint_claim: Line = Field(
        "", description="PersistentVolumeClaim in the namespace of each team; each job gets a folder in it."
    )


class Reachable(Schema):
    ranges: list[Line] = Field(
        description="Ranges of addresses in CIDR notation. If empty, jobs reach only the namespace of their team."
    )


class StandalonePods(WithOldNames, Schema):
    standalone_pods: Flag = Field(
        description="Whether new jobs of one worker run as pods without a Kubernetes Job."
    )
    bare_pods: Flag | None = read_as("standalone_pods")


class ClusterAccess(WithOldNames, Schema):
    server: str
    user: str = Field(description="The name of Fairlot's account in the cluster.")
    version: str
    namespace_prefix: str
    checkpoint_claim: str
    reachable: list[str] = Field(description="Ranges of addresses that jobs in the cluster may reach.")
    standalone_pods: bool = Field(
        description="Whether new jobs of one worker run as pods without a Kubernetes Job."
    )
    bare_pods: bool = answered_too("standalone_pods")
    checked_at: datetime | None
    trouble: str = Field(description="Problems of the cluster in plain words; empty without problems.")
    rights: dict[str, bool] = Field(description="Whether Fairlot has each right that it needs.")
    beyond: list[str] = Field(description="Rights that Fairlot has and does not need.")
    podgroups: str = Field(
        description="Version of PodGroups that the cluster offers for gangs; empty if it offers none."
    )


class AttachedCluster(Schema):
    name: str
    backend: str
    detached_at: datetime | None
    access: ClusterAccess | None = Field(description="Null unless this is an attached Kubernetes cluster.")


class PolicyChoice(Schema):
    name: Line
    options: dict[str, Flag | float | Line] = Field(
        default_factory=dict,
        description="Options whose values differ from the default. `choices` of the policy lists all options.",
    )


class PolicyVersion(Schema):
    name: Line
    version: Whole = Field(ge=1, le=32_767)


class NewPolicy(PolicyChoice):
    shadow: PolicyVersion | None = Field(
        None,
        description="A policy whose decisions have no effect and are only compared; null for no shadow policy.",
    )


class PolicyOption(Schema):
    name: str
    default: bool | float | str
    description: str
    choices: list[str] = Field(description="Accepted words; empty for options of other types.")
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
