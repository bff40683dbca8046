"""Who leaves a team or Fairlot, and what becomes of the work that is left behind."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.contrib import messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_safe

from accounting.models import Membership, User
from portal.administration.access import admins_only, posted_from
from portal.administration.forms import Refusal, chosen, perform, show
from scheduling import actions
from scheduling.actions.departures import Fate, HandedOver, Work, work_of_member

FATES = [
    (Fate.WAITS.value, "It waits, and goes on if the right comes back"),
    (Fate.CANCEL.value, "Cancel it: jobs and sessions end, services stop, schedules pause"),
    (Fate.HAND_OVER.value, "Hand it over to another member"),
]


def offered(work: Work, heirs: QuerySet[User]) -> dict[str, Any]:
    """What administration/work.html needs."""
    counts = work.counts()
    # Nobody is asked who need not choose.
    return {"work": counts, "heirs": heirs.exclude(pk=work.user.pk).order_by("username") if counts else ()}


def decided(post: QueryDict) -> dict[str, Any]:
    """What was chosen in administration/work.html."""
    return {
        "fate": post.get("fate", Fate.WAITS),
        "to": chosen(post, "to", User.objects.filter(is_active=True), optional=True),
    }


def tell(request: HttpRequest, done: HandedOver | None) -> None:
    """What was not handed over, as it needs secrets of its former owner."""
    if done is not None and done.kept:
        text = f"Not handed over, as it uses secrets of its owner: {', '.join(done.kept[:10])}"
        messages.warning(request, f"{text}{' and more' if len(done.kept) > 10 else ''}.")


def _leaving(request: HttpRequest, *, slug: str, pk: int, refusal: Refusal | None = None) -> HttpResponse:
    membership = _membership(slug, pk)
    may = Membership.objects.filter(
        tenant__in=membership.tenant.lineage, role__in=Membership.Role.at_least(Membership.Role.MEMBER)
    )
    heirs = User.objects.filter(pk__in=may.values("user"), is_active=True)
    context = {"tab": "tenants", "membership": membership, "fates": FATES}
    context |= offered(work_of_member(membership), heirs)
    return show(request, "administration/leaving.html", context, refusal=refusal)


@admins_only
@require_safe
def leaving(request: HttpRequest, slug: str, pk: int) -> HttpResponse:
    """Asks what becomes of the work of a member who is to be removed."""
    return _leaving(request, slug=slug, pk=pk)


@admins_only
@posted_from("admin_member_leaving", "slug", "pk")
def remove(request: HttpRequest, slug: str, pk: int) -> HttpResponse:
    """Removes a member as the form of that page says."""
    membership = _membership(slug, pk)

    def act(post: QueryDict) -> None:
        tell(request, actions.remove_member(actor=request.user, membership=membership, **decided(post)))

    return perform(
        request,
        "leave",
        act,
        done=f"{membership.user.get_username()} is no longer in the team.",
        to=("admin_tenant", slug),
        page=partial(_leaving, slug=slug, pk=pk),
    )


def _membership(slug: str, pk: int) -> Membership:
    among = Membership.objects.select_related("user", "tenant")
    return get_object_or_404(among, tenant__slug=slug, pk=pk)
