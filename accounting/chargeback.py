"""What every tenant bears, in one table: the same figures, to the last digit, as the capacity identity's tenants."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from django.db.models import Q, Sum

from accounting.models import ClosedBook, CorrectedSegment, Tenant, UsageHour, UsageSegment
from accounting.sums import HOUR, start_of_hour
from accounting.tariff import MICROSECOND

Place = tuple[int, str, str]  # tenant, generation, currency


@dataclass(frozen=True, slots=True)
class Charge:
    """One tenant, without those below it, and one generation. GPU-seconds; busy + idle + assembling are all.

    `corrections` is what corrections in the period's hours changed of the cost, which has it already.
    """

    tenant_id: int
    tenant: str
    slug: str
    parent: str
    path: str  # names from the top down
    generation: str
    currency: str
    gpu_seconds: Decimal
    idle: Decimal
    assembling: Decimal
    cost: Decimal
    corrections: Decimal

    @property
    def busy(self) -> Decimal:
        return self.gpu_seconds - self.idle - self.assembling


def chargeback(begins: datetime, ends: datetime, *, book: int | None = None) -> list[Charge]:
    """Of the full UTC hours in [begins, ends) that are closed, by the tenants' paths. For operators. Five queries."""
    first, last = start_of_hour(begins - MICROSECOND) + HOUR, start_of_hour(ends)
    of_book = Q() if book is None else Q(book=book)
    rows = (
        UsageHour.objects.filter(of_book)
        .between(first, last)
        .order_by()
        .values_list("tenant_id", "generation__name", "currency")
        .annotate(Sum("gpu_seconds"), Sum("idle"), Sum("assembling"), Sum("cost"))
    )
    found = {(tenant, generation, currency): rest for tenant, generation, currency, *rest in rows}
    corrected = _corrections(of_book, first, last)
    tenants = Tenant.objects.in_bulk()
    charges = [
        _charge(tenants, place, found.get(place, [Decimal(0)] * 4), corrected.get(place, Decimal(0)))
        for place in found.keys() | corrected.keys()
    ]
    charges = [one for one in charges if one.gpu_seconds or one.cost or one.corrections]
    return sorted(charges, key=lambda one: (one.path.casefold(), one.tenant_id, one.generation, one.currency))


def _charge(
    tenants: Mapping[int, Tenant], place: Place, sums: Sequence[Decimal], corrections: Decimal
) -> Charge:
    gpu_seconds, idle, assembling, cost = sums
    pk, generation, currency = place
    names = [tenants[step].name for step in tenants[pk].lineage]
    return Charge(
        tenant_id=pk,
        tenant=tenants[pk].name,
        slug=tenants[pk].slug,
        parent=names[-2] if len(names) > 1 else "",
        path=" / ".join(names),
        generation=generation,
        currency=currency,
        gpu_seconds=gpu_seconds,
        idle=idle,
        assembling=assembling,
        cost=cost,
        corrections=corrections,
    )


def _corrections(of_book: Q, first: datetime, last: datetime) -> dict[Place, Decimal]:
    """What was taken back of each, negative, and what was billed anew; of closed hours, from the segments."""
    closed = Q(pk__in=[])
    for one in ClosedBook.objects.filter(of_book):
        begins, ends = max(first, one.since), min(last, one.until)
        closed |= Q(book=one.book, period__startswith__gte=begins, period__startswith__lt=ends)
    segments = UsageSegment.objects.filter(of_book & closed, month__gte=first.date().replace(day=1))
    taken_back = segments.filter(pk__in=CorrectedSegment.objects.values("segment"))
    found: dict[Place, Decimal] = defaultdict(Decimal)
    for sign, some in ((-1, taken_back), (1, segments.filter(version__gt=0))):
        for tenant, generation, currency, cost in (
            some.order_by()
            .values_list("tenant_id", "generation__name", "currency")
            .annotate(cost_sum=Sum("cost"))
        ):
            found[tenant, generation, currency] += sign * cost
    return dict(found)
