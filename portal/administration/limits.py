"""Pages for the limits of tenants, and previews of how a change of tickets or limits would change the shares."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from django.http import HttpResponse
from django.shortcuts import get_object_or_404, render
from django.urls import reverse

from accounting import actions
from accounting.actions.quotas import check_limit, find, limit_of
from accounting.actions.tenants import check_tickets
from accounting.models import Quota, Tenant
from portal.access import permitted, posted_from
from portal.administration.team_forms import TicketsForm
from portal.administration.tenants import tenant_page, tenants_page
from portal.forms.form import Form, Values
from portal.forms.limit import LimitForm
from portal.forms.posting import act_on, perform, previewed
from portal.user_request import UserRequest
from scheduling.shares.preview import preview
from scheduling.shares.snapshot import Change


@permitted("quota.set")
@posted_from("admin_tenant", "slug")
def set_quota(request: UserRequest, slug: str) -> HttpResponse:
    found = get_object_or_404(Tenant, slug=slug)
    form = LimitForm(found, request)
    return perform(
        request,
        form,
        lambda values: actions.set_quota(
            actor=request.user, tenant=found, limit=values["limit"], **form.which()
        ),
        done=f"The limit of the team {found.name} has been saved.",
        to=("admin_tenant", slug),
        page=partial(tenant_page, slug=slug),
    )


@permitted("quota.set")
@posted_from("admin_tenant", "slug")
def remove_quota(request: UserRequest, slug: str, pk: int) -> HttpResponse:
    quota = get_object_or_404(Quota, tenant__slug=slug, pk=pk)
    return perform(
        request,
        Form(f"quota-{pk}", request),
        lambda _: actions.remove_quota(actor=request.user, quota=quota),
        done="The limit has been removed.",
        to=("admin_tenant", slug),
        page=partial(tenant_page, slug=slug),
    )


@permitted("quota.set")
@posted_from("admin_tenant", "slug")
def preview_quota(request: UserRequest, slug: str) -> HttpResponse:
    """Shows how shares would change if the limit in the form was set."""
    tenant = get_object_or_404(Tenant, slug=slug)
    form = LimitForm(tenant, request)

    def read(values: Values) -> Change:
        quota = limit_of(tenant, **form.which())
        check_limit(quota, values["limit"])
        return Change(tenant, quota=quota, removed=find(quota))

    page = partial(tenant_page, slug=slug)
    return _preview(request, form, read, save=reverse("admin_quota_set", args=[slug]), page=page)


@permitted("quota.set")
@posted_from("admin_tenant", "slug")
def preview_removal(request: UserRequest, slug: str, pk: int) -> HttpResponse:
    """Shows how shares would change if this limit was removed."""
    quota = get_object_or_404(
        Quota.objects.select_related("tenant", "user", "generation"), tenant__slug=slug, pk=pk
    )
    save, page = reverse("admin_quota_remove", args=[slug, pk]), partial(tenant_page, slug=slug)
    change = Change(quota.tenant, removed=quota)
    return _preview(request, Form(f"quota-{pk}", request), lambda _: change, save=save, page=page)


@permitted("quota.set")
@posted_from("admin_tenants")
def preview_tickets(request: UserRequest, slug: str) -> HttpResponse:
    """Shows how shares would change if the tenant had the tickets in the form."""
    tenant = get_object_or_404(Tenant, slug=slug)

    def read(values: Values) -> Change:
        check_tickets(values["tickets"])
        return Change(tenant, **values)

    save = reverse("admin_tenant_tickets", args=[slug])
    return _preview(request, TicketsForm(tenant, request), read, save=save, page=tenants_page)


def _preview(
    request: UserRequest,
    form: Form,
    read: Callable[[Values], Change],
    *,
    save: str,
    page: Callable[..., HttpResponse],
) -> HttpResponse:
    """Shows the shares before and after a change, with a button that saves the change at the URL `save`.

    If the form is invalid or refused, returns `page(request, posted=form)` instead: the form's page with the problems.
    `read` is called with the form's values. It returns the change, or raises Refused or NotAllowed.
    """
    changes: list[Change] = []
    if not act_on(form, lambda values: changes.append(read(values))):
        return page(request, posted=form)
    context = {"tab": "tenants", "save": save, "change": changes[0], **previewed(form, preview(changes[0]))}
    return render(request, "administration/preview.html", context)
