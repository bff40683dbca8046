"""Looks up the object of an address among those that the caller may see."""

from __future__ import annotations

from typing import TypeVar

from django.db.models import Model, QuerySet
from django.http import Http404

T = TypeVar("T", bound=Model)


class Hidden(Http404):
    """Raised for what the caller may not see. The answer is 404 with this message, which names nothing hidden."""


class NoSuch(Hidden):
    """Raised if the caller sees no object of this kind with the given name. The answer does not repeat the name."""

    def __init__(self, what: str) -> None:
        super().__init__(f"There is no {what} with this name that you may see.")


class NotSeen(Hidden):
    """Raised if there is no such object, or the caller may not see it. The message says which one is meant."""

    def __init__(self, what: str, key: object) -> None:
        super().__init__(f"There is no {what} {key} that you may see.")


def seen_or_404(seen: QuerySet[T], what: str, key: int) -> T:
    """Returns the object with this key. Raises NotSeen. `what` is what users call such an object."""
    found = seen.filter(pk=key).first() if key < 2**63 else None
    if found is None:
        raise NotSeen(what, key)
    return found
