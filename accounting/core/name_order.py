"""Sorts names alphabetically, ignoring case, both in database queries and in Python."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from django.db.models import F
from django.db.models.expressions import OrderBy
from django.db.models.functions import Lower


def by_name(*fields: str) -> list[OrderBy]:
    """Returns the arguments for `order_by` that sort by these fields alphabetically, ignoring case.

    Names that differ only in case are sorted by their exact text.
    """
    return [order for field in fields for order in (Lower(field).asc(), F(field).asc())]


def name_key(name: str) -> tuple[str, str]:
    """Returns a sort key for `sorted` that gives the same order as `by_name`."""
    return name.lower(), name


class Named(Protocol):
    name: str


N = TypeVar("N", bound=Named)


def in_order(named: Iterable[N]) -> list[N]:
    """Returns the objects as a list, sorted by their `name` in the order of `by_name`."""
    return sorted(named, key=lambda one: name_key(one.name))
