"""Rows of usage, column by column: what is told of very many of them is made of these.

A month of a big cluster has a hundred thousand rows by job, which come packed and are added up here. Amounts are whole
numbers of 64 bits, so that sums are exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from django.db import connection
from django.db.models import Q

from accounting.core.packed import Ints, ints, packed_ints, packed_millionths, packed_moments
from accounting.usage.aggregate import union_all
from accounting.usage.plan import Scope, Sources
from accounting.usage.rows import EVERYTHING, Groups, each_row


@dataclass(frozen=True, slots=True)
class Rows:
    """Of one currency: whose each row is (`keys`), and its amounts; moments and amounts are as packed.py has them."""

    currency: str
    keys: Mapping[str, Ints]
    amounts: Mapping[str, Ints]

    def added_up(self, *by: str) -> Rows:
        """A row for each group that these keys make, in their order; without keys one of all."""
        keys, sums = sum_groups([self.keys[name] for name in by], list(self.amounts.values()))
        return Rows(
            self.currency, dict(zip(by, keys, strict=True)), dict(zip(self.amounts, sums, strict=True))
        )


def read_rows(
    sources: Sources, scope: Scope, groups: Groups, amounts: Sequence[str], *, only: Q = EVERYTHING
) -> list[Rows]:
    """All rows of each currency, none of them added up. One query.

    `amounts` are of gpu_seconds, assembling, idle, cost and segments; `only` may name what sums and segments have.
    """
    parts = each_row(sources, scope, groups, amounts, only=only)
    moments = ["begins"] if groups.unit else []
    keys = [*groups.columns, *moments]
    rows = union_all(
        parts, ["by_currency", *(f"by_{name}" for name in keys), *(f"{name}_sum" for name in amounts)]
    )
    if rows is None:
        return []
    told = [
        *(packed_ints(f"by_{name}") for name in groups.columns),
        *(packed_moments(f"by_{name}") for name in moments),
        *((packed_ints if name == "segments" else packed_millionths)(f"{name}_sum") for name in amounts),
    ]
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT by_currency, {', '.join(told)} FROM ({rows[0]}) AS parts GROUP BY 1 ORDER BY 1",  # noqa: S608
            rows[1],
        )
        found = cursor.fetchall()
    return [_unpacked(currency, keys, amounts, packed) for currency, *packed in found]


def _unpacked(currency: str, keys: Sequence[str], amounts: Sequence[str], packed: Sequence[bytes]) -> Rows:
    columns = dict(zip((*keys, *amounts), map(ints, packed), strict=True))
    return Rows(currency, {key: columns[key] for key in keys}, {name: columns[name] for name in amounts})


def joined(columns: Iterable[Ints]) -> Ints:
    """One column of those of several currencies."""
    return np.concatenate([np.empty(0, np.int64), *columns])


def sum_groups(keys: Sequence[Ints], amounts: Sequence[Ints]) -> tuple[list[Ints], list[Ints]]:
    """The sums of each group of rows with the same keys, in order of their keys; without keys of all rows."""
    if not keys:
        return [], [np.array([amount.sum()], np.int64) for amount in amounts]
    if not len(keys[0]):
        return list(keys), list(amounts)
    order = np.lexsort(keys[::-1])
    keys = [key[order] for key in keys]
    changes = np.any([key[1:] != key[:-1] for key in keys], axis=0)
    starts = np.concatenate([[0], np.flatnonzero(changes) + 1])
    return [key[starts] for key in keys], [np.add.reduceat(amount[order], starts) for amount in amounts]
