"""Counts how many units of a resource each key (for example a client's address) holds, and limits these numbers."""

from __future__ import annotations

from collections.abc import Hashable


class Shares:
    """Counts how many units of a resource each key holds. A key stands for a holder, such as a client's address.

    All keys together may hold at most `most` units, and each key at most `of_one` units.
    """

    def __init__(self, most: int, of_one: int) -> None:
        self.most, self.of_one = most, of_one
        self.taken = 0
        self._held: dict[Hashable, int] = {}

    @property
    def has_free(self) -> bool:
        return self.taken < self.most

    def has(self, key: Hashable, count: int = 1, *, leaving: int = 0) -> bool:
        """Returns whether `key` may take `count` more units while at least `leaving` units remain free."""
        return self.taken + count <= self.most - leaving and self._held.get(key, 0) + count <= self.of_one

    def take(self, key: Hashable, count: int = 1) -> None:
        self.taken += count
        self._held[key] = self._held.get(key, 0) + count

    def give_back(self, key: Hashable, count: int = 1) -> None:
        self.taken -= count
        if left := self._held.pop(key, 0) - count:
            self._held[key] = left
