"""The limits of a team, and previews of what another limit would do."""

from __future__ import annotations

from functools import partial

from django.db.models import QuerySet
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_safe

from accounting import actions
from accounting.actions.quotas import find, proposed_limit
from accounting.core.clock import now_from_database
from accounting.models import Quota, Tenant
from portal.administration.limit_usage import limits_of
from portal.administration.place import LIMITS, Place, of_team, posted_to, show_part
from portal.forms.form import Form
from portal.forms.limit import LimitForm, MemberLimitForm
from portal.forms.posting import act_on, perform, previewed
from portal.user_request import UserRequest
from scheduling.limits.effect import effects_of_limit
from scheduling.shares.preview import preview
from scheduling.shares.snapshot import Change


def limits_page(
    request: UserRequest, *, place: Place, tenant: Tenant, posted: Form | None = None
) -> HttpResponse:
    context = {"limits": limits_of(tenant), "limit": _form(place, tenant).or_posted(posted)}
    return show_part(request, "limits", context, place=place, tenant=tenant, part=LIMITS, posted=posted)


def _form(place: Place, tenant: Tenant, request: UserRequest | None = None) -> LimitForm:
    return (LimitForm if place.is_admin else MemberLimitForm)(tenant, request)


def _changeable(place: Place, tenant: Tenant) -> QuerySet[Quota]:
    """Returns the team's limits that may be changed here: managers change only those that managers set."""
    found = tenant.quotas.select_related("tenant", "user", "generation")
    return found if place.is_admin else found.filter(by_managers=True)


@require_safe
@of_team
def limits(request: UserRequest, place: Place, tenant: Tenant) -> HttpResponse:
    return limits_page(request, place=place, tenant=tenant)


@posted_to(LIMITS)
def set_limit(request: UserRequest, place: Place, tenant: Tenant) -> HttpResponse:
    form = _form(place, tenant, request)
    return perform(
        request,
        form,
        lambda values: actions.set_quota(
            actor=request.user, tenant=tenant, limit=values["limit"], **form.which()
        ),
        done=f"The limit of {'the team' if place.is_admin else 'members of the team'} {tenant.name} has been saved.",
        to=(place.name(LIMITS), tenant.slug),
        page=partial(limits_page, place=place, tenant=tenant),
    )


@posted_to(LIMITS)
def remove_limit(request: UserRequest, place: Place, tenant: Tenant, pk: int) -> HttpResponse:
    quota = get_object_or_404(_changeable(place, tenant), pk=pk)
    return perform(
        request,
        Form(f"quota-{pk}", request),
        lambda _: actions.remove_quota(actor=request.user, quota=quota),
        done="The limit has been removed.",
        to=(place.name(LIMITS), tenant.slug),
        page=partial(limits_page, place=place, tenant=tenant),
    )


@posted_to(LIMITS)
def preview_limit(request: UserRequest, place: Place, tenant: Tenant) -> HttpResponse:
    """Shows whom the limit in the form would affect, and how it would change the shares. Nothing is saved."""
    form, found = _form(place, tenant, request), []
    if not act_on(
        form,
        lambda values: found.append(
            proposed_limit(actor=request.user, tenant=tenant, limit=values["limit"], **form.which())
        ),
    ):
        return limits_page(request, place=place, tenant=tenant, posted=form)
    change = Change(tenant, quota=found[0], removed=find(found[0]))
    return _preview(request, form, change, place=place, save=place.url("limit_set", tenant))


@posted_to(LIMITS)
def preview_removal(request: UserRequest, place: Place, tenant: Tenant, pk: int) -> HttpResponse:
    """Shows how the shares would change if this limit was removed. Nothing is removed."""
    quota = get_object_or_404(_changeable(place, tenant), pk=pk)
    save = place.url("limit_remove", tenant, pk)
    form = Form(f"quota-{pk}", request)
    return _preview(request, form, Change(tenant, removed=quota), place=place, save=save)


def _preview(request: UserRequest, form: Form, change: Change, *, place: Place, save: str) -> HttpResponse:
    """Shows a change of a limit, with a button that saves it at the URL `save`.

    Managers see the shares of members and teams below theirs, admins those of all teams.
    """
    tenant, quota = change.tenant, change.quota
    context = {
        "tab": "tenants",
        "place": place,
        "tenant": tenant,
        "change": change,
        "effects": effects_of_limit(quota, now=now_from_database()) if quota else (),
        "save": save,
        "leave": place.url(LIMITS, tenant),
        **previewed(form, preview(change, within=None if place.is_admin else tenant)),
    }
    return render(request, "administration/limit_preview.html", context)
