"""The exceptions that actions and ledger postings raise."""

from __future__ import annotations


class Refused(Exception):
    """Raised when a change is invalid or impossible now. `str(error)` is the reason, worded for users.

    `field`: the name of the invalid argument; None if the reason is not a single argument.
    """

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field


class NotAllowed(Exception):
    """Raised when the actor lacks the permission. `str(error)` names the roles that have the permission."""


class BookedOtherwise(Exception):
    """Raised when the ledger already contains a different posting under the same key or for the same lease and time."""
