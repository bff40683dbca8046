"""Write-offs: the cost of usage in closed hours that corrections reversed without billing another payer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.db.models import Q, Sum

from accounting.models import ClosedBook, CorrectedSegment, UsageSegment


def written_off(
    books: Iterable[ClosedBook], first: datetime, last: datetime, names: tuple[str, ...]
) -> dict[tuple[Any, ...], Decimal]:
    """Returns the write-offs in the closed part of [first, last), grouped by the fields `names` of the usage segments.

    The keys of the result are the values of these fields. `books`: the clusters' ledgers to include. Leaves out
    archived time.

    A write-off is the cost of reversed usage minus the cost of usage that was posted again. For example, a correction
    moves usage that costs 5 euros from team A to team B. Grouped by tenant, the result is 5 for A and -5 for B.
    """
    closed = Q(pk__in=[])
    for one in books:
        begins, ends = max(first, one.since, one.details_since or first), min(last, one.until)
        closed |= Q(book=one.book, period__startswith__gte=begins, period__startswith__lt=ends)
    segments = UsageSegment.objects.with_charges().filter(
        closed, month__gte=first.date().replace(day=1), month__lte=last.date()
    )
    found: dict[tuple[Any, ...], Decimal] = defaultdict(Decimal)
    taken_back = segments.filter(pk__in=CorrectedSegment.objects.values("segment"))
    for *key, cost in taken_back.order_by().values_list(*names).annotate(Sum("full_cost")):
        found[tuple(key)] += cost
    anew = segments.filter(version__gt=0).order_by().values_list(*names)
    for *key, cost in anew.annotate(Sum("booked_cost")):
        found[tuple(key)] -= cost
    return dict(found)
