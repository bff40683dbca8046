"""Sorts a list by the column in the URL query: `?sort=name` ascending, `?sort=-name` descending."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from django.db.models import Case, F, Model, QuerySet, Value, When
from django.db.models.expressions import Combinable, OrderBy
from django.db.models.functions import Lower
from django.http import QueryDict

M = TypeVar("M", bound=Model)
Order: TypeAlias = "Sequence[str | Names | Given | Since | F | Combinable]"


@dataclass(frozen=True)
class Names:
    """A sortable column of names. Upper and lower case are treated as equal."""

    field: str


@dataclass(frozen=True)
class Given:
    """A sortable column that is never null. An index on it serves both directions."""

    field: str


@dataclass(frozen=True)
class Since:
    """A sortable column of times in which null means "not yet", such as `paused_at`.

    Null counts as later than every time.
    """

    field: str


@dataclass(frozen=True)
class Sorting:
    """The orders in which a list can be sorted.

    `columns` are the sortable columns, `usual` is the default column, and `last` is a column that orders rows that are
    otherwise equal and is never null.
    """

    columns: Mapping[str, Order]
    usual: str
    last: str = "pk"

    def chosen(self, asked: QueryDict) -> str:
        """Returns the column that the query names, with a leading "-" for descending order.

        Returns the default for an unknown column, or if the query names none.
        """
        sort = asked.get("sort", "")
        return sort if sort.removeprefix("-") in self.columns else self.usual

    def order(self, rows: QuerySet[M], asked: QueryDict) -> QuerySet[M]:
        return rows.order_by(*self.by(self.chosen(asked)))

    def by(self, sort: str) -> list[OrderBy]:
        """Returns the arguments of `order_by` for a column. Null comes last in both directions, except in a `Since`
        column."""
        back = sort.startswith("-")
        found: list[Any] = []
        for what in self.columns[sort.removeprefix("-")]:
            match what:
                case Names(field):
                    found += [Lower(field), F(field)]
                case Since(field):
                    found += [Case(When(**{field: None}, then=Value(1)), default=Value(0)), F(field)]
                case str():
                    found.append(F(what))
                case _:
                    found.append(what)
        found.append(Given(self.last))
        return [_ordered(one, back=back) for one in found]


def _ordered(one: Any, *, back: bool) -> OrderBy:
    if isinstance(one, Given):  # as indexes are ordered, in which nulls are first in descending order
        return F(one.field).desc() if back else F(one.field).asc()
    ordered: OrderBy = one.desc(nulls_last=True) if back else one.asc(nulls_last=True)
    return ordered
