"""The list of the teams that a manager leads, and the recorded changes of a team."""

from __future__ import annotations

from django.core.paginator import Paginator
from django.http import Http404, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_safe

from accounting.models import AuditEvent, Membership, Tenant
from accounting.models.tenants import has_role
from portal.access import managed
from portal.administration.place import CHANGES, Place, of_team, show_part
from portal.administration.trail import EVENTS_PER_PAGE, entries
from portal.user_request import UserRequest


@require_safe
def teams(request: UserRequest) -> HttpResponse:
    """Lists the teams that the user manages. If there is only one, redirects to its page."""
    found = list(managed(request))
    # The navigation shows the entry under the same condition.
    if not found and not has_role(request.user, Membership.Role.MANAGER):
        raise Http404
    if len(found) == 1:
        return redirect("team", found[0].slug)
    return render(request, "administration/teams.html", {"teams": found})


@require_safe
@of_team
def changes(request: UserRequest, place: Place, tenant: Tenant) -> HttpResponse:
    """Lists all recorded changes of a team and of its work, newest first."""
    events = AuditEvent.objects.visible_to(request.user).filter(tenant=tenant)
    page = Paginator(events, EVENTS_PER_PAGE).get_page(request.GET.get("page"))
    context = {"page": page, "entries": entries(list(page.object_list), request.user)}
    return show_part(request, "team_changes", context, place=place, tenant=tenant, part=CHANGES)
