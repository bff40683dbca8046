"""Tickets and limits as they were in a period that is over."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby, zip_longest
from operator import attrgetter
from typing import TypeAlias

from accounting.models import Quota, QuotaChange, TicketChange

# A tenant, or one of those who have tickets within it.
Holder: TypeAlias = tuple[int, int | None]


@dataclass(frozen=True, slots=True)
class PastTickets:
    """From `begins` to `ends` nobody's tickets changed. Who got some later has the first ones here already; None are of
    users who had left.
    """

    begins: datetime
    ends: datetime
    tickets: Mapping[Holder, int | None]


@dataclass(frozen=True, slots=True)
class PastQuota:
    """A limit as it was from `begins` to `ends`; `quota` is not stored, its id is that of the one that was."""

    quota: Quota
    begins: datetime
    ends: datetime


def tickets_between(begins: datetime, ends: datetime) -> Iterator[PastTickets]:
    """The whole period, in parts between changes. One query."""
    standing: dict[Holder, int | None] = {}
    later = []
    for change in TicketChange.objects.all():
        if change.at is None or change.at <= begins:
            standing[change.tenant_id, change.user_id] = change.tickets
        else:
            standing.setdefault((change.tenant_id, change.user_id), change.tickets)
            later.append((change.at, change))
    since = begins
    for at, change in later:
        if at >= ends:
            break
        if since < at:
            yield PastTickets(since, at, dict(standing))
        standing[change.tenant_id, change.user_id] = change.tickets
        since = at
    yield PastTickets(since, ends, standing)


def quotas_between(
    begins: datetime, ends: datetime, *, kinds: Collection[str], at_limit: str
) -> Iterator[PastQuota]:
    """Of these kinds, by limit and in order of time. One query."""
    found = sorted(QuotaChange.objects.all(), key=attrgetter("quota_id"))  # each in order of time
    for _, some in groupby(found, attrgetter("quota_id")):
        changes = list(some)
        for change, following in zip_longest(changes, changes[1:]):
            since = max(change.at or begins, begins)
            until = min(following.at or begins, ends) if following else ends
            is_one = change.limit is not None and change.kind in kinds and change.at_limit == at_limit
            if is_one and since < until:
                yield PastQuota(_quota(change), since, until)


def _quota(change: QuotaChange) -> Quota:
    names = [*Quota.KEY, "tenant_id", "limit"]
    return Quota(pk=change.quota_id, **{name: getattr(change, name) for name in names})
