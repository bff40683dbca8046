"""The table of permissions, with the roles that have each permission. Actions, pages and docs/permissions.md use it.

An actor of None means Fairlot itself (for example, a management command). Fairlot has all permissions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from accounting.core.errors import NotAllowed
from accounting.models import Membership, Tenant, User
from accounting.models.tenants import TenantQuerySet, ids_with_role


class Role(StrEnum):
    """Represents a role that has permissions.

    Admins and operators have their role in the whole portal. Managers and members have their role in a tenant, and in
    all tenants below it. The role of a viewer is not listed, because it has none of these permissions.
    """

    ADMIN = "admin"
    OPERATOR = "operator"
    MANAGER = "manager"
    MEMBER = "member"


ADMIN, OPERATOR, MANAGER, MEMBER = Role
IN_TEAMS = {MANAGER: Membership.Role.MANAGER, MEMBER: Membership.Role.MEMBER}


@dataclass(frozen=True, slots=True)
class Permission:
    """Represents a permission. `what`: its description in docs/permissions.md. `roles`: the roles that have it."""

    what: str
    roles: tuple[Role, ...]


PERMISSIONS: dict[str, Permission] = {
    "tenant.change": Permission(
        "Create, rename, move, archive and delete teams; set their tickets", (ADMIN,)
    ),
    "member.change": Permission(
        "Add and remove members of a team; set their roles and tickets", (ADMIN, MANAGER)
    ),
    "quota.set": Permission("Set and remove limits", (ADMIN,)),
    "member_limit.set": Permission(
        "Set limits on members; remove limits on members that managers set", (ADMIN, MANAGER)
    ),
    "share.preview": Permission(
        "Preview how a change of a team's tickets or limits affects shares", (ADMIN, OPERATOR)
    ),
    "member.preview": Permission(
        "Preview how a change of a member's tickets affects shares", (ADMIN, OPERATOR, MANAGER)
    ),
    "budget.set": Permission("Set and remove a team's budgets", (ADMIN, MANAGER)),
    "team.read": Permission("Read a team's limits and budgets", (ADMIN, OPERATOR, MANAGER)),
    "trade_limits.set": Permission("Limit a team's trades", (ADMIN, MANAGER)),
    "request.ask": Permission(
        "Make requests for tickets, limits and new teams; preview their effect on the own team", (MANAGER,)
    ),
    "request.answer": Permission("Grant and decline requests", (ADMIN, OPERATOR)),
    "secret.change": Permission("Create, replace and delete a team's secrets", (MANAGER,)),
    "template.publish": Permission("Publish and withdraw a team's templates", (ADMIN, MANAGER)),
    "template.publish_for_all": Permission("Publish and withdraw templates for all teams", (ADMIN,)),
    "job.submit": Permission(
        "Submit jobs, sweeps, pipelines, services, sessions and schedules in a team", (MANAGER, MEMBER)
    ),
    "job.change_any": Permission(
        "Cancel and change other users' jobs, sweeps, pipelines, services, sessions and schedules",
        (ADMIN, OPERATOR, MANAGER),
    ),
    "user.change": Permission(
        "Create and deactivate users; set their roles and passwords; unlock their sign-in; revoke their API tokens",
        (ADMIN,),
    ),
    "price.set": Permission("Create GPU types and set prices", (ADMIN,)),
    "weight.set": Permission("Set how much a GPU type counts in fairness reports", (ADMIN, OPERATOR)),
    "ledger.correct": Permission("Correct bookings in the ledger", (ADMIN,)),
    "report.all": Permission("Read capacity, operations and chargeback reports", (ADMIN, OPERATOR)),
    "report.export": Permission("Export job records", (ADMIN, OPERATOR, MANAGER)),
    "audit.read": Permission(
        "Read the audit trail (managers: only entries about their team)", (ADMIN, OPERATOR, MANAGER)
    ),
    "anomalies.analyse": Permission("Analyse sharing anomalies", (ADMIN, OPERATOR)),
    "cluster.read": Permission(
        "Read the pages of clusters, nodes and scheduling settings", (ADMIN, OPERATOR)
    ),
    "cluster.check": Permission("Check the connection to an attached cluster", (ADMIN, OPERATOR)),
    "cluster.attach": Permission("Attach, change and detach clusters", (ADMIN,)),
    "cluster.update": Permission("Change how a cluster is scheduled", (ADMIN,)),
    "cluster.pause": Permission("Pause and resume a cluster", (ADMIN, OPERATOR)),
    "node.declare": Permission("Declare and remove nodes", (ADMIN,)),
    "node.drain": Permission("Drain nodes and return them to use", (ADMIN, OPERATOR)),
    "advance.change": Permission("Make, change and cancel advance reservations", (ADMIN, OPERATOR)),
    "announcement.change": Permission("Make, change and withdraw announcements", (ADMIN, OPERATOR)),
    "volume.grant": Permission("Grant volumes to teams", (ADMIN, OPERATOR)),
    "idle_rule.read": Permission("Read the rules for idle GPUs", (ADMIN, OPERATOR)),
    "idle_rule.set": Permission("Set the rules for idle GPUs", (ADMIN, OPERATOR)),
}


def may(user: User, verb: str, tenant: Tenant | None = None) -> bool:
    """Returns whether `user` has the permission `verb` through a portal role or through a role in `tenant`.

    If `tenant` is None, only portal roles count.
    """
    roles = PERMISSIONS[verb].roles
    if user.is_authenticated and (
        (ADMIN in roles and user.is_admin) or (OPERATOR in roles and user.is_operator)
    ):
        return True
    return tenant is not None and any(tenant.pk in ids_with_role(user, role) for role in _team_roles(roles))


def may_somewhere(user: User, verb: str) -> bool:
    """Returns whether `user` has the permission `verb` through a portal role or through a role in at least one
    tenant."""
    return may(user, verb) or any(ids_with_role(user, role) for role in _team_roles(PERMISSIONS[verb].roles))


def tenants_where(user: User, verb: str) -> TenantQuerySet:
    """Returns a queryset of the tenants in which `user` has the permission `verb`."""
    if may(user, verb):
        return Tenant.objects.all()
    (role, *others) = _team_roles(PERMISSIONS[verb].roles) or [""]
    least = others[-1] if others else role  # PERMISSIONS lists higher roles first
    return Tenant.objects.visible_to(user, role=least) if least else Tenant.objects.none()


def changeable_where(user: User, verb: str) -> TenantQuerySet:
    """Returns a queryset of the tenants in which `user` may make the change that the permission `verb` allows.

    A user who has the permission through a portal role may also change archived tenants. For all other users, the
    queryset leaves out archived tenants.
    """
    found = tenants_where(user, verb)
    return found if may(user, verb) else found.active()


def require(actor: User | None, verb: str, tenant: Tenant | None = None) -> None:
    """Raises NotAllowed unless `actor` has the permission `verb` through a portal role or through a role in `tenant`.

    If `tenant` is None, only portal roles count. An actor of None is Fairlot itself, which has all permissions.
    """
    if actor is None or may(actor, verb, tenant):
        return
    roles = PERMISSIONS[verb].roles
    *others, last = [
        f"{role}s" for role in roles if tenant or role not in IN_TEAMS or {*roles} <= {*IN_TEAMS}
    ]
    who = f"{', '.join(others)} and {last}" if others else last
    of_team = f" of {tenant}" if tenant and MANAGER in roles else ""
    raise NotAllowed(f"Only {who}{of_team} may do this.")


def as_markdown() -> str:
    """Returns the table of roles and permissions as Markdown, for docs/permissions.md."""
    lines = [f"| | {' | '.join(Role)} |", f"| --- |{' :-: |' * len(Role)}"]
    for permission in PERMISSIONS.values():
        cells = ("yes" if role in permission.roles else "" for role in Role)
        lines.append(f"| {permission.what} | {' | '.join(cells)} |".replace("  ", " "))
    return "\n".join(lines)


def _team_roles(roles: Iterable[Role]) -> list[str]:
    return [IN_TEAMS[role] for role in roles if role in IN_TEAMS]
