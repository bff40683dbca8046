"""Clusters as operators see them, and what admins do with those of Kubernetes; for others they do not exist."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from ninja import Router
from ninja.responses import Status

from accounting.names import by_name
from portal.api import schemas
from portal.api.auth import require_permission
from scheduling import actions
from scheduling.drained_jobs import jobs_to_drain
from scheduling.models import Cluster, Node

router = Router(tags=["Administration"])


@router.get("/clusters", response=list[schemas.AttachedCluster], url_name="clusters")
def clusters(request: HttpRequest) -> list[dict[str, Any]]:
    """All clusters, detached ones too. For operators."""
    require_permission(request, "cluster.read")
    return [_show(cluster) for cluster in Cluster.objects.select_related("access").order_by(*by_name("name"))]


@router.post("/clusters", response={201: schemas.AttachedCluster}, url_name="clusters")
def attach(request: HttpRequest, new: schemas.NewCluster) -> Status:
    """Attaches a Kubernetes cluster, or a detached one again by its name. For admins."""
    require_permission(request, "cluster.attach")
    arguments = new.dict() | {"kubeconfig": new.kubeconfig.get_secret_value()}
    return Status(201, _show(actions.attach_cluster(actor=request.auth, **arguments)))


@router.get("/clusters/{name}", response=schemas.AttachedCluster, url_name="one_cluster")
def one(request: HttpRequest, name: str) -> dict[str, Any]:
    """One cluster, with what its last check found. For operators."""
    return _show(_found(request, name))


@router.post("/clusters/{name}/check", response=schemas.AttachedCluster, url_name="cluster_check")
def check(request: HttpRequest, name: str) -> dict[str, Any]:
    """Asks its API server now. For operators."""
    cluster = _found(request, name)
    actions.check_cluster(actor=request.auth, cluster=cluster)
    return _show(_found(request, name))


@router.put("/clusters/{name}/kubeconfig", response=schemas.AttachedCluster, url_name="cluster_kubeconfig")
def replace(request: HttpRequest, name: str, given: schemas.NewKubeconfig) -> dict[str, Any]:
    """Gives a new kubeconfig for the same cluster. For admins."""
    require_permission(request, "cluster.attach")
    kubeconfig = given.kubeconfig.get_secret_value()
    actions.replace_kubeconfig(actor=request.auth, cluster=_found(request, name), kubeconfig=kubeconfig)
    return _show(_found(request, name))


@router.put("/clusters/{name}/reachable", response=schemas.AttachedCluster, url_name="cluster_reachable")
def set_reachable(request: HttpRequest, name: str, given: schemas.Reachable) -> dict[str, Any]:
    """Which addresses jobs may reach there from now on. For admins."""
    require_permission(request, "cluster.attach")
    actions.set_reachable(actor=request.auth, cluster=_found(request, name), ranges=" ".join(given.ranges))
    return _show(_found(request, name))


@router.put("/clusters/{name}/bare-pods", response=schemas.AttachedCluster, url_name="cluster_bare_pods")
def set_bare_pods(request: HttpRequest, name: str, given: schemas.BarePods) -> dict[str, Any]:
    """Whether jobs of one worker that are submitted from now on run as pods without a Job. For admins."""
    require_permission(request, "cluster.attach")
    actions.set_bare_pods(actor=request.auth, cluster=_found(request, name), bare_pods=given.bare_pods)
    return _show(_found(request, name))


@router.post("/clusters/{name}/detach", response=schemas.AttachedCluster, url_name="cluster_detach")
def detach(request: HttpRequest, name: str) -> dict[str, Any]:
    """Forgets the kubeconfig; refused (409) while jobs have not ended there. For admins."""
    require_permission(request, "cluster.attach")
    actions.detach_cluster(actor=request.auth, cluster=_found(request, name))
    return _show(_found(request, name))


NODE = "/clusters/{name}/nodes/{path:node}"


@router.get(f"{NODE}/drain", response=schemas.DrainedNode, url_name="node_drain")
def drained(request: HttpRequest, name: str, node: str) -> dict[str, Any]:
    """The jobs that a drain of the node concerns. For operators."""
    return _drained(request, _node(request, name, node))


@router.post(f"{NODE}/drain", response=schemas.DrainedNode, url_name="node_drain")
def drain(request: HttpRequest, name: str, node: str, how: schemas.Drain) -> dict[str, Any]:
    """Lets nothing new start on a node, and running jobs finish, end by a deadline, or stop now. For operators."""
    found = _node(request, name, node)
    actions.drain_node(actor=request.auth, node=found, **how.dict())
    return _drained(request, _node(request, name, node))


@router.delete(f"{NODE}/drain", response=schemas.DrainedNode, url_name="node_drain")
def return_to_use(request: HttpRequest, name: str, node: str) -> dict[str, Any]:
    """Puts a drained node back to use; what runs there goes on. For operators."""
    actions.return_node(actor=request.auth, node=_node(request, name, node))
    return _drained(request, _node(request, name, node))


def _node(request: HttpRequest, cluster: str, name: str) -> Node:
    return get_object_or_404(Node, cluster=_found(request, cluster), name=name)


def _drained(request: HttpRequest, node: Node) -> dict[str, Any]:
    jobs = jobs_to_drain(node, request.auth)
    return {
        "name": node.name,
        "state": node.state,
        "state_reason": node.state_reason,
        "drain_deadline": node.drain_deadline,
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
    }


def _found(request: HttpRequest, name: str) -> Cluster:
    require_permission(request, "cluster.read")
    return get_object_or_404(Cluster.objects.select_related("access"), name=name)


def _show(cluster: Cluster) -> dict[str, Any]:
    """Never what was given to reach it."""
    access = getattr(cluster, "access", None)
    told = (
        "server",
        "user",
        "version",
        "namespace_prefix",
        "checkpoint_claim",
        "reachable",
        "bare_pods",
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
        "access": {field: getattr(access, field) for field in told} if access else None,
    }
