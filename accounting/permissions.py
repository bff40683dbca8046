"""Who may act. An actor of None is Fairlot itself (commands on the machine) and may do everything."""

from __future__ import annotations

from accounting.errors import NotAllowed
from accounting.models import Membership, Tenant, User


def require_admin(actor: User | None) -> None:
    """Raises NotAllowed unless `actor` is an admin."""
    if actor is not None and not _is_admin(actor):
        raise NotAllowed("Only admins may do this.")


def require_operator(actor: User | None) -> None:
    """Raises NotAllowed unless `actor` runs the cluster."""
    if actor is not None and not (actor.is_authenticated and actor.is_operator):
        raise NotAllowed("Only operators may do this.")


def require_manager(actor: User | None, tenant: Tenant) -> None:
    """Raises NotAllowed unless `actor` is an admin, or manages `tenant` or a tenant above it."""
    if actor is None or _is_admin(actor):
        return
    managed = Tenant.objects.visible_to(actor, role=Membership.Role.MANAGER)
    if not managed.filter(pk=tenant.pk).exists():
        raise NotAllowed(f"Only admins and managers of {tenant} may do this.")


def _is_admin(actor: User) -> bool:
    return actor.is_authenticated and actor.is_admin  # AnonymousUser has no roles at all
