"""Reads usage rows as numpy columns, for reports that sum very many rows.

A month of a large cluster has a hundred thousand rows by job. The database sends them in a packed format
(accounting/core/packed.py), and this module sums them. Amounts are 64-bit integers, so that sums are exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from django.db import connection
from django.db.models import Q

from accounting.core.packed import Ints, ints, packed_ints, packed_millionths, packed_moments
from accounting.usage.aggregate import union_all
from accounting.usage.plan import UsagePlan
from accounting.usage.queries import EVERYTHING, Groups, each_row


@dataclass(frozen=True, slots=True)
class Rows:
    """Represents usage rows of one currency as numpy columns.

    `keys`: the columns to group by. `amounts`: the columns to sum. The units are those of accounting/core/packed.py,
    such as microseconds and millionths of the currency unit.
    """

    currency: str
    keys: Mapping[str, Ints]
    amounts: Mapping[str, Ints]

    def summed(self, *by: str) -> Rows:
        """Returns the sums of all amounts by the keys `by`, one row per group, in ascending order of the keys.

        Without keys, returns one row with the sums of all rows.
        """
        keys, sums = sum_groups([self.keys[name] for name in by], list(self.amounts.values()))
        return Rows(
            self.currency, dict(zip(by, keys, strict=True)), dict(zip(self.amounts, sums, strict=True))
        )


def read_rows(plan: UsagePlan, groups: Groups, amounts: Sequence[str], *, only: Q = EVERYTHING) -> list[Rows]:
    """Reads all usage rows without summing them, and returns one Rows object for each currency. Makes one query.

    `amounts`: names among gpu_seconds, assembling, idle, cost and segments. Assembling time is the time in which not
    all workers of the gang ran yet. `only`: a condition on fields that exist in both rollups and segments.
    """
    parts = each_row(plan, groups, amounts, only=only)
    moments = ["begins"] if plan.buckets.unit else []
    keys = [*groups.columns, *moments]
    rows = union_all(
        parts, ["by_currency", *(f"by_{name}" for name in keys), *(f"{name}_sum" for name in amounts)]
    )
    if rows is None:
        return []
    packed = [
        *(packed_ints(f"by_{name}") for name in groups.columns),
        *(packed_moments(f"by_{name}") for name in moments),
        *((packed_ints if name == "segments" else packed_millionths)(f"{name}_sum") for name in amounts),
    ]
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT by_currency, {', '.join(packed)} FROM ({rows[0]}) AS parts GROUP BY 1 ORDER BY 1",  # noqa: S608
            rows[1],
        )
        return [_unpacked(currency, keys, amounts, columns) for currency, *columns in cursor]


def _unpacked(currency: str, keys: Sequence[str], amounts: Sequence[str], packed: Sequence[bytes]) -> Rows:
    columns = dict(zip((*keys, *amounts), map(ints, packed), strict=True))
    return Rows(currency, {key: columns[key] for key in keys}, {name: columns[name] for name in amounts})


def joined(columns: Iterable[Ints]) -> Ints:
    """Concatenates arrays, such as the same column of several currencies. Without arrays, returns an empty array."""
    return np.concatenate([np.empty(0, np.int64), *columns])


def sum_groups(keys: Sequence[Ints], amounts: Sequence[Ints]) -> tuple[list[Ints], list[Ints]]:
    """Returns a pair: the distinct keys in ascending order, and the sums of the amounts for each key.

    Without key columns, returns no keys and the sums of all rows.
    """
    if not keys:
        return [], [np.array([amount.sum()], np.int64) for amount in amounts]
    if not len(keys[0]):
        return list(keys), list(amounts)
    order = np.lexsort(keys[::-1])
    keys = [key[order] for key in keys]
    changes = np.any([key[1:] != key[:-1] for key in keys], axis=0)
    starts = np.concatenate([[0], np.flatnonzero(changes) + 1])
    return [key[starts] for key in keys], [np.add.reduceat(amount[order], starts) for amount in amounts]
