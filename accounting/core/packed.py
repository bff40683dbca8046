"""Numbers of very many rows, which come from the database as one byte string per column.

As rows of decimals they take several times as long to transfer and to sum. All strings of a query may have 1 GB as
text, twice their bytes: eight million rows of eight columns. Their rows are in the same order.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
MICROSECONDS = 1_000_000  # per second
SINCE = datetime(2000, 1, 1, tzinfo=UTC)  # PostgreSQL's epoch


def packed_ints(column: str) -> str:
    """Returns SQL that aggregates an integer column for `ints`."""
    return f"string_agg(int8send({column}), '')"


def packed_millionths(column: str) -> str:
    """Returns SQL that aggregates a decimal column, seconds or money, as whole millionths: 2.5 billion hours fit."""
    return packed_ints(f"({column} * {MICROSECONDS})::bigint")  # half the time of a cast to float8


def packed_moments(column: str) -> str:
    """Returns SQL that aggregates a column of moments in the form of `as_number`."""
    return f"string_agg(timestamptz_send({column}), '')"


def packed_floats(column: str) -> str:
    """Returns SQL that aggregates a float8 column for `floats`."""
    return f"string_agg(float8send({column}), '')"


def ints(data: bytes | None) -> Ints:
    """Returns the integers in a byte string; None means no rows."""
    return np.frombuffer(data or b"", dtype=">i8").astype(np.int64)


def floats(data: bytes | None) -> Floats:
    return np.frombuffer(data or b"", dtype=">f8").astype(np.float64)


def as_array(numbers: Ints) -> str:
    """Returns the value of a bigint[] as one text, because the database would parse the elements of a list one by
    one."""
    return f"{{{','.join(map(str, numbers.tolist()))}}}"


def as_number(moment: datetime) -> int:
    """Returns a moment in packed form: microseconds since 2000; infinity is a very large number."""
    return (moment - SINCE) // timedelta(microseconds=1)


def as_moment(number: int) -> datetime:
    """Returns the moment in UTC, the inverse of `as_number`."""
    return SINCE + timedelta(microseconds=number)
