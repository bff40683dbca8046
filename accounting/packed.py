"""Numbers of very many rows, which come from the database as bytes, a string of all of them.

As rows of decimals they take several times as long to come, and to be added up. A string may have 1 GB: tens of
millions of rows. Amounts are whole microseconds here: those of a row are exact below 2^53 of them, 2.5 million hours.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
MICROSECONDS = 1_000_000  # of a second
SINCE = datetime(2000, 1, 1, tzinfo=UTC)  # as PostgreSQL counts


def packed(*, whole: Sequence[str] = (), moments: Sequence[str] = (), amounts: Sequence[str] = ()) -> str:
    """SQL that aggregates rows into one string: of each its `whole` numbers, its `moments`, then its `amounts`."""
    numbers = [
        *(f"int8send({name})" for name in whole),
        *(f"timestamptz_send({name})" for name in moments),
        *(f"float8send({name}::float8)" for name in amounts),
    ]
    return f"string_agg({' || '.join(numbers)}, '')"


def unpacked(
    data: bytes | None, *, whole: Sequence[str] = (), amounts: Sequence[str] = ()
) -> tuple[list[Ints], list[Floats]]:
    """The columns of what `packed` made; moments are named after the other whole numbers. None is of no rows."""
    kinds: list[Any] = [*((name, ">i8") for name in whole), *((name, ">f8") for name in amounts)]
    rows = np.frombuffer(data or b"", dtype=kinds)
    return [rows[name].astype(np.int64) for name in whole], [
        rows[name].astype(np.float64) for name in amounts
    ]


def as_number(moment: datetime) -> int:
    """A moment as it comes packed: microseconds since 2000. What has no end comes as a very large number."""
    return (moment - SINCE) // timedelta(microseconds=1)


def in_microseconds(seconds: Floats) -> Floats:
    """Whole numbers."""
    return np.rint(seconds * MICROSECONDS)
