"""Reads the tickets and limits that were valid in past periods, from the history tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any, TypeAlias

from accounting.models import Quota, QuotaChange, TicketChange

# A tenant's id, and a user's id for the user's tickets in the tenant; None for the tenant's own tickets.
Holder: TypeAlias = tuple[int, int | None]


@dataclass(frozen=True, slots=True)
class PastTickets:
    """Represents the tickets of all tenants and members from `begins` to `ends`, an interval without changes of
    tickets.

    Leaves out tenants that were already archived at the start, and users who were not members.
    """

    begins: datetime
    ends: datetime
    tickets: Mapping[Holder, int]


@dataclass(frozen=True, slots=True)
class PastQuota:
    """Represents a past state of a limit, valid from `begins` to `ends`.

    `quota` is an unsaved object with the id of the limit and its past values.
    """

    quota: Quota
    begins: datetime
    ends: datetime


def tickets_between(begins: datetime, ends: datetime) -> Iterator[PastTickets]:
    """Yields the tickets in [begins, ends) as consecutive intervals, split where tickets changed. Makes one query."""
    holder = attrgetter("tenant_id", "user_id")
    changes = chain.from_iterable(_in_time(TicketChange.objects.all(), begins, by=holder))
    standing: dict[Holder, int] = {}
    since = begins
    for at, change in sorted(changes, key=itemgetter(0)):
        if at >= ends:
            break
        if since < at:
            yield PastTickets(since, at, dict(standing))
            since = at
        standing.pop(holder(change), None)
        if change.tickets is not None:
            standing[holder(change)] = change.tickets
    yield PastTickets(since, ends, standing)


def quotas_between(
    begins: datetime, ends: datetime, *, kinds: Collection[str], at_limit: Collection[str]
) -> Iterator[PastQuota]:
    """Yields the past states of limits in [begins, ends), sorted by limit and then by time. Makes one query.

    Includes only limits whose kind is in `kinds` and whose action is in `at_limit`. The action says whether jobs at the
    limit are blocked, made preemptible, or only cause a warning.
    """
    found = QuotaChange.objects.filter(kind__in=kinds, at_limit__in=at_limit)
    for changes in _in_time(found, begins, by=attrgetter("quota_id")):
        untils = [*(since for since, _ in changes[1:]), ends]
        for (since, change), until in zip(changes, untils, strict=True):
            if change.limit is not None and since < min(until, ends):
                yield PastQuota(_quota(change), since, min(until, ends))


def _in_time(
    changes: Iterable[Any], begins: datetime, *, by: Callable[[Any], Any]
) -> Iterable[list[tuple[datetime, Any]]]:
    """Groups changes by the key that `by` returns. Returns a list of (time, change) for each key, in order of time.

    Times before `begins` become `begins`.
    """
    found: dict[Any, list[tuple[datetime, Any]]] = defaultdict(list)
    for change in changes:
        own = found[by(change)]
        # If the clock was set back, the time of the previous change, so that times never decrease.
        own.append((max(change.at or begins, own[-1][0] if own else begins), change))
    return found.values()


def _quota(change: QuotaChange) -> Quota:
    names = [*Quota.KEY, "tenant_id", "limit"]
    return Quota(pk=change.quota_id, **{name: getattr(change, name) for name in names})
