"""The rights that Fairlot needs in a cluster, and the rights that it should not have.

The roles in deploy/kubernetes grant exactly the needed rights; a test compares the roles with this file. When a cluster
is attached, the check of its kubeconfig asks the API server about each right.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

TENANT_ROLE = "fairlot-tenant"


@dataclass(frozen=True, slots=True)
class Right:
    """A right as the API server checks it: one verb on one resource."""

    verb: str
    group: str
    resource: str  # may have a subresource, such as "pods/log"
    name: str = ""  # the only object that the right covers; empty: all objects
    in_team: bool = False  # whether the right holds in a team's namespace; otherwise in the whole cluster

    @property
    def key(self) -> str:
        """Returns the text that identifies the right in the database and in the UI."""
        of = f"{self.resource}.{self.group}" if self.group else self.resource
        only = f" {self.name}" if self.name else ""
        return f"{self.verb} {of}{only}{' of a team' if self.in_team else ''}"


@dataclass(frozen=True, slots=True)
class Need:
    """The verbs that Fairlot needs on one resource, and why it needs them."""

    group: str
    resource: str
    verbs: tuple[str, ...]
    why: str
    name: str = ""
    in_team: bool = False
    is_optional: bool = False  # whether jobs also run without these rights

    def rights(self) -> Iterator[Right]:
        for verb in self.verbs:
            yield Right(verb, self.group, self.resource, self.name, self.in_team)


RBAC, ADMISSION = "rbac.authorization.k8s.io", "admissionregistration.k8s.io"
# Names of the admission policies of deploy/kubernetes, and the value of their label app.kubernetes.io/version, which
# grows with every change.
POLICIES = frozenset(
    {
        "fairlot-account",
        "fairlot-confined",
        "fairlot-deletes",
        "fairlot-gpus",
        "fairlot-gpus-in-templates",
        "fairlot-jobs",
        "fairlot-namespaces",
        "fairlot-placement",
        "fairlot-podgroups",
        "fairlot-pods",
        "fairlot-secrets",
        "fairlot-secrets-in-pods",
        "fairlot-services",
        "fairlot-status",
        "fairlot-work",
    }
)
POLICIES_VERSION = 2
# Rights that the ClusterRole fairlot grants.
EVERYWHERE = (
    Need(
        "",
        "nodes",
        ("get", "list", "watch"),
        "finds the GPUs of nodes, and the reasons why GPUs cannot be used",
    ),
    Need("", "pods", ("list", "watch"), "lets Fairlot see which pods run, and which other pods hold GPUs"),
    Need("batch", "jobs", ("list", "watch"), "lets Fairlot see whether its Jobs succeed or fail"),
    Need("", "events", ("list", "watch"), "shows users why a pod does not start"),
    Need("", "namespaces", ("get", "list", "create", "patch"), "creates a namespace for each team"),
    Need(
        ADMISSION,
        "validatingadmissionpolicies",
        ("list",),
        "reads the version of Fairlot's admission policies",
    ),
    Need(
        ADMISSION,
        "validatingadmissionpolicybindings",
        ("list",),
        "checks whether Fairlot's admission policies are in force",
    ),
    Need(RBAC, "rolebindings", ("get", "create"), "gives Fairlot its role in a team's namespace"),
    Need(
        RBAC,
        "clusterroles",
        ("bind",),
        "gives Fairlot the role fairlot-tenant and no other role",
        TENANT_ROLE,
    ),
)
_IN_TEAMS = (
    ("batch", "jobs", ("get", "create", "patch", "delete"), "starts, stops and moves gangs"),
    (
        "",
        "pods",
        ("get", "create", "patch", "delete"),
        "opens the scheduling gates of a gang's pods; creates and deletes pods that have no Job",
    ),
    ("", "pods/log", ("get",), "shows logs"),
    (
        "",
        "services",
        ("get", "create", "delete"),
        "lets the workers of a gang find each other, and lets clients find services",
    ),
    ("", "configmaps", ("get", "create", "delete"), "gives the workers of a gang their host file"),
    ("", "secrets", ("create", "update"), "gives secrets to pods; cannot list or read secrets"),
    (
        "",
        "persistentvolumeclaims",
        ("get", "list"),
        "finds the PersistentVolumeClaims of the volumes that a team may use",
    ),
    ("", "resourcequotas", ("create", "patch"), "limits the resources of a team's namespace"),
    ("", "serviceaccounts", ("create", "patch"), "runs pods as an account without rights"),
    (
        "networking.k8s.io",
        "networkpolicies",
        ("create", "patch"),
        "isolates the pods of each team from those of other teams",
    ),
)
# Rights that the ClusterRole fairlot-tenant grants.
IN_TEAMS = (
    *(Need(group, resource, verbs, why, in_team=True) for group, resource, verbs, why in _IN_TEAMS),
    Need(
        "scheduling.k8s.io",
        "podgroups",
        ("get", "create"),
        "optional: lets Kubernetes start all pods of a gang together, if the cluster supports this",
        in_team=True,
        is_optional=True,
    ),
)
# Keys of rights that may be missing.
OPTIONAL = frozenset(
    right.key for need in (*EVERYWHERE, *IN_TEAMS) if need.is_optional for right in need.rights()
)
# (verb, group, resource, description): rights that allow far more than running jobs.
_BEYOND = (
    ("get", "", "secrets", "read every secret of the cluster"),
    ("create", "", "pods", "start pods in every namespace"),
    ("create", "", "pods/exec", "run commands in every pod"),
    ("create", RBAC, "clusterrolebindings", "grant rights in the whole cluster"),
    ("bind", RBAC, "clusterroles", "grant any role to anybody"),
    ("escalate", RBAC, "clusterroles", "create roles with any rights"),
    ("impersonate", "", "users", "act as any user"),
    ("patch", "", "nodes", "change nodes"),
    ("delete", "", "namespaces", "delete every namespace"),
)
BEYOND = tuple((Right(verb, group, resource), words) for verb, group, resource, words in _BEYOND)
ANYTHING = Right("*", "*", "*")


def needed(*, in_teams: bool) -> Iterator[Right]:
    """Yields every right that Fairlot needs. If `in_teams` is false, leaves out the rights inside teams' namespaces."""
    for need in (*EVERYWHERE, *(IN_TEAMS if in_teams else ())):
        yield from need.rights()
