"""The members of a team: their roles, tickets and usage, and previews of other tickets."""

from __future__ import annotations

from copy import copy
from functools import partial

from django.http import HttpResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_safe

from accounting import actions
from accounting.actions.checks import check_choice
from accounting.actions.memberships import find_user
from accounting.actions.tenants import check_tickets
from accounting.core.name_order import by_name
from accounting.models import Membership, Tenant
from portal.administration.member_usage import TeamMembersUsage
from portal.administration.place import MEMBERS, Place, of_team, posted_to, show_part
from portal.administration.team_forms import NewMemberFromList
from portal.administration.tree import tickets_within
from portal.forms.form import Form, Values
from portal.forms.membership import MemberForm, NewMember, NewMemberByName
from portal.forms.posting import act_on, perform, previewed
from portal.user_request import UserRequest
from scheduling.shares.preview import preview
from scheduling.shares.snapshot import Change


def members_page(
    request: UserRequest, *, place: Place, tenant: Tenant, posted: Form | None = None
) -> HttpResponse:
    members = list(tenant.memberships.select_related("user").order_by(*by_name("user__username")))
    tickets = tickets_within(tenant)
    usage = TeamMembersUsage.read(tenant, request.user)
    context = {
        "members": [
            (
                one,
                MemberForm(one).or_posted(posted),
                one.tickets / tickets if one.has_part else None,
                usage.of(one.user_id),
            )
            for one in members
        ],
        "others": usage.of_others([one.user_id for one in members]),
        "add": _new_member(place, tenant).or_posted(posted),
    }
    return show_part(request, "team", context, place=place, tenant=tenant, part=MEMBERS, posted=posted)


def _new_member(place: Place, tenant: Tenant, request: UserRequest | None = None) -> NewMember:
    """Returns the form that adds a member. Admins choose from a list of all users; managers see no such list."""
    return NewMemberFromList(tenant, request) if place.is_admin else NewMemberByName("add", request)


@require_safe
@of_team
def members(request: UserRequest, place: Place, tenant: Tenant) -> HttpResponse:
    return members_page(request, place=place, tenant=tenant)


@posted_to(MEMBERS)
def change_member(request: UserRequest, place: Place, tenant: Tenant, pk: int) -> HttpResponse:
    membership = get_object_or_404(tenant.memberships.select_related("user", "tenant"), pk=pk)
    return perform(
        request,
        MemberForm(membership, request),
        lambda values: actions.change_membership(actor=request.user, membership=membership, **values),
        done=f"The membership of the user {membership.user.get_username()} has been changed.",
        to=partial(team_or_home, request, place, tenant),
        page=partial(members_page, place=place, tenant=tenant),
    )


@posted_to(MEMBERS)
def add_member(request: UserRequest, place: Place, tenant: Tenant) -> HttpResponse:
    def add(values: Values) -> None:
        user = values["user"] if place.is_admin else find_user(values["user"])
        actions.add_member(actor=request.user, tenant=tenant, **values | {"user": user})

    return perform(
        request,
        _new_member(place, tenant, request),
        add,
        done=lambda values: f"The user {values['user']} has been added to the team {tenant.name}.",
        to=(place.name(), tenant.slug),
        page=partial(members_page, place=place, tenant=tenant),
    )


@posted_to(MEMBERS)
def preview_member(request: UserRequest, place: Place, tenant: Tenant, pk: int) -> HttpResponse:
    """Shows how another role or other tickets of a member would change the shares within the team. Nothing is saved."""
    member = get_object_or_404(tenant.memberships.select_related("user"), pk=pk)
    form = MemberForm(member, request)

    def check(values: Values) -> None:
        check_choice("role", values["role"] or member.role, Membership.Role.values, "role")
        check_tickets(values["tickets"])

    if not act_on(form, check):
        return members_page(request, place=place, tenant=tenant, posted=form)
    tickets, role = form.cleaned_data["tickets"], form.cleaned_data["role"] or member.role
    change = Change(tenant, tickets=tickets, user=member.user)
    others = tickets_within(tenant) - (member.tickets if member.has_part else 0)
    after = copy(member)
    after.role, after.tickets = role, tickets
    context = {
        "change": change,
        "member": member,
        "role": role,
        "role_after": Membership.Role(role).label,
        "part_before": _part(member, others),
        "part_after": _part(after, others),
        **previewed(form, preview(change)),
        "save": place.url("member_change", tenant, pk),
        "back": place.url(MEMBERS, tenant),
    }
    return render(request, "administration/member_preview.html", context)


def _part(member: Membership, others: int) -> float | None:
    """Returns a member's part of the team's share beside `others` tickets; None for a member who runs no jobs."""
    return member.tickets / (member.tickets + others) if member.has_part else None


def team_or_home(request: UserRequest, place: Place, tenant: Tenant) -> tuple[str, ...]:
    """Returns the arguments for `redirect` after a change of a member.

    They lead to the team's page, or to the home page if the user no longer manages the team.
    """
    found = place.teams(request).filter(slug=tenant.slug).exists()
    return (place.name(), tenant.slug) if found else ("home",)
