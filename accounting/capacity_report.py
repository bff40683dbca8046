"""What all GPUs were in closed hours, and who bears what they were worth.

The identity that must hold to the last digit, for any closed hours:

    tenants + taken back + classes + unallocated + drained + down = capacity x price

where *classes* is what prices of classes took from bills (or, below zero, added to them), and *unallocated* what was
free or used by others than Fairlot, with what the rounding of many bills leaves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.db import models
from django.db.models import F, Q, Sum

from accounting.models import (
    CapacitySegment,
    ClosedBook,
    CorrectedSegment,
    LedgerAccount,
    LedgerEntry,
    LedgerTransaction,
    UsageHour,
    UsageSegment,
)
from accounting.sums import HOUR, start_of_hour
from accounting.tariff import MICROSECOND

CLASSES = ("busy", "idle", "assembling", "free", "others", "drained", "down")
WORTHS = ("free", "others", "drained", "down")


@dataclass(frozen=True, slots=True)
class CapacityRow:
    """One generation: GPU-seconds in each class, and what they were worth."""

    generation: str
    currency: str
    seconds: dict[str, Decimal]  # by class
    capacity: Decimal
    charged: Decimal
    worths: dict[str, Decimal]  # by class that nobody held
    rounding: Decimal
    value: Decimal

    @property
    def held(self) -> Decimal:
        return self.seconds["busy"] + self.seconds["idle"] + self.seconds["assembling"]


@dataclass(frozen=True, slots=True)
class Share:
    """What one tenant bears."""

    tenant_id: int
    tenant: str
    cost: Decimal


@dataclass(frozen=True, slots=True)
class Identity:
    """Both sides of the identity, in one currency."""

    currency: str
    tenants: Sequence[Share]
    waived: Decimal
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
        return self.borne + self.waived + self.classes + self.unallocated + self.drained + self.down

    @property
    def closes(self) -> bool:
        return self.sum == self.value


@dataclass(frozen=True, slots=True)
class CapacityReport:
    """Of the full UTC hours in [begins, ends) that are closed; `until` is how far they are at least."""

    begins: datetime
    ends: datetime
    until: datetime | None
    rows: Sequence[CapacityRow]
    identities: Sequence[Identity]

    @property
    def classes_close(self) -> bool:
        return all(sum(row.seconds.values()) == row.capacity for row in self.rows)


def capacity_report(begins: datetime, ends: datetime, *, book: int | None = None) -> CapacityReport:
    """Of one cluster, by its id, or of all together. Hours that reach beyond the period are left out.

    For operators: it tells what each tenant pays. Eight queries.
    """
    first, last = start_of_hour(begins - MICROSECOND) + HOUR, start_of_hour(ends)
    books = ClosedBook.objects.all() if book is None else ClosedBook.objects.filter(book=book)
    until = min((one.until for one in books), default=None)
    of_book = Q() if book is None else Q(book=book)
    closed = CapacitySegment.objects.filter(
        of_book, month__gte=first.date().replace(day=1), month__lte=last.date()
    ).filter(period__startswith__gte=first, period__startswith__lt=last)
    rows = list(_rows(closed))
    tenants = _tenants(of_book, first, last)
    waived = _waived(of_book, list(books), first, last)
    classes = _classes(of_book, first, last)
    currencies = sorted({row.currency for row in rows} | tenants.keys() | waived.keys())
    return CapacityReport(
        begins=first,
        ends=last,
        until=until,
        rows=rows,
        identities=[
            _identity(currency, rows, tenants.get(currency, ()), waived, classes) for currency in currencies
        ],
    )


def _rows(closed: models.QuerySet[CapacitySegment]) -> Iterator[CapacityRow]:
    names = [*CLASSES, "capacity", "charged", *(f"{name}_value" for name in WORTHS), "rounding", "value"]
    sums: Any = (
        closed.order_by()
        .values("generation__name", "currency")
        .annotate(**{f"sum_{name}": Sum(name) for name in names})
        .order_by("generation__name", "currency")
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


def _tenants(of_book: Q, first: datetime, last: datetime) -> dict[str, list[Share]]:
    """By currency, those who bear anything, in order of their names."""
    rows = (
        UsageHour.objects.filter(of_book)
        .between(first, last)
        .order_by()
        .values_list("currency", "tenant_id", "tenant__name")
        .annotate(cost=Sum("cost"))
        .order_by("tenant__name")
    )
    found: dict[str, list[Share]] = {}
    for currency, tenant, name, cost in rows:
        if cost:
            found.setdefault(currency, []).append(Share(tenant, name, cost))
    return found


def _waived(of_book: Q, books: Sequence[ClosedBook], first: datetime, last: datetime) -> dict[str, Decimal]:
    """By currency, what corrections took back and nobody was billed for instead; from the segments themselves."""
    closed = Q(pk__in=[])
    for one in books:
        begins, ends = max(first, one.since), min(last, one.until)
        closed |= Q(book=one.book, period__startswith__gte=begins, period__startswith__lt=ends)
    segments = UsageSegment.objects.with_charges().filter(
        of_book & closed, month__gte=first.date().replace(day=1)
    )
    found: dict[str, Decimal] = {}
    taken_back = segments.filter(pk__in=CorrectedSegment.objects.values("segment"))
    for currency, cost in taken_back.order_by().values_list("currency").annotate(Sum("full_cost")):
        found[currency] = found.get(currency, Decimal(0)) + cost
    # What was booked anew brought its charge along, unless its hour was priced only later.
    brought = Sum("charge__amount", filter=Q(charge__transaction=F("transaction")), default=Decimal(0))
    anew = segments.filter(version__gt=0).order_by().values_list("currency")
    for currency, cost, charged in anew.annotate(Sum("cost"), brought=brought):
        found[currency] = found.get(currency, Decimal(0)) - cost - charged
    return found


def _classes(of_book: Q, first: datetime, last: datetime) -> dict[str, Decimal]:
    """By currency, what prices of classes changed when hours were priced, as the ledger has it."""
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
    waived: Mapping[str, Decimal],
    classes: Mapping[str, Decimal],
) -> Identity:
    rows = [row for row in rows if row.currency == currency]

    def worth(name: str) -> Decimal:
        return sum((row.worths[name] for row in rows), Decimal(0))

    return Identity(
        currency=currency,
        tenants=tenants,
        waived=waived.get(currency, Decimal(0)),
        classes=classes.get(currency, Decimal(0)),
        free=worth("free"),
        others=worth("others"),
        drained=worth("drained"),
        down=worth("down"),
        rounding=sum((row.rounding for row in rows), Decimal(0)),
        value=sum((row.value for row in rows), Decimal(0)),
    )
