"""Previews of how a change of a member's tickets would change the shares within a team."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpResponse
from django.shortcuts import get_object_or_404, render
from django.urls import reverse

from accounting.actions.tenants import check_tickets
from accounting.models import Tenant
from portal.access import managed, permitted, posted_from
from portal.administration.team import team_page
from portal.administration.tenants import tenant_page
from portal.administration.tree import tickets_within
from portal.forms.membership import MemberForm
from portal.forms.posting import act_on, previewed
from portal.user_request import UserRequest
from scheduling.shares.preview import preview
from scheduling.shares.snapshot import Change


@posted_from("team", "slug")
def of_team(request: UserRequest, slug: str, pk: int) -> HttpResponse:
    """Shows a manager of the team how a change of a member's tickets would change the shares."""
    tenant = get_object_or_404(managed(request), slug=slug)
    save, back = reverse("team_member_change", args=[slug, pk]), reverse("team", args=[slug])
    return _preview(request, tenant, pk, page=team_page, save=save, back=back)


@permitted("member.change")
@posted_from("admin_tenant", "slug")
def of_admin(request: UserRequest, slug: str, pk: int) -> HttpResponse:
    tenant = get_object_or_404(Tenant, slug=slug)
    save, back = (
        reverse("admin_member_change", args=[slug, pk]),
        reverse("admin_tenant", args=[slug]),
    )
    return _preview(request, tenant, pk, page=tenant_page, save=save, back=back)


def _preview(
    request: UserRequest, tenant: Tenant, pk: int, *, page: Callable[..., HttpResponse], save: str, back: str
) -> HttpResponse:
    member = get_object_or_404(tenant.memberships.select_related("user"), pk=pk)
    form = MemberForm(member, request)
    if not act_on(form, lambda values: check_tickets(values["tickets"])):
        return page(request, slug=tenant.slug, posted=form)
    tickets = form.cleaned_data["tickets"]
    change = Change(tenant, tickets=tickets, user=member.user)
    rows, others = preview(change), tickets_within(tenant) - member.tickets
    context = {
        "change": change,
        "member": member,
        "part_before": member.tickets / (member.tickets + others),
        "part_after": tickets / (tickets + others),
        **previewed(form, rows),
        "save": save,
        "back": back,
    }
    return render(request, "administration/member_preview.html", context)
