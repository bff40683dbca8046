"""Pages for the tree of tenants with their tickets, and for the members and limits of each tenant."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from django.http import HttpResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_safe

from accounting import actions
from accounting.core.name_order import by_name
from accounting.models import Membership, Tenant
from portal.access import permitted, posted_from
from portal.administration.budget_forms import budgets_of
from portal.administration.limit_usage import limits_of
from portal.administration.team_forms import MoveForm, NewMemberFromList, NewTeam, RenameForm, TicketsForm
from portal.administration.tree import (
    SORTING,
    Effect,
    effect_of_archiving,
    effect_of_move,
    effect_of_new,
    effect_of_restoring,
    effect_of_tickets,
    read_tree,
    share_of,
)
from portal.forms.form import Form, Values
from portal.forms.idle_rule import IdleRuleForm
from portal.forms.limit import LimitForm
from portal.forms.membership import MemberForm
from portal.forms.posting import act_on, perform, show
from portal.user_request import UserRequest
from scheduling.idle.actions import IdleRules


def tenants_page(request: UserRequest, *, posted: Form | None = None) -> HttpResponse:
    sort = SORTING.chosen(request.GET)
    branches = [(one, TicketsForm(one.tenant).or_posted(posted)) for one in read_tree(sort)]
    context = {"tab": "tenants", "branches": branches, "sort": sort, "new_team": NewTeam().or_posted(posted)}
    return show(request, "administration/tenants.html", context, posted=posted)


@permitted("tenant.change")
@require_safe
def tenants(request: UserRequest) -> HttpResponse:
    return tenants_page(request)


@permitted("tenant.change")
@posted_from("admin_tenants")
def create(request: UserRequest) -> HttpResponse:
    return perform(
        request,
        NewTeam(request),
        lambda values: actions.create_tenant(actor=request.user, **values),
        done=lambda values: f"The team {values['name']} has been created.",
        to=("admin_tenants",),
        page=tenants_page,
    )


@permitted("tenant.change")
@posted_from("admin_tenants")
def tickets(request: UserRequest, slug: str) -> HttpResponse:
    tenant = get_object_or_404(Tenant, slug=slug)
    return perform(
        request,
        TicketsForm(tenant, request),
        lambda values: actions.set_tickets(actor=request.user, tenant=tenant, **values),
        done=lambda values: f"The number of tickets of the team {tenant.name} is now {values['tickets']}.",
        to=("admin_tenants",),
        page=tenants_page,
    )


@permitted("tenant.change")
@posted_from("admin_tenants")
def effect_of_making(request: UserRequest) -> HttpResponse:
    """Shows, while the user types, how the new team in the form would change the shares of its sibling teams."""
    return _effect(request, "create-effect", NewTeam(request), lambda values: effect_of_new(**values))


@permitted("tenant.change")
@posted_from("admin_tenant", "slug")
def effect_of_changing(request: UserRequest, slug: str, verb: str) -> HttpResponse:
    """Shows how the tickets or the parent entered in the form would change the shares of the team and its siblings.

    `verb` is "tickets" or "move". Nothing is saved.
    """
    found = get_object_or_404(Tenant, slug=slug)
    forms: dict[str, tuple[Form, Callable[[Values], list[Effect]]]] = {
        "tickets": (TicketsForm(found, request), lambda values: effect_of_tickets(found, **values)),
        "move": (MoveForm(found, request), lambda values: effect_of_move(found, **values)),
    }
    return _effect(request, f"{verb}-effect-{found.pk}", *forms[verb])


def _effect(
    request: UserRequest, key: str, form: Form, effect: Callable[[Values], list[Effect]]
) -> HttpResponse:
    context: dict[str, object] = {"id": key, "swap": True}
    if not act_on(form, lambda values: context.update(rows=effect(values))):
        context["problem"] = " ".join(str(text) for texts in form.errors.values() for text in texts)
    return render(request, "administration/effect.html", context)


def tenant_page(request: UserRequest, *, slug: str, posted: Form | None = None) -> HttpResponse:
    tenant = get_object_or_404(Tenant.objects.select_related("parent"), slug=slug)
    members = tenant.memberships.select_related("user").order_by(*by_name("user__username"))
    context = {
        "tab": "tenants",
        "tenant": tenant,
        "branch": share_of(tenant),
        "members": [(one, MemberForm(one).or_posted(posted)) for one in members],
        "add": NewMemberFromList(tenant).or_posted(posted),
        "limits": limits_of(tenant),
        "limit": LimitForm(tenant).or_posted(posted),
        "idle": IdleRuleForm.of_tenant(IdleRules.read(), tenant).or_posted(posted),
        **budgets_of(tenant, request.user, posted),
        "team_effect": (effect_of_restoring if tenant.archived_at else effect_of_archiving)(tenant),
        "rename": RenameForm("rename", initial={"name": tenant.name}).or_posted(posted),
        "move": MoveForm(tenant).or_posted(posted),
    }
    return show(request, "administration/tenant.html", context, posted=posted)


@permitted("tenant.change")
@require_safe
def tenant(request: UserRequest, slug: str) -> HttpResponse:
    return tenant_page(request, slug=slug)


@permitted("tenant.change")
@posted_from("admin_tenant", "slug")
def change(request: UserRequest, slug: str, verb: str) -> HttpResponse:
    """Changes a tenant as `verb` says: renames, moves, archives, restores or deletes it."""
    found = get_object_or_404(Tenant, slug=slug)
    acts: dict[str, tuple[Form, Callable[..., object], str | Callable[[Values], str]]] = {
        "rename": (RenameForm("rename", request), actions.rename_tenant,
                   lambda values: f"The team is now called {values['name']}."),
        "move": (MoveForm(found, request), actions.move_tenant, f"The team {found.name} has been moved."),
        "archive": (Form("archive", request), actions.archive_tenant,
                    f"The team {found.name} has been archived. It accepts no new jobs."),
        "restore": (Form("restore", request), actions.restore_tenant, f"The team {found.name} has been restored."),
        "delete": (Form("delete", request), actions.delete_tenant, f"The team {found.name} has been deleted."),
    }  # fmt: skip
    form, act, done = acts[verb]
    return perform(
        request,
        form,
        lambda values: act(actor=request.user, tenant=found, **values),
        done=done,
        to=("admin_tenants",) if verb == "delete" else ("admin_tenant", slug),
        page=partial(tenant_page, slug=slug),
    )


@permitted("member.change")
@posted_from("admin_tenant", "slug")
def add_member(request: UserRequest, slug: str) -> HttpResponse:
    found = get_object_or_404(Tenant, slug=slug)
    return perform(
        request,
        NewMemberFromList(found, request),
        lambda values: actions.add_member(actor=request.user, tenant=found, **values),
        done=lambda values: f"The user {values['user']} has been added to the team {found.name}.",
        to=("admin_tenant", slug),
        page=partial(tenant_page, slug=slug),
    )


@permitted("member.change")
@posted_from("admin_tenant", "slug")
def change_member(request: UserRequest, slug: str, pk: int) -> HttpResponse:
    membership = get_object_or_404(
        Membership.objects.select_related("user", "tenant"), tenant__slug=slug, pk=pk
    )
    return perform(
        request,
        MemberForm(membership, request),
        lambda values: actions.change_membership(actor=request.user, membership=membership, **values),
        done=f"The membership of the user {membership.user.get_username()} has been changed.",
        to=("admin_tenant", slug),
        page=partial(tenant_page, slug=slug),
    )
