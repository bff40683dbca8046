"""Which GPUs and rows the cluster pages show: the filter by GPU type, team and node, read from the URL's query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from django.shortcuts import get_object_or_404

from accounting.access.visibility import tenants_seen
from accounting.core.name_order import in_order
from accounting.models import Tenant, User
from accounting.models.tenants import visible_tenants
from portal.user_request import UserRequest
from scheduling.idle.steps import STALE
from scheduling.reports.holders import Narrow, WhoHolds, who_holds

LONGEST = 200  # characters of a value in the address


@dataclass(frozen=True)
class Choice:
    """Represents what the reader chose. `generation` and `node` are empty, and `tenant` is None, without a choice.

    `tenants` are the ids of the chosen team and the teams below it that the reader may see.
    """

    by_user: bool
    generation: str
    node: str
    tenant: Tenant | None
    tenants: frozenset[int] | None
    teams: list[Tenant]  # that the reader may choose

    @classmethod
    def read(cls, request: UserRequest) -> Self:
        """Reads the choice from the URL's query. Raises Http404 for a team that the user may not see."""
        query, slug = request.GET, request.GET.get("team", "")
        tenant = get_object_or_404(Tenant.objects.visible_to(request.user), slug=slug) if slug else None
        return cls(
            by_user=query.get("by") == "user",
            generation=query.get("generation", "")[:LONGEST],
            node=query.get("node", "").strip()[:LONGEST],
            tenant=tenant,
            tenants=frozenset(tenants_seen(request.user, tenant) or ()) if tenant else None,
            teams=in_order([one for one in visible_tenants(request.user) if one.archived_at is None]),
        )

    @property
    def is_narrow(self) -> bool:
        """Returns whether the choice leaves out any GPU."""
        return bool(self.generation or self.node or self.tenant)


def holders_of(user: User, choice: Choice) -> WhoHolds:
    narrow = Narrow(generation=choice.generation, node=choice.node, tenants=choice.tenants)
    return who_holds(user, narrow, teams=choice.teams, by_user=choice.by_user, measured_within=STALE)
