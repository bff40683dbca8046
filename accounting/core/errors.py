"""Errors with which actions and postings fail."""

from __future__ import annotations


class Refused(Exception):
    """The change is invalid or impossible now; `str(error)` is the reason in words for users.

    `field` is the name of the invalid argument; None if no single argument is at fault.
    """

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field


class NotAllowed(Exception):
    """The actor lacks the permission; `str(error)` names the roles that have it."""


class BookedOtherwise(Exception):
    """The ledger already has other content under the same key, or for the same lease and time."""
