"""The capacity report: how all GPUs were used in closed hours, and who bears the cost.

For any closed hours, this identity must hold to the last digit:

    tenants + taken back + classes + unallocated + drained + down = capacity x price

- *tenants* is the cost that all tenants together bear now.
- *taken back* is the cost that corrections reversed without billing another payer (write-offs).
- *classes* is the amount by which class prices (prices for idle, preemptible or borrowed time) reduced bills; it is
  negative if they increased bills.
- *unallocated* is the value of GPU time that was free or used by processes outside Fairlot, plus the rounding of bills.
- *drained* and *down* are the values of the GPU time on drained nodes and on nodes that were down. Time that a lease
  held is not included.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.db import models
from django.db.models import Q, Sum

from accounting.core.calendar import first_of_month, hours_beginning_in
from accounting.core.consistent_read import consistent_read
from accounting.core.name_order import by_name
from accounting.models import (
    CapacitySegment,
    ClosedBook,
    LedgerAccount,
    LedgerEntry,
    LedgerTransaction,
)
from accounting.reports.write_offs import written_off
from accounting.usage.plan import closed_sums

CLASSES = ("busy", "idle", "assembling", "free", "others", "drained", "down")
WORTHS = ("free", "others", "drained", "down")


@dataclass(frozen=True, slots=True)
class CapacityRow:
    """Represents the GPU time of one generation and currency: GPU-seconds by class (such as busy or free), and their
    value."""

    generation: str
    currency: str
    seconds: dict[str, Decimal]  # by class
    capacity: Decimal
    charged: Decimal
    worths: dict[str, Decimal]  # by class of GPU time that no gang held
    rounding: Decimal
    value: Decimal

    @property
    def held(self) -> Decimal:
        return self.seconds["busy"] + self.seconds["idle"] + self.seconds["assembling"]


@dataclass(frozen=True, slots=True)
class Share:
    """Represents the cost that one tenant bears, without the cost of the tenants below it."""

    tenant_id: int
    tenant: str
    cost: Decimal


@dataclass(frozen=True, slots=True)
class Identity:
    """Represents all terms of the report's identity (see the module) in one currency; `value` is capacity x price."""

    currency: str
    tenants: Sequence[Share]
    written_off: Decimal
    classes: Decimal
    free: Decimal
    others: Decimal
    rounding: Decimal
    drained: Decimal
    down: Decimal
    value: Decimal

    @property
    def borne(self) -> Decimal:
        return sum((one.cost for one in self.tenants), Decimal(0))

    @property
    def unallocated(self) -> Decimal:
        return self.free + self.others + self.rounding

    @property
    def sum(self) -> Decimal:
        return self.borne + self.written_off + self.classes + self.unallocated + self.drained + self.down

    @property
    def closes(self) -> bool:
        return self.sum == self.value


@dataclass(frozen=True, slots=True)
class CapacityReport:
    """Represents the capacity report of the closed full UTC hours from `begins` to `ends`.

    `until`: before this time, all hours of the clusters in the report are closed. Clusters whose closing has not begun
    are ignored; None if closing has begun for no cluster.
    """

    begins: datetime
    ends: datetime
    until: datetime | None
    rows: Sequence[CapacityRow]
    identities: Sequence[Identity]

    @property
    def classes_close(self) -> bool:
        return all(sum(row.seconds.values()) == row.capacity for row in self.rows)


@consistent_read()
def capacity_report(begins: datetime, ends: datetime, *, book: int | None = None) -> CapacityReport:
    """Returns the capacity report of the hours that begin in [begins, ends). `book`: one cluster's id; None means all.

    Only operators may see the report, because it shows what each tenant pays. Makes eight queries.
    """
    first, last = hours_beginning_in(begins, ends)
    books = ClosedBook.objects.all() if book is None else ClosedBook.objects.filter(book=book)
    until = min((one.until for one in books), default=None)
    of_book = Q() if book is None else Q(book=book)
    closed = CapacitySegment.objects.filter(
        of_book, month__gte=first.date().replace(day=1), month__lte=last.date()
    ).filter(period__startswith__gte=first, period__startswith__lt=last)
    rows = list(_rows(closed))
    tenants = _tenants(book, first, last)
    taken_back = _written_off(book, list(books), first, last)
    classes = _classes(of_book, first, last)
    currencies = sorted({row.currency for row in rows} | tenants.keys() | taken_back.keys() | classes.keys())
    return CapacityReport(
        begins=first,
        ends=last,
        until=until,
        rows=rows,
        identities=[
            _identity(currency, rows, tenants.get(currency, ()), taken_back, classes)
            for currency in currencies
        ],
    )


def _rows(closed: models.QuerySet[CapacitySegment]) -> Iterator[CapacityRow]:
    names = [*CLASSES, "capacity", "charged", *(f"{name}_value" for name in WORTHS), "rounding", "value"]
    sums: Any = (
        closed.order_by()
        .values("generation__name", "currency")
        .annotate(**{f"sum_{name}": Sum(name) for name in names})
        .order_by(*by_name("generation__name"), "currency")
    )
    for row in sums:
        yield CapacityRow(
            generation=row["generation__name"],
            currency=row["currency"],
            seconds={name: row[f"sum_{name}"] for name in CLASSES},
            capacity=row["sum_capacity"],
            charged=row["sum_charged"],
            worths={name: row[f"sum_{name}_value"] for name in WORTHS},
            rounding=row["sum_rounding"],
            value=row["sum_value"],
        )


def _tenants(book: int | None, first: datetime, last: datetime) -> dict[str, list[Share]]:
    """Returns the cost that each tenant bears for the closed hours in [first, last), as Shares by currency.

    The Shares of a currency are sorted by the tenants' names. Leaves out tenants without cost.
    """
    costs: dict[tuple[str, int, str], Decimal] = defaultdict(Decimal)
    for sums in closed_sums(first, last, book=book):
        for name, tenant, currency, cost in sums.values_list(
            "tenant__name", "tenant_id", "currency"
        ).annotate(Sum("cost")):
            costs[name, tenant, currency] += cost
    found: dict[str, list[Share]] = {}
    for (name, tenant, currency), cost in sorted(costs.items()):
        if cost:
            found.setdefault(currency, []).append(Share(tenant, name, cost))
    return found


def _written_off(
    book: int | None, books: Sequence[ClosedBook], first: datetime, last: datetime
) -> dict[str, Decimal]:
    """Returns the write-offs of the closed hours in [first, last), by currency.

    A write-off is a cost that corrections reversed without billing another payer. The database does not contain the
    reversed segments of archived time. For this time, the write-offs are computed as a difference (see `_not_borne`).
    """
    archived = max((one.details_since for one in books if one.details_since), default=first)
    found = _not_borne(book, first, min(last, archived)) if first < archived else {}
    for (currency,), cost in written_off(books, first, last, ("currency",)).items():
        found[currency] = found.get(currency, Decimal(0)) + cost
    return found


def _not_borne(book: int | None, first: datetime, last: datetime) -> dict[str, Decimal]:
    """Returns the write-offs of archived hours in [first, last), by currency.

    A cost can leave the bills in two ways: class prices reduce it, or it is written off. So the result is billed -
    borne - reduced:

    - billed: the cost of usage when the hours were closed
    - borne: the cost that tenants bear now
    - reduced: the amount by which class prices reduced the bills
    """
    of_book = Q() if book is None else Q(book=book)
    closed = CapacitySegment.objects.filter(of_book, month__gte=first_of_month(first), month__lte=last.date())
    closed = closed.filter(period__startswith__gte=first, period__startswith__lt=last).order_by()
    # An earlier release may have billed in another currency than that of the closing of the same hour.
    found = defaultdict(Decimal, closed.values_list("currency").annotate(Sum("charged")))
    for currency, shares in _tenants(book, first, last).items():
        found[currency] -= sum((one.cost for one in shares), Decimal(0))
    for currency, amount in _classes(of_book, first, last).items():
        found[currency] -= amount
    return found


def _classes(of_book: Q, first: datetime, last: datetime) -> dict[str, Decimal]:
    """Returns the amounts by which class prices reduced the bills of the hours in [first, last), by currency.

    An amount is negative if class prices increased the bills. Amounts that corrections posted later are not included.
    `of_book`: a filter that selects the transactions of one cluster's ledger, or of all ledgers.
    """
    booked = LedgerEntry.objects.filter(
        account__kind=LedgerAccount.Kind.CLASSES,
        month__gte=first.date().replace(day=1),
        month__lte=last.date(),
        transaction__in=LedgerTransaction.objects.filter(
            of_book,
            kind=LedgerTransaction.Kind.PRICING,
            month__gte=first.date().replace(day=1),
            month__lte=last.date(),
            period__startswith__gte=first,
            period__startswith__lt=last,
        ),
    )
    return dict(booked.order_by().values_list("account__unit").annotate(Sum("amount")))


def _identity(
    currency: str,
    rows: Sequence[CapacityRow],
    tenants: Sequence[Share],
    taken_back: Mapping[str, Decimal],
    classes: Mapping[str, Decimal],
) -> Identity:
    rows = [row for row in rows if row.currency == currency]

    def worth(name: str) -> Decimal:
        return sum((row.worths[name] for row in rows), Decimal(0))

    return Identity(
        currency=currency,
        tenants=tenants,
        written_off=taken_back.get(currency, Decimal(0)),
        classes=classes.get(currency, Decimal(0)),
        free=worth("free"),
        others=worth("others"),
        drained=worth("drained"),
        down=worth("down"),
        rounding=sum((row.rounding for row in rows), Decimal(0)),
        value=sum((row.value for row in rows), Decimal(0)),
    )
