"""The books of the ledger, and the interval for which each book is closed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from accounting.core.statements import Statement


@dataclass(frozen=True, slots=True)
class Book:
    """A book with closed hours in [`since`, `until`).

    Its bills before `details_since` are archived; `details_since` is None if no bill is archived.
    """

    book: int
    since: datetime
    until: datetime
    details_since: datetime | None


class Books:
    """Queries all books at first use and keeps the result; one object serves all queries of a report."""

    @property
    def closed(self) -> Sequence[Book]:
        """Returns the books that were opened for closing hours; a book may have no closed hour yet."""
        return [Book(*row) for row in self._rows if row[1] is not None]

    @property
    def unopened(self) -> Sequence[int]:
        """Returns the numbers of the other books with transactions."""
        return [row[0] for row in self._rows if row[1] is None]

    @property
    def bills_since(self) -> datetime | None:
        """Returns the moment before which bills of some book are archived; None if no bill is archived."""
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
