"""Entitlement that tenants trade."""

from __future__ import annotations

from datetime import datetime
from decimal import ROUND_HALF_EVEN, Decimal

from django.db import IntegrityError, transaction
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

from accounting.entries import AccountKey, Booking, Entries, accounts_of, insert, unit_of
from accounting.errors import BookedOtherwise
from accounting.ledger.checks import require_transaction
from accounting.models import Generation, LedgerAccount, LedgerTransaction, Tenant
from accounting.months import first_of_month
from accounting.tariff import MICRO


def book_trade(
    *,
    book: int,
    key: str,
    seller: Tenant,
    buyer: Tenant,
    slow: Generation,
    fast: Generation,
    fast_gpu_seconds: Decimal,
    slow_gpu_seconds: Decimal,
    begins: datetime,
    ends: datetime,
    description: str,
) -> LedgerTransaction:
    """Books that `seller` gave `fast_gpu_seconds` of `fast` to `buyer` for `slow_gpu_seconds` of `slow`.

    Amounts are rounded to microseconds and must be positive. `book` is the cluster's id.
    """
    require_transaction()
    given = fast_gpu_seconds.quantize(MICRO, ROUND_HALF_EVEN)
    taken = slow_gpu_seconds.quantize(MICRO, ROUND_HALF_EVEN)
    if given <= 0 or taken <= 0 or seller.pk == buyer.pk or slow.pk == fast.pk:
        raise ValueError("a trade moves positive amounts of two generations between two tenants")
    trade = LedgerAccount.Kind.TRADE
    entries = {
        AccountKey(trade, fast_unit := unit_of(fast), fast.pk, seller.pk): -given,
        AccountKey(trade, fast_unit, fast.pk, buyer.pk): given,
        AccountKey(trade, slow_unit := unit_of(slow), slow.pk, seller.pk): taken,
        AccountKey(trade, slow_unit, slow.pk, buyer.pk): -taken,
    }
    wanted = LedgerTransaction(
        book=book,
        month=first_of_month(begins),
        key=key,
        kind=LedgerTransaction.Kind.TRADE,
        period=DateTimeTZRange(begins, ends),
        description=description,
    )
    booked = _booked(wanted, entries)
    if booked is None:
        try:
            with transaction.atomic():
                insert([Booking(wanted, entries)])
            booked = wanted
        except IntegrityError:
            booked = _booked(wanted, entries)
            if booked is None:
                raise
    return booked


def _booked(wanted: LedgerTransaction, entries: Entries) -> LedgerTransaction | None:
    booked = LedgerTransaction.objects.filter(key=wanted.key, month=wanted.month).first()
    if booked is None:
        return None
    there = accounts_of(booked)
    if (booked.book, booked.kind, booked.period, there) != (wanted.book, wanted.kind, wanted.period, entries):
        raise BookedOtherwise(f"{wanted.key} is something else in the ledger")
    return booked
