import io
import re
import threading

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction

from accounting.ledger import correct_usage
from accounting.models import LedgerEntry, LedgerSeal, LedgerTransaction, UsageSegment
from accounting.seals import LEAF_BYTES, first_broken, hold_books, seal_book
from tests import make
from tests.accounting.booking import NOON, book, minutes, trade
from tests.ledger_guard import without_guards
from tests.make import Cast

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def cast(transactional_db: None) -> Cast:
    return make.cast()


@pytest.fixture
def sealed(cast: Cast) -> Cast:
    """Two books; the first has three transactions in two seals."""
    book(cast, ends=NOON + minutes(90))
    trade(cast)
    assert seal_book(1) == 2
    with transaction.atomic():
        segments = UsageSegment.objects.select_related("generation")
        correct_usage(actor=cast.ada, segments=list(segments), reason="a mistake")
    book(cast, book=2, lease_id=2)
    assert (seal_book(1), seal_book(2), seal_book(1), seal_book(3)) == (1, 1, 0, 0)
    return cast


def sql(command: str, *values: object) -> None:
    with connection.cursor() as cursor:
        cursor.execute(command, values)


def test_seals_follow_each_other_in_every_book(sealed: Cast) -> None:
    chain = [(seal.book, seal.number, len(seal.leaves) // LEAF_BYTES // 2) for seal in LedgerSeal.objects.all()]
    assert chain == [(1, 1, 2), (1, 2, 1), (2, 1, 1)]
    assert first_broken() is None


def test_of_many_transactions_each_is_sealed_once(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accounting.seals.AT_ONCE", 3)
    for lease in range(8):
        book(cast, lease_id=lease)
    assert seal_book(1) == 8
    assert [len(seal.leaves) // LEAF_BYTES // 2 for seal in LedgerSeal.objects.all()] == [3, 3, 2]
    assert first_broken() is None


@pytest.mark.parametrize(
    "forgery",
    [
        "UPDATE accounting_ledgertransaction SET description = 'nothing' WHERE kind = 'trade'",
        "UPDATE accounting_ledgertransaction SET recorded_at = recorded_at - interval '1 s' WHERE kind = 'trade'",
        "UPDATE accounting_usagesegment SET user_name = 'nobody' WHERE lease_id = 1",
        "UPDATE accounting_ledgerentry SET amount = amount * 2",
        "DELETE FROM accounting_correctedsegment",
        "DELETE FROM accounting_ledgerseal WHERE book = 1 AND number = 1",
        "UPDATE accounting_ledgerseal SET digest = sha256(leaves)",
        "UPDATE accounting_ledgerseal SET leaves = substr(leaves, 33) WHERE book = 1 AND number = 1",
    ],
)
def test_whatever_is_changed_after_it_was_sealed_is_found(sealed: Cast, forgery: str) -> None:
    with without_guards():
        sql(forgery)
    assert first_broken() is not None
    with pytest.raises(CommandError, match=r"book 1, seal \d: "):
        call_command("verify_ledger")


def test_the_first_bad_row_is_named(sealed: Cast) -> None:
    with without_guards():
        sql(
            "UPDATE accounting_ledgertransaction SET description = 'nothing' WHERE kind IN ('trade', 'correction')"
        )
    broken = first_broken()
    assert broken is not None
    assert (broken.book, broken.seal) == (1, 1)
    assert broken.what.startswith("trade:1 was changed")


def test_a_removed_and_a_smuggled_transaction_are_found(sealed: Cast) -> None:
    last = LedgerTransaction.objects.get(kind="trade")
    with transaction.atomic():
        with without_guards():
            LedgerEntry.objects.filter(transaction=last)._raw_delete("default")
            LedgerTransaction.objects.filter(pk=last.pk)._raw_delete("default")
        assert first_broken() is not None
        transaction.set_rollback(True)
    with without_guards():
        sql(
            "INSERT INTO accounting_ledgertransaction (id, book, month, key, kind, period, description)"
            " SELECT id, 2, '2026-04-01', 'smuggled', kind, '[2026-04-01, 2026-04-02)', ''"
            " FROM accounting_ledgertransaction WHERE book = 2"
        )
    assert first_broken() is not None


def test_a_chain_that_was_made_anew_is_told_from_the_one_that_was_noted(sealed: Cast) -> None:
    out = io.StringIO()
    call_command("verify_ledger", stdout=out)
    noted = out.getvalue().splitlines()
    assert [re.sub(r"[0-9a-f]{64}$", "…", line) for line in noted[:-1]] == ["1:2:…", "2:1:…"]
    call_command("verify_ledger", noted=noted[:-1], stdout=io.StringIO())
    with without_guards():
        sql("UPDATE accounting_usagesegment SET user_name = 'nobody'")
        sql("DELETE FROM accounting_ledgerseal")
        sql("DELETE FROM accounting_sealedbook")
    for book_id in (1, 2):
        seal_book(book_id)
    call_command("verify_ledger", stdout=io.StringIO())  # sound in itself
    with pytest.raises(CommandError, match="made anew"):
        call_command("verify_ledger", noted=noted[:1])
    with pytest.raises(CommandError, match="is no seal"):
        call_command("verify_ledger", noted=["1:2"])


def test_no_seal_misses_what_is_being_booked(cast: Cast) -> None:
    """A booking that has its number but is not committed yet keeps the sealer waiting."""
    book(cast, book=3, lease_id=3)  # accounts are there, for which bookings would wait for each other
    booked, go_on = threading.Event(), threading.Event()

    def slowly() -> None:
        try:
            with transaction.atomic():
                book(cast, lease_id=1)
                booked.set()
                assert go_on.wait(60)
        finally:
            connection.close()

    sealed: list[int] = []

    def seal() -> None:
        try:
            sealed.append(seal_book(1))
        finally:
            connection.close()

    threads = [threading.Thread(target=slowly), threading.Thread(target=seal)]
    threads[0].start()
    assert booked.wait(60)
    with transaction.atomic():
        hold_books([2])  # another book is nobody's business
        book(cast, book=2, lease_id=2)
    threads[1].start()
    assert seal_book(2) == 1
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert sealed == [1]
    assert first_broken() is None
