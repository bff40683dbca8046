"""Endpoints for saved views of lists: list, save and remove."""

from __future__ import annotations

from typing import Any

from django.http import Http404
from django.shortcuts import get_object_or_404
from ninja import Query, Router
from ninja.responses import Status

from accounting.models import Membership, Tenant
from portal.api.lists import schemas
from portal.jobs.filters import PARAMETERS
from portal.lists.choices import choice_of
from portal.lists.saved import kept_text, remove_view, save_view, views_for
from portal.lists.work import PARAMETERS as PARAMETERS_OF_WORK
from portal.models import SavedView
from portal.user_request import ApiRequest

router = Router(tags=["Views"])
# By list: what a view keeps of the list's address.
KEPT = {"jobs": PARAMETERS} | dict.fromkeys(
    ("sweeps", "pipelines", "services", "schedules", "sessions"), PARAMETERS_OF_WORK
)


@router.get("/views", response=list[schemas.View], url_name="views")
def list_views(request: ApiRequest, asked: Query[schemas.ViewFilters]) -> list[dict[str, Any]]:
    """Returns the views of a list that the caller may open: the caller's own ones, and those of the caller's teams."""
    default = choice_of(request.auth, asked.list).default_view
    return [_show(view, default) for view in views_for(request.auth, asked.list)]


@router.post("/views", response={201: schemas.View}, url_name="views")
def save(request: ApiRequest, new: schemas.NewView) -> Status[Any]:
    """Saves a view of the caller, in place of the caller's view of the same name."""
    tenant = None
    if new.team:
        seen = Tenant.objects.visible_to(request.auth, role=Membership.Role.MEMBER)
        tenant = get_object_or_404(seen, slug=new.team)
    view = save_view(
        actor=request.auth,
        list_name=new.list,
        name=new.name,
        query=kept_text(new.query, KEPT[new.list]),
        tenant=tenant,
        is_default=new.is_default,
    )
    view.refresh_from_db()
    return Status(201, _show(view, view.pk if new.is_default else None))


@router.delete("/views/{int:view_id}", response={204: None}, url_name="view")
def remove(request: ApiRequest, view_id: int) -> Status[Any]:
    """Removes a view. For its owner, and for managers of the team that sees it."""
    if view_id >= 2**63:
        raise Http404
    view = get_object_or_404(SavedView.objects.visible_to(request.auth), pk=view_id)
    remove_view(actor=request.auth, view=view)
    return Status(204, None)


def _show(view: SavedView, default: int | None) -> dict[str, Any]:
    same = ("id", "name", "query", "changed_at")
    return {name: getattr(view, name) for name in same} | {
        "list": view.list_name,
        "owner": view.owner.get_username(),
        "team": view.tenant.slug if view.tenant else "",
        "is_default": view.pk == default,
    }
