"""Says how long teams keep tickets that were granted until some time, and how many they have afterwards."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from accounting.core.prepared import Prepared
from accounting.models import Request, Tenant
from accounting.models.requests import TICKETS


@dataclass(frozen=True)
class TicketsEnd:
    """From `at` on, a team has `after` tickets, because the grant of the request with the id `request` ends."""

    at: datetime
    after: int
    request: int


@dataclass
class _Grant:
    pk: int
    value: int
    former: int
    decided_at: datetime
    ends_at: datetime | None


_grants = Prepared(
    lambda teams: (
        Request.objects.in_force()
        .filter(tenant__in=teams, target=TICKETS, overtaken_at=None)
        .values_list("tenant_id", "pk", "granted__tickets", "former", "decided_at", "ends_at")
    )
)


def ticket_ends(tenants: Collection[Tenant]) -> dict[int, list[TicketsEnd]]:
    """Returns the coming changes of each team's tickets, by team id, earliest first; only of teams with any.

    The grants end as `accounting.actions.grants.end` ends them: a newer grant on top of an ending one takes over its
    former value, and tickets that somebody set since then stay.
    """
    of: dict[int, list[_Grant]] = {}
    for tenant, pk, value, former, decided_at, ends_at in _grants([one.pk for one in tenants]):
        of.setdefault(tenant, []).append(_Grant(pk, int(value), int(former), decided_at, ends_at))
    found = {one.pk: _ends(one.tickets, of[one.pk]) for one in tenants if one.pk in of}
    return {tenant: ends for tenant, ends in found.items() if ends}


def _ends(tickets: int, grants: list[_Grant]) -> list[TicketsEnd]:
    pile = sorted(grants, key=lambda one: (one.decided_at, one.pk))
    ends = []
    for ending in sorted((one for one in grants if one.ends_at), key=lambda one: (one.ends_at, one.pk)):
        later = next((one for one in pile if one.decided_at > ending.decided_at), None)
        pile.remove(ending)
        if later is not None and later.former == ending.value:
            later.former = ending.former
        elif tickets == ending.value and ending.ends_at:
            tickets = ending.former
            ends.append(TicketsEnd(ending.ends_at, tickets, ending.pk))
    return ends
