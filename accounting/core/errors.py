"""The exceptions that actions and ledger postings raise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Refused(Exception):
    """Raised when a change is invalid or impossible now. `str(error)` is the reason, worded for users.

    `field`: the name of the invalid argument; None if the reason is not a single argument. `others`: refusals of other
    arguments of the same call, so that a form shows all its problems at once.
    """

    others: tuple[Refused, ...] = ()

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field

    @property
    def all(self) -> tuple[Refused, ...]:
        """Returns this refusal and the others, at most one for each field."""
        first = {one.field: one for one in reversed((self, *self.others))}
        return tuple(first[field] for field in dict.fromkeys(one.field for one in (self, *self.others)))


class Refusals:
    """Collects what independent checks of the arguments of one call refuse.

    Run each check inside `with refusals.kept():`, and then call `refusals.raise_any()`.
    """

    def __init__(self) -> None:
        self._found: list[Refused] = []

    @contextmanager
    def kept(self) -> Iterator[None]:
        try:
            yield
        except Refused as error:
            self._found += error.all

    def raise_any(self) -> None:
        """Raises the first refusal, which has the others, if there is one."""
        if self._found:
            first, *others = self._found
            first.others = tuple(others)
            raise first


class NotAllowed(Exception):
    """Raised when the actor lacks the permission. `str(error)` names the roles that have the permission."""


class BookedOtherwise(Exception):
    """Raised when the ledger already contains a different posting under the same key or for the same lease and time."""
