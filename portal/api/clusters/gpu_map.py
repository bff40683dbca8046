"""The endpoint for the GPU map.

For every node, it returns the allocations to jobs that the caller may see, and how many GPUs are allocated to other
jobs.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from ninja import Router

from accounting.core.name_order import by_name
from portal.api.clusters import schemas
from portal.user_request import ApiRequest
from scheduling.models import Cluster, HeldGpu, Job, Node

router = Router(tags=["Cluster"])


@router.get("/gpu-map", response=list[schemas.Cluster], url_name="gpu_map")
def gpu_map(request: ApiRequest) -> list[dict[str, Any]]:
    """Returns the attached clusters, their nodes, and the current allocations of their GPUs."""
    mine: dict[int, dict[tuple[int, str], list[int]]] = defaultdict(lambda: defaultdict(list))
    others: dict[int, int] = defaultdict(int)
    visible = set(Job.objects.visible_to(request.auth).unfinished().values_list("pk", flat=True))
    held = HeldGpu.objects.filter(during__isnull=False, during__endswith__isnull=True)
    for node_id, gpu, job, team in held.values_list(
        "node_id", "gpu_index", "lease__job_id", "lease__job__tenant__slug"
    ):
        if job in visible:
            mine[node_id][job, team].append(gpu)
        else:
            others[node_id] += 1
    nodes = defaultdict(list)
    for node in Node.objects.present().select_related("generation"):
        nodes[node.cluster_id].append(_show(node, mine[node.pk], others[node.pk]))
    return [
        {
            "name": cluster.name,
            "paused": cluster.paused_at is not None,
            "paused_reason": cluster.paused_reason,
            "quantum_seconds": cluster.effective_quantum,
            "nodes": nodes[cluster.pk],
        }
        for cluster in Cluster.objects.attached().order_by(*by_name("name"))
    ]


def _show(node: Node, held: dict[tuple[int, str], list[int]], others: int) -> dict[str, Any]:
    return {
        "name": node.name,
        "generation": node.generation.name,
        "gpus": node.gpus,
        "state": node.state,
        "state_reason": node.state_reason,
        "drain_deadline": node.drain_deadline,
        "allocations": [
            {"job": job, "team": team, "gpu_indices": sorted(gpus)}
            for (job, team), gpus in sorted(held.items())
        ],
        "gpus_of_others": others,
    }
