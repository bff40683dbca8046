"""The list of the teams that a manager leads, and the recorded changes of a team."""

from __future__ import annotations

from django.core.paginator import Paginator
from django.http import Http404, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.views.decorators.http import require_safe

from accounting.models import Membership, Tenant, User
from accounting.models.tenants import has_role
from portal.access import managed
from portal.administration.event_filter import NO_WORK, EventFilter
from portal.administration.place import CHANGES, Place, of_team, show_part
from portal.administration.trail import EVENTS_PER_PAGE, entries
from portal.administration.trail_search import FORMS, seen_of, trail_in_format
from portal.administration.verbs import Kind
from portal.user_request import UserRequest

PEOPLE_OFFERED = 200  # more are found by typing their names


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
    """Lists the recorded changes of a team, newest first; on request also those of its work."""
    wanted = EventFilter.read(request.GET, usual=NO_WORK)
    events = wanted.narrow(seen_of(request.user, tenant))
    page = Paginator(events, EVENTS_PER_PAGE).get_page(request.GET.get("page"))
    members = User.objects.filter(memberships__tenant=tenant).order_by("username")
    context = {
        "page": page,
        "entries": entries(list(page.object_list), request.user),
        "filter": wanted,
        "kinds": Kind.choices,
        "people": members.values_list("username", flat=True)[:PEOPLE_OFFERED],
        "files": [(form, place.url("changes_file", tenant, form)) for form in FORMS],
    }
    return show_part(request, "team_changes", context, place=place, tenant=tenant, part=CHANGES)


@require_safe
@of_team
def changes_file(request: UserRequest, place: Place, tenant: Tenant, form: str) -> HttpResponseBase:
    """Streams the recorded changes of a team that match the filter as a file."""
    return trail_in_format(request, request.user, form, tenant=tenant)
