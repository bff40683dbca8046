"""Computes the shares that tickets gave to tenants in a past period, in the form that fairshare.counterfactual.past
expects."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from accounting.limits.history import Holder, PastTickets, tickets_between
from accounting.models import Tenant
from fairshare.counterfactual.private import ticket_parts
from fairshare.model import NOWHERE
from scheduling.shares.snapshot import DEFAULT_TICKETS


@dataclass(frozen=True, slots=True)
class Shares:
    """The average shares of tenants over a period. Each list has one element for each tenant in `tenants` (primary
    keys).

    - `parts`: the fraction of the cluster that the tenant's own users get, without the teams below. The fractions sum
      to 1.
    - `user_tickets`: a tuple with the tickets of each of the tenant's users who have jobs.
    - `places`: for each (tenant, user) pair, the index of the user's tickets in the tuple of the tenant.
    """

    tenants: Sequence[int]
    parts: Sequence[float]
    user_tickets: Sequence[tuple[float, ...]]
    places: Mapping[tuple[int, int], int]


def shares_between(begins: datetime, ends: datetime, users: Collection[tuple[int, int]]) -> Shares:
    """Returns the average shares of tenants in the period.

    Includes the tenants that had tickets in the period or that occur in `users`, and all their ancestors. `users`: the
    (tenant, user) pairs that have jobs.
    """
    stretches = list(tickets_between(begins, ends))
    pairs = sorted(users)
    found = _tree(stretches, {tenant for tenant, _ in pairs})
    place = {one.pk: i for i, one in enumerate(found)}
    parent = [NOWHERE if one.parent_id is None else place[one.parent_id] for one in found]
    parent += [place[tenant] for tenant, _ in pairs]
    holders: list[Holder] = [*((one.pk, None) for one in found), *pairs]
    tickets, parts = _usual(
        stretches, holders, parent, _otherwise(stretches, found) + [DEFAULT_TICKETS] * len(pairs)
    )
    # Teams below a tenant compete with its own users, so they have separate shares.
    inner = set(parent)
    own = np.array([0.0 if i in inner else parts[i] for i in range(len(found))])
    places: dict[tuple[int, int], int] = {}
    of_users: dict[int, list[float]] = defaultdict(list)
    for i, pair in enumerate(pairs, start=len(found)):
        own[place[pair[0]]] += parts[i]
        places[pair] = len(of_users[pair[0]])
        of_users[pair[0]].append(tickets[i])
    # Scaled to the sum 1, because the sum is below 1 if nobody had jobs for some of the time.
    own = own / own.sum() if own.sum() > 0 else own
    tenants = [one.pk for one in found]
    return Shares(tenants, own.tolist(), [tuple(of_users[pk]) for pk in tenants], places)


def _tree(stretches: Sequence[PastTickets], with_jobs: Collection[int]) -> list[Tenant]:
    """Returns the tenants that had tickets in any interval of `stretches`, those in `with_jobs` (ids), and all their
    ancestors.

    Parents come before their children.
    """
    there = {tenant for one in stretches for tenant, user in one.tickets if user is None}.union(with_jobs)
    needed = {step for one in Tenant.objects.filter(pk__in=there) for step in one.lineage}
    return sorted(Tenant.objects.filter(pk__in=needed), key=lambda one: (one.path.count("/"), one.pk))


def _otherwise(stretches: Sequence[PastTickets], tenants: Sequence[Tenant]) -> list[float]:
    """Returns, for each tenant, the tickets to assume in intervals that have no record of the tenant's tickets.

    - If another interval has such a record: 0, because the tenant had no tickets in the intervals without a record.
    - If no interval has one: the tenant's present tickets, because imported history has no records of tickets.
    """
    known = {holder for one in stretches for holder in one.tickets}
    return [0.0 if (one.pk, None) in known else float(one.tickets) for one in tenants]


def _usual(
    stretches: Sequence[PastTickets],
    holders: Sequence[Holder],
    parent: Sequence[int],
    otherwise: Sequence[float],
) -> tuple[list[float], list[float]]:
    """Returns two lists with one element for each of `holders`: the average tickets, and the average fraction of the
    cluster.

    A holder is a tenant, or a user in a tenant. Intervals count in proportion to their length.

    - `stretches`: the intervals of the period, each with the tickets that holders had in it.
    - `parent`: the index of each holder's parent.
    - `otherwise`: the tickets to assume for each holder in intervals that record none for it.
    """
    tickets, parts = np.zeros(len(holders)), np.zeros(len(holders))
    whole = stretches[-1].ends - stretches[0].begins
    for stretch in stretches:
        held = [
            float(stretch.tickets.get(holder, other))
            for holder, other in zip(holders, otherwise, strict=True)
        ]
        weight = (stretch.ends - stretch.begins) / whole
        tickets += weight * np.array(held)
        parts += weight * np.array(ticket_parts(parent, held))
    return tickets.tolist(), parts.tolist()
