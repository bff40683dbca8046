"""Reads the tree of tenants with their shares, and computes how a change would change the shares."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass

from django.db.models import Count, Exists, OuterRef, Sum
from django.utils import timezone

from accounting.actions.tenants import check_parent, check_tickets
from accounting.models import Membership, Tenant
from portal.sorting import Names, Sorting

# Stands for the primary key of a team that does not exist yet.
NEW = 0


@dataclass(frozen=True)
class Branch:
    """One tenant of the tree. `share` is the fraction of the whole cluster (0 to 1) that it has if all tenants are
    active."""

    tenant: Tenant
    depth: int
    share: float
    among_siblings: float
    members: int
    members_share: float  # part of the whole cluster for its own members, without the members of its subteams


@dataclass(frozen=True)
class Effect:
    """The effect of a change on the share of one team, or on the common share of a team's direct members.

    `before` and `after` are the share before and after the change, as fractions of the whole cluster. They are computed
    as if all tenants were active. None means that there is no share at that time. For example, `before` is None for a
    new team, and `after` is None for a team that is archived.
    """

    name: str
    before: float | None  # None if the team has no share
    after: float | None
    is_changed_team: bool = False
    depth: int = 0  # below the level of the change


# Sorting by share sorts by tickets: siblings share in proportion to their tickets.
SORTING = Sorting(
    {
        "name": (Names("name"),), "members": ("members", Names("name")), "tickets": ("tickets", Names("name")),
        "share": ("tickets", Names("name")),
    },
    usual="name",
)  # fmt: skip


def read_tree(sort: str = SORTING.usual) -> list[Branch]:
    """Returns all tenants. Each parent comes before its children, and siblings are sorted by `sort`.

    Archived tenants have no share.
    """
    return _tree_of(_read_tenants(sort))


def share_of(tenant: Tenant) -> Branch | None:
    return next((branch for branch in read_tree() if branch.tenant.pk == tenant.pk), None)


def tickets_within(tenant: Tenant) -> int:
    """Returns the sum of the tickets of the tenant's direct members and of its child teams, without viewers,
    deactivated users and archived teams.

    The members and child teams divide the tenant's share in proportion to these tickets.
    """
    members = tenant.memberships.with_part().aggregate(sum=Sum("tickets"))["sum"] or 0
    return members + (tenant.children.active().aggregate(sum=Sum("tickets"))["sum"] or 0)


def effect_of_new(*, name: str, parent: Tenant | None, tickets: int) -> list[Effect]:
    """Returns how a new team would change the shares of all teams that it affects: those at its level, and all below
    them.

    Raises Refused if the team cannot be created under this parent.
    """
    check_parent(parent)
    check_tickets(tickets)
    made = Tenant(pk=NEW, name=name or "New team", parent=parent, tickets=tickets)
    made.members, made.member_tickets = 0, 0  # type: ignore[attr-defined]  # as annotated
    tenants = _read_tenants()
    return _effect(tenants, [*tenants, made], NEW, deep=True)


def effect_of_tickets(tenant: Tenant, tickets: int) -> list[Effect]:
    """Returns how the given number of tickets would change the shares of the team and its siblings.

    Raises Refused if the number is invalid.
    """
    check_tickets(tickets)
    return _effect_on(tenant, tickets=tickets)


def effect_of_move(tenant: Tenant, parent: Tenant | None) -> list[Effect]:
    """Returns how a move would change the shares of the team and of its old and new siblings.

    Raises Refused if `parent` cannot be the team's parent.
    """
    check_parent(parent, below=tenant)
    return _effect_on(tenant, parent_id=parent and parent.pk)


def effect_of_archiving(tenant: Tenant) -> list[Effect]:
    """Returns how archiving a team would change the shares of the team and its siblings."""
    return _effect_on(tenant, archived_at=timezone.now())


def effect_of_restoring(tenant: Tenant) -> list[Effect]:
    """Returns how restoring an archived team would change the shares of the team and its siblings."""
    return _effect_on(tenant, archived_at=None)


def _effect_on(tenant: Tenant, **changes: object) -> list[Effect]:
    tenants = _read_tenants()
    return _effect(
        tenants, [_with(one, changes) if one.pk == tenant.pk else one for one in tenants], tenant.pk
    )


def _with(tenant: Tenant, changes: dict[str, object]) -> Tenant:
    changed = copy(tenant)
    for name, value in changes.items():
        setattr(changed, name, value)
    return changed


def _effect(before: list[Tenant], after: list[Tenant], changed: int, *, deep: bool = False) -> list[Effect]:
    """Returns the effect of a change of one team: on this team, on its siblings, and on the direct members of its
    parent.

    If the team moves, the siblings and members of both its old and its new parent are included.

    - `before` and `after`: all tenants before and after the change.
    - `changed`: the primary key of the changed team.
    - `deep`: whether the teams below the siblings are included, whose shares change in proportion.
    """
    levels = {one.parent_id for one in [*before, *after] if one.pk == changed}
    trees = _tree_of(before), _tree_of(after)
    depths = {one.tenant.pk: one.depth for tree in trees for one in tree}
    top = depths[changed]
    names, was = _shares(trees[0], levels, deep=deep)
    names_after, becomes = _shares(trees[1], levels, deep=deep)
    return [
        Effect(
            name,
            was.get(key),
            becomes.get(key),
            is_changed_team=key == (changed, False),
            depth=max(depths[key[0]] - top, 0),
        )
        for key, name in (names | names_after).items()
    ]


def _shares(
    branches: Iterable[Branch], levels: set[int | None], *, deep: bool = False
) -> tuple[dict[tuple[int, bool], str], dict[tuple[int, bool], float]]:
    """Returns the names and the shares of the teams and direct members below the given parents, as two mappings.

    `levels` has the ids of the parents; None stands for the top level. With `deep`, all teams below their children are
    included. A share is a fraction of the whole cluster. Both
    mappings have these keys:

    - (team id, False) for a child team of a parent;
    - (parent id, True) for all direct members of a parent together.
    """
    names, shares = {}, {}
    inner = set[int | None]()
    for one in branches:
        tenant = one.tenant
        if tenant.pk in levels and one.members_share:
            names[tenant.pk, True], shares[tenant.pk, True] = f"Members of {tenant.name}", one.members_share
        if tenant.parent_id in levels | inner and not tenant.archived_at:
            names[tenant.pk, False], shares[tenant.pk, False] = tenant.name, one.share
            inner |= {tenant.pk} if deep else set()
    return names, shares


def _read_tenants(sort: str = SORTING.usual) -> list[Tenant]:
    tenants = Tenant.objects.annotate(
        members=Count("memberships"),
        member_tickets=Sum(
            "memberships__tickets",
            filter=Exists(Membership.objects.with_part().filter(pk=OuterRef("memberships"))),
        ),
    )
    return list(tenants.order_by(*SORTING.by(sort)))


def _tree_of(tenants: Iterable[Tenant]) -> list[Branch]:
    children: dict[int | None, list[Tenant]] = {}
    for tenant in tenants:
        children.setdefault(tenant.parent_id, []).append(tenant)
    branches: list[Branch] = []

    def tickets_below(parent: int | None) -> int:
        return sum(one.tickets for one in children.get(parent, []) if not one.archived_at)

    def walk(parent: int | None, depth: int, share: float, of_members: int) -> None:
        tickets = tickets_below(parent) + of_members
        for one in children.get(parent, []):
            part = 0.0 if one.archived_at else one.tickets / tickets
            own: int = one.member_tickets or 0  # type: ignore[attr-defined]  # annotated
            members_share = share * part * own / (own + tickets_below(one.pk)) if own else 0.0
            branches.append(Branch(one, depth, share * part, part, one.members, members_share))  # type: ignore[attr-defined]  # annotated
            walk(one.pk, depth + 1, share * part, own)

    walk(None, 0, 1.0, 0)
    return branches
