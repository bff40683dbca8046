"""A state of the database that is built once is the same in each test that uses it."""

from __future__ import annotations

import pytest
from django.core.management import call_command

from accounting.ledger.hash_chain import seal_book
from accounting.models import LedgerTransaction
from accounting.verification import first_found
from tests import make
from tests.accounting.booking import HOUR, NOON, book, close_hours
from tests.kept_rows import Rows, kept
from tests.make import Cast

built = 0


def make_books() -> Cast:
    """Creates a sealed book with usage in the first of three closed hours."""
    global built  # noqa: PLW0603 - counts the calls
    built += 1
    cast = make.cast()
    book(cast)
    close_hours(cast, NOON, NOON + 3 * HOUR)
    seal_book(1)
    return cast


@pytest.mark.django_db(transaction=True)
def test_rows_come_back_as_they_were_and_the_ledger_accepts_them() -> None:
    first = kept(make_books)
    rows = Rows().script
    call_command("flush", interactive=False, verbosity=0)
    assert not LedgerTransaction.objects.exists()
    second = kept(make_books)
    assert built == 1
    assert second == first
    assert second.astro is not first.astro, "a test may change the objects"
    assert Rows().script == rows
    assert first_found() is None
    book(second, lease_id=9, begins=NOON + 4 * HOUR, ends=NOON + 5 * HOUR)  # with keys that are still free
