"""Who leaves a team or Fairlot, and what becomes of the work that is left behind."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.contrib import messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.views.decorators.http import require_safe

from accounting.core.name_order import by_name
from accounting.models import Membership, Tenant, User
from portal.access import permitted, posted_from
from portal.administration.forms import Refusal, chosen, perform, show
from portal.administration.team import managed, team_or_home
from scheduling.departures.actions import Fate, HandedOver, Work, heirs, remove_member, work_of_member

FATES = [
    (Fate.WAITS.value, "It waits, and goes on if the right comes back"),
    (Fate.CANCEL.value, "Cancel it: jobs and sessions end, services stop, schedules pause"),
    (Fate.HAND_OVER.value, "Hand it over to another member"),
]


def offered(work: Work, among: QuerySet[User]) -> dict[str, Any]:
    """What administration/work.html needs."""
    counts = work.counts()
    # Nobody is asked who need not choose.
    return {
        "work": counts,
        "heirs": among.exclude(pk=work.user.pk).order_by(*by_name("username")) if counts else (),
    }


def decided(post: QueryDict, among: QuerySet[User]) -> dict[str, Any]:
    """What was chosen in administration/work.html."""
    return {"fate": post.get("fate", Fate.WAITS), "to": chosen(post, "to", among, optional=True)}


def tell(request: HttpRequest, done: HandedOver | None) -> None:
    """What was not handed over, as it names secrets."""
    if done is not None and done.kept:
        text = f"Not handed over, as it names secrets: {', '.join(done.kept[:10])}"
        messages.warning(request, f"{text}{' and more' if len(done.kept) > 10 else ''}.")


def _leaving(
    request: HttpRequest, *, slug: str, pk: int, is_admin: bool, refusal: Refusal | None = None
) -> HttpResponse:
    membership = _membership(request, slug, pk, is_admin=is_admin)
    context = {
        "tab": "tenants",
        "base": f"administration/{'base' if is_admin else 'team_base'}.html",
        "membership": membership,
        "fates": FATES,
        "back": reverse("admin_tenant" if is_admin else "team", args=[slug]),
        "remove": reverse("admin_member_remove" if is_admin else "team_member_remove", args=[slug, pk]),
    }
    context |= offered(work_of_member(membership), heirs(membership.tenant, request.user))
    return show(request, "administration/leaving.html", context, refusal=refusal)


def _remove(request: HttpRequest, *, slug: str, pk: int, is_admin: bool) -> HttpResponse:
    membership = _membership(request, slug, pk, is_admin=is_admin)

    def act(post: QueryDict) -> None:
        choice = decided(post, heirs(membership.tenant, request.user))
        tell(request, remove_member(actor=request.user, membership=membership, **choice))

    return perform(
        request,
        "leave",
        act,
        done=f"{membership.user.get_username()} is no longer in the team.",
        to=("admin_tenant", slug) if is_admin else partial(team_or_home, request, slug),
        page=partial(_leaving, slug=slug, pk=pk, is_admin=is_admin),
    )


@permitted("member.change")
@require_safe
def leaving(request: HttpRequest, slug: str, pk: int) -> HttpResponse:
    """Asks what becomes of the work of a member who is to be removed."""
    return _leaving(request, slug=slug, pk=pk, is_admin=True)


@permitted("member.change")
@posted_from("admin_member_leaving", "slug", "pk")
def remove(request: HttpRequest, slug: str, pk: int) -> HttpResponse:
    """Removes a member as the form of that page says."""
    return _remove(request, slug=slug, pk=pk, is_admin=True)


@require_safe
def leaving_team(request: HttpRequest, slug: str, pk: int) -> HttpResponse:
    """The same for managers of the team."""
    return _leaving(request, slug=slug, pk=pk, is_admin=False)


@posted_from("team_member_leaving", "slug", "pk")
def remove_from_team(request: HttpRequest, slug: str, pk: int) -> HttpResponse:
    """The same for managers of the team."""
    return _remove(request, slug=slug, pk=pk, is_admin=False)


def _membership(request: HttpRequest, slug: str, pk: int, *, is_admin: bool) -> Membership:
    tenants = Tenant.objects.all() if is_admin else managed(request)
    among = Membership.objects.filter(tenant__in=tenants).select_related("user", "tenant")
    return get_object_or_404(among, tenant__slug=slug, pk=pk)
