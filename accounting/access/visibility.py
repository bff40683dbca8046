"""Functions that find the teams that a user may see, for reports that query several tables about the same teams."""

from __future__ import annotations

from accounting.models import Tenant, User
from accounting.models.tenants import ids_with_role

ANOTHER = "another team"  # replaces the name of a team that a reader may not see


def sees_all(viewer: User | None, tenant: Tenant | None = None) -> bool:
    """Returns whether a report for `viewer` covers all tenants.

    This is so if `tenant` is None, and `viewer` is None (Fairlot itself) or an active operator or admin. With `tenant`,
    the report covers only that tenant's subtree.
    """
    return tenant is None and (viewer is None or (viewer.is_active and viewer.is_operator))


def visible_ids(user: User) -> set[int]:
    """Returns the ids of the tenants that `user` may see."""
    return set(Tenant.objects.visible_to(user).values_list("pk", flat=True))


def tenants_seen(viewer: User | None, tenant: Tenant | None = None) -> list[int] | None:
    """Returns the ids of the tenants that a report for `viewer` covers; None means all tenants.

    Without `tenant`, the report covers all tenants that `viewer` may see. With `tenant`, it covers only the visible
    tenants in the subtree of `tenant`. A `viewer` of None is Fairlot itself, which sees all tenants.
    """
    if sees_all(viewer, tenant):
        return None
    if tenant is None and viewer is not None:
        return ids_with_role(viewer)
    found = Tenant.objects.all() if viewer is None else Tenant.objects.visible_to(viewer)
    if tenant is not None:
        found = found.within(tenant)
    return list(found.order_by().values_list("pk", flat=True))
