"""Endpoints for sweeps: list, create, preview, read, cancel, run failed members again, and download."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import Any

from django.http import HttpResponse
from ninja import Query, Router
from ninja.responses import Status

from accounting.models import User
from portal.api.fields import AskedKey, IdempotencyKey, PageSize
from portal.api.jobs.endpoints import place_of, read_spec
from portal.api.pages import page_of
from portal.api.seen import seen_or_404
from portal.api.sweeps import schemas
from portal.reports.formats.answers import csv_answer
from portal.sweeps.detail import causes_of
from portal.sweeps.listing import SWEEPS
from portal.user_request import ApiRequest
from scheduling.models import Sweep, SweepMember
from scheduling.spec.job_spec import JobSpec, SpecError
from scheduling.sweeps.actions import Rules, cancel_sweep, create_sweep, preview_sweep, run_failed_again
from scheduling.sweeps.distributions import read_distribution
from scheduling.sweeps.estimate import estimate_sweep
from scheduling.sweeps.parameters import LARGEST_SEED, RANDOM, Parameters
from scheduling.sweeps.tables import best_of, best_succeeded, csv_of

router = Router(tags=["Sweeps"])


def visible_sweep(request: ApiRequest, sweep_id: int) -> Sweep:
    """Returns the sweep with this id. Raises NotSeen if there is no such sweep or the caller may not see it."""
    seen = Sweep.objects.visible_to(request.auth).select_related("tenant", "owner", "cluster")
    return seen_or_404(seen, "sweep", sweep_id)


@router.get("/sweeps", response=schemas.SweepPage, url_name="sweeps")
def list_sweeps(
    request: ApiRequest,
    filters: Query[schemas.SweepFilters],
    before: AskedKey | None = None,
    limit: PageSize = 50,
) -> dict[str, Any]:
    """Returns one page of the sweeps of the caller's teams, newest first or in the order of `sort`."""
    found, following = page_of(SWEEPS, request.auth, filters, before, limit, state=filters.state)
    return {"items": [show(sweep) for sweep in found], "next": following}


@router.post("/sweeps", response={201: schemas.SweepInFull}, url_name="sweeps")
def create(
    request: ApiRequest,
    new: schemas.NewSweep,
    idempotency_key: IdempotencyKey = "",
) -> Any:
    """Creates a sweep that the caller owns. Its jobs are submitted over time, as earlier ones start.

    A call that repeats an Idempotency-Key returns the sweep of the first call.
    """
    tenant, cluster = place_of(request.auth, new)
    sweep = create_sweep(
        actor=request.auth,
        tenant=tenant,
        cluster=cluster,
        spec=read_spec(new.spec),
        parameters=_parameters(new.parameters),
        rules=Rules(**{name: getattr(new, name) for name in Rules.__dataclass_fields__}),
        request_key=idempotency_key or None,
        even_if_never=new.even_if_never,
    )
    return Status(201, show_in_full(sweep))


@router.post("/sweeps/preview", response=schemas.SweepPreview, url_name="sweep_preview")
def preview(request: ApiRequest, new: schemas.NewSweepPreview) -> dict[str, Any]:
    """Returns how many jobs a sweep would submit, the commands of the first five, and what all members would cost.

    Creates nothing.
    """
    spec = read_spec(new.spec)
    found = preview_sweep(spec=spec, parameters=_parameters(new.parameters))
    first = [
        {"parameters": values, "name": spec.name, "command": spec.command} for values, spec in found.first
    ]
    estimate = _estimate(request.auth, new, spec, found.size)
    return {"size": found.size, "first": first, "notes": found.notes, "estimate": estimate}


@router.get("/sweeps/{int:sweep_id}", response=schemas.SweepInFull, url_name="sweep")
def get_sweep(request: ApiRequest, sweep_id: int) -> dict[str, Any]:
    """Returns a sweep with its specification, its parameters and its best member."""
    return show_in_full(visible_sweep(request, sweep_id))


@router.get("/sweeps/{int:sweep_id}/members", response=schemas.SweepMemberPage, url_name="sweep_members")
def members(
    request: ApiRequest,
    sweep_id: int,
    filters: Query[schemas.SweepMemberFilters],
    after: AskedKey | None = None,
    limit: PageSize = 50,
) -> dict[str, Any] | HttpResponse:
    """Returns one page of the members of a sweep, in the order of their index.

    With `format=csv`, returns all members as a CSV file, with a column for each parameter and metric.
    """
    sweep = visible_sweep(request, sweep_id)
    if filters.format == "csv":
        return csv_answer(csv_of(sweep), f"fairlot-sweep-{sweep.pk}")
    seen = sweep.members.select_related("job").defer("job__spec").order_by("index")
    if filters.state:
        seen = seen.filter(state=filters.state)
    if after is not None:
        seen = seen.filter(index__gt=min(after, 2**31 - 1))
    found = list(seen[: limit + 1])
    causes = causes_of(sweep, found[:limit])
    return {
        "items": [show_member(one, causes.get(one.index, "")) for one in found[:limit]],
        "next": found[limit - 1].index if len(found) > limit else None,
    }


@router.post("/sweeps/{int:sweep_id}/cancel", response=schemas.Sweep, url_name="sweep_cancel")
def cancel(request: ApiRequest, sweep_id: int) -> dict[str, Any]:
    """Cancels a sweep and all its jobs. Cancelling a sweep that has ended has no effect."""
    return show(cancel_sweep(actor=request.auth, sweep=visible_sweep(request, sweep_id)))


@router.post("/sweeps/{int:sweep_id}/run-failed", response=schemas.Sweep, url_name="sweep_run_failed")
def run_failed(request: ApiRequest, sweep_id: int) -> dict[str, Any]:
    """Submits all failed members of a sweep again, as new jobs. Refused (409) if no member has failed."""
    return show(run_failed_again(actor=request.auth, sweep=visible_sweep(request, sweep_id)))


def _estimate(user: User, new: schemas.NewSweepPreview, spec: JobSpec, members: int) -> dict[str, Any] | None:
    Rules(at_once=new.at_once).check()
    try:
        tenant, cluster = place_of(user, new)
    except SpecError as error:
        if any(getattr(new, name, "") for name in error.problems):
            raise
        return None  # there are several, and none is named
    found = estimate_sweep(
        actor=user, tenant=tenant, cluster=cluster, spec=spec, members=members, at_once=new.at_once
    )
    same = ("at_once", "hours", "basis", "assumption", "last_run", "gpu_hours")
    return {name: getattr(found, name) for name in same} | {
        "gpus_per_member": found.gpus,
        "cost": {name: cost for name, (cost, _) in found.cost.items()},
        "cost_per_hour": {name: cost for name, (cost, _) in found.cost_per_hour.items()},
        "currencies": {name: currency for name, (_, currency) in found.cost_per_hour.items()},
    }


def _parameters(new: schemas.SweepParameters) -> Parameters:
    drawn = {name: read_distribution(name, how) for name, how in new.random.items()}
    given = Parameters(**new.dict() | {"random": drawn})
    if given.kind == RANDOM and given.seed is None:
        return replace(given, seed=secrets.randbelow(LARGEST_SEED + 1))
    return given


def show(sweep: Sweep) -> dict[str, Any]:
    same = (
        "id", "name", "state", "size", "counts", "at_once", "metric", "goal", "stop_at", "stop_cancels", "median_after",
        "stopped_by",
        "trouble", "created_at", "ended_at",
    )  # fmt: skip
    return {name: getattr(sweep, name) for name in same} | {
        "team": sweep.tenant.slug,
        "owner": sweep.owner.get_username(),
        "cluster": sweep.cluster.name,
    }


def show_in_full(sweep: Sweep) -> dict[str, Any]:
    sweep = Sweep.objects.select_related("tenant", "owner", "cluster").get(pk=sweep.pk)
    best = best_succeeded(best_of(sweep, 1))
    same = {name: getattr(sweep, name) for name in ("spec", "names", "metric_names")}
    described = Parameters.stored(sweep.parameters, sweep.names).to_dict()
    return show(sweep) | same | {"parameters": described, "best": show_member(best) if best else None}


def show_member(member: SweepMember, cause: str = "") -> dict[str, Any]:
    same = ("index", "state", "parameters", "metrics", "attempts", "job_id", "outdone_at")
    return {name: getattr(member, name) for name in same} | {"cause": cause}
