"""Endpoints for announcements: read and dismiss those on the caller's pages; operators make and withdraw them."""

from __future__ import annotations

from typing import Any

from django.http import Http404
from django.shortcuts import get_object_or_404
from ninja import Router
from ninja.responses import Status

from accounting.core.errors import Refused
from accounting.models import Tenant
from portal.api.announcements import schemas
from portal.api.auth import require_permission
from portal.api.fields import AskedSwitch
from portal.api.versions import IfMatch, versions_in
from portal.user_request import ApiRequest
from scheduling.announcements import actions
from scheduling.models import Announcement, Cluster
from scheduling.models.announcements import shown_to
from scheduling.models.versions import version_of

router = Router(tags=["Announcements"])


@router.get("/announcements", response=list[schemas.Announcement], url_name="announcements")
def announcements(request: ApiRequest, every: AskedSwitch = False) -> list[dict[str, Any]]:
    """Returns the announcements that the caller's pages show now. With `every`, operators get all announcements."""
    if every:
        require_permission(request, "announcement.change")
        found = Announcement.objects.visible_to(request.auth)
    else:
        found = Announcement.objects.filter(pk__in=[one.pk for one in shown_to(request.auth)])
    return [_show(one) for one in found.prefetch_related("teams", "clusters")]


@router.post("/announcements", response={201: schemas.Announcement}, url_name="announcements")
def announce(request: ApiRequest, new: schemas.NewAnnouncement) -> Status[Any]:
    """Makes an announcement, which pages show above their content. For operators."""
    require_permission(request, "announcement.change")
    return Status(201, _show(actions.announce(actor=request.auth, **_values(new))))


@router.put("/announcements/{int:announcement_id}", response=schemas.Announcement, url_name="announcement")
def change(
    request: ApiRequest, announcement_id: int, new: schemas.NewAnnouncement, if_match: IfMatch = None
) -> dict[str, Any]:
    """Replaces an announcement. If the text changes, users who dismissed it see it again. For operators."""
    found = _found(request, announcement_id)
    changed = actions.change_announcement(
        actor=request.auth, announcement=found, seen=versions_in(if_match), **_values(new)
    )
    return _show(changed)


@router.delete("/announcements/{int:announcement_id}", response={204: None}, url_name="announcement")
def withdraw(request: ApiRequest, announcement_id: int, if_match: IfMatch = None) -> Status[Any]:
    """Withdraws an announcement, so that no page shows it any more. For operators."""
    found = _found(request, announcement_id)
    actions.withdraw_announcement(actor=request.auth, announcement=found, seen=versions_in(if_match))
    return Status(204, None)


@router.post(
    "/announcements/{int:announcement_id}/dismiss", response={204: None}, url_name="announcement_dismiss"
)
def dismiss(request: ApiRequest, announcement_id: int) -> Status[Any]:
    """Removes an announcement from the caller's own pages."""
    if not actions.is_shown(request.auth, announcement_id):
        raise Http404
    found = Announcement.objects.get(pk=announcement_id)
    actions.dismiss_announcement(actor=request.auth, announcement=found)
    return Status(204, None)


def _found(request: ApiRequest, pk: int) -> Announcement:
    require_permission(request, "announcement.change")
    return get_object_or_404(Announcement, pk=pk)


def _values(new: schemas.NewAnnouncement) -> dict[str, Any]:
    teams = {one.slug: one for one in Tenant.objects.filter(slug__in=new.teams)}
    clusters = {one.name: one for one in Cluster.objects.filter(name__in=new.clusters)}
    for field, asked, known in (("teams", new.teams, teams), ("clusters", new.clusters, clusters)):
        for name in asked:
            if name not in known:
                raise Refused(f'There is no {field.removesuffix("s")} "{name}".', field)
    return new.dict() | {"teams": list(teams.values()), "clusters": list(clusters.values())}


def _show(one: Announcement) -> dict[str, Any]:
    same = ("id", "text", "severity", "begins_at", "ends_at", "dismissible", "roles", "withdrawn_at")
    return {name: getattr(one, name) for name in same} | {
        "version": version_of(one),
        "teams": [team.slug for team in one.teams.all()],
        "clusters": [cluster.name for cluster in one.clusters.all()],
    }
