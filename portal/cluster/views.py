"""The page with the GPU map: who holds what, nodes by generation, and which job holds which GPU now."""

from __future__ import annotations

from django.http import HttpResponse
from django.views.decorators.http import require_safe

from accounting.core.clock import now_from_database
from accounting.core.name_order import by_name, name_key
from accounting.core.prepared import Prepared
from portal.cluster.choice import Choice, holders_of
from portal.cluster.gpu_map import legend_of, narrowed, read_gpu_map
from portal.fragments import render_page
from portal.live.topics import topics_of_jobs
from portal.user_request import UserRequest
from scheduling.models import Cluster

SHOWN_HOLDERS = 10


@require_safe
def cluster(request: UserRequest) -> HttpResponse:
    """Shows who holds GPUs, and the GPU maps of all attached clusters, one below the other. Most installations have
    one cluster."""
    clusters = _attached()
    now = now_from_database()
    choice = Choice.read(request)
    whole = [(one, read_gpu_map(one, request.user)) for one in clusters]
    gpu_maps = [(one, narrowed(rows, choice)) for one, rows in whole]
    held = holders_of(request.user, choice)
    context = {
        "choice": choice,
        "generations": sorted({row.generation.name for _, rows in whole for row in rows}, key=name_key),
        "holders": held.holders[:SHOWN_HOLDERS],
        "all_holders": len(held.holders),
        "more_holders": len(held.holders) > SHOWN_HOLDERS,
        "totals": held.totals,
        "failing": {one.pk for one in clusters if one.has_failure(now)},
        "silent": {one.pk for one in clusters if one.is_silent(now)},
        "gpu_maps": gpu_maps,
        "legend": legend_of(rows for _, rows in gpu_maps),
        "topics": " ".join(f"cluster:{one.pk}" for one in clusters) + f" {topics_of_jobs(request.user)}",
    }
    return render_page(request, "cluster/cluster.html", context)


_attached = Prepared(lambda: Cluster.objects.attached().select_related("access").order_by(*by_name("name")))
