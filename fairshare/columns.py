"""Reduces arrays with many rows and few columns by row, several times as fast as numpy's own functions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fairshare.model import Bools, Floats, Ints


def across(values: Floats) -> Floats:
    """Returns (C,) sums over the generations of (C, K)."""
    found: Floats = np.einsum("ck->c", values)
    return found


def anywhere(marks: Bools) -> Bools:
    """Returns (C,) whether any generation of (C, K) is marked."""
    found: Bools = np.einsum("ck->c", marks)
    return found


def sort_keys(numbers: Ints) -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
    """Returns two keys for lexsort of numbers below 2^32. Radix sort of two 16-bit keys is much faster than one wide
    sort."""
    return (numbers & 0xFFFF).astype(np.uint16), (numbers >> 16).astype(np.uint16)


def count(marks: Bools) -> NDArray[np.uint8]:
    """Returns (C,) how many generations of (C, K) are marked."""
    found: NDArray[np.uint8] = np.einsum("ck->c", marks.view(np.uint8))
    return found


def lowest(values: NDArray[np.number]) -> NDArray[np.number]:
    """Returns (C,) the minima over the generations of (C, K), with K ≥ 1."""
    found: NDArray[np.number] = np.ascontiguousarray(values.T).min(axis=0)
    return found


def highest(values: NDArray[np.number]) -> NDArray[np.number]:
    """Returns (C,) the maxima over the generations of (C, K), with K ≥ 1."""
    found: NDArray[np.number] = np.ascontiguousarray(values.T).max(axis=0)
    return found
