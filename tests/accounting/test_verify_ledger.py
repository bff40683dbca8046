from decimal import Decimal

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction

from accounting.ledger import correct_usage
from accounting.models import LedgerEntry, LedgerTransaction, UsageSegment
from accounting.verification import entries
from tests import make
from tests.accounting.booking import NOON, book, minutes
from tests.ledger_guard import without_guards
from tests.make import Cast

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def cast(transactional_db: None) -> Cast:
    return make.cast()


@pytest.fixture
def segment(cast: Cast) -> UsageSegment:
    book(cast, lease_id=2, ends=NOON + minutes(90))
    (booked,) = book(cast)
    with transaction.atomic():
        correct_usage(actor=cast.ada, segments=[booked], reason="a mistake")
    return booked


def sql(command: str, *values: object) -> None:
    with connection.cursor() as cursor:
        cursor.execute(command, values)


def test_a_sound_ledger_is_ok(segment: UsageSegment, capsys: pytest.CaptureFixture[str]) -> None:
    call_command("verify_ledger")
    assert capsys.readouterr().out == "OK: 3 transactions, 12 entries, 3 segments\n"


def test_an_empty_ledger_is_ok(cast: Cast, capsys: pytest.CaptureFixture[str]) -> None:
    call_command("verify_ledger")
    assert capsys.readouterr().out.startswith("OK: 0 transactions")


@pytest.mark.parametrize(
    ("forgery", "found"),
    [
        ("DELETE FROM accounting_ledgerentry WHERE transaction_id = {id} AND amount <> 6", "fewer than two"),
        (
            "UPDATE accounting_ledgerentry SET amount = 7 WHERE transaction_id = {id} AND amount = 6",
            "balance",
        ),
        ("UPDATE accounting_ledgertransaction SET kind = 'trade' WHERE id = {id}", "is of no transaction of its kind"),
        ("UPDATE accounting_ledgerentry SET amount = amount * 2 WHERE transaction_id = {id}", "differs from"),
        ("UPDATE accounting_usagesegment SET tenant_id = {bio} WHERE transaction_id = {id}", "differs from"),
        (
            "UPDATE accounting_ledgerentry SET amount = amount * 2 WHERE transaction_id = {undo}",
            "differs from",
        ),
        ("DELETE FROM accounting_correctedsegment", "has no vouchers"),
        ("DELETE FROM accounting_usagesegment WHERE transaction_id = {id}", "has no vouchers"),
    ],
)
def test_what_was_forged_is_found(cast: Cast, segment: UsageSegment, forgery: str, found: str) -> None:
    undo = segment.taken_back.transaction_id
    with without_guards():
        sql(forgery.format(id=segment.transaction_id, bio=cast.bio.pk, undo=undo))
    with pytest.raises(CommandError, match=found):
        call_command("verify_ledger")


def test_forged_times_are_found_even_without_their_constraints(cast: Cast, segment: UsageSegment) -> None:
    """Rolled back at the end, so that the constraints stay."""
    constraints = "a_segment_counts_its_gpu_seconds", "a_lease_is_billed_once_for_any_moment"
    with transaction.atomic():
        with without_guards():
            for name in constraints:
                sql(f"ALTER TABLE accounting_usagesegment DROP CONSTRAINT {name}")
            sql("UPDATE accounting_usagesegment SET gpus = 9 WHERE id = %s", segment.pk)
        assert entries.a_segment_miscounts() is not None
        assert entries.a_lease_is_billed_twice() is None
        with without_guards():
            sql("DELETE FROM accounting_correctedsegment")
            sql("UPDATE accounting_usagesegment SET gpus = 4, lease_id = 2 WHERE id = %s", segment.pk)
        assert entries.a_lease_is_billed_twice() is not None
        transaction.set_rollback(True)


@pytest.mark.parametrize("how", ["DISABLE TRIGGER append_only", "ENABLE TRIGGER check_rows"])
@pytest.mark.parametrize("table", ["accounting_ledgerentry", "accounting_usagesegment_2026_05"])
def test_a_guard_that_is_off_is_found(segment: UsageSegment, how: str, table: str) -> None:
    """Of a month, too, which is there as something was booked in it: others archive it and leave it so."""
    trigger = how.rsplit(maxsplit=1)[-1]
    sql(f"ALTER TABLE {table} {how}")
    try:
        with pytest.raises(CommandError, match=f"switched off: {table}, {trigger}"):
            call_command("verify_ledger")
    finally:
        sql(f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {trigger}")


def test_the_figures_of_a_forged_ledger_would_not_pass_unseen(segment: UsageSegment) -> None:
    """Guards the helper above: without guards rows really change."""
    with without_guards():
        LedgerEntry.objects.filter(amount=Decimal(6)).update(amount=Decimal(7))
    assert LedgerEntry.objects.filter(amount=7).exists()
    assert LedgerTransaction.objects.filter(kind="correction").exists()
