"""Sorts names alphabetically, ignoring case."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from django.db.models import F
from django.db.models.expressions import OrderBy
from django.db.models.functions import Lower


def by_name(*fields: str) -> list[OrderBy]:
    """Returns arguments for `order_by`: fields in alphabetical order, ignoring case unless names differ only in
    case."""
    return [order for field in fields for order in (Lower(field).asc(), F(field).asc())]


def name_key(name: str) -> tuple[str, str]:
    """Returns a sort key for `sorted` that gives the same order as `by_name`."""
    return name.lower(), name


class Named(Protocol):
    name: str


N = TypeVar("N", bound=Named)


def in_order(named: Iterable[N]) -> list[N]:
    """Returns a sorted list of the objects, by name."""
    return sorted(named, key=lambda one: name_key(one.name))
