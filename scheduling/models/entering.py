"""The rule that says in which jobs a user may run programs: by a terminal, or by the page of a session."""

from __future__ import annotations

from django.conf import settings
from django.db.models import Exists, OuterRef, Q

from accounting.access.permissions import may
from accounting.models import Membership, User
from accounting.models.tenants import tenants_visible_to
from scheduling.models.secrets import JobSecret


def enterable(user: User) -> Q:
    """Returns a query condition for the jobs that `user` may enter.

    Owners may who are still members of the team, and managers of the team, unless the job uses secrets that belong to
    its owner. Operators and admins may in all other jobs if FAIRLOT_TERMINALS_FOR_OPERATORS is set.
    """
    member = tenants_visible_to(user, role=Membership.Role.MEMBER)
    managed = tenants_visible_to(user, role=Membership.Role.MANAGER)
    by_role = Q(tenant__in=managed)
    if settings.FAIRLOT_TERMINALS_FOR_OPERATORS and may(user, "job.change_any"):
        by_role = Q()
    # What a program of the job can read, those who run programs in it can read too.
    owners = JobSecret.objects.filter(job=OuterRef("pk"), secret__owner__isnull=False)
    by_role &= Q(~Exists(owners))
    return Q(owner=user, tenant__in=member) | by_role
