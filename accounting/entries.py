"""How transactions, accounts and entries reach the ledger's tables, many at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import NamedTuple

from accounting.models import Generation, LedgerAccount, LedgerEntry, LedgerTransaction

ROWS_AT_ONCE = 2000


class AccountKey(NamedTuple):
    """What makes a LedgerAccount the one it is."""

    kind: LedgerAccount.Kind
    unit: str
    generation_id: int | None = None
    tenant_id: int | None = None
    user_id: int | None = None


Entries = Mapping[AccountKey, Decimal]


def unit_of(generation: Generation) -> str:
    return f"GPU-s {generation.name}"


def insert(bookings: Sequence[tuple[LedgerTransaction, Entries]]) -> None:
    accounts = _accounts({account for _, entries in bookings for account in entries})
    LedgerTransaction.objects.bulk_create([b for b, _ in bookings], batch_size=ROWS_AT_ONCE)
    LedgerEntry.objects.bulk_create(
        (
            LedgerEntry(transaction=booking, account_id=accounts[account], amount=amount)
            for booking, entries in bookings
            for account, amount in entries.items()
        ),
        batch_size=ROWS_AT_ONCE,
    )


def _accounts(wanted: set[AccountKey]) -> Mapping[AccountKey, int]:
    """Primary keys of the wanted accounts; what is not there is opened."""
    found = _open_accounts(wanted)
    missing = wanted - found.keys()
    if missing:
        # In one order everywhere, so that two processes never wait for each other.
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
    rows = LedgerAccount.objects.filter(kind__in=kinds, unit__in=units)
    tenants = {account.tenant_id for account in wanted if account.tenant_id}
    rows = rows.filter(tenant__in=tenants) | rows.filter(tenant=None)
    found = {
        AccountKey(LedgerAccount.Kind(kind), *rest): pk
        for pk, kind, *rest in rows.values_list("pk", *AccountKey._fields)
    }
    return {account: pk for account, pk in found.items() if account in wanted}
