"""The pages on which managers request tickets, a limit, a new team, or more time for an earlier grant."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from django.http import HttpResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_safe

from accounting.actions.quotas import limit_of
from accounting.actions.requests import ask
from accounting.models import Request, Tenant
from portal.access import managed, posted_from
from portal.administration.limit_usage import limits_of
from portal.forms.form import Form, Values
from portal.forms.posting import act_on, perform, show
from portal.requests.forms import LimitRequest, TeamRequest, TicketsRequest, Why
from portal.requests.views import change_of, one_page, seen_by
from portal.user_request import UserRequest
from scheduling.shares.preview import ShareChange, preview


class Effect(NamedTuple):
    """What a request of some kind would change of the team's present shares."""

    kind: str
    rows: list[ShareChange]


def _page(
    request: UserRequest, *, slug: str, posted: Form | None = None, effect: Effect | None = None
) -> HttpResponse:
    tenant = get_object_or_404(managed(request), slug=slug)
    context: dict[str, Any] = {"tenant": tenant, "limits": limits_of(tenant), "effect": effect}
    context |= {f"{kind}_form": form.or_posted(posted) for kind, form in _forms(tenant).items()}
    return show(request, "requests/new.html", context, posted=posted)


@require_safe
def new(request: UserRequest, slug: str) -> HttpResponse:
    return _page(request, slug=slug)


@posted_from("request_new", "slug")
def preview_request(request: UserRequest, slug: str, verb: str) -> HttpResponse:
    """Shows the forms with the effect that the posted request would have on the own team. Nothing is sent."""
    tenant = get_object_or_404(managed(request), slug=slug)
    form, found = _forms(tenant, request)[verb], []

    def act(values: Values) -> None:
        asked = Request(tenant=tenant, kind=verb, wanted=_wanted(form, tenant, values))
        found.append(Effect(verb, preview(change_of(asked, asked.wanted), own=True)))

    is_right = act_on(form, act)
    return _page(request, slug=slug, posted=form, effect=found[0] if is_right else None)


@posted_from("request_new", "slug")
def ask_for(request: UserRequest, slug: str, verb: str) -> HttpResponse:
    tenant = get_object_or_404(managed(request), slug=slug)
    form = _forms(tenant, request)[verb]

    def act(values: Values) -> Request:
        wanted = _wanted(form, tenant, values)
        reason, until = values["reason"], values["until"]
        return ask(actor=request.user, tenant=tenant, kind=verb, reason=reason, wanted=wanted, until=until)

    return perform(
        request,
        form,
        act,
        done="Your request has been sent. An operator will answer it.",
        to=("requests",),
        page=partial(_page, slug=slug),
    )


def _wanted(form: Why, tenant: Tenant, values: Values) -> dict[str, Any]:
    """Returns what the form requests, as `Request.wanted` stores it. Raises Refused for an invalid limit."""
    if isinstance(form, LimitRequest):
        return limit_of(tenant, **form.which()).key() | {"limit": str(values["limit"])}
    return form.wanted()


def _forms(tenant: Tenant, request: UserRequest | None = None) -> dict[str, Why]:
    return {
        Request.Kind.TICKETS.value: TicketsRequest("tickets", request),
        Request.Kind.TEAM.value: TeamRequest("team", request),
        Request.Kind.LIMIT.value: LimitRequest(tenant, request),
    }


@posted_from("request", "pk")
def extend(request: UserRequest, pk: int) -> HttpResponse:
    """Requests that a grant with an end date is extended to a later date."""
    one = get_object_or_404(seen_by(request), pk=pk, tenant__in=managed(request))
    return perform(
        request,
        Why("extend", request),
        lambda values: ask(
            actor=request.user, tenant=one.tenant, kind=Request.Kind.EXTENSION, extends=one, **values
        ),
        done="Your request has been sent. An operator will answer it.",
        to=("requests",),
        page=partial(one_page, pk=pk),
    )
