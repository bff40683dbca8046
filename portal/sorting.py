"""The order of a list: by which of its columns, and which way round, from the address (`?sort=name`, `?sort=-name`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from django.db.models import Case, Expression, F, Model, QuerySet, Value, When
from django.db.models.expressions import OrderBy
from django.db.models.functions import Lower
from django.http import QueryDict

M = TypeVar("M", bound=Model)


@dataclass(frozen=True)
class Names:
    """A field with names, of which upper and lower case do not count."""

    field: str


@dataclass(frozen=True)
class Since:
    """A moment since when something is so, and null where it is not: those come last, or first the other way round."""

    field: str


@dataclass(frozen=True)
class Sorting:
    """The columns that a list can be sorted by, the default, and the tie-breaker."""

    columns: Mapping[str, Sequence[str | Names | Since | Expression]]
    usual: str
    last: str = "pk"

    def chosen(self, asked: QueryDict) -> str:
        """Returns the column in the address, with a leading "-" for descending order; else the default."""
        sort = asked.get("sort", "")
        return sort if sort.removeprefix("-") in self.columns else self.usual

    def order(self, rows: QuerySet[M], asked: QueryDict) -> QuerySet[M]:
        return rows.order_by(*self.by(self.chosen(asked)))

    def by(self, sort: str) -> list[OrderBy]:
        """Returns the order; rows without a value come last in both directions, unless `Since` makes that a value."""
        back = sort.startswith("-")
        found: list[Expression | F] = []
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
        found.append(F(self.last))
        return [one.desc(nulls_last=True) if back else one.asc(nulls_last=True) for one in found]
