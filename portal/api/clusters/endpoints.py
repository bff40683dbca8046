"""Endpoints for clusters, their nodes and their policies, for operators and admins. Other callers get 404."""

from __future__ import annotations

from typing import Any

from django.shortcuts import get_object_or_404
from ninja import Router
from ninja.responses import Status

from accounting.core.errors import Refused
from accounting.core.name_order import by_name
from fairshare import policies
from fairshare.policies.base import options_of
from portal.api.auth import require_permission
from portal.api.clusters import schemas
from portal.api.limits.endpoints import in_api
from portal.api.limits.schemas import ShareChange
from portal.api.versions import IfMatch, versions_in
from portal.user_request import ApiRequest
from scheduling.clusters import attaching
from scheduling.clusters.actions import check_options, update_cluster
from scheduling.clusters.attaching import attach_cluster, check_cluster, detach_cluster, replace_kubeconfig
from scheduling.clusters.proposals import SETTINGS, changes_by
from scheduling.draining.actions import drain_node, drain_nodes, return_node, return_nodes
from scheduling.draining.consequences import Consequences, consequences_of
from scheduling.draining.drained_jobs import jobs_to_drain
from scheduling.models import Cluster, Job, Node
from scheduling.models.versions import version_of
from scheduling.rounds.comparison import compare
from scheduling.shares.preview import preview_policy
from scheduling.shares.situations import OWN_SETTINGS, options_as_json, policy_of_cluster

router = Router(tags=["Administration"])


@router.get("/clusters", response=list[schemas.AttachedCluster], url_name="clusters")
def clusters(request: ApiRequest) -> list[dict[str, Any]]:
    """Returns all clusters, including detached ones. For operators."""
    require_permission(request, "cluster.read")
    return [_show(cluster) for cluster in Cluster.objects.select_related("access").order_by(*by_name("name"))]


@router.post("/clusters", response={201: schemas.AttachedCluster}, url_name="clusters")
def attach(request: ApiRequest, new: schemas.NewCluster) -> Status[Any]:
    """Attaches a Kubernetes cluster. If a detached cluster has the given name, that cluster is attached again. For
    admins."""
    require_permission(request, "cluster.attach")
    arguments = new.dict() | {"kubeconfig": new.kubeconfig.get_secret_value()}
    return Status(201, _show(attach_cluster(actor=request.auth, **arguments)))


@router.get("/clusters/{name}", response=schemas.AttachedCluster, url_name="one_cluster")
def one(request: ApiRequest, name: str) -> dict[str, Any]:
    """Returns a cluster with the result of its last check. For operators."""
    return _show(_found(request, name))


@router.post("/clusters/{name}/check", response=schemas.AttachedCluster, url_name="cluster_check")
def check(request: ApiRequest, name: str) -> dict[str, Any]:
    """Checks now whether Fairlot can access the cluster, and returns the result of the check. For operators."""
    cluster = _found(request, name)
    check_cluster(actor=request.auth, cluster=cluster)
    return _show(_found(request, name))


@router.put("/clusters/{name}/kubeconfig", response=schemas.AttachedCluster, url_name="cluster_kubeconfig")
def replace(request: ApiRequest, name: str, given: schemas.NewKubeconfig) -> dict[str, Any]:
    """Replaces the kubeconfig of a cluster. For admins."""
    require_permission(request, "cluster.attach")
    kubeconfig = given.kubeconfig.get_secret_value()
    replace_kubeconfig(actor=request.auth, cluster=_found(request, name), kubeconfig=kubeconfig)
    return _show(_found(request, name))


@router.put("/clusters/{name}/reachable", response=schemas.AttachedCluster, url_name="cluster_reachable")
def set_reachable(request: ApiRequest, name: str, given: schemas.Reachable) -> dict[str, Any]:
    """Sets the address ranges outside a team's namespace to which the team's jobs in the cluster may connect. For
    admins."""
    require_permission(request, "cluster.attach")
    attaching.set_reachable(actor=request.auth, cluster=_found(request, name), ranges=" ".join(given.ranges))
    return _show(_found(request, name))


@router.put(
    "/clusters/{name}/standalone-pods", response=schemas.AttachedCluster, url_name="cluster_standalone_pods"
)
def set_standalone_pods(request: ApiRequest, name: str, given: schemas.StandalonePods) -> dict[str, Any]:
    """Sets whether a new job with one worker runs as a bare pod, without a Kubernetes Job. For admins."""
    require_permission(request, "cluster.attach")
    attaching.set_bare_pods(
        actor=request.auth, cluster=_found(request, name), bare_pods=given.standalone_pods
    )
    return _show(_found(request, name))


@router.post("/clusters/{name}/detach", response=schemas.AttachedCluster, url_name="cluster_detach")
def detach(request: ApiRequest, name: str) -> dict[str, Any]:
    """Detaches a cluster and deletes its kubeconfig. For admins.

    Refused (409) while the cluster has jobs that have not ended.
    """
    require_permission(request, "cluster.attach")
    detach_cluster(actor=request.auth, cluster=_found(request, name))
    return _show(_found(request, name))


@router.get("/clusters/{name}/policy", response=schemas.Policy, url_name="cluster_policy")
def policy(request: ApiRequest, name: str) -> dict[str, Any]:
    """Returns the scheduling policy of a cluster, the policy's options, and the shadow policy. For operators."""
    return _policy(_found(request, name))


@router.get("/clusters/{name}/settings", response=schemas.Settings, url_name="cluster_settings")
def settings(request: ApiRequest, name: str) -> dict[str, Any]:
    """Returns the scheduling settings of a cluster. For operators."""
    return _settings(_found(request, name))


@router.patch("/clusters/{name}/settings", response=schemas.SettingsAnswer, url_name="cluster_settings")
def change_settings(
    request: ApiRequest, name: str, given: schemas.NewSettings, if_match: IfMatch = None
) -> dict[str, Any]:
    """Changes the given scheduling settings of a cluster, from the next round on, and returns what changed. With
    `dry_run`, changes nothing. For admins."""
    require_permission(request, "cluster.update")
    cluster = _found(request, name)
    values = given.dict(exclude_unset=True, exclude={"dry_run"})
    changes = changes_by(cluster, values)
    if values and not given.dry_run:
        cluster = update_cluster(actor=request.auth, cluster=cluster, seen=versions_in(if_match), **values)
    return {"settings": _settings(cluster), "changes": changes, "version": version_of(cluster)}


def _settings(cluster: Cluster) -> dict[str, Any]:
    names = [*SETTINGS, "effective_quantum"]
    return {name: getattr(cluster, name) for name in names} | {"version": version_of(cluster)}


@router.put("/clusters/{name}/policy", response=schemas.Policy, url_name="cluster_policy")
def set_policy(request: ApiRequest, name: str, given: schemas.NewPolicy) -> dict[str, Any]:
    """Sets the scheduling policy of a cluster, its options, and the shadow policy. For admins.

    The change takes effect in the next round.
    """
    require_permission(request, "cluster.update")
    shadow = [given.shadow.name, given.shadow.version] if given.shadow else None
    cluster = update_cluster(
        actor=request.auth,
        cluster=_found(request, name),
        policy=given.name,
        policy_options=given.options,
        shadow=shadow,
    )
    return _policy(cluster)


@router.post("/clusters/{name}/policy/preview", response=list[ShareChange], url_name="cluster_policy_preview")
def preview(request: ApiRequest, name: str, given: schemas.PolicyChoice) -> list[dict[str, Any]]:
    """Returns how the current shares would change if the cluster used the given policy. Nothing is saved. For
    admins."""
    require_permission(request, "cluster.update")
    check_options(given.name, given.options)
    return [in_api(row) for row in preview_policy(_found(request, name), given.name, given.options)]


@router.get(
    "/clusters/{name}/policy/comparison", response=schemas.Comparison, url_name="cluster_policy_comparison"
)
def comparison(request: ApiRequest, name: str) -> dict[str, Any]:
    """Compares the decisions of a cluster's policy and of its shadow policy in the rounds of the last day. For
    operators."""
    found = compare(_found(request, name))
    return {
        "policy": found.real_name,
        "shadow": found.shadow_name,
        "rounds": found.rounds,
        "since": found.since,
        "figures": [{"name": one.name, "policy": one.real, "shadow": one.shadow} for one in found.figures],
        "shares": [
            {
                "team": one.tenant.slug,
                "generation": one.generation,
                "policy": one.real,
                "shadow": one.shadow,
            }
            for one in found.shares
        ],
    }


def _policy(cluster: Cluster) -> dict[str, Any]:
    now = policy_of_cluster(cluster)
    shadow = cluster.shadow
    return {
        "name": now.name,
        "version": now.version,
        "options": options_as_json(now),
        "shadow": {"name": shadow[0], "version": shadow[1]} if shadow else None,
        "choices": [
            {
                "name": name,
                "options": [
                    {
                        "name": one.name,
                        "default": one.default,
                        "description": one.doc,
                        "choices": list(one.choices),
                        "least": one.least,
                        "most": one.most,
                    }
                    for one in options_of(policies.policy_type(name))
                    if one.name not in OWN_SETTINGS
                ],
            }
            for name in policies.names()
        ],
    }


NODE = "/clusters/{name}/nodes/{path:node}"


@router.get(f"{NODE}/drain", response=schemas.DrainedNode, url_name="node_drain")
def drained(request: ApiRequest, name: str, node: str) -> dict[str, Any]:
    """Returns a node, and the jobs that its drain affects. For operators.

    If the node is not being drained, returns the jobs that a drain would affect.
    """
    return _drained(request, _node(request, name, node))


@router.post(f"{NODE}/drain", response=schemas.DrainedNode, url_name="node_drain")
def drain(request: ApiRequest, name: str, node: str, how: schemas.Drain) -> dict[str, Any]:
    """Drains a node. No new job starts on it. Its running jobs finish, end by a deadline, or stop now. For
    operators."""
    found = _node(request, name, node)
    drain_node(actor=request.auth, node=found, **how.dict())
    return _drained(request, _node(request, name, node))


@router.delete(f"{NODE}/drain", response=schemas.DrainedNode, url_name="node_drain")
def return_to_use(request: ApiRequest, name: str, node: str) -> dict[str, Any]:
    """Ends the drain of a node, so that new jobs may start on it again. Jobs that still run on it continue. For
    operators."""
    return_node(actor=request.auth, node=_node(request, name, node))
    return _drained(request, _node(request, name, node))


@router.post("/clusters/{name}/drain", response=schemas.DrainedNodes, url_name="nodes_drain")
def drain_several(request: ApiRequest, name: str, how: schemas.DrainOfNodes) -> dict[str, Any]:
    """Drains several nodes of a cluster together, or returns what that would affect. For operators."""
    found = _nodes(request, name, how.nodes)
    if not how.dry_run:
        values = how.dict(exclude={"nodes", "dry_run"})
        drain_nodes(actor=request.auth, nodes=found, **values)
    return _several(request, _nodes(request, name, how.nodes))


@router.post("/clusters/{name}/return", response=schemas.DrainedNodes, url_name="nodes_return")
def return_several(request: ApiRequest, name: str, given: schemas.SomeNodes) -> dict[str, Any]:
    """Ends the drain of several nodes of a cluster, so that new jobs may start on them again. For operators."""
    return_nodes(actor=request.auth, nodes=_nodes(request, name, given.nodes))
    return _several(request, _nodes(request, name, given.nodes))


def _several(request: ApiRequest, nodes: list[Node]) -> dict[str, Any]:
    return {"nodes": [_state_of(node) for node in nodes], **_jobs_on(request, nodes)}


def _nodes(request: ApiRequest, cluster: str, names: list[str]) -> list[Node]:
    """Returns the nodes of the cluster with these names. Raises Refused for a name that no node has."""
    of_cluster = Node.objects.present().filter(cluster=_found(request, cluster), name__in=names)
    found = {node.name: node for node in of_cluster}
    missing = [name for name in names if name not in found]
    if missing:
        raise Refused(f"The cluster {cluster} has no node {missing[0]}.", "nodes")
    return [found[name] for name in dict.fromkeys(names)]


def _node(request: ApiRequest, cluster: str, name: str) -> Node:
    return get_object_or_404(Node.objects.present(), cluster=_found(request, cluster), name=name)


def _drained(request: ApiRequest, node: Node) -> dict[str, Any]:
    return _state_of(node) | _jobs_on(request, [node])


def _state_of(node: Node) -> dict[str, Any]:
    return {
        "name": node.name,
        "state": node.state,
        "state_reason": node.state_reason,
        "drain_deadline": node.drain_deadline,
    }


def _jobs_on(request: ApiRequest, nodes: list[Node]) -> dict[str, Any]:
    jobs = jobs_to_drain(nodes, request.auth)
    return {
        "jobs": [
            {
                "job": one.job.pk,
                "name": one.job.name,
                "kind": one.job.kind,
                "service": one.job.service and one.job.service.name,
                "team": one.job.tenant.slug,
                "owner": one.job.owner.get_username(),
                "gpus": one.gpus,
                "gpus_elsewhere": one.gpus_elsewhere,
                "since": one.since,
                "ends": one.ends,
            }
            for one in jobs.seen
        ],
        "hidden_jobs": jobs.hidden,
        "left": _left(consequences_of(nodes, jobs, request.auth)),
    }


def _left(found: Consequences) -> dict[str, Any]:
    return {
        "waiting": [_stranded(job) for job in found.stranded],
        "more_waiting": found.more,
        "stuck": [_stranded(job) for job in found.stuck],
        "keeps_nodes": found.keeps_nodes,
        "services": [
            {"service": one.service.name, "lost": one.lost, "wanted": one.wanted} for one in found.services
        ],
        "reservations": [
            {
                "id": one.reservation.pk,
                "name": one.reservation.name,
                "team": one.reservation.tenant.slug,
                "gpus": one.gpus,
                "begins": one.window.begins,
                "ends": one.window.ends,
            }
            for one in found.reservations
        ],
        "capacity": [
            {"generation": one.generation, "before": one.before, "after": one.after} for one in found.capacity
        ],
    }


def _stranded(job: Job) -> dict[str, Any]:
    return {
        "job": job.pk,
        "name": job.name,
        "team": job.tenant.slug,
        "owner": job.owner.get_username(),
        "gpus": job.gpus,
    }


def _found(request: ApiRequest, name: str) -> Cluster:
    require_permission(request, "cluster.read")
    return get_object_or_404(Cluster.objects.select_related("access"), name=name)


def _show(cluster: Cluster) -> dict[str, Any]:
    """Converts a cluster to the fields of the API's response, without the cluster's credentials."""
    access = getattr(cluster, "access", None)
    shown = (
        "server",
        "user",
        "version",
        "namespace_prefix",
        "checkpoint_claim",
        "reachable",
        "checked_at",
        "trouble",
        "rights",
        "beyond",
        "podgroups",
    )
    return {
        "name": cluster.name,
        "backend": cluster.backend,
        "detached_at": cluster.detached_at,
        "access": {field: getattr(access, field) for field in shown} | {"standalone_pods": access.bare_pods}
        if access
        else None,
    }
