"""The pages on which managers manage their teams: roles and tickets of members, budgets, and the audit trail."""

from __future__ import annotations

from functools import partial

from django.core.paginator import Paginator
from django.http import Http404, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_safe

from accounting import actions
from accounting.actions.memberships import find_user
from accounting.core.name_order import by_name
from accounting.models import AuditEvent, Invitation, Membership
from accounting.models.tenants import has_role
from portal.access import managed, posted_from
from portal.administration.budget_forms import budgets_of, remove_budget_of, set_budget_of
from portal.administration.limit_usage import limits_of
from portal.administration.member_usage import TeamMembersUsage
from portal.administration.trail import EVENTS_PER_PAGE, entries
from portal.administration.tree import share_of, tickets_within
from portal.forms.form import Form
from portal.forms.limit import MemberLimitForm
from portal.forms.membership import InvitationForm, MemberForm, NewMemberByName
from portal.forms.posting import perform, show
from portal.user_request import UserRequest

LATEST_EVENTS = 5  # shown on a team's page, which has a link to all of them


@require_safe
def teams(request: UserRequest) -> HttpResponse:
    """Lists the teams that the user manages. If there is only one, redirects to its page."""
    found = list(managed(request))
    # The navigation shows the entry under the same condition.
    if not found and not has_role(request.user, Membership.Role.MANAGER):
        raise Http404
    if len(found) == 1:
        return redirect("team", found[0].slug)
    return render(request, "administration/teams.html", {"teams": found})


def team_page(
    request: UserRequest, *, slug: str, posted: Form | None = None, made: Invitation | None = None
) -> HttpResponse:
    """Shows the page of a team to its manager. `made`: the invitation that was just created."""
    tenant = get_object_or_404(managed(request), slug=slug)
    members = list(tenant.memberships.select_related("user").order_by(*by_name("user__username")))
    tickets = tickets_within(tenant)
    usage = TeamMembersUsage.read(tenant, request.user)
    events = AuditEvent.objects.visible_to(request.user).filter(tenant=tenant)[:LATEST_EVENTS]
    context = {
        "tenant": tenant,
        "branch": share_of(tenant),
        "members": [
            (one, MemberForm(one).or_posted(posted), one.tickets / tickets, usage.of(one.user_id))
            for one in members
        ],
        "others": usage.of_others([one.user_id for one in members]),
        "add": NewMemberByName("add").or_posted(posted),
        "invitations": tenant.invitations.usable().select_related("invited_by"),
        "invite": InvitationForm().or_posted(posted),
        "made": made,
        "limits": limits_of(tenant),
        "limit": MemberLimitForm(tenant).or_posted(posted),
        **budgets_of(tenant, request.user, posted),
        "entries": entries(events, request.user),
    }
    return show(request, "administration/team.html", context, posted=posted)


@require_safe
def team(request: UserRequest, slug: str) -> HttpResponse:
    return team_page(request, slug=slug)


@require_safe
def team_changes(request: UserRequest, slug: str) -> HttpResponse:
    """Lists all recorded changes of a team, newest first, for its managers."""
    tenant = get_object_or_404(managed(request), slug=slug)
    events = AuditEvent.objects.visible_to(request.user).filter(tenant=tenant)
    page = Paginator(events, EVENTS_PER_PAGE).get_page(request.GET.get("page"))
    context = {"tenant": tenant, "page": page, "entries": entries(list(page.object_list), request.user)}
    return render(request, "administration/team_changes.html", context)


@posted_from("team", "slug")
def change_member(request: UserRequest, slug: str, pk: int) -> HttpResponse:
    tenant = get_object_or_404(managed(request), slug=slug)
    membership = get_object_or_404(tenant.memberships.select_related("user", "tenant"), pk=pk)
    return perform(
        request,
        MemberForm(membership, request),
        lambda values: actions.change_membership(actor=request.user, membership=membership, **values),
        done=f"The membership of the user {membership.user.get_username()} has been changed.",
        to=partial(team_or_home, request, slug),
        page=partial(team_page, slug=slug),
    )


@posted_from("team", "slug")
def add_member(request: UserRequest, slug: str) -> HttpResponse:
    tenant = get_object_or_404(managed(request), slug=slug)
    return perform(
        request,
        NewMemberByName("add", request),
        lambda values: actions.add_member(
            actor=request.user, tenant=tenant, **values | {"user": find_user(values["user"])}
        ),
        done=lambda values: f"The user {values['user']} has been added to the team {tenant.name}.",
        to=("team", slug),
        page=partial(team_page, slug=slug),
    )


@posted_from("team", "slug")
def set_limit(request: UserRequest, slug: str) -> HttpResponse:
    """Sets a limit on one member, or on each member."""
    tenant = get_object_or_404(managed(request), slug=slug)
    form = MemberLimitForm(tenant, request)
    return perform(
        request,
        form,
        lambda values: actions.set_quota(
            actor=request.user, tenant=tenant, limit=values["limit"], **form.which()
        ),
        done=f"The limit on members of the team {tenant.name} has been saved.",
        to=("team", slug),
        page=partial(team_page, slug=slug),
    )


@posted_from("team", "slug")
def remove_limit(request: UserRequest, slug: str, pk: int) -> HttpResponse:
    tenant = get_object_or_404(managed(request), slug=slug)
    quota = get_object_or_404(tenant.quotas.filter(by_managers=True).select_related("tenant"), pk=pk)
    return perform(
        request,
        Form(f"quota-{pk}", request),
        lambda _: actions.remove_quota(actor=request.user, quota=quota),
        done="The limit has been removed.",
        to=("team", slug),
        page=partial(team_page, slug=slug),
    )


@posted_from("team", "slug")
def set_budget(request: UserRequest, slug: str) -> HttpResponse:
    tenant = get_object_or_404(managed(request), slug=slug)
    return set_budget_of(request, tenant, to="team", page=team_page)


@posted_from("team", "slug")
def remove_budget(request: UserRequest, slug: str, pk: int) -> HttpResponse:
    tenant = get_object_or_404(managed(request), slug=slug)
    return remove_budget_of(request, tenant, pk, to="team", page=team_page)


def team_or_home(request: UserRequest, slug: str) -> tuple[str, ...]:
    """Returns the arguments for `redirect` after a change to a team.

    They lead to the team's page, or to the home page if the user no longer manages the team.
    """
    return ("team", slug) if managed(request).filter(slug=slug).exists() else ("home",)
