"""Actions on tenants and on the tree that they form. Only admins may change the tree."""

from __future__ import annotations

from collections.abc import Collection

from django.db import transaction
from django.db.models.functions import Now
from django.utils.text import slugify

from accounting.access import audit
from accounting.access.permissions import require
from accounting.actions.checks import check_fields, check_name, refused_if_referenced, refused_if_taken
from accounting.core.errors import Refused
from accounting.core.wording import fixed
from accounting.models import BudgetWarning, Request, Tenant, User, WebhookCall
from accounting.models.requests import TICKETS, team_target
from accounting.models.versions import require_version


@transaction.atomic(durable=True)
def create_tenant(*, actor: User | None, name: str, parent: Tenant | None, tickets: int = 100) -> Tenant:
    """Creates a tenant below `parent`, or a root tenant if `parent` is None.

    A new root tenant reduces the fair shares of all other root tenants.
    """
    require(actor, "tenant.change")
    return create_within(actor=actor, name=name, parent=parent, tickets=tickets)


def create_within(*, actor: User | None, name: str, parent: Tenant | None, tickets: int) -> Tenant:
    """Creates a tenant like `create_tenant`, but in the caller's transaction.

    The caller must have checked the permission.
    """
    parent = _locked(parent) if parent else None
    check_parent(parent)
    tenant = Tenant(name=name.strip(), slug=slugify(name), parent=parent, tickets=tickets)
    _check_name(tenant)
    check_tickets(tickets)
    tenant.path = f"new {tenant.slug}"  # the path ends with its id, which is known only after the insert
    with refused_if_taken("A team with this name, or with a very similar one, already exists.", "name"):
        tenant.save(force_insert=True)
    tenant.path = _path(parent, tenant)
    tenant.save(update_fields=["path"])
    after = {"name": tenant.name, "parent": parent and parent.name, "tickets": tickets}
    audit.record(actor=actor, verb="tenant.create", target=tenant, tenant=tenant, after=after)
    return tenant


@transaction.atomic(durable=True)
def rename_tenant(*, actor: User | None, tenant: Tenant, name: str) -> Tenant:
    """Renames a tenant. The tenant keeps its slug, so its URL stays the same."""
    require(actor, "tenant.change")
    tenant = _locked(tenant)
    before, tenant.name = tenant.name, name.strip()
    _check_name(tenant)
    with refused_if_taken("A team with this name already exists.", "name"):
        tenant.save(update_fields=["name"])
    audit.record(
        actor=actor,
        verb="tenant.rename",
        target=tenant,
        tenant=tenant,
        before={"name": before},
        after={"name": tenant.name},
    )
    return tenant


@transaction.atomic(durable=True)
def move_tenant(
    *, actor: User | None, tenant: Tenant, parent: Tenant | None, seen: Collection[str] | None = None
) -> Tenant:
    """Moves a tenant with its subtree below `parent`. If `parent` is None, the tenant becomes a root tenant.

    `seen`: as for `set_tickets`.
    """
    require(actor, "tenant.change")
    # The whole tree is locked, so that two concurrent moves cannot make a cycle.
    list(Tenant.objects.select_for_update(no_key=True).order_by("pk").values_list("pk"))
    # Read again, because the locks do not cover tenants that were created while this transaction waited for the locks.
    tree = {found.pk: found for found in Tenant.objects.order_by("pk")}
    if tenant.pk not in tree or (parent and parent.pk not in tree):
        raise Refused("This team no longer exists.")
    tenant, parent = tree[tenant.pk], tree[parent.pk] if parent else None
    require_version(tenant, seen)
    check_parent(parent, below=tenant)
    old_parent, old_path = tree.get(tenant.parent_id or 0), tenant.path
    tenant.parent, new_path = parent, _path(parent, tenant)
    moved = [found for found in tree.values() if found.path.startswith(old_path)]
    for found in moved:
        found.path = new_path + found.path.removeprefix(old_path)
        check_fields(found, "path")
    Tenant.objects.bulk_update(moved, ["path", "parent"])
    audit.record(
        actor=actor,
        verb="tenant.move",
        target=tenant,
        tenant=tenant,
        before={"parent": old_parent and old_parent.name},
        after={"parent": parent and parent.name},
    )
    return tenant


@transaction.atomic(durable=True)
def archive_tenant(*, actor: User | None, tenant: Tenant, seen: Collection[str] | None = None) -> Tenant:
    """Archives a tenant. The tenant can no longer be used, but its history stays. `seen`: as for `set_tickets`."""
    require(actor, "tenant.change")
    require_version(_locked(tenant) if seen is not None else None, seen)
    return archive_within(actor=actor, tenant=tenant)


def archive_within(*, actor: User | None, tenant: Tenant) -> Tenant:
    """Archives a tenant like `archive_tenant`, but in the caller's transaction.

    The caller must have checked the permission. Raises Refused if a tenant below is not archived.
    """
    tenant = _locked(tenant)
    if tenant.archived_at:
        raise Refused(f"Team {tenant} is already archived.")
    children = list(tenant.children.active().values_list("name", flat=True))
    if children:
        raise Refused(f"{tenant} has teams below it that are not archived: {', '.join(children)}.")
    tenant.archived_at = Now()
    tenant.save(update_fields=["archived_at"])
    tenant.refresh_from_db(fields=["archived_at"])
    audit.record(actor=actor, verb="tenant.archive", target=tenant, tenant=tenant)
    return tenant


@transaction.atomic(durable=True)
def restore_tenant(*, actor: User | None, tenant: Tenant, seen: Collection[str] | None = None) -> Tenant:
    """Makes an archived tenant usable again; raises Refused if its parent is archived. `seen`: as for `set_tickets`."""
    require(actor, "tenant.change")
    parent = _locked(tenant.parent) if tenant.parent else None
    tenant = _locked(tenant)
    require_version(tenant, seen)
    if tenant.archived_at is None:
        raise Refused(f"Team {tenant} is not archived.")
    if parent and parent.archived_at:
        raise Refused(f"{parent}, the team above {tenant}, is archived. Restore {parent} first.")
    tenant.archived_at = None
    tenant.save(update_fields=["archived_at"])
    Request.objects.overtake(team_target(tenant))
    audit.record(actor=actor, verb="tenant.restore", target=tenant, tenant=tenant)
    return tenant


@transaction.atomic(durable=True)
def delete_tenant(*, actor: User | None, tenant: Tenant) -> None:
    """Deletes a tenant; raises Refused if a tenant, member, limit, budget, job or ledger entry refers to it.

    A tenant with such references can only be archived.
    """
    require(actor, "tenant.change")
    tenant = _locked(tenant)
    audit.record(
        actor=actor,
        verb="tenant.delete",
        target=tenant,
        tenant=tenant.parent,
        before={"name": tenant.name, "tickets": tenant.tickets},
    )
    with refused_if_referenced(tenant.name):
        removed = tenant.budgets.exclude(removed_at=None)
        WebhookCall.objects.filter(budget__in=removed).delete()
        BudgetWarning.objects.filter(budget__in=removed).delete()
        removed.delete()
        tenant.delete()


@transaction.atomic(durable=True)
def set_tickets(
    *, actor: User | None, tenant: Tenant, tickets: int, seen: Collection[str] | None = None
) -> Tenant:
    """Sets a tenant's tickets: the weight of the tenant among all tenants with the same parent.

    `seen`: versions of which the tenant must have one; see accounting/models/versions.py.
    """
    require(actor, "tenant.change")
    require_version(_locked(tenant) if seen is not None else None, seen)
    tenant = set_tickets_within(actor=actor, tenant=tenant, tickets=tickets)
    Request.objects.overtake(TICKETS, tenant=tenant)
    return tenant


def set_tickets_within(*, actor: User | None, tenant: Tenant, tickets: int) -> Tenant:
    """Sets a tenant's tickets in the caller's transaction. The caller must have checked the permission.

    Unlike `set_tickets`, this does not affect grants (approved requests) of tickets: when a grant ends, the tenant
    still gets back the tickets that it had before the grant.
    """
    tenant = _locked(tenant)
    check_tickets(tickets)
    before, tenant.tickets = tenant.tickets, tickets
    tenant.save(update_fields=["tickets"])
    audit.record(
        actor=actor,
        verb="tenant.set_tickets",
        target=tenant,
        tenant=tenant,
        before={"tickets": before},
        after={"tickets": tickets},
    )
    return tenant


def _locked(tenant: Tenant) -> Tenant:
    try:
        return Tenant.objects.select_for_update(no_key=True).get(pk=tenant.pk)
    except Tenant.DoesNotExist:
        raise Refused(f"Team {tenant} no longer exists.") from None


def _path(parent: Tenant | None, tenant: Tenant) -> str:
    path = f"{parent.path if parent else ''}{tenant.pk}/"
    if len(path) > 255:
        raise Refused(
            "The team would have too many teams above it. Choose a parent team that is closer to the top.",
            "parent",
        )
    return path


def _check_name(tenant: Tenant) -> None:
    check_fields(tenant, "name")
    check_name(tenant.name)
    if not slugify(tenant.name):
        raise Refused(
            "A name needs at least one letter a to z or digit 0 to 9, because the team's URL is made from it.",
            "name",
        )


def check_parent(parent: Tenant | None, *, below: Tenant | None = None) -> None:
    """Raises Refused if `parent` is archived, or if moving the tenant `below` under `parent` would create a cycle."""
    if parent and below and parent.path.startswith(below.path):
        raise Refused(f"{below} cannot be moved below itself or below one of its subteams.", "parent")
    if parent and parent.archived_at:
        raise Refused(f"Team {parent} is archived. Choose a parent team that is not archived.", "parent")


def check_tickets(tickets: int) -> None:
    if not 1 <= tickets <= 1_000_000:
        raise Refused(f"Tickets must be a whole number from 1 to {fixed(1_000_000)}.", "tickets")
