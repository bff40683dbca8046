"""Endpoints for who holds GPUs now, and for the top consumers of the last day and week."""

from __future__ import annotations

from typing import Any

from ninja import Query, Router

from accounting.access.visibility import tenants_seen
from accounting.models.tenants import visible_tenants
from accounting.reports.consumers import top_consumers
from portal.api.clusters import schemas
from portal.cluster.consumers import period_of
from portal.reports.scope import chosen_tenant
from portal.user_request import ApiRequest
from scheduling.idle.steps import STALE
from scheduling.reports.holders import Held, Holder, Narrow, who_holds

router = Router(tags=["Cluster"])


@router.get("/holders", response=schemas.WhoHolds, url_name="holders")
def holders(request: ApiRequest, asked: Query[schemas.HoldersQuestion]) -> dict[str, Any]:
    """Returns who holds GPUs now, by team or by user, most GPUs first.

    All teams that the caller may not see are one row, the last one, whose `team` is null.
    """
    tenant = chosen_tenant(request.auth, request.GET)
    tenants = tenants_seen(request.auth, tenant) if tenant else None
    found = who_holds(
        request.auth,
        Narrow(asked.cluster, asked.generation, asked.node, tenants),
        teams=visible_tenants(request.auth),
        by_user=asked.by == "user",
        measured_within=STALE,
    )
    return {
        "generations": found.sizes,
        "holders": [
            {"team": one.slug, "user": one.user, **_counts(one, one.slug), "by_generation": [
                {"generation": name, **_counts(held, one.slug), "entitled": held.entitled}
                for name, held in one.by_generation.items()
            ]}
            for one in found.holders
        ],
    }  # fmt: skip


def _counts(held: Holder | Held, team: str | None) -> dict[str, int | None]:
    """Returns the numbers of GPUs, idle GPUs and jobs; of teams that the caller may not see only the GPUs."""
    idle, jobs = (None, None) if team is None else (held.idle, held.jobs)
    return {"gpus": held.gpus, "idle_gpus": idle, "jobs": jobs}


@router.get("/consumers", response=schemas.Consumers, url_name="consumers")
def consumers(request: ApiRequest, asked: Query[schemas.ConsumersQuestion]) -> dict[str, Any]:
    """Returns the GPU time and cost that the ledger has booked in the last day or week, most GPU time first.

    Teams that the caller may not see are left out. GPU time is booked at every full hour while a job holds GPUs, and
    when the job releases them.
    """
    begins, ends = period_of(asked.period)
    found = top_consumers(
        request.auth,
        begins,
        ends,
        by_user=asked.by == "user",
        tenant=chosen_tenant(request.auth, request.GET),
        generation=asked.generation,
    )
    shown = found[: asked.limit]
    return {
        "begins": begins,
        "ends": ends,
        "count": len(found),
        "consumers": [
            {
                "team": one.slug,
                "user": one.user,
                "gpu_seconds": one.held,
                "idle_gpu_seconds": one.idle,
                "cost": one.cost,
                "currency": one.currency,
            }
            for one in shown
        ],
    }
