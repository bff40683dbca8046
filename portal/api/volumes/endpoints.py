"""Endpoints for volumes: list the volumes that jobs may mount; operators also grant and withdraw volumes."""

from __future__ import annotations

from typing import Any

from django.http import Http404
from django.shortcuts import get_object_or_404
from ninja import Router
from ninja.responses import Status

from accounting.models import Tenant
from portal.api.auth import require_permission
from portal.api.volumes import schemas
from portal.user_request import ApiRequest
from scheduling.jobs.volumes import grant_volume, withdraw_volume
from scheduling.models import Cluster, Volume

router = Router(tags=["Volumes"])


@router.get("/volumes", response=list[schemas.Volume], url_name="volumes")
def volumes(request: ApiRequest) -> list[dict[str, Any]]:
    """Returns the volumes that jobs of the caller may mount. Operators get all volumes."""
    found = Volume.objects.visible_to(request.auth).filter(cluster__detached_at=None)
    return [_show(one) for one in found.select_related("tenant", "cluster")]


@router.post("/clusters/{name}/volumes", response={201: schemas.GrantedVolume}, url_name="cluster_volumes")
def grant(request: ApiRequest, name: str, new: schemas.NewVolume) -> Status[Any]:
    """Grants a volume: allows jobs of one team, or of every team, to mount it. For operators.

    The volume is a persistent volume claim or, on a local cluster, a folder.
    """
    made = grant_volume(
        actor=request.auth,
        cluster=_cluster(request, name),
        name=new.name,
        source=new.source,
        read_only=new.read_only,
        tenant=get_object_or_404(Tenant.objects.active(), slug=new.team) if new.team else None,
    )
    return Status(201, _show(made))


@router.delete("/clusters/{name}/volumes/{int:volume_id}", response={204: None}, url_name="cluster_volume")
def withdraw(request: ApiRequest, name: str, volume_id: int) -> Status[Any]:
    """Withdraws a volume. From then on, no attempt that mounts the volume starts. For operators."""
    if volume_id >= 2**63:
        raise Http404
    found = get_object_or_404(Volume, cluster=_cluster(request, name), pk=volume_id)
    withdraw_volume(actor=request.auth, volume=found)
    return Status(204, None)


def _cluster(request: ApiRequest, name: str) -> Cluster:
    require_permission(request, "volume.grant")
    return get_object_or_404(Cluster.objects.attached(), name=name)


def _show(volume: Volume) -> dict[str, Any]:
    same = ("id", "name", "source", "read_only", "created_at")
    return {name: getattr(volume, name) for name in same} | {
        "cluster": volume.cluster.name,
        "team": volume.tenant.slug if volume.tenant else "",
    }
