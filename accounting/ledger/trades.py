"""Posts trades between tenants to the ledger. A trade exchanges entitlement of one generation for that of another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import ROUND_HALF_EVEN, Decimal
from typing import TypeAlias

from django.db import IntegrityError, transaction
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

from accounting.core.calendar import first_of_month
from accounting.core.errors import BookedOtherwise
from accounting.core.numbers import MICRO
from accounting.ledger.checks import require_transaction
from accounting.ledger.posting import AccountKey, Booking, Entries, accounts_of, insert, unit_of
from accounting.models import Generation, LedgerAccount, LedgerTransaction, Tenant

# A transaction's key and month.
Place: TypeAlias = tuple[str, date]


@dataclass(frozen=True, kw_only=True)
class TradedTime:
    """Represents a trade: `seller` gave `fast_gpu_seconds` of generation `fast` to `buyer`.

    In exchange, `buyer` gave `slow_gpu_seconds` of generation `slow` to `seller`.
    """

    book: int  # the cluster's id
    key: str
    seller: Tenant
    buyer: Tenant
    slow: Generation
    fast: Generation
    fast_gpu_seconds: Decimal
    slow_gpu_seconds: Decimal
    begins: datetime
    ends: datetime
    description: str


def book_trades(trades: Sequence[TradedTime]) -> list[LedgerTransaction]:
    """Posts one transaction for each trade, and returns the transactions in the order of the trades.

    A trade that is already stored is not posted twice. Amounts are rounded to microseconds. Raises ValueError if an
    amount is not positive, or if both sides have the same tenant or generation. Raises BookedOtherwise if different
    content is stored under the key of a trade.
    """
    require_transaction()
    wanted: dict[Place, Booking] = {}
    for trade in trades:
        booking = _booking(trade)
        same = wanted.setdefault(_place(booking.transaction), booking)
        if same is not booking:
            _require_same(same.transaction, same.entries, booking)
    booked = _booked(wanted)
    while len(booked) < len(wanted):
        missing = [booking for place, booking in wanted.items() if place not in booked]
        try:
            with transaction.atomic():
                insert(missing)
            booked |= {_place(booking.transaction): booking.transaction for booking in missing}
        except IntegrityError:
            now_booked = _booked(wanted)  # another process may have posted the same trades meanwhile
            if len(now_booked) == len(booked):
                raise
            booked = now_booked
    return [booked[trade.key, first_of_month(trade.begins)] for trade in trades]


def _booking(trade: TradedTime) -> Booking:
    given = trade.fast_gpu_seconds.quantize(MICRO, ROUND_HALF_EVEN)
    taken = trade.slow_gpu_seconds.quantize(MICRO, ROUND_HALF_EVEN)
    seller, buyer, slow, fast = trade.seller.pk, trade.buyer.pk, trade.slow, trade.fast
    if given <= 0 or taken <= 0 or seller == buyer or slow.pk == fast.pk:
        raise ValueError(
            "a trade must exchange positive amounts of two different generations between two different tenants"
        )
    kind = LedgerAccount.Kind.TRADE
    entries = {
        AccountKey(kind, fast_unit := unit_of(fast), fast.pk, seller): -given,
        AccountKey(kind, fast_unit, fast.pk, buyer): given,
        AccountKey(kind, slow_unit := unit_of(slow), slow.pk, seller): taken,
        AccountKey(kind, slow_unit, slow.pk, buyer): -taken,
    }
    wanted = LedgerTransaction(
        book=trade.book,
        month=first_of_month(trade.begins),
        key=trade.key,
        kind=LedgerTransaction.Kind.TRADE,
        period=DateTimeTZRange(trade.begins, trade.ends),
        description=trade.description,
    )
    return Booking(wanted, entries)


def _place(trade: LedgerTransaction) -> Place:
    return trade.key, trade.month


def _booked(wanted: Mapping[Place, Booking]) -> dict[Place, LedgerTransaction]:
    """Returns the transactions in `wanted` that are already stored, by (key, month).

    Raises BookedOtherwise if different content is stored under one of the keys.
    """
    keys, months = {key for key, _ in wanted}, {month for _, month in wanted}
    stored = LedgerTransaction.objects.filter(key__in=keys, month__in=months)
    found = {_place(one): one for one in stored if _place(one) in wanted}
    for place, one in found.items():
        _require_same(one, accounts_of(one), wanted[place])
    return found


def _require_same(booked: LedgerTransaction, there: Entries, wanted: Booking) -> None:
    one = wanted.transaction
    if (booked.book, booked.kind, booked.period, there) != (one.book, one.kind, one.period, wanted.entries):
        raise BookedOtherwise(f"the ledger already contains transaction {one.key} with different contents")
