"""Tenants: the tree with tickets, and each one's members and quotas."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_safe

from accounting import actions
from accounting.core.errors import Refused
from accounting.core.name_order import by_name
from accounting.models import Membership, Tenant, User
from portal.access import permitted, posted_from
from portal.administration.budget_forms import budgets_of
from portal.administration.forms import Refusal, change_membership, chosen, perform, show, whole
from portal.administration.idle_fields import form_of_tenant
from portal.administration.limit_fields import limit_fields, limits_of
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
from scheduling.idle.actions import IdleRules

# How forms name the top level.
TOP = "top"


def tenants_page(request: HttpRequest, *, refusal: Refusal | None = None) -> HttpResponse:
    sort = SORTING.chosen(request.GET)
    context = {"tab": "tenants", "branches": read_tree(sort), "sort": sort}
    return show(request, "administration/tenants.html", context, refusal=refusal)


@permitted("tenant.change")
@require_safe
def tenants(request: HttpRequest) -> HttpResponse:
    return tenants_page(request)


@permitted("tenant.change")
@posted_from("admin_tenants")
def create(request: HttpRequest) -> HttpResponse:
    return perform(
        request,
        "create",
        lambda post: actions.create_tenant(
            actor=request.user,
            name=post.get("name", ""),
            parent=parent_chosen(post),
            tickets=whole(post, "tickets"),
        ),
        done=f"The team {request.POST.get('name', '').strip()} exists now.",
        to=("admin_tenants",),
        page=tenants_page,
    )


@permitted("tenant.change")
@posted_from("admin_tenants")
def tickets(request: HttpRequest, slug: str) -> HttpResponse:
    tenant = get_object_or_404(Tenant, slug=slug)
    return perform(
        request,
        f"tickets-{tenant.pk}",
        lambda post: actions.set_tickets(actor=request.user, tenant=tenant, tickets=whole(post, "tickets")),
        done=f"{tenant.name} has {request.POST.get('tickets')} tickets now.",
        to=("admin_tenants",),
        page=tenants_page,
    )


def parent_chosen(post: QueryDict) -> Tenant | None:
    """The team above, None for the top level. Neither is a default."""
    if post.get("parent", "") == TOP:
        return None
    if not post.get("parent", ""):
        raise Refused("Choose the team that it belongs to, or the top level.", "parent")
    parent: Tenant = chosen(post, "parent", Tenant.objects)
    return parent


@permitted("tenant.change")
@posted_from("admin_tenants")
def effect_of_making(request: HttpRequest) -> HttpResponse:
    """What the team in the form would take from its siblings; while the form is filled in."""

    def effect(post: QueryDict) -> list[Effect]:
        name, tickets = post.get("name", "").strip(), whole(post, "tickets")
        return effect_of_new(name=name, parent=parent_chosen(post), tickets=tickets)

    return _effect(request, "create-effect", effect)


@permitted("tenant.change")
@posted_from("admin_tenant", "slug")
def effect_of_changing(request: HttpRequest, slug: str, verb: str) -> HttpResponse:
    """What other tickets or another parent would do."""
    found = get_object_or_404(Tenant, slug=slug)
    effects: dict[str, Callable[[QueryDict], list[Effect]]] = {
        "tickets": lambda post: effect_of_tickets(found, whole(post, "tickets")),
        "move": lambda post: effect_of_move(found, parent_chosen(post)),
    }
    return _effect(request, f"{verb}-effect-{found.pk}", effects[verb])


def _effect(request: HttpRequest, key: str, effect: Callable[[QueryDict], list[Effect]]) -> HttpResponse:
    context: dict[str, object] = {"id": key, "swap": True}
    try:
        context["rows"] = effect(request.POST)
    except Refused as error:
        context["problem"] = error.message
    return render(request, "administration/effect.html", context)


def tenant_page(request: HttpRequest, *, slug: str, refusal: Refusal | None = None) -> HttpResponse:
    tenant = get_object_or_404(Tenant.objects.select_related("parent"), slug=slug)
    members = tenant.memberships.select_related("user").order_by(*by_name("user__username"))
    context = {
        "tab": "tenants",
        "tenant": tenant,
        "branch": share_of(tenant),
        "members": members,
        "roles": Membership.Role.choices,
        "candidates": User.objects.filter(is_active=True)
        .exclude(memberships__tenant=tenant)
        .order_by(*by_name("username")),
        "limits": limits_of(tenant),
        "idle": form_of_tenant(IdleRules.read(), tenant),
        **budgets_of(tenant, request.user),
        "limit_fields": limit_fields(tenant),
        "team_effect": (effect_of_restoring if tenant.archived_at else effect_of_archiving)(tenant),
        "parents": Tenant.objects.active().exclude(path__startswith=tenant.path).order_by(*by_name("name")),
    }
    return show(request, "administration/tenant.html", context, refusal=refusal)


@permitted("tenant.change")
@require_safe
def tenant(request: HttpRequest, slug: str) -> HttpResponse:
    return tenant_page(request, slug=slug)


@permitted("tenant.change")
@posted_from("admin_tenant", "slug")
def change(request: HttpRequest, slug: str, verb: str) -> HttpResponse:
    """Rename, move, archive, restore or delete a tenant."""
    found = get_object_or_404(Tenant, slug=slug)
    name = request.POST.get("name", "").strip()
    acts = {
        "rename": (lambda post: actions.rename_tenant(actor=request.user, tenant=found, name=name),
                   f"The team is called {name} now."),
        "move": (lambda post: actions.move_tenant(
                    actor=request.user, tenant=found,
                    parent=parent_chosen(post)),
                 f"{found.name} was moved."),
        "archive": (lambda post: actions.archive_tenant(actor=request.user, tenant=found),
                    f"{found.name} is archived; it takes no new jobs."),
        "restore": (lambda post: actions.restore_tenant(actor=request.user, tenant=found),
                    f"{found.name} is in use again."),
        "delete": (lambda post: actions.delete_tenant(actor=request.user, tenant=found),
                   f"{found.name} is deleted."),
    }  # fmt: skip
    act, done = acts[verb]
    to = ("admin_tenants",) if verb == "delete" else ("admin_tenant", slug)
    return perform(request, verb, act, done=done, to=to, page=partial(tenant_page, slug=slug))


@permitted("member.change")
@posted_from("admin_tenant", "slug")
def add_member(request: HttpRequest, slug: str) -> HttpResponse:
    found = get_object_or_404(Tenant, slug=slug)
    return perform(
        request,
        "add",
        lambda post: actions.add_member(
            actor=request.user,
            tenant=found,
            user=chosen(post, "user", User.objects),
            role=post.get("role", ""),
            tickets=whole(post, "tickets"),
        ),
        done=f"{found.name} has a new member.",
        to=("admin_tenant", slug),
        page=partial(tenant_page, slug=slug),
    )


@permitted("member.change")
@posted_from("admin_tenant", "slug")
def change_member(request: HttpRequest, slug: str, pk: int) -> HttpResponse:
    membership = get_object_or_404(
        Membership.objects.select_related("user", "tenant"), tenant__slug=slug, pk=pk
    )
    return perform(
        request,
        f"member-{pk}",
        change_membership(request, membership),
        done=f"{membership.user.get_username()} was changed.",
        to=("admin_tenant", slug),
        page=partial(tenant_page, slug=slug),
    )
