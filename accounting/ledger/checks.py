from __future__ import annotations

from django.db import connection, transaction


def require_transaction() -> None:
    if not connection.in_atomic_block:
        raise transaction.TransactionManagementError("the ledger books only inside a transaction")
