"""The pages on which managers request tickets, a limit, a new team, or more time for an earlier grant."""

from __future__ import annotations

from functools import partial

from django.http import HttpResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_safe

from accounting.actions.quotas import limit_of
from accounting.actions.requests import ask
from accounting.models import Request, Tenant
from portal.access import managed, posted_from
from portal.administration.limit_usage import limits_of
from portal.forms.form import Form, Values
from portal.forms.posting import perform, show
from portal.requests.forms import LimitRequest, TeamRequest, TicketsRequest, Why
from portal.requests.views import one_page, seen_by
from portal.user_request import UserRequest


def _page(request: UserRequest, *, slug: str, posted: Form | None = None) -> HttpResponse:
    tenant = get_object_or_404(managed(request), slug=slug)
    context = {"tenant": tenant, "limits": limits_of(tenant)}
    context |= {f"{kind}_form": form.or_posted(posted) for kind, form in _forms(tenant).items()}
    return show(request, "requests/new.html", context, posted=posted)


@require_safe
def new(request: UserRequest, slug: str) -> HttpResponse:
    return _page(request, slug=slug)


@posted_from("request_new", "slug")
def ask_for(request: UserRequest, slug: str, verb: str) -> HttpResponse:
    tenant = get_object_or_404(managed(request), slug=slug)
    form = _forms(tenant, request)[verb]

    def act(values: Values) -> Request:
        wanted = form.wanted()
        if isinstance(form, LimitRequest):
            wanted = limit_of(tenant, **form.which()).key() | {"limit": str(values["limit"])}
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
