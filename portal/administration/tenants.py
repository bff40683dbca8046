"""Pages for the tree of tenants with their tickets, and for the settings of each tenant."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from django.http import HttpResponse
from django.shortcuts import get_object_or_404, render
from django.urls import reverse
from django.views.decorators.http import require_safe

from accounting import actions
from accounting.actions.tenants import check_tickets
from accounting.limits.temporary_tickets import ticket_ends
from accounting.models import Tenant
from portal.access import permitted, posted_from
from portal.administration.place import SETTINGS, Place, of_team, posted_to, show_part
from portal.administration.team_forms import MoveForm, NewTeam, RenameForm, TicketsForm
from portal.administration.tree import (
    SORTING,
    Effect,
    effect_of_move,
    effect_of_new,
    effect_of_tickets,
    read_tree,
)
from portal.forms.form import Form, Values
from portal.forms.idle_rule import IdleRuleForm
from portal.forms.posting import act_on, perform, previewed, show
from portal.user_request import UserRequest
from scheduling.idle.actions import IdleRules
from scheduling.shares.preview import preview
from scheduling.shares.snapshot import Change


def tenants_page(request: UserRequest, *, posted: Form | None = None) -> HttpResponse:
    sort = SORTING.chosen(request.GET)
    tree = read_tree(sort)
    ends = ticket_ends([one.tenant for one in tree])
    branches = [(one, TicketsForm(one.tenant).or_posted(posted), ends.get(one.tenant.pk, [])) for one in tree]
    new_team = NewTeam().or_posted(posted)
    context = {
        "tab": "tenants",
        "branches": branches,
        "sort": sort,
        "new_team": new_team,
        "new_effect": None if new_team.is_bound else effect_of_new(name="", parent=None, tickets=100),
    }
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


@permitted("tenant.change")
@posted_from("admin_tenants")
def preview_tickets(request: UserRequest, slug: str) -> HttpResponse:
    """Shows how shares would change if the tenant had the tickets in the form."""
    found, changes = get_object_or_404(Tenant, slug=slug), list[Change]()
    form = TicketsForm(found, request)

    def read(values: Values) -> None:
        check_tickets(values["tickets"])
        changes.append(Change(found, **values))

    if not act_on(form, read):
        return tenants_page(request, posted=form)
    context = {
        "tab": "tenants",
        "change": changes[0],
        "save": reverse("admin_tenant_tickets", args=[slug]),
        "leave": reverse("admin_tenants"),
        **previewed(form, preview(changes[0])),
    }
    return render(request, "administration/preview.html", context)


def settings_page(
    request: UserRequest, *, place: Place, tenant: Tenant, posted: Form | None = None
) -> HttpResponse:
    context = {
        "idle": IdleRuleForm.of_tenant(IdleRules.read(), tenant).or_posted(posted),
        "rename": RenameForm("rename", initial={"name": tenant.name}).or_posted(posted),
        "move": MoveForm(tenant).or_posted(posted),
    }
    return show_part(
        request, "tenant_settings", context, place=place, tenant=tenant, part=SETTINGS, posted=posted
    )


@require_safe
@of_team
def settings(request: UserRequest, place: Place, tenant: Tenant) -> HttpResponse:
    return settings_page(request, place=place, tenant=tenant)


@posted_to(SETTINGS)
def change(request: UserRequest, place: Place, tenant: Tenant, verb: str) -> HttpResponse:
    """Changes a tenant as `verb` says: renames, moves, archives, restores or deletes it."""
    acts: dict[str, tuple[Form, Callable[..., object], str | Callable[[Values], str]]] = {
        "rename": (RenameForm("rename", request), actions.rename_tenant,
                   lambda values: f"The team is now called {values['name']}."),
        "move": (MoveForm(tenant, request), actions.move_tenant, f"The team {tenant.name} has been moved."),
        "archive": (Form("archive", request), actions.archive_tenant,
                    f"The team {tenant.name} has been archived. It accepts no new jobs."),
        "restore": (Form("restore", request), actions.restore_tenant, f"The team {tenant.name} has been restored."),
        "delete": (Form("delete", request), actions.delete_tenant, f"The team {tenant.name} has been deleted."),
    }  # fmt: skip
    form, act, done = acts[verb]
    return perform(
        request,
        form,
        lambda values: act(actor=request.user, tenant=tenant, **values),
        done=done,
        to=("admin_tenants",) if verb == "delete" else (place.name(SETTINGS), tenant.slug),
        page=partial(settings_page, place=place, tenant=tenant),
    )
