"""Facets of a list: how many rows have each value, with links that narrow the list; and chips of what narrows it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

MOST_VALUES = 12  # of one facet


@dataclass(frozen=True)
class Chip:
    """A value that narrows a list. The page shows a link that removes it: the parameter `name` with `value`."""

    name: str
    value: str
    title: str
    label: str


@dataclass(frozen=True)
class FacetValue:
    """A value by which the list can be narrowed, and how many rows the list then has."""

    value: str
    label: str
    count: int
    is_chosen: bool


@dataclass(frozen=True)
class Facet:
    """The values of one parameter of the address. `more` is how many values are left out. If `of_newest` is not 0, the
    counts are of so many of the newest rows, and the list may have more."""

    name: str
    title: str
    values: list[FacetValue]
    more: int = 0
    of_newest: int = 0


def facet(
    name: str,
    title: str,
    counts: Iterable[tuple[str, str, int]],
    chosen: Collection[str],
    *,
    of_newest: int = 0,
) -> Facet:
    """Returns a facet with the values that have the most rows, and those that are chosen.

    `counts` are (value, label, number of rows), and `chosen` the values by which the list is narrowed.
    """
    values = [FacetValue(*one, is_chosen=one[0] in chosen) for one in counts if one[2] or one[0] in chosen]
    shown = sorted(values, key=lambda one: (not one.is_chosen, -one.count, one.label))[:MOST_VALUES]
    return Facet(name, title, shown, len(values) - len(shown), of_newest)
