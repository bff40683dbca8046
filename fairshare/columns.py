"""Over the columns of arrays with many rows and few columns, where numpy's own functions take several times as long."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fairshare.model import Bools, Floats, Ints


def across(values: Floats) -> Floats:
    """(C,) sums over the generations of (C, K)."""
    found: Floats = np.einsum("ck->c", values)
    return found


def anywhere(marks: Bools) -> Bools:
    """(C,) whether any generation of (C, K) is marked."""
    found: Bools = np.einsum("ck->c", marks)
    return found


def sort_keys(numbers: Ints) -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
    """Keys for lexsort of numbers below 2^32: those of 16 bits are sorted in several passes, which is much faster."""
    return (numbers & 0xFFFF).astype(np.uint16), (numbers >> 16).astype(np.uint16)


def count(marks: Bools) -> NDArray[np.uint8]:
    """(C,) how many generations of (C, K) are marked."""
    found: NDArray[np.uint8] = np.einsum("ck->c", marks.view(np.uint8))
    return found


def lowest(values: NDArray[np.number]) -> NDArray[np.number]:
    """(C,) the minima over the generations of (C, K), of which there is at least one."""
    found: NDArray[np.number] = np.ascontiguousarray(values.T).min(axis=0)
    return found


def highest(values: NDArray[np.number]) -> NDArray[np.number]:
    """(C,) the maxima over the generations of (C, K), of which there is at least one."""
    found: NDArray[np.number] = np.ascontiguousarray(values.T).max(axis=0)
    return found
