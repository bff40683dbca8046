"""What an action answers when it does not do what was asked."""

from __future__ import annotations


class Refused(Exception):
    """The request makes no sense or is not possible now; `str(error)` says why in plain words.

    `field` names the argument that is at fault, if it is one.
    """

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field


class NotAllowed(Exception):
    """The actor may not do this; `str(error)` says who may."""


class BookedOtherwise(Exception):
    """The ledger already holds something else under the same key, or for the same lease and time."""
