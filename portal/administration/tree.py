"""The tree of tenants with the share that each one's tickets come to."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Count, Sum

from accounting.models import Tenant


@dataclass(frozen=True)
class Branch:
    """A tenant in the tree. `share` is its part of the whole cluster while everybody is active."""

    tenant: Tenant
    depth: int
    share: float
    among_siblings: float
    members: int


def read_tree() -> list[Branch]:
    """Every tenant, parents first, siblings by name. Archived ones have no share."""
    tenants = list(Tenant.objects.annotate(members=Count("memberships")).order_by("name"))
    children: dict[int | None, list[Tenant]] = {}
    for tenant in tenants:
        children.setdefault(tenant.parent_id, []).append(tenant)
    branches: list[Branch] = []

    def walk(parent: int | None, depth: int, share: float) -> None:
        siblings = children.get(parent, [])
        tickets = sum(one.tickets for one in siblings if not one.archived_at)
        for one in siblings:
            part = 0.0 if one.archived_at else one.tickets / tickets
            branches.append(Branch(one, depth, share * part, part, one.members))
            walk(one.pk, depth + 1, share * part)

    walk(None, 0, 1.0)
    return branches


def share_of(tenant: Tenant) -> Branch | None:
    return next((branch for branch in read_tree() if branch.tenant.pk == tenant.pk), None)


def tickets_within(tenant: Tenant) -> int:
    """Of all who share what the tenant has: its members and the teams just below it."""
    members = tenant.memberships.aggregate(sum=Sum("tickets"))["sum"] or 0
    return members + (tenant.children.active().aggregate(sum=Sum("tickets"))["sum"] or 0)
