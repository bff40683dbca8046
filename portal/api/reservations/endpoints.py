"""Endpoints for advance reservations: teams read theirs; operators make, preview, change and cancel them."""

from __future__ import annotations

from typing import Any
from zoneinfo import ZoneInfo

from django.db.models import QuerySet
from django.shortcuts import get_object_or_404
from ninja import Router
from ninja.responses import Status

from accounting.core.clock import now_from_database
from accounting.core.errors import Refused
from accounting.models import Tenant
from portal.api.auth import require_permission
from portal.api.limits.endpoints import generation_named
from portal.api.reservations import schemas
from portal.api.versions import IfMatch, versions_in
from portal.user_request import ApiRequest
from scheduling.advance import actions
from scheduling.advance.proposals import Effect, Proposal, Terms, effect_of, propose
from scheduling.advance.use import use_of
from scheduling.models import AdvanceReservation, Cluster, Node
from scheduling.models.versions import version_of

router = Router(tags=["Reservations"])


@router.get(
    "/advance-reservations", response=list[schemas.AdvanceReservation], url_name="advance_reservations"
)
def reservations(request: ApiRequest) -> list[dict[str, Any]]:
    """Returns the advance reservations of the caller's teams, latest first; for operators, of all teams."""
    return [_show(one) for one in _seen(request)]


@router.get(
    "/advance-reservations/{int:reservation_id}",
    response=schemas.AdvanceReservation,
    url_name="advance_reservation",
)
def reservation(request: ApiRequest, reservation_id: int) -> dict[str, Any]:
    """Returns one advance reservation."""
    return _show(get_object_or_404(_seen(request), pk=reservation_id))


@router.post(
    "/advance-reservations",
    response={200: schemas.AdvanceReservation, 201: schemas.AdvanceReservation},
    url_name="advance_reservations",
)
def reserve(request: ApiRequest, new: schemas.NewReservation) -> Status[Any]:
    """Reserves GPUs for a team. With `dry_run`, answers 200 and says whom it would hit. For operators."""
    require_permission(request, "advance.change")
    cluster = Cluster.objects.attached().filter(name=new.cluster).first()
    if cluster is None:
        raise Refused(f'There is no cluster "{new.cluster}".', "cluster")
    terms = _terms(new, cluster)
    if new.dry_run:
        return Status(200, _proposed(propose(cluster, terms), request))
    return Status(201, _show(actions.reserve_in_advance(actor=request.auth, cluster=cluster, terms=terms)))


@router.put(
    "/advance-reservations/{int:reservation_id}",
    response=schemas.AdvanceReservation,
    url_name="advance_reservation",
)
def change(
    request: ApiRequest, reservation_id: int, new: schemas.ReservationTerms, if_match: IfMatch = None
) -> dict[str, Any]:
    """Replaces the terms of an advance reservation from now on. For operators."""
    require_permission(request, "advance.change")
    found = get_object_or_404(_seen(request), pk=reservation_id)
    terms = _terms(new, found.cluster)
    if new.dry_run:
        return _proposed(propose(found.cluster, terms, changed=found), request)
    changed = actions.change_advance_reservation(
        actor=request.auth, reservation=found, terms=terms, seen=versions_in(if_match)
    )
    return _show(changed)


@router.delete(
    "/advance-reservations/{int:reservation_id}", response={204: None}, url_name="advance_reservation"
)
def cancel(request: ApiRequest, reservation_id: int, if_match: IfMatch = None) -> Status[Any]:
    """Cancels an advance reservation: an open window ends now, and later ones do not come. For operators."""
    require_permission(request, "advance.change")
    found = get_object_or_404(_seen(request), pk=reservation_id)
    actions.cancel_advance_reservation(actor=request.auth, reservation=found, seen=versions_in(if_match))
    return Status(204, None)


def _seen(request: ApiRequest) -> QuerySet[AdvanceReservation]:
    found = AdvanceReservation.objects.visible_to(request.auth)
    return found.select_related("cluster", "tenant", "generation").prefetch_related("nodes__node", "windows")


def _terms(new: schemas.ReservationTerms, cluster: Cluster) -> Terms:
    tenant = Tenant.objects.filter(slug=new.team).first()
    if tenant is None:
        raise Refused(f'There is no team "{new.team}".', "team")
    generation = generation_named(new.generation)
    if generation is None:
        raise Refused("Name a GPU type.", "generation")
    nodes = {one.name: one for one in Node.objects.present().filter(cluster=cluster, name__in=new.nodes)}
    for name in new.nodes:
        if name not in nodes:
            raise Refused(f'There is no node "{name}" in {cluster.name}.', "nodes")
    try:
        ZoneInfo(new.zone)
    except (KeyError, ValueError, OSError):
        raise Refused(
            f'There is no time zone "{new.zone}". Write one such as Europe/Berlin.', "zone"
        ) from None
    return Terms(
        name=new.name,
        tenant=tenant,
        generation=generation,
        begins=new.begins,
        ends=new.ends,
        gpus=new.gpus,
        nodes=tuple(nodes[name] for name in dict.fromkeys(new.nodes)),
        weekly_until=new.weekly_until,
        zone=new.zone,
        lends=new.lends,
    )


def _show(one: AdvanceReservation) -> dict[str, Any]:
    now = now_from_database()
    use = use_of(one, now)
    return {
        "reserved_gpu_hours": use.reserved,
        "used_gpu_hours": use.used,
        "id": one.pk,
        "version": version_of(one),
        "name": one.name,
        "state": one.state_at(now),
        "cluster": one.cluster.name,
        "team": one.tenant.slug,
        "generation": one.generation.name,
        "gpus": one.gpus,
        "nodes": {its.node.name: its.gpus for its in one.nodes.all()},
        "lends": one.lends,
        "begins": one.begins,
        "ends": one.ends,
        "weekly_until": one.weekly_until,
        "windows": [{"begins": its.begins, "ends": its.ends} for its in one.windows.all() if its.ends > now],
    }


def _proposed(made: Proposal, request: ApiRequest) -> dict[str, Any]:
    terms = made.terms
    return {
        "reserved_gpu_hours": 0.0,
        "used_gpu_hours": 0.0,
        "id": None,
        "version": None,
        "name": terms.name,
        "state": "draft",
        "cluster": made.cluster.name,
        "team": terms.tenant.slug,
        "generation": terms.generation.name,
        "gpus": made.gpus,
        "nodes": {node.name: gpus for node, gpus in made.gpus_of.items()},
        "lends": terms.lends,
        "begins": terms.begins,
        "ends": terms.ends,
        "weekly_until": terms.weekly_until,
        "windows": [{"begins": one.begins, "ends": one.ends} for one in made.windows],
        "effect": _effect(made, effect_of(made, request.auth)),
    }


def _effect(made: Proposal, effect: Effect) -> dict[str, Any]:
    return {
        "gpu_hours": made.gpu_hours,
        "most_cost": made.most_cost,
        "running": [
            {
                "id": one.job.pk,
                "name": one.job.name,
                "team": one.job.tenant.slug,
                "owner": one.job.owner.get_username(),
                "gpus": one.gpus,
                "ends": one.ends,
            }
            for one in effect.running.seen
        ],
        "hidden": effect.running.hidden,
        "waiting": [{"team": team.slug, "jobs": count} for team, count in effect.waiting],
        "losses": [
            {"team": one.tenant.slug, "entitled": one.entitled, "less": one.less} for one in effect.losses
        ],
    }
