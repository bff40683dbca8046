"""Reads the rows of a query as numpy columns, without creating a Python object for each value.

In the binary format of PostgreSQL's COPY, all rows of numbers have the same length, so that numpy can read them without
copying. See https://www.postgresql.org/docs/current/sql-copy.html, "Binary Format".
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from io import BytesIO
from typing import Any

import numpy as np
from django.core.exceptions import EmptyResultSet
from django.db import connection, models
from numpy.typing import NDArray

# The rows follow a signature, flags and an extension length; an end marker follows the rows.
HEADER_BYTES, TRAILER_BYTES = 19, 2
# PostgreSQL sends moments as microseconds since this moment.
_MOMENTS_BEGIN = datetime(2000, 1, 1, tzinfo=UTC)
_UNIX_BEGINS = (datetime(1970, 1, 1, tzinfo=UTC) - _MOMENTS_BEGIN) // timedelta(microseconds=1)


def read_columns(rows: models.QuerySet[Any, Any], *kinds: str) -> list[NDArray[Any]]:
    """Returns the columns of a `values_list` query as numpy arrays.

    `kinds`: the numpy type of each column: i8, i4, i2, f8 or ? (boolean). Integer columns of any width are returned as
    i8. For a column of datetimes, give i8, and convert the result with `seconds`. Raises ValueError if a value is NULL
    or does not have the width of its type.
    """
    parts = [("fields", ">i2")]
    for i, kind in enumerate(kinds):
        parts += [(f"bytes {i}", ">i4"), (f"value {i}", f">{kind}")]
    row = np.dtype(parts)
    data = _copied(rows)[HEADER_BYTES:-TRAILER_BYTES]
    if len(data) % row.itemsize:
        raise ValueError("a row contains NULL, or a value with another size in bytes than its declared type")
    found = np.frombuffer(data, row)
    for i, kind in enumerate(kinds):
        if np.any(found[f"bytes {i}"] != np.dtype(kind).itemsize):
            raise ValueError(
                f"column {i} contains NULL, or a value with another size in bytes than the type {kind}"
            )
    return [
        found[f"value {i}"].astype("i8" if kind.startswith("i") else kind) for i, kind in enumerate(kinds)
    ]


def _copied(rows: models.QuerySet[Any, Any]) -> memoryview:
    buffer = BytesIO()
    try:
        sql, values = rows.query.sql_with_params()
    except EmptyResultSet:
        return memoryview(bytes(HEADER_BYTES + TRAILER_BYTES))
    with connection.cursor() as cursor, connection.wrap_database_errors:
        query = cursor.mogrify(sql, values).decode()
        cursor.copy_expert(f"COPY ({query}) TO STDOUT (FORMAT binary)", buffer)
    return buffer.getbuffer()


def seconds(moments: NDArray[np.int64]) -> NDArray[np.float64]:
    """Converts a column of datetimes from `read_columns` (microseconds since 2000) to seconds since 1970 (UTC)."""
    found: NDArray[np.float64] = (moments - _UNIX_BEGINS) / 1e6
    return found


def find(known: NDArray[np.int64], wanted: Any) -> NDArray[np.int64]:
    """Returns the index in the sorted array `known` of each number in `wanted`; -1 if `known` does not contain the
    number."""
    sought = np.asarray(wanted, dtype=np.int64)
    place = np.searchsorted(known, sought)
    there = place < len(known)
    there[there] = known[place[there]] == sought[there]
    return np.where(there, place, -1)
