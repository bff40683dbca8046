from __future__ import annotations

from django.db import connection, transaction


def require_transaction() -> None:
    if not connection.in_atomic_block:
        raise transaction.TransactionManagementError(
            "ledger entries can only be booked inside a database transaction"
        )
