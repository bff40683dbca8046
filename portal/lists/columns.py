"""The columns of a list: how each sorts the rows, and which of them the reader has chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db.models import Q, QuerySet
from django.db.models.expressions import OrderBy

from portal.sorting import M, Order, Sorting

MOST_COLUMNS = 30
LONGEST_COLUMN = 400  # characters of the key of a column


@dataclass(frozen=True)
class Column:
    """A column of a list.

    - `label`: its heading.
    - `by`: what sorts the rows by this column; empty if nothing does.
    - `style`: a CSS class of its heading.
    - `is_usual`: whether it is shown to readers who have chosen no columns.
    - `is_fixed`: whether it is always shown.
    - `cell`: returns what a row has in this column, as portal/lists/cells.py describes; None if the page renders it.
    """

    label: str
    by: Order
    style: str = ""
    is_usual: bool = True
    is_fixed: bool = False
    cell: Callable[[Any], Any] | None = None


@dataclass(frozen=True)
class Columns:
    """All columns of a list, in their usual order.

    `usual_sort` and `last` are as in Sorting. `derive` returns a column for a key that `known` does not have, such as
    one for each label; or None.
    """

    known: Mapping[str, Column]
    usual_sort: str
    last: str = "pk"
    derive: Callable[[str], Column | None] = field(default=lambda key: None)

    def find(self, key: str) -> Column | None:
        return self.known.get(key) or (self.derive(key) if len(key) <= LONGEST_COLUMN else None)

    def label_of(self, key: str) -> str:
        """Returns the heading of a column; the key itself if there is no such column."""
        column = self.find(key)
        return column.label if column else key

    def sorts_by(self, sort: str) -> bool:
        """Returns whether `sort` names a column that sorts, with a leading "-" for descending order."""
        column = self.find(sort.removeprefix("-"))
        return column is not None and bool(column.by)

    def by(self, sort: str) -> list[OrderBy]:
        """Returns the arguments of `order_by` for a column that `sorts_by` accepts."""
        key = sort.removeprefix("-")
        column = self.find(key)
        if column is None or not column.by:
            raise KeyError(key)
        return Sorting({key: column.by}, usual=key, last=self.last).by(sort)

    @property
    def sortable(self) -> list[str]:
        """Returns the keys of the columns in `known` that sort."""
        return [key for key, column in self.known.items() if column.by]

    @property
    def usual(self) -> tuple[str, ...]:
        return tuple(key for key, column in self.known.items() if column.is_usual)

    def chosen(self, asked: str, remembered: Sequence[str] = ()) -> tuple[str, ...]:
        """Returns the keys of the columns to show.

        They are those in `asked`, separated by commas; else those that the reader had chosen before, else the usual
        ones. Fixed columns come first. Unknown keys are left out.
        """
        return self.valid(asked.split(",")) if asked else self.valid(remembered) if remembered else self.usual

    def valid(self, keys: Iterable[str]) -> tuple[str, ...]:
        """Returns those of the keys that name columns, after the fixed columns, at most MOST_COLUMNS."""
        fixed = [key for key, column in self.known.items() if column.is_fixed]
        found = dict.fromkeys([*fixed, *(key for key in keys if self.find(key))])
        return tuple(found)[:MOST_COLUMNS]


def after(
    rows: QuerySet[M], order: Sequence[OrderBy], key: int, *, among: QuerySet[M] | None = None
) -> QuerySet[M]:
    """Returns those of `rows` that come after the row with the primary key `key` in this order. Returns no rows if
    `among` does not have this row; without it, if `rows` does not.

    The database reads only the rest of the order and not all rows before it, if it has an index. Nulls must come last,
    as in the orders of Sorting, and the last expression must be unique.
    """
    names = {f"_place{number}": one for number, one in enumerate(order)}
    places = {name: one.expression for name, one in names.items()}
    placed = rows.alias(**places)
    row = (rows if among is None else among).filter(pk=key)
    here = row.annotate(**places).values_list(*names).first()
    if here is None:
        return rows.none()
    later, equal = Q(pk__in=[]), Q()
    for (name, one), value in zip(names.items(), here, strict=True):
        if value is not None:
            beyond = Q(**{f"{name}__{'lt' if one.descending else 'gt'}": value})
            later |= equal & (beyond | Q(**{f"{name}__isnull": True}))
        equal &= Q(**{f"{name}__isnull": True}) if value is None else Q(**{name: value})
    found: QuerySet[M] = placed.filter(later)
    return found
