"""Closes the books (the clusters' ledgers) hour by hour.

The closing of an hour posts all GPU time of the cluster by class (such as busy, idle or free), and the value of the GPU
time that no lease held. Hours are closed once and in order, after all usage in the hour is posted. Corrections may
later change what tenants pay, but the posted capacity and its value stay.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal

from django.db import IntegrityError
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange
from django.db.models import Sum

from accounting.closing.gpu_classes import NAMES, Allocation, Classes, Condition, classify
from accounting.core.bulk import insert_rows
from accounting.core.calendar import DAY, HOUR, MICROSECOND, first_of_month, start_of_day
from accounting.core.errors import BookedOtherwise
from accounting.ledger.checks import require_transaction
from accounting.ledger.posting import AccountKey, Booking, Entries, insert, unit_of
from accounting.ledger.rollups import write_days, write_usage_hours
from accounting.ledger.usage import hold_prices
from accounting.models import (
    CapacitySegment,
    ClosedBook,
    Generation,
    LedgerAccount,
    LedgerTransaction,
    NodeHour,
    UsageSegment,
)
from accounting.pricing.tariff import cost_of, tariffs_of

UNHELD = ("free", "others", "drained", "down")


@dataclass(frozen=True, slots=True)
class NodeHistory:
    """Represents the states of one node in an hour, and the GPUs of the node that gangs held in this hour.

    Times are microseconds since the hour began.
    """

    node_id: int
    name: str
    conditions: Sequence[Condition]
    allocations: Sequence[Allocation]


def closed_until(book: int) -> datetime | None:
    """Returns the time until which a cluster's book is closed; None if the book was never opened."""
    return ClosedBook.objects.filter(book=book).values_list("until", flat=True).first()


def open_book(*, book: int, since: datetime) -> ClosedBook:
    """Opens a cluster's book, so that its hours are closed from the full hour `since` on. Returns the book.

    If the book is already open, returns it unchanged.
    """
    return ClosedBook.objects.get_or_create(
        book=book, defaults={"since": since, "until": since, "priced_until": since}
    )[0]


def close_hour(*, book: int, hour: datetime, nodes: Sequence[NodeHistory]) -> LedgerTransaction | None:
    """Closes the hour that begins at `hour`: posts all GPU time by class, and writes the rollups for reports.

    Must run in the caller's transaction, which must block changes of the cluster's leases and nodes. Returns the
    transaction; None if the cluster had no GPUs. Raises BookedOtherwise if `hour` is not the next hour to close, or if
    the allocations in `nodes` differ from the billed usage.
    """
    require_transaction()
    held = ClosedBook.objects.select_for_update().get(book=book)
    if held.until != hour:
        raise BookedOtherwise(f"the next hour to be closed is {held.until}, not {hour}")
    closing = _Closing(book, hour, nodes)
    booked = closing.book_it()
    by = booked.pk if booked else 0
    write_usage_hours(transaction_id=by, book=book, hour=hour)
    try:
        ClosedBook.objects.filter(book=book).update(until=hour + HOUR)
    except IntegrityError as error:
        raise BookedOtherwise(f"the hour from {hour} cannot be closed: {error}") from error
    day = start_of_day(hour)
    if hour + HOUR == day + DAY and held.since <= day:
        write_days(transaction_id=by, book=book, day=day)
    return booked


def close_empty_days(*, book: int, until: datetime) -> None:
    """Marks a book as closed until `until`, a midnight (UTC), without posting anything.

    The caller must know that the cluster had no GPUs and no leases in the newly closed days. Must run in the caller's
    transaction. Raises BookedOtherwise if usage was billed in this time, or if it is not a whole number of days.
    """
    require_transaction()
    held = ClosedBook.objects.select_for_update().get(book=book)
    begins = held.until
    if not (start_of_day(begins) == begins <= until == start_of_day(until)):
        raise BookedOtherwise(f"the time from {begins} to {until} is not a whole number of days")
    segments = UsageSegment.objects.filter(book=book, month__gte=first_of_month(begins))
    if segments.filter(period__startswith__gte=begins, period__startswith__lt=until).exists():
        raise BookedOtherwise(
            f"the time from {begins} to {until} cannot be closed as empty, because usage was billed in it"
        )
    ClosedBook.objects.filter(book=book).update(until=until)


class _Closing:
    """Represents the closing of one hour of a cluster's ledger; builds and posts its transaction."""

    def __init__(self, book: int, hour: datetime, nodes: Sequence[NodeHistory]) -> None:
        self.book, self.hour, self.nodes = book, hour, nodes
        told = {one.generation for node in nodes for one in node.conditions}
        told |= {one.generation for node in nodes for one in node.allocations}
        self.generations = Generation.objects.in_bulk(sorted(told))
        hold_prices(sorted(told))
        tariffs = tariffs_of(told, hour, hour + HOUR)
        self.pieces = {pk: tariffs[pk].cut(hour, hour + HOUR) for pk in told}
        self.bills = self._bills()

    def book_it(self) -> LedgerTransaction | None:
        sums: dict[tuple[int, int], Classes] = defaultdict(Classes)
        hours = []
        bounds = {pk: self._edges(pk) for pk in self.generations}
        for node in self.nodes:
            of_node: dict[int, Classes] = defaultdict(Classes)
            for (generation, piece), classes in classify(bounds, node.conditions, node.allocations).items():
                sums[generation, piece].add(classes)
                of_node[generation].add(classes)
            hours += [
                self._node_hour(node, pk, classes) for pk, classes in of_node.items() if classes.capacity
            ]
        vouchers = [self._voucher(*key, classes) for key, classes in sorted(sums.items()) if classes.capacity]
        if not vouchers:
            return None
        booked = LedgerTransaction(
            book=self.book,
            month=first_of_month(self.hour),
            key=f"closing:{self.book}:{self.hour.astimezone(UTC).isoformat()}",
            kind=LedgerTransaction.Kind.CLOSING,
            period=DateTimeTZRange(self.hour, self.hour + HOUR),
            description=f"Closing of the hour from {self.hour.astimezone(UTC):%Y-%m-%d %H:%M} UTC",
        )
        try:
            insert([Booking(booked, self._entries(vouchers), capacity=vouchers)])
        except IntegrityError as error:
            raise BookedOtherwise(f"{booked.key}: {error}") from error
        insert_rows(hours)
        return booked

    def _edges(self, generation: int) -> list[int]:
        pieces = self.pieces[generation]
        return [(begins - self.hour) // MICROSECOND for begins, _, _ in pieces] + [HOUR // MICROSECOND]

    def _node_hour(self, node: NodeHistory, generation: int, classes: Classes) -> NodeHour:
        return NodeHour(
            book=self.book,
            month=first_of_month(self.hour),
            hour=self.hour,
            node_id=node.node_id,
            node_name=node.name,
            generation_id=generation,
            **{name: _seconds(getattr(classes, name)) for name in NAMES},
        )

    def _voucher(self, generation: int, piece: int, classes: Classes) -> CapacitySegment:
        begins, ends, (price, currency) = self.pieces[generation][piece]
        capacity = _seconds(classes.capacity)
        charged = self._charged(generation, begins, ends)
        worths = {name: cost_of(_seconds(getattr(classes, name)), price) for name in UNHELD}
        value = cost_of(capacity, price)
        return CapacitySegment(
            book=self.book,
            month=first_of_month(begins),
            generation=self.generations[generation],
            period=DateTimeTZRange(begins, ends),
            capacity=capacity,
            price_per_gpu_hour=price,
            currency=currency,
            charged=charged,
            rounding=value - charged - sum(worths.values()),
            value=value,
            **{name: _seconds(getattr(classes, name)) for name in NAMES},
            **{f"{name}_value": worth for name, worth in worths.items()},
        )

    def _bills(self) -> dict[int, list[tuple[datetime, Decimal]]]:
        """Returns what was billed in the hour, without corrections, by generation: pairs (begin of the usage, cost)."""
        billed = UsageSegment.objects.filter(
            book=self.book,
            month=first_of_month(self.hour),
            generation__in=self.generations,
            version=0,
            period__startswith__gte=self.hour,
            period__startswith__lt=self.hour + HOUR,
        )
        bills = defaultdict(list)
        for generation, *bill in billed.values_list("generation", "period__startswith").annotate(Sum("cost")):
            bills[generation].append(tuple(bill))
        return bills

    def _charged(self, generation: int, begins: datetime, ends: datetime) -> Decimal:
        return sum((cost for at, cost in self.bills[generation] if begins <= at < ends), start=Decimal(0))

    @staticmethod
    def _entries(vouchers: Iterable[CapacitySegment]) -> Entries:
        kind = LedgerAccount.Kind
        entries: dict[AccountKey, Decimal] = defaultdict(Decimal)
        for one in vouchers:
            unit = unit_of(one.generation)
            for name in UNHELD:
                entries[AccountKey(kind(name), unit, one.generation_id)] += getattr(one, name)
                entries[AccountKey(kind(name), one.currency)] += getattr(one, f"{name}_value")
            held = one.busy + one.idle + one.assembling
            entries[AccountKey(kind.CAPACITY, unit, one.generation_id)] += held
            entries[AccountKey(kind.INSTALLED, unit, one.generation_id)] -= one.capacity
            entries[AccountKey(kind.ROUNDING, one.currency)] += one.rounding
            entries[AccountKey(kind.REVENUE, one.currency)] -= one.value - one.charged
        return entries


def _seconds(microseconds: int) -> Decimal:
    return Decimal(microseconds).scaleb(-6)
