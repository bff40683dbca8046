"""Why an action did not do what was asked."""

from __future__ import annotations


class Refused(Exception):
    """The request is invalid or impossible now; `str(error)` says why, for people.

    `field` names the argument at fault, if there is one.
    """

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field


class NotAllowed(Exception):
    """The actor may not do this; `str(error)` says who may."""


class BookedOtherwise(Exception):
    """The ledger has other contents under the same key, or for the same lease and time."""
