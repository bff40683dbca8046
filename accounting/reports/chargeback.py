"""The chargeback report: the charges of all tenants in one table.

Its sums equal those of the capacity report to the last digit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from django.db.models import Q, Sum

from accounting.core.calendar import hours_beginning_in
from accounting.core.consistent_read import consistent_read
from accounting.models import ClosedBook, Tenant
from accounting.reports.write_offs import written_off
from accounting.usage.archived import written_off_of_archived
from accounting.usage.plan import closed_sums

Place = tuple[int, str, str]  # tenant, generation, currency
NOTHING = (Decimal(0), Decimal(0), Decimal(0), Decimal(0))


@dataclass(frozen=True, slots=True)
class Charge:
    """Represents the usage and the cost of one tenant in one generation and currency. Tenants below it are not
    included.

    `gpu_seconds`: the time that leases held GPUs. It is the sum of busy, idle and assembling time (before all workers
    of a gang run). `corrections`: the part of `cost` that results from corrections of hours in the period; negative if
    corrections reduced the cost.
    """

    tenant_id: int
    tenant: str
    slug: str
    parent: str
    path: str  # names of the tenants from the root down
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


@consistent_read()
def chargeback(begins: datetime, ends: datetime, *, book: int | None = None) -> list[Charge]:
    """Returns the charges for the closed full UTC hours that begin in [begins, ends), sorted by the tenants' paths.

    `book`: one cluster's book; None means all books. Only operators may see the report. Makes at most eight queries.
    """
    first, last = hours_beginning_in(begins, ends)
    of_book = Q() if book is None else Q(book=book)
    names = ("tenant_id", "generation__name", "currency")
    found: dict[Place, Sequence[Decimal]] = {}
    for sums in closed_sums(first, last, book=book):
        rows = sums.values_list(*names).annotate(
            Sum("gpu_seconds"), Sum("idle"), Sum("assembling"), Sum("cost")
        )
        for tenant, generation, currency, *more in rows:
            known = found.get((tenant, generation, currency), NOTHING)
            found[tenant, generation, currency] = [
                one + other for one, other in zip(known, more, strict=True)
            ]
    books = list(ClosedBook.objects.filter(of_book))
    corrected: dict[Place, Decimal] = {}
    for told in (written_off(books, first, last, names), written_off_of_archived(books, first, last, names)):
        for place, cost in told.items():
            corrected[place] = corrected.get(place, Decimal(0)) - cost
    tenants = Tenant.objects.in_bulk()
    charges = [
        _charge(tenants, place, found.get(place, NOTHING), corrected.get(place, Decimal(0)))
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
