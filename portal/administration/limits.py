"""Limits of tenants, and what changing tickets or a limit would do to shares."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import get_object_or_404, render
from django.urls import reverse

from accounting import actions
from accounting.actions.quotas import check_limit, find, limit_of
from accounting.actions.tenants import check_tickets
from accounting.core.errors import Refused
from accounting.models import Quota, Tenant
from portal.access import permitted, posted_from
from portal.administration.forms import perform, previewed, refusal, whole
from portal.administration.limit_fields import read_limit, read_which
from portal.administration.tenants import tenant_page, tenants_page
from scheduling.shares.preview import preview
from scheduling.shares.snapshot import Change


@permitted("quota.set")
@posted_from("admin_tenant", "slug")
def set_quota(request: HttpRequest, slug: str) -> HttpResponse:
    found = get_object_or_404(Tenant, slug=slug)
    return perform(
        request,
        "quota",
        lambda post: actions.set_quota(
            actor=request.user, tenant=found, limit=read_limit(post), **read_which(post)
        ),
        done=f"The limit of {found.name} is set.",
        to=("admin_tenant", slug),
        page=partial(tenant_page, slug=slug),
    )


@permitted("quota.set")
@posted_from("admin_tenant", "slug")
def remove_quota(request: HttpRequest, slug: str, pk: int) -> HttpResponse:
    quota = get_object_or_404(Quota, tenant__slug=slug, pk=pk)
    return perform(
        request,
        f"quota-{pk}",
        lambda post: actions.remove_quota(actor=request.user, quota=quota),
        done="The limit is removed.",
        to=("admin_tenant", slug),
        page=partial(tenant_page, slug=slug),
    )


@permitted("quota.set")
@posted_from("admin_tenant", "slug")
def preview_quota(request: HttpRequest, slug: str) -> HttpResponse:
    """What setting the limit of the form would do to shares."""
    tenant = get_object_or_404(Tenant, slug=slug)
    page = partial(tenant_page, slug=slug)
    return _preview(request, "quota", partial(changed_limit, tenant), save="admin_quota_set", page=page)


@permitted("quota.set")
@posted_from("admin_tenant", "slug")
def preview_removal(request: HttpRequest, slug: str, pk: int) -> HttpResponse:
    """What removing a limit would do to shares."""
    quota = get_object_or_404(
        Quota.objects.select_related("tenant", "user", "generation"), tenant__slug=slug, pk=pk
    )
    save = reverse("admin_quota_remove", args=[slug, pk])
    return _show(request, Change(quota.tenant, removed=quota), save=save)


@permitted("quota.set")
@posted_from("admin_tenants")
def preview_tickets(request: HttpRequest, slug: str) -> HttpResponse:
    """What setting the tickets of the form would do to shares."""
    tenant = get_object_or_404(Tenant, slug=slug)
    form = f"tickets-{tenant.pk}"
    return _preview(
        request, form, partial(changed_tickets, tenant), save="admin_tenant_tickets", page=tenants_page
    )


def changed_limit(tenant: Tenant, post: QueryDict) -> Change:
    quota = limit_of(tenant, **read_which(post))
    check_limit(quota, read_limit(post))
    return Change(tenant, quota=quota, removed=find(quota))


def changed_tickets(tenant: Tenant, post: QueryDict) -> Change:
    tickets = whole(post, "tickets")
    check_tickets(tickets)
    return Change(tenant, tickets=tickets)


def _preview(
    request: HttpRequest,
    form: str,
    read: Callable[[QueryDict], Change],
    *,
    save: str,
    page: Callable[..., HttpResponse],
) -> HttpResponse:
    try:
        change = read(request.POST)
    except Refused as error:
        return page(request, refusal=refusal(request, form, error.field, error.message))
    return _show(request, change, save=reverse(save, args=[change.tenant.slug]))


def _show(request: HttpRequest, change: Change, *, save: str) -> HttpResponse:
    rows = preview(change)
    context = {
        "tab": "tenants",
        "change": change,
        **previewed(request, rows),
        "save": save,
    }
    return render(request, "administration/preview.html", context)
