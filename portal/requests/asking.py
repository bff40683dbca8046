"""Asking for more: tickets, a limit, a new team, or more time for what was granted."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_safe

from accounting.actions.quotas import limit_of
from accounting.actions.requests import ask
from accounting.models import Request, Tenant
from portal.access import posted_from
from portal.administration.forms import Refusal, moment, perform, show, whole
from portal.administration.limit_fields import limit_fields, limits_of, read_limit, read_which
from portal.requests.views import managed, one_page, seen_by


def _page(request: HttpRequest, *, slug: str, refusal: Refusal | None = None) -> HttpResponse:
    tenant = get_object_or_404(managed(request), slug=slug)
    context = {"tenant": tenant, "limits": limits_of(tenant), "limit_fields": limit_fields(tenant)}
    return show(request, "requests/new.html", context, refusal=refusal)


@require_safe
def new(request: HttpRequest, slug: str) -> HttpResponse:
    return _page(request, slug=slug)


@posted_from("request_new", "slug")
def ask_for(request: HttpRequest, slug: str, verb: str) -> HttpResponse:
    tenant = get_object_or_404(managed(request), slug=slug)
    form = "quota" if verb == Request.Kind.LIMIT else verb
    return perform(
        request,
        form,
        partial(_ask, request, tenant, verb),
        done="You have asked; an operator will answer.",
        to=("requests",),
        page=partial(_page, slug=slug),
    )


def _ask(request: HttpRequest, tenant: Tenant, kind: str, post: QueryDict) -> Request:
    return ask(
        actor=request.user,
        tenant=tenant,
        kind=kind,
        reason=post.get("reason", ""),
        wanted=WANTED[kind](tenant, post),
        until=moment(post, "until"),
    )


def _wanted_limit(tenant: Tenant, post: QueryDict) -> dict[str, Any]:
    return limit_of(tenant, **read_which(post)).key() | {"limit": str(read_limit(post))}


WANTED: dict[str, Callable[[Tenant, QueryDict], dict[str, Any]]] = {
    Request.Kind.TICKETS: lambda tenant, post: {"tickets": whole(post, "tickets")},
    Request.Kind.TEAM: lambda tenant, post: {"tickets": whole(post, "tickets"), "name": post.get("name", "")},
    Request.Kind.LIMIT: _wanted_limit,
}


@posted_from("request", "pk")
def extend(request: HttpRequest, pk: int) -> HttpResponse:
    """More time for what was granted until some time."""
    one = get_object_or_404(seen_by(request), pk=pk, tenant__in=managed(request))
    return perform(
        request,
        "extend",
        lambda post: ask(
            actor=request.user,
            tenant=one.tenant,
            kind=Request.Kind.EXTENSION,
            reason=post.get("reason", ""),
            until=moment(post, "until"),
            extends=one,
        ),
        done="You have asked; an operator will answer.",
        to=("requests",),
        page=partial(one_page, pk=pk),
    )
