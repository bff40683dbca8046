"""Prepared queries: Django builds the SQL once, and PostgreSQL plans it once per connection. Only the values change.

Pages repeat the same short queries. For a short query, Django's work on the SQL and on the model objects takes several
times as long as PostgreSQL's answer.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Generic, TypeAlias, TypeVar

from django.core.exceptions import EmptyResultSet
from django.db import DEFAULT_DB_ALIAS, connection, models
from django.db.models.query import QuerySet, get_related_populators
from psycopg2.extensions import AsIs

from accounting.core.statements import Statement

M = TypeVar("M", bound=models.Model)
Value: TypeAlias = "int | str | datetime | Sequence[int]"
Sql: TypeAlias = "tuple[str, Sequence[Any]]"  # has a %s for each parameter
# index of an argument of the call, and index in that argument if it is a list
Place: TypeAlias = "tuple[int, int | None]"

# Each length of a list needs its own SQL. A query with more shapes than this runs unprepared.
MOST_SHAPES = 64
# Only the most recently used questions stay prepared: a plan over partitions may take a megabyte.
MOST_QUESTIONS = 24
# Placeholder values while the SQL is built: higher than any primary key, and later than any moment.
FIRST_MARK = 2**62
FIRST_MOMENT = datetime(9000, 1, 1, tzinfo=UTC)
SINGLE = (int, str, datetime)
TYPES = dict(zip(SINGLE, ("bigint", "text", "timestamptz"), strict=True))


class RowLimit(int):
    """Represents the maximum number of rows that a prepared query returns.

    The number is written into the SQL, because the best query plan depends on it.
    """


class Prepared(Generic[M]):
    """Represents a prepared query. Calling the object with values returns the same list as `list(build(*values))`.

    `build`: a function that is called with values and returns a queryset. It must not branch on the values, because its
    SQL is used again for other values. Each value is an integer, a string, a datetime, a list of integers for `__in`,
    or a RowLimit for a slice.

    The queryset may use `values_list`, `select_related`, `only` and `annotate`. With `prefetch_related`, the call
    raises ValueError.
    """

    def __init__(self, build: Callable[..., QuerySet[M, Any]]) -> None:
        self._build = build
        self._made: dict[tuple[Any, ...], _Made | None] = {}

    def __call__(self, *values: Value) -> list[Any]:
        shape = tuple(map(_shape, values))
        try:
            made = self._made[shape]
        except KeyError:
            if len(self._made) >= MOST_SHAPES:
                return list(self._build(*values))
            made = self._made[shape] = _make(self._build, values)
        return [] if made is None else made.ask(values)

    def first(self, *values: Value) -> Any | None:
        """Returns the first row; None if there are no rows."""
        found = self(*values)
        return found[0] if found else None


@dataclass(frozen=True)
class KeyedQuery:
    """Represents a query that is repeated with different primary keys, such as the ids of a user's tenants.

    `build`: a function that is called with a list of keys or None, and returns the SQL.
    - For a list, the SQL finds the rows of these keys, and no rows if the list is empty.
    - For None, the SQL finds all rows.
    - `build` returns None instead of SQL if the query can never find a row.

    `about`: identifies the SQL in a cache. Queries with equal `about` and equally many keys must have the same SQL.

    The SQL must contain the keys only as parameters. Other values, such as datetimes, become constants in the prepared
    statement.
    """

    about: Hashable
    build: Callable[[list[int] | None], Sql | None] = field(compare=False)

    def ask(self, keys: Sequence[int] | None) -> list[tuple[Any, ...]]:
        """Runs the query with these primary keys and returns the rows as tuples. If `keys` is None, all rows are
        included."""
        made = _asked_last(self, None if keys is None else len(keys))
        if made is None:
            return []
        statement, places = made
        return statement.ask([keys[place] for place in places] if keys is not None else [])


@lru_cache(MOST_QUESTIONS)
def _asked_last(question: KeyedQuery, count: int | None) -> tuple[Statement, list[int]] | None:
    keys = None if count is None else [FIRST_MARK + place for place in range(count)]
    if (sql := question.build(keys)) is None:
        return None
    # With the other values as constants, PostgreSQL reads only the partitions that the query needs.
    statement, places = _statement(*sql, {key: (0, place) for place, key in enumerate(keys or [])})
    return statement, [place for _, place in places if place is not None]


@dataclass(frozen=True)
class _Made:
    statement: Statement
    places: list[Place]  # for each parameter of the statement, where its value is in the call
    converters: list[tuple[int, list[Callable[..., Any]], Any]]
    model: type[models.Model] | None  # None: returns rows as tuples
    names: list[str]
    columns: slice
    related: list[Any]
    annotations: list[tuple[str, int]]

    def ask(self, values: Sequence[Any]) -> list[Any]:
        rows = self.statement.ask(
            [values[at] if place is None else values[at][place] for at, place in self.places]
        )
        if self.converters:
            rows = [self._converted(row) for row in rows]
        return rows if self.model is None else [self._object(self.model, row) for row in rows]

    def _converted(self, row: Sequence[Any]) -> tuple[Any, ...]:
        found = list(row)
        for at, converters, expression in self.converters:
            for convert in converters:
                found[at] = convert(found[at], expression, connection)
        return tuple(found)

    def _object(self, model: type[models.Model], row: Sequence[Any]) -> models.Model:
        made = model.from_db(DEFAULT_DB_ALIAS, self.names, row[self.columns])
        for populate in self.related:
            populate.populate(row, made)
        for name, at in self.annotations:
            setattr(made, name, row[at])
        return made


def _make(build: Callable[..., QuerySet[Any, Any]], values: Sequence[Any]) -> _Made | None:
    """Returns the query of `build`, prepared for all values that have the same types and list lengths as `values`.

    Returns None if the result is always empty, for example because a list is empty. Raises ValueError if `build` uses
    `prefetch_related`, or does not pass one of its arguments to the query.
    """
    marks: dict[Any, Place] = {}
    stand_ins: list[Any] = []
    for at, value in enumerate(values):
        if isinstance(value, RowLimit):
            stand_ins.append(value)
        elif isinstance(value, SINGLE):
            stand_ins.append(_mark(marks, value, at, None))
        else:
            stand_ins.append([_mark(marks, one, at, place) for place, one in enumerate(value)])
    rows = build(*stand_ins)
    if rows._prefetch_related_lookups:  # type: ignore[attr-defined]
        raise ValueError("a prepared query cannot use prefetch_related")
    compiler = rows.query.get_compiler(DEFAULT_DB_ALIAS)
    try:
        sql, given = compiler.as_sql()
    except EmptyResultSet:
        return None
    statement, places = _statement(sql, given, marks)
    converters = [
        (at, found, expression)
        for at, (found, expression) in compiler.get_converters([one for one, _, _ in compiler.select]).items()
    ]
    info = compiler.klass_info
    if rows._fields is not None or info is None:  # type: ignore[attr-defined]
        return _Made(statement, places, converters, None, [], slice(0), [], [])
    own = info["select_fields"]
    return _Made(
        statement,
        places,
        converters,
        info["model"],
        [one[0].target.attname for one in compiler.select[own[0] : own[-1] + 1]],
        slice(own[0], own[-1] + 1),
        get_related_populators(info, compiler.select, DEFAULT_DB_ALIAS),  # type: ignore[call-arg] # of Django 6
        list(compiler.annotation_col_map.items()),
    )


def _statement(sql: str, given: Sequence[Any], marks: Mapping[Any, Place]) -> tuple[Statement, list[Place]]:
    """Returns a prepared statement and, for each of its parameters, the position of its value in the caller's
    arguments.

    `sql`: SQL with one %s for each value in `given`. `marks`: placeholders, each with the position of the argument for
    which it stands. Placeholders in `given` become parameters. All other values in `given` are written into the SQL.
    Raises ValueError if a placeholder is missing from `given`.
    """
    shown: list[Any] = []
    numbers: dict[Place, int] = {}
    types: list[str] = []
    for one in given:
        place = marks.get(one) if isinstance(one, SINGLE) else None
        if place is None:
            shown.append(one)
            continue
        if place not in numbers:
            numbers[place] = len(numbers) + 1
            types.append(next(name for kind, name in TYPES.items() if isinstance(one, kind)))
        shown.append(AsIs(f"${numbers[place]}"))
    if missing := marks.values() - numbers.keys():
        raise ValueError(
            f"the SQL of the query does not use the arguments at the positions {sorted(missing)}"
        )
    with connection.cursor() as cursor:
        return Statement(cursor.mogrify(sql, shown).decode(), *types), list(numbers)


def _shape(value: Value) -> Any:
    """Returns the part of a value that determines the SQL: its type, the length of a list, or the RowLimit itself."""
    if isinstance(value, RowLimit):
        return value
    return value.__class__ if isinstance(value, SINGLE) else len(value)


def _mark(marks: dict[Any, Place], value: Any, at: int, place: int | None) -> int | str | datetime:
    """Returns a new placeholder of the same type as `value`, and stores its position in `marks`.

    `at`: the index of the caller's argument. `place`: the index of `value` within this argument if it is a list, else
    None.
    """
    mark: int | str | datetime = FIRST_MARK + len(marks)
    if isinstance(value, str):
        mark = f"\ue000{mark}"
    elif isinstance(value, datetime):
        mark = FIRST_MOMENT + timedelta(days=len(marks))
    marks[mark] = at, place
    return mark
