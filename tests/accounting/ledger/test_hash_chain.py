import io
import threading

import pytest
from django.core.management import CommandError, call_command
from django.db import IntegrityError, connection, transaction

from accounting.ledger import correct_usage
from accounting.ledger.hash_chain import (
    LEAF_BYTES,
    LEAVES,
    WHOLE,
    digest_of,
    first_broken,
    hold_books,
    seal_book,
)
from accounting.models import LedgerEntry, LedgerSeal, LedgerTransaction, UsageSegment
from tests import make
from tests.accounting.booking import HOUR, NOON, book, close_hours, minutes, trade
from tests.ledger_guard import without_guards
from tests.make import Cast

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def cast(transactional_db: None) -> Cast:
    return make.cast()


@pytest.fixture
def sealed(cast: Cast) -> Cast:
    """Creates two books (ledgers of clusters) with seals. The first book has three transactions in two seals."""
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
    chain = [
        (seal.book, seal.number, len(seal.leaves) // LEAF_BYTES // 2) for seal in LedgerSeal.objects.all()
    ]
    assert chain == [(1, 1, 2), (1, 2, 1), (2, 1, 1)]
    assert first_broken() is None


def test_of_many_transactions_each_is_sealed_once(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accounting.ledger.hash_chain.AT_ONCE", 3)
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


@pytest.mark.parametrize(
    ("forgery", "seal"),
    [
        ("DELETE FROM accounting_ledgerseal WHERE book = 1 AND number = 2", 2),
        ("DELETE FROM accounting_ledgerseal WHERE book = 2", 1),
        ("DELETE FROM accounting_sealedbook WHERE book = 1", 2),
        ("UPDATE accounting_sealedbook SET number = 1, digest = NULL WHERE book = 1", 1),
    ],
)
def test_a_chain_that_lost_its_end_is_found(sealed: Cast, forgery: str, seal: int) -> None:
    with without_guards():
        sql(forgery.replace("digest = NULL", "digest = sha256('')"))
    assert first_broken() is None
    with pytest.raises(CommandError, match=rf"book \d, seal {seal}: the last seal in the hash chain"):
        call_command("verify_ledger")


def test_the_last_seal_that_was_made_is_told_only_forwards(sealed: Cast) -> None:
    for change in (
        "UPDATE accounting_sealedbook SET number = number - 1",
        "DELETE FROM accounting_sealedbook",
    ):
        with pytest.raises(IntegrityError):
            sql(change)


def test_a_worker_of_an_earlier_release_seals_nothing(sealed: Cast) -> None:
    """Proves that the database refuses seals from a worker of an earlier release.

    Such a worker does not record that its seal is the book's last one, so nobody could continue the chain after it.
    """
    last = LedgerSeal.objects.filter(book=1).latest("number")
    with pytest.raises(IntegrityError, match="not told as its last one"), transaction.atomic():
        LedgerSeal.objects.create(
            book=1, number=last.number + 1, first_id=last.last_id + 1, last_id=last.last_id + 1,
            leaves=b"0" * LEAF_BYTES, digest=b"1" * LEAF_BYTES,
        )  # fmt: skip
    book(sealed, lease_id=3)
    assert seal_book(1) > 0
    call_command("verify_ledger")


def test_what_was_not_sealed_for_a_day_is_found(sealed: Cast) -> None:
    """Proves that verify_ledger finds a transaction that has had no seal for more than a day.

    So an attacker cannot hide a transaction by deleting its seal together with the record of the book's last seal.
    """
    book(sealed, lease_id=3)
    call_command("verify_ledger")
    with without_guards():
        sql(
            "UPDATE accounting_ledgertransaction SET recorded_at = recorded_at - interval '25 h'"
            " WHERE key ~ '^usage:3'"
        )
    with pytest.raises(CommandError, match="booked more than a day ago and has no seal: usage:3:"):
        call_command("verify_ledger")


@pytest.mark.parametrize(
    ("forgery", "first"),
    [
        ("UPDATE accounting_ledgeraccount SET user_id = {charlie} WHERE kind = 'usage'", "row usage:1:"),
        (
            "UPDATE accounting_nodehour SET node_name = 'another' WHERE hour = '2026-05-04 13:00+0'",
            "row closing:1:2026-05-04T13:",
        ),
        (
            "UPDATE accounting_nodehour SET busy = busy - 1, free = free + 1 WHERE hour = '2026-05-04 12:00+0'",
            "row closing:1:2026-05-04T12:",
        ),
    ],
)
def test_accounts_and_hours_of_nodes_are_sealed(cast: Cast, forgery: str, first: str) -> None:
    """Proves that the hash chain covers the owners of accounts and the hourly states of nodes.

    No other check would find changes of these values, because other tables contain only their sums.
    """
    book(cast)
    close_hours(cast, NOON, NOON + 2 * HOUR)
    seal_book(1)
    assert first_broken() is None
    with without_guards():
        sql(forgery.format(charlie=cast.charlie.pk))
    broken = first_broken()
    assert broken is not None
    assert broken.what.startswith(first)


def test_no_seal_goes_back_to_the_former_leaves(sealed: Cast) -> None:
    """Proves that verification rejects a seal of an older form than the previous seal, even with a correct digest."""
    last = LedgerSeal.objects.filter(book=1).order_by("number").last()
    assert last is not None
    with connection.cursor() as cursor:
        cursor.execute(LEAVES[WHOLE], [1, last.first_id - 1, last.last_id, None])
        last.leaves = b"".join(bytes(leaf) for _, _, leaf, *_ in cursor.fetchall())
    last.form = WHOLE
    digest = digest_of(
        last, bytes(LedgerSeal.objects.get(book=1, number=last.number - 1).digest), last.sealed_at
    )
    with without_guards():
        sql(
            "UPDATE accounting_ledgerseal SET form = 1, leaves = %s, digest = %s WHERE id = %s",
            last.leaves,
            digest,
            last.pk,
        )
    broken = first_broken()
    assert broken is not None
    assert broken.what == "this seal has an unknown format, or an older format than the previous seal"


def test_the_first_bad_row_is_named(sealed: Cast) -> None:
    with without_guards():
        sql(
            "UPDATE accounting_ledgertransaction SET description = 'nothing' WHERE kind IN ('trade', 'correction')"
        )
    broken = first_broken()
    assert broken is not None
    assert (broken.book, broken.seal) == (1, 1)
    assert broken.what.startswith("row trade:1 was changed")


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


def test_a_noted_seal_is_told_from_one_that_was_made_anew(sealed: Cast) -> None:
    seal = LedgerSeal.objects.get(book=1, number=2)
    noted = f"1:2:{bytes(seal.digest).hex()}"
    call_command("verify_ledger", noted=[noted], stdout=io.StringIO())
    with pytest.raises(CommandError, match="the hash chain was rebuilt"):
        call_command("verify_ledger", noted=[f"1:1:{bytes(seal.digest).hex()}"])
    with pytest.raises(CommandError, match="is neither a head"):
        call_command("verify_ledger", noted=["1:2"])


def test_no_seal_misses_what_is_being_booked(cast: Cast) -> None:
    """Proves that sealing waits for a transaction that has an ID but is not committed yet."""
    book(cast, book=3, lease_id=3)  # creates the accounts, so that the bookings below do not wait
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
        hold_books([2])  # a lock on another book does not matter
        book(cast, book=2, lease_id=2)
    threads[1].start()
    assert seal_book(2) == 1
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert sealed == [1]
    assert first_broken() is None
