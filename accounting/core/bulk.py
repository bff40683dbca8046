"""Writes many rows with one SQL statement.

Django's `bulk_update` writes a CASE expression with one branch per row. Building and parsing such SQL takes far longer
than writing the rows. This module passes each column to PostgreSQL as one array instead.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import cache
from operator import attrgetter
from typing import Any, TypeAlias, TypeVar
from uuid import UUID

from django.contrib.postgres.fields import ArrayField
from django.db import connection, models
from django.db.backends.postgresql.psycopg_any import Range
from django.db.models.expressions import DatabaseDefault

_Field: TypeAlias = "models.Field[Any, Any]"
M = TypeVar("M", bound=models.Model)
# Types whose values stand without quotes in an array literal, and types whose values need quotes.
BARE = {int, float, bool, Decimal}
QUOTED = {str, datetime, date, timedelta, UUID}


def update_rows(rows: Iterable[M], names: Sequence[str]) -> None:
    """Updates the fields `names` of `rows`. The rows must be stored already and have distinct primary keys."""
    rows = list(rows)
    if not rows:
        return
    model = type(rows[0])
    fields = tuple(_field(model, name) for name in names)
    with connection.cursor() as cursor:
        cursor.execute(_update(model, fields), _columns(rows, [_key(model), *fields]))


# The SQL is built once for a model and its fields: building it would take longer than running it for a few rows.
@cache
def _update(model: type[models.Model], fields: tuple[_Field, ...]) -> str:
    key = _key(model)
    sets = ", ".join(f"{_column(field)} = {_new(field)}" for field in fields)
    return (
        f"UPDATE {_table(model)} AS old SET {sets} FROM {_rows_new([key, *fields])}"  # noqa: S608 - own names
        f" WHERE old.{_column(key)} = {_new(key)}"
    )


def insert_rows(rows: Iterable[M], *, ignore_conflicts: bool = False) -> None:
    """Stores new rows. The database assigns missing primary keys, but the Python objects do not receive these keys.

    If the first row leaves a field to its database default, all other rows must do the same.
    """
    rows = list(rows)
    if not rows:
        return
    fields = [field for field in rows[0]._meta.concrete_fields if not _is_left_out(rows[0], field)]
    conflicts = " ON CONFLICT DO NOTHING" if ignore_conflicts else ""
    _insert(type(rows[0]), fields, _columns(rows, fields), conflicts)


def insert_values(
    model: type[M], names: Sequence[str], rows: Iterable[Sequence[Any]], *, key: Sequence[str] = ()
) -> None:
    """Stores new rows that are given as sequences of values. `names` are the fields of these values, in order.

    All other columns get their database defaults. This is faster than `insert_rows`, because it creates no model
    objects. With `key`, the fields of a unique constraint, a row whose key is stored already replaces the other fields
    of `names` there. The rows must have distinct keys.
    """
    columns = list(zip(*rows, strict=True))
    if not columns:
        return
    fields = [_field(model, name) for name in names]
    conflicts = ""
    if key:
        others = [_column(_field(model, name)) for name in names if name not in key]
        sets = ", ".join(f"{column} = EXCLUDED.{column}" for column in others)
        found = ", ".join(_column(_field(model, name)) for name in key)
        conflicts = f" ON CONFLICT ({found}) DO UPDATE SET {sets}"
    _insert(model, fields, [_as_array(*one) for one in zip(fields, columns, strict=True)], conflicts)


def _insert(model: type[M], fields: Sequence[_Field], columns: Sequence[str], conflicts: str = "") -> None:
    with connection.cursor() as cursor:
        cursor.execute(_insertion(model, tuple(fields), conflicts), columns)


@cache
def _insertion(model: type[models.Model], fields: tuple[_Field, ...], conflicts: str) -> str:
    return (
        f"INSERT INTO {_table(model)} ({', '.join(map(_column, fields))})"  # noqa: S608 - own names
        f" SELECT {', '.join(map(_new, fields))} FROM {_rows_new(fields)}{conflicts}"
    )


def number_rows(rows: Sequence[models.Model]) -> None:
    """Assigns primary keys from the database's sequence to unsaved rows, in order."""
    if not rows:
        return
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT nextval(pg_get_serial_sequence(%s, %s)) FROM generate_series(1, %s)",
            [rows[0]._meta.db_table, _key(type(rows[0])).column, len(rows)],
        )
        for row, (key,) in zip(rows, cursor.fetchall(), strict=True):
            row.pk = key


def array(values: Iterable[Any]) -> str:
    """Returns the values as a PostgreSQL array literal. The SQL must cast the literal to the type of the array."""
    values = list(values)
    kinds = set(map(type, values))
    if kinds <= BARE:
        inner = ",".join(map(str, values))
    elif kinds <= QUOTED:
        inner = _quoted(list(map(str, values)))
    else:
        inner = ",".join(map(_element, values))
    return f"{{{inner}}}"


def _quoted(texts: list[str]) -> str:
    """Returns all texts quoted and joined by commas. Raises ValueError if a text contains a NUL character.

    Quoting all texts together is many times faster than quoting them one by one.
    """
    joined = "\0".join(texts)
    if joined.count("\0") != len(texts) - 1:
        raise ValueError("a text contains a NUL character, which PostgreSQL cannot store")
    escaped = joined.replace("\\", "\\\\").replace('"', '\\"').replace("\0", '","')
    return f'"{escaped}"'


def _element(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, int | float | Decimal):
        return str(value)
    if isinstance(value, Range):
        value = _range(value)
    elif hasattr(value, "resolve_expression"):
        raise TypeError(f"expected a value, not a database expression: {value}")
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def _range(value: Range) -> str:
    if value.isempty:
        return "empty"
    lower, upper = ("" if end is None else end for end in (value.lower, value.upper))
    return f"{'[' if value.lower_inc else '('}{lower},{upper}{']' if value.upper_inc else ')'}"


def _is_left_out(row: models.Model, field: _Field) -> bool:
    if field.generated:
        return True
    value = getattr(row, field.attname)
    return isinstance(value, DatabaseDefault) or (field.primary_key and value is None)


def _columns(rows: Sequence[models.Model], fields: Sequence[_Field]) -> list[str]:
    """Returns one array literal for each field, with the values of all rows."""
    return [_as_array(field, map(attrgetter(field.attname), rows)) for field in fields]


def _as_array(field: _Field, values: Iterable[Any]) -> str:
    if isinstance(field, models.JSONField):
        values = (json.dumps(value, cls=field.encoder) for value in values)
    elif isinstance(field, ArrayField):
        values = (None if value is None else array(value) for value in values)
    return array(values)


def _rows_new(fields: Sequence[_Field]) -> str:
    """Returns the SQL of a FROM item named `new`, whose rows come from one array parameter per field."""
    arrays = ", ".join(f"%s::{_type(field)}[]" for field in fields)
    return f"unnest({arrays}) AS new ({', '.join(map(_column, fields))})"


def _new(field: _Field) -> str:
    """Returns the SQL expression for the field's value in the FROM item `new`, cast to the column type if needed."""
    name = f"new.{_column(field)}"
    return f"{name}::{field.db_type(connection)}" if isinstance(field, ArrayField) else name


def _type(field: _Field) -> str:
    # PostgreSQL has no arrays of arrays of different lengths; their elements are sent as text and cast later.
    if isinstance(field, ArrayField):
        return "text"
    # The type without its length: a cast to varchar(n) would truncate silently, while the column rejects longer values.
    return (field.db_type(connection) or "").partition("(")[0]


def _table(model: type[models.Model]) -> str:
    return connection.ops.quote_name(model._meta.db_table)


def _column(field: _Field) -> str:
    return connection.ops.quote_name(str(field.column))


def _key(model: type[models.Model]) -> _Field:
    return _field(model, "pk")


@cache
def _field(model: type[models.Model], name: str) -> _Field:
    field = model._meta.pk if name == "pk" else model._meta.get_field(name)
    if not isinstance(field, models.Field):
        raise TypeError(f"the field {name} of {model.__name__} has no column in the database")
    return field
