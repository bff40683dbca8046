"""Numbers of very many rows, which come from the database as bytes, a string of each column of all of them.

As rows of decimals they take several times as long to come, and to be added up. All strings of a query may have 1 GB
as text, twice their bytes: eight million rows of eight columns. Their rows are in the same order.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
MICROSECONDS = 1_000_000  # of a second
SINCE = datetime(2000, 1, 1, tzinfo=UTC)  # as PostgreSQL counts


def packed_ints(column: str) -> str:
    """SQL that aggregates a column of whole numbers for `ints`."""
    return f"string_agg(int8send({column}), '')"


def packed_millionths(column: str) -> str:
    """The same of one of seconds or of money, decimals, as whole millionths: 2.5 billion hours fit."""
    return packed_ints(f"({column} * {MICROSECONDS})::bigint")  # half the time of a cast to float8


def packed_moments(column: str) -> str:
    """The same of one of moments, as `as_number` has them."""
    return f"string_agg(timestamptz_send({column}), '')"


def packed_floats(column: str) -> str:
    """SQL that aggregates a column of float8 for `floats`."""
    return f"string_agg(float8send({column}), '')"


def ints(data: bytes | None) -> Ints:
    """The whole numbers of a string; None is of no rows."""
    return np.frombuffer(data or b"", dtype=">i8").astype(np.int64)


def floats(data: bytes | None) -> Floats:
    return np.frombuffer(data or b"", dtype=">f8").astype(np.float64)


def as_array(numbers: Ints) -> str:
    """As the value of a bigint[]: one text, as of a list the database would read each number by itself."""
    return f"{{{','.join(map(str, numbers.tolist()))}}}"


def as_number(moment: datetime) -> int:
    """A moment as it comes packed: microseconds since 2000. What has no end comes as a very large number."""
    return (moment - SINCE) // timedelta(microseconds=1)


def as_moment(number: int) -> datetime:
    """In UTC, of what `as_number` says."""
    return SINCE + timedelta(microseconds=number)
