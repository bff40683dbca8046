"""Stores ledger transactions with their vouchers (detailed rows) and entries, many at once.

A class charge is a voucher: the amount that the price for idle, preemptible or borrowed time adds to a bill.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import NamedTuple, TypeVar

from django.db import IntegrityError, connection, transaction

from accounting.core.bulk import insert_rows, insert_values, number_rows
from accounting.ledger.hash_chain import hold_books
from accounting.ledger.partitions import add_months, lacks_partition
from accounting.models import (
    CapacitySegment,
    ClassCharge,
    CorrectedSegment,
    Generation,
    LedgerAccount,
    LedgerEntry,
    LedgerTransaction,
    UsageSegment,
)


class AccountKey(NamedTuple):
    """Represents the fields that together identify a LedgerAccount."""

    kind: LedgerAccount.Kind
    unit: str
    generation_id: int | None = None
    tenant_id: int | None = None
    user_id: int | None = None


Entries = Mapping[AccountKey, Decimal]
ACCOUNTS = f"""
    SELECT id, {", ".join(AccountKey._fields)} FROM accounting_ledgeraccount
     WHERE kind = ANY(%s) AND unit = ANY(%s) AND (tenant_id IS NULL OR tenant_id = ANY(%s))
"""  # noqa: S608 - own names
Voucher = TypeVar("Voucher", UsageSegment, CapacitySegment, ClassCharge)


@dataclass(frozen=True, slots=True)
class Booking:
    """Represents a transaction to be stored, with its entries and its vouchers.

    Entries with the amount 0 are not stored.
    """

    transaction: LedgerTransaction
    entries: Entries
    segments: Sequence[UsageSegment] = ()
    takes_back: Sequence[UsageSegment] = ()  # stored segments that this transaction reverses
    capacity: Sequence[CapacitySegment] = ()
    charges: Sequence[ClassCharge] = ()
    charges_back: Sequence[ClassCharge] = ()  # stored charges of the reversed segments


def unit_of(generation: Generation) -> str:
    return f"GPU-s {generation.name}"


def insert(bookings: Sequence[Booking]) -> None:
    """Stores bookings in the caller's transaction. Creates missing partitions of months.

    Sets the primary keys of the bookings' transactions and usage segments. Afterwards, the database accepts no further
    entries for these transactions.
    """
    hold_books(booking.transaction.book for booking in bookings)
    try:
        with transaction.atomic():
            _insert(bookings)
    except IntegrityError as error:
        if not lacks_partition(error):
            raise
        add_months(booking.transaction.month for booking in bookings)
        with transaction.atomic():
            _insert(bookings)


def _insert(bookings: Sequence[Booking]) -> None:
    accounts = _accounts(
        {account for booking in bookings for account, amount in booking.entries.items() if amount}
    )
    number_rows([booking.transaction for booking in bookings])
    insert_rows(booking.transaction for booking in bookings)
    segments = [_of(booking, segment) for booking in bookings for segment in booking.segments]
    number_rows(segments)
    insert_rows(segments)
    insert_rows(
        CorrectedSegment(segment=segment, month=segment.month, transaction=booking.transaction)
        for booking in bookings
        for segment in booking.takes_back
    )
    insert_rows(_of(booking, one) for booking in bookings for one in booking.capacity)
    insert_rows(_with_segment(_of(booking, one)) for booking in bookings for one in booking.charges)
    # Last and in one statement, after which the database checks the entries against the vouchers.
    insert_values(
        LedgerEntry,
        ["transaction", "month", "account", "amount"],
        (
            (booking.transaction.pk, booking.transaction.month, accounts[account], amount)
            for booking in bookings
            for account, amount in booking.entries.items()
            if amount
        ),
    )


def entries_of(segments: Sequence[UsageSegment], *, taken_back: bool = False) -> Entries:
    """Returns the ledger entries of usage segments, in GPU-seconds and money.

    `taken_back`: returns the entries that reverse the segments.

    Each amount is posted to a usage or cost account of the user, and with the opposite sign to a common account:

    - If the usage is posted for the first time: the account for capacity or revenue.
    - If it is reversed, or posted again after a correction: a write-off account. So corrections do not change the
      balances of capacity and revenue.
    """
    kind = LedgerAccount.Kind
    sign = -1 if taken_back else 1
    entries: dict[AccountKey, Decimal] = {}

    def add(account: AccountKey, amount: Decimal) -> None:
        entries[account] = entries.get(account, Decimal(0)) + sign * amount

    for one in segments:
        again = taken_back or one.version > 0
        capacity, revenue = (kind.WAIVED, kind.WAIVED) if again else (kind.CAPACITY, kind.REVENUE)
        unit, who = unit_of(one.generation), (one.tenant_id, one.user_id)
        add(AccountKey(kind.USAGE, unit, one.generation_id, *who), one.gpu_seconds)
        add(AccountKey(capacity, unit, one.generation_id), -one.gpu_seconds)
        add(AccountKey(kind.COST, one.currency, None, *who), one.cost)
        add(AccountKey(revenue, one.currency), -one.cost)
    return entries


def entries_of_charges(
    charges: Sequence[ClassCharge], from_whom: LedgerAccount.Kind, *, taken_back: bool = False
) -> Entries:
    """Returns the ledger entries of class charges, in money.

    Each amount is posted to the cost account of a user, and with the opposite sign to an account of the kind
    `from_whom`. `taken_back`: returns the entries that reverse the charges.
    """
    sign = -1 if taken_back else 1
    entries: dict[AccountKey, Decimal] = {}
    for charge in charges:
        one = charge.segment
        cost = AccountKey(LedgerAccount.Kind.COST, one.currency, None, one.tenant_id, one.user_id)
        for account, amount in ((cost, charge.amount), (AccountKey(from_whom, one.currency), -charge.amount)):
            entries[account] = entries.get(account, Decimal(0)) + sign * amount
    return entries


def together(*all_entries: Entries) -> Entries:
    """Returns the sum of several sets of entries, by account."""
    found: dict[AccountKey, Decimal] = {}
    for entries in all_entries:
        for account, amount in entries.items():
            found[account] = found.get(account, Decimal(0)) + amount
    return found


def accounts_of(transaction: LedgerTransaction) -> dict[AccountKey, Decimal]:
    """Returns the amounts of a stored transaction by account."""
    rows = LedgerEntry.objects.filter(transaction=transaction, month=transaction.month)
    return {
        AccountKey(LedgerAccount.Kind(kind), *rest): amount
        for kind, *rest, amount in rows.values_list(
            *(f"account__{name}" for name in AccountKey._fields), "amount"
        )
    }


def _of(booking: Booking, voucher: Voucher) -> Voucher:
    voucher.transaction = booking.transaction
    return voucher


def _with_segment(charge: ClassCharge) -> ClassCharge:
    charge.segment_id = charge.segment.pk  # a segment of the same booking gets its id only now
    return charge


def _accounts(wanted: set[AccountKey]) -> Mapping[AccountKey, int]:
    """Returns the primary key of each account in `wanted`; creates missing accounts."""
    found = _open_accounts(wanted)
    missing = wanted - found.keys()
    if missing:
        # All processes create accounts in the same order, so that no two of them deadlock.
        in_order = sorted(
            missing, key=lambda a: (a.kind, a.unit, a.generation_id or 0, a.tenant_id or 0, a.user_id or 0)
        )
        LedgerAccount.objects.bulk_create(
            [LedgerAccount(**account._asdict()) for account in in_order], ignore_conflicts=True
        )
        found = _open_accounts(wanted)
    return found


def _open_accounts(wanted: set[AccountKey]) -> dict[AccountKey, int]:
    kinds, units = {account.kind for account in wanted}, {account.unit for account in wanted}
    tenants = {account.tenant_id for account in wanted}
    with connection.cursor() as cursor:
        cursor.execute(ACCOUNTS, [list(kinds), list(units), list(tenants)])
        found = {AccountKey(LedgerAccount.Kind(kind), *rest): pk for pk, kind, *rest in cursor.fetchall()}
    return {account: pk for account, pk in found.items() if account in wanted}
