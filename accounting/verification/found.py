"""What a check of the ledger finds, and a helper for most checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db import connection

# The months with vouchers in the database; compare it with a month.
WITH_VOUCHERS = "ANY((SELECT accounting_months_with_vouchers())::date[])"


@dataclass(frozen=True, slots=True)
class Found:
    """What is wrong, and the first bad row."""

    what: str
    row: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return ": ".join(filter(None, [self.what, ", ".join(map(str, self.row))]))


def first_row(what: str, query: str) -> Found | None:
    """Returns the first row of a query for rows that must not exist; None if there is none."""
    with connection.cursor() as cursor:
        cursor.execute(query)
        row = cursor.fetchone()
    return None if row is None else Found(what, row)
