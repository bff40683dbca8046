"""The rule that says which rows with a tenant and an owner a user may change."""

from __future__ import annotations

from django.db.models import Model, Q

from accounting.access.permissions import may
from accounting.core.errors import NotAllowed
from accounting.models import Membership, User
from accounting.models.tenants import tenants_visible_to


def changeable(user: User) -> Q:
    """Returns a query condition for the rows that `user` may change. Operators may change all rows.

    Other users may change the rows of tenants that they manage, and their own rows in tenants of which they are still
    members.
    """
    if may(user, "job.change_any"):
        return Q()
    managed = tenants_visible_to(user, role=Membership.Role.MANAGER)
    member = tenants_visible_to(user, role=Membership.Role.MEMBER)
    return Q(tenant__in=managed) | Q(owner=user, tenant__in=member)


def require_changeable(actor: User, row: Model, what: str) -> None:
    """Raises NotAllowed unless `actor` may change the row, by the rule of `changeable`. `what` completes the sentence
    "Only … may", such as "cancel this job"."""
    if not type(row)._default_manager.filter(changeable(actor), pk=row.pk).exists():
        raise NotAllowed(f"Only the owner, a manager of the team or an operator may {what}.")
