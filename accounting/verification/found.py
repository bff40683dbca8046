"""The finding of a check, and a helper for checks that consist of one SQL query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db import connection

# SQL for the right side of a comparison `month = …`: true for months with vouchers in the database.
WITH_VOUCHERS = "ANY((SELECT accounting_months_with_vouchers())::date[])"


@dataclass(frozen=True, slots=True)
class Found:
    """Represents a finding of a check: what is wrong, and the first wrong row."""

    what: str
    row: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return ": ".join(filter(None, [self.what, ", ".join(map(str, self.row))]))


def first_row(what: str, query: str) -> Found | None:
    """Runs a query whose rows are errors.

    Returns the first row as a finding described by `what`; None if there are no rows.
    """
    with connection.cursor() as cursor:
        cursor.execute(query)
        row = cursor.fetchone()
    return None if row is None else Found(what, row)
