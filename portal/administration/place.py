"""The two places where a team is managed: the pages of its managers, and those of admins. Both have the same parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

from django.http import Http404, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404
from django.urls import URLPattern, path, reverse

from accounting.access.permissions import may
from accounting.limits.temporary_tickets import ticket_ends
from accounting.models import Tenant
from accounting.models.tenants import TenantQuerySet
from portal.access import View, managed, posted_from
from portal.administration.tree import effect_of_archiving, effect_of_restoring, share_of
from portal.forms.form import Form
from portal.forms.posting import show
from portal.user_request import UserRequest

# The parts of a team's pages: the end of the URL's name, and the label of the tab.
MEMBERS, INVITATIONS, LIMITS, BUDGETS, CHANGES, SETTINGS = (
    "", "invitations", "limits", "budgets", "changes", "settings",
)  # fmt: skip
LABELS = {
    MEMBERS: "Members", INVITATIONS: "Invitations", LIMITS: "Limits", BUDGETS: "Budgets", CHANGES: "Changes",
    SETTINGS: "Settings",
}  # fmt: skip


@dataclass(frozen=True)
class Place:
    """The pages of a team for its managers, or for admins."""

    is_admin: bool

    def name(self, what: str = MEMBERS) -> str:
        """Returns the name of the URL of a part, or of an action on it, such as "team_limits" or "team_limit_set"."""
        first = "admin_tenant" if self.is_admin else "team"
        return f"{first}_{what}" if what else first

    def url(self, what: str, tenant: Tenant, *keys: int | str) -> str:
        return reverse(self.name(what), args=[tenant.slug, *keys])

    def route(self, rest: str = "") -> str:
        return f"{'admin/tenants' if self.is_admin else 'team'}/<slug:slug>/{rest}"

    def teams(self, request: UserRequest) -> TenantQuerySet:
        """Returns the teams that the user manages here. Raises Http404 if the user may not see this place."""
        if not self.is_admin:
            return managed(request)
        if not may(request.user, "tenant.change"):
            raise Http404
        return Tenant.objects.all()

    def tabs(self, tenant: Tenant, shown: str) -> list[tuple[str, str, bool]]:
        """Returns the label and the address of each part, and whether it is shown now."""
        parts = [part for part in LABELS if self.is_admin or part != SETTINGS]
        return [(LABELS[part], self.url(part, tenant), part == shown) for part in parts]


MANAGERS, ADMINS = Place(is_admin=False), Place(is_admin=True)


def both(route: str, view: View, name: str) -> list[URLPattern]:
    """Returns the URL of a view in both places. The view is called with the place."""
    return [path(one.route(route), view, {"place": one}, name=one.name(name)) for one in (MANAGERS, ADMINS)]


def of_team(view: Callable[..., HttpResponseBase]) -> View:
    """Returns a decorated view that is called with the place and the team. Answers 404 if the user does not manage this
    team here."""

    @wraps(view)
    def guarded(request: UserRequest, slug: str, place: Place, **keys: Any) -> HttpResponseBase:
        tenant = get_object_or_404(place.teams(request).select_related("parent"), slug=slug)
        return view(request, place=place, tenant=tenant, **keys)

    return guarded


def posted_to(part: str, *keys: str) -> Callable[[Callable[..., HttpResponse]], View]:
    """Returns a decorator like `of_team` for a view that handles only POST. A GET is redirected to the page of `part`,
    whose address also has the arguments `keys`."""

    def decorate(view: Callable[..., HttpResponse]) -> View:
        acts = of_team(view)

        @wraps(view)
        def guarded(request: UserRequest, place: Place, **found: Any) -> HttpResponseBase:
            place.teams(request)
            handled = posted_from(place.name(part), "slug", *keys)(acts)
            return handled(request, place=place, **found)

        return guarded

    return decorate


def show_part(
    request: UserRequest,
    template: str,
    context: dict[str, Any],
    *,
    place: Place,
    tenant: Tenant,
    part: str,
    posted: Form | None = None,
) -> HttpResponse:
    """Renders one part of a team's pages, below the head and the tabs that all parts share."""
    shared: dict[str, Any] = {
        "tab": "tenants",
        "place": place,
        "tenant": tenant,
        "part": LABELS[part],
        "tabs": place.tabs(tenant, part),
        "branch": share_of(tenant),
        "ticket_ends": ticket_ends([tenant]).get(tenant.pk, []),
    }
    if place.is_admin:
        shared["team_effect"] = (effect_of_restoring if tenant.archived_at else effect_of_archiving)(tenant)
    return show(request, f"administration/{template}.html", shared | context, posted=posted)
