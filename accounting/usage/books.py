"""The books of the ledger (one per cluster), and the interval for which each book is closed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from accounting.core.statements import Statement


@dataclass(frozen=True, slots=True)
class Book:
    """Represents a book (a cluster's ledger) whose hours in [since, until) are closed.

    `details_since`: bills before this time are archived; None if no bill of the book is archived.
    """

    book: int
    since: datetime
    until: datetime
    details_since: datetime | None


class Books:
    """Queries all books (clusters' ledgers) at first use and caches the result.

    All queries of a report share one such object.
    """

    @property
    def closed(self) -> Sequence[Book]:
        """Returns the books that were opened: Fairlot closes their hours one after the other.

        A book is included even if none of its hours is closed yet.
        """
        return [Book(*row) for row in self._rows if row[1] is not None]

    @property
    def unopened(self) -> Sequence[int]:
        """Returns the numbers of the books (clusters' ledgers) that have transactions but were never opened.

        None of their hours is closed.
        """
        return [row[0] for row in self._rows if row[1] is None]

    @property
    def bills_since(self) -> datetime | None:
        """Returns the time from which on the bills of all clusters are in the database; None if no bill is archived.

        Before this time, the bills of at least one cluster are archived.
        """
        return max((one.details_since for one in self.closed if one.details_since), default=None)

    @cached_property
    def _rows(self) -> Sequence[tuple[int, datetime, datetime, datetime | None]]:
        return _books.ask()


# The recursive query finds each next book by an index, while DISTINCT would read the whole ledger.
_books = Statement("""
    WITH RECURSIVE booked (book) AS (
        SELECT min(book) FROM accounting_ledgertransaction
        UNION ALL
        SELECT (SELECT min(later.book) FROM accounting_ledgertransaction later WHERE later.book > booked.book)
          FROM booked WHERE booked.book IS NOT NULL)
    SELECT book, since, until, details_since
      FROM accounting_closedbook FULL JOIN (SELECT book FROM booked WHERE book IS NOT NULL) every_book USING (book)
     ORDER BY book
""")
