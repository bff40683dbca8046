"""Creates the namespaces of tenants and isolates them from each other. Needs no rights except those that
deploy/kubernetes grants to Fairlot.

Every step is idempotent, and several processes may run it at the same time. Objects that are already correct stay
unchanged.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scheduling.backends.kubernetes import probes
from scheduling.backends.kubernetes.api import Api, Missing, Object, Taken
from scheduling.backends.network_sources import Place, Pods, hidden_in

TENANT, CLUSTER = "fairlot.io/tenant", "fairlot.io/cluster"
MANAGED = {"app.kubernetes.io/managed-by": "fairlot"}
# Fairlot's service account in a cluster, that account's namespace, and the ClusterRole that it binds in tenants'
# namespaces.
ACCOUNT, HOME, ROLE = "fairlot", "fairlot", "fairlot-tenant"
# The service account of tenants' pods, which has no rights.
JOB_ACCOUNT = "fairlot-job"
# Seconds until an API server must apply rights that it has granted. Usually it needs much less than a second.
RIGHTS_SECONDS = 10.0
NODE_LOCAL_DNS = "169.254.20.10/32"


class Unusable(Exception):
    """Raised when no job can run in a tenant's namespace. The message gives users the reason."""


@dataclass(frozen=True, slots=True)
class NamespaceIsolation:
    """The settings that isolate a tenant's namespace: the limits for its pods, and the addresses with which they may
    communicate."""

    gpus: Mapping[str, int]  # limit per extended resource, such as {"nvidia.com/gpu": 64}
    pods: int
    # Address ranges, such as "10.20.0.0/16", that the pods may reach besides DNS and each other.
    reachable: Sequence[str] = ()
    portal: Sequence[Place] = ()  # addresses or pods of the web servers that connect to notebook sessions


def name_of(tenant_id: int, prefix: str = "fairlot") -> str:
    return f"{prefix}-{tenant_id}"


def ensure(
    api: Api, tenant_id: int, isolation: NamespaceIsolation, *, cluster: str, prefix: str = "fairlot"
) -> str:
    """Creates or repairs the tenant's namespace and the objects in it. Returns the namespace's name.

    - `cluster`: Fairlot's ID of the cluster (Cluster.uid).
    - `prefix`: the beginning of the namespace's name.

    Raises Unusable if no job can run in the namespace. If the call raises Refused or Unreachable, the caller must
    repeat it, because the namespace may be incomplete.
    """
    name = name_of(tenant_id, prefix)
    # The label CLUSTER distinguishes two installations of Fairlot that share one cluster.
    _create_or_repair(api, name, {**_labels(), TENANT: str(tenant_id), CLUSTER: cluster})
    _bind_role(api, name)
    _wait_for_rights(api, name)
    # The service account comes last, because a user who sees it may already run pods.
    for path, thing in (
        (f"/api/v1/namespaces/{name}/resourcequotas", _quota(isolation)),
        (f"/apis/networking.k8s.io/v1/namespaces/{name}/networkpolicies", _network(isolation)),
        (f"/apis/networking.k8s.io/v1/namespaces/{name}/networkpolicies", _sessions(isolation)),
        (f"/api/v1/namespaces/{name}/serviceaccounts", _job_account()),
    ):
        api.apply(f"{path}/{thing['metadata']['name']}", thing)
    return name


def _labels() -> dict[str, str]:
    found = dict(MANAGED)
    for level in ("enforce", "warn", "audit"):
        found[f"pod-security.kubernetes.io/{level}"] = "restricted"
        # Without a version, the API server's configuration may select an old version that forbids nothing.
        found[f"pod-security.kubernetes.io/{level}-version"] = "latest"
    return found


def _create_or_repair(api: Api, name: str, labels: Mapping[str, str]) -> None:
    path = f"/api/v1/namespaces/{name}"
    try:
        there = api.get(path)
    except Missing:
        thing = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": dict(labels)}}
        try:
            there = api.create("/api/v1/namespaces", thing)
        except Taken:  # another process of Fairlot, or someone else, has just created it
            there = api.get(path)
    _check_owner(there, labels)
    found = there["metadata"]["labels"]
    if wrong := {key: value for key, value in labels.items() if found.get(key) != value}:
        uid = {"op": "test", "path": "/metadata/uid", "value": there["metadata"]["uid"]}
        api.patch(path, [uid, *({"op": "add", "path": _label(key), "value": wrong[key]} for key in wrong)])


def _check_owner(there: Object, labels: Mapping[str, str]) -> None:
    """Raises Unusable if the existing namespace `there` is being deleted, or does not belong to this tenant and
    installation.

    `labels`: the labels that a namespace of this tenant and this installation of Fairlot has.
    """
    name, found = there["metadata"]["name"], there["metadata"].get("labels", {})
    if TENANT not in found:
        raise Unusable(
            f"The namespace {name} exists, but Fairlot did not create it: it has no label {TENANT}. Delete it, or"
            " give the cluster another prefix for namespaces."
        )
    if found[TENANT] != labels[TENANT]:
        raise Unusable(
            f"The namespace {name} belongs to the team {found[TENANT]}, not to {labels[TENANT]}: see label {TENANT}."
        )
    if found.get(CLUSTER, labels[CLUSTER]) != labels[CLUSTER]:
        raise Unusable(
            f"The namespace {name} was created by another Fairlot, or before this cluster was attached again. "
            "If another Fairlot uses the namespace, give this cluster another prefix for namespaces. "
            f"Otherwise run: kubectl label namespace {name} {CLUSTER}-"
        )
    if "deletionTimestamp" in there["metadata"]:
        raise Unusable(
            f"The namespace {name} is being deleted; jobs can start when the deletion is complete."
        )


def _bind_role(api: Api, namespace: str) -> None:
    bindings = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings"
    wanted = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": ACCOUNT, "labels": MANAGED},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": ROLE},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": HOME}],
    }
    try:
        there = api.get(f"{bindings}/{ACCOUNT}")
    except Missing:
        try:
            there = api.create(bindings, wanted)
        except Taken:
            there = api.get(f"{bindings}/{ACCOUNT}")
    if (there["roleRef"], there.get("subjects")) != (wanted["roleRef"], wanted["subjects"]):
        raise Unusable(
            f"Someone else changed the RoleBinding {ACCOUNT} in the namespace {namespace}. Delete the RoleBinding;"
            " Fairlot then creates it again."
        )


def _wait_for_rights(api: Api, namespace: str) -> None:
    """Waits until Fairlot's rights in the namespace work, because API servers apply new role bindings with a delay.

    Raises Unusable after RIGHTS_SECONDS.
    """
    asked = {"verb": "create", "group": "batch", "resource": "jobs", "namespace": namespace}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": asked},
    }
    deadline, pause = time.monotonic() + RIGHTS_SECONDS, 0.02
    while True:
        answer = api.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
        if answer["status"].get("allowed"):
            return
        if time.monotonic() > deadline:
            raise Unusable(
                f"Fairlot has no rights in the namespace {namespace}. Apply deploy/kubernetes again, which contains "
                f"the ClusterRole {ROLE}, and use the kubeconfig of Fairlot's service account."
            )
        time.sleep(pause)
        pause = min(2 * pause, 1.0)


def _quota(isolation: NamespaceIsolation) -> Object:
    """Returns the namespace's ResourceQuota. It is only a second safeguard, because Fairlot itself already enforces the
    tenant's limit."""
    gpus = {f"requests.{resource}": str(count) for resource, count in isolation.gpus.items()}
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "fairlot", "labels": MANAGED},
        "spec": {"hard": {**gpus, "pods": str(isolation.pods)}},
    }


def _network(isolation: NamespaceIsolation) -> Object:
    """Returns a NetworkPolicy that allows only connections to DNS, to the addresses in `isolation.reachable`, and
    between pods of the namespace.

    Pods of different jobs in one namespace can reach each other. A NetworkPolicy cannot select "pods of the same job",
    because a selector compares a label with a fixed value, not with the label of another pod.
    """
    names = {
        "to": [
            {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
                "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
            },
            {"ipBlock": {"cidr": NODE_LOCAL_DNS}},
        ],
        "ports": [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")],
    }
    outside = (
        [{"to": [{"ipBlock": _block(cidr)} for cidr in isolation.reachable]}] if isolation.reachable else []
    )
    each_other: list[Object] = [{"podSelector": {}}]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "fairlot", "labels": MANAGED},
        "spec": {
            "podSelector": {},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": each_other}],
            "egress": [{"to": each_other}, names, *outside],
        },
    }


def _sessions(isolation: NamespaceIsolation) -> Object:
    """Returns a NetworkPolicy that allows connections from the portal's web servers to the port of notebook sessions.

    If the portal's addresses are not configured, the policy allows no connection. Fairlot keeps the policy in this
    case, because it has no right to delete policies.
    """
    # Without sources the policy has no rule, because a rule with an empty "from" would admit everyone.
    rule = {"from": [_peer(place) for place in isolation.portal], "ports": [_PORT]}
    let_in = {"ingress": [rule]} if isolation.portal else {}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "fairlot-sessions", "labels": MANAGED},
        "spec": {
            "podSelector": {"matchLabels": probes.SESSION},
            "policyTypes": ["Ingress"],
            **let_in,
        },
    }


_PORT = {"protocol": "TCP", "port": probes.PORT_NAME}


def _peer(place: Place) -> Object:
    if not isinstance(place, Pods):
        return {"ipBlock": {"cidr": place.cidr}}
    return {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": place.namespace}},
        "podSelector": {"matchLabels": {place.label: place.value}},
    }


def _block(cidr: str) -> Object:
    hidden = hidden_in(cidr)
    return {"cidr": cidr, "except": hidden} if hidden else {"cidr": cidr}


def _job_account() -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": JOB_ACCOUNT, "labels": MANAGED},
        "automountServiceAccountToken": False,
    }


def _label(key: str) -> str:
    """Returns the JSON Pointer (RFC 6901) of a label in an object's metadata."""
    return "/metadata/labels/" + key.replace("~", "~0").replace("/", "~1")
