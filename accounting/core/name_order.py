"""The order of names as people read them, ignoring case."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from django.db.models import F
from django.db.models.expressions import OrderBy
from django.db.models.functions import Lower


def by_name(*fields: str) -> list[OrderBy]:
    """Returns the arguments of `order_by`; names that differ in case alone have a fixed order, too."""
    return [order for field in fields for order in (Lower(field).asc(), F(field).asc())]


def name_key(name: str) -> tuple[str, str]:
    """Returns a key for `sorted`, with the same order."""
    return name.lower(), name


class Named(Protocol):
    name: str


N = TypeVar("N", bound=Named)


def in_order(named: Iterable[N]) -> list[N]:
    """Returns named rows in order of their names."""
    return sorted(named, key=lambda one: name_key(one.name))
