from decimal import Decimal

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction

from accounting import actions
from accounting.ledger import Payer, correct_usage
from accounting.ledger.hash_chain import seal_book
from accounting.models import (
    CapacitySegment,
    ClassCharge,
    LedgerEntry,
    LedgerTransaction,
    Price,
    UsageSegment,
)
from accounting.verification import entries, first_found
from tests import make
from tests.accounting.booking import HOUR, NOON, book, close_hours, minutes, settle_hours, trade
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


def test_what_is_free_may_be_billed_in_one_currency_and_closed_in_another(cast: Cast, settings) -> None:
    Price.objects.all().delete()
    book(cast)
    settings.FAIRLOT_CURRENCY = "USD"
    close_hours(cast, NOON, NOON + HOUR)
    told = [
        set(model.objects.values_list("currency", flat=True)) for model in (UsageSegment, CapacitySegment)
    ]
    assert told == [{"EUR"}, {"USD"}]
    assert first_found() is None


def test_within_an_hour_a_price_may_come_that_is_in_another_currency(cast: Cast, settings) -> None:
    book(cast)
    settings.FAIRLOT_CURRENCY = "USD"
    actions.set_price(actor=cast.ada, generation=cast.a100, per_gpu_hour=Decimal(3), since=NOON + minutes(40))
    book(cast, lease_id=2, ends=NOON + HOUR)
    close_hours(cast, NOON, NOON + HOUR)
    assert first_found() is None


@pytest.mark.parametrize(
    ("forgery", "found"),
    [
        ("DELETE FROM accounting_ledgerentry WHERE transaction_id = {id} AND amount <> 6", "fewer than two"),
        (
            "UPDATE accounting_ledgerentry SET amount = 7 WHERE transaction_id = {id} AND amount = 6",
            "do not add up to 0",
        ),
        (
            "UPDATE accounting_ledgertransaction SET kind = 'trade' WHERE id = {id}",
            "has no transaction of the same kind",
        ),
        ("UPDATE accounting_ledgerentry SET amount = amount * 2 WHERE transaction_id = {id}", "differ from"),
        ("UPDATE accounting_usagesegment SET tenant_id = {bio} WHERE transaction_id = {id}", "differ from"),
        (
            "UPDATE accounting_ledgerentry SET amount = amount * 2 WHERE transaction_id = {undo}",
            "differ from",
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
    """Proves that verification finds wrong times, even after the constraints that prevent them were dropped."""
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
    """Proves that verify_ledger reports a disabled trigger, also on a monthly partition."""
    trigger = how.rsplit(maxsplit=1)[-1]
    sql(f"ALTER TABLE {table} {how}")
    try:
        with pytest.raises(CommandError, match=f"disabled: {table}, {trigger}"):
            call_command("verify_ledger")
    finally:
        sql(f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {trigger}")


def test_the_figures_of_a_forged_ledger_would_not_pass_unseen(segment: UsageSegment) -> None:
    """Proves that rows really change inside `without_guards`, so that the other tests of this file test real
    changes."""
    with without_guards():
        LedgerEntry.objects.filter(amount=Decimal(6)).update(amount=Decimal(7))
    assert LedgerEntry.objects.filter(amount=7).exists()
    assert LedgerTransaction.objects.filter(kind="correction").exists()


@pytest.fixture
def closed(cast: Cast) -> Cast:
    """Creates a closed and settled day in which two teams used GPUs, and a second book whose hours are not closed.

    The day contains idle time, a trade, and a correction that bills the time of one team to the other.
    """
    Price.objects.filter(generation=cast.a100).update(idle=1)
    book(cast, unused=[(NOON + minutes(10), NOON + minutes(25))])
    book(cast, lease_id=2, job_id=2, tenant=cast.bio, user=cast.charlie, ends=NOON + minutes(90))
    trade(cast)
    day = NOON - 12 * HOUR
    close_hours(cast, day, day + 24 * HOUR)
    settle_hours()
    with transaction.atomic():
        wrong = UsageSegment.objects.filter(lease_id=2).select_related("generation").order_by("pk")[:1]
        correct_usage(
            actor=cast.ada, segments=list(wrong), reason="a mistake", payer=Payer(cast.astro, cast.bob)
        )
    book(cast, book=2, lease_id=5, job_id=5)
    return cast


OPEN = "(SELECT id FROM accounting_ledgertransaction WHERE book = 2)"
NOONS = "(SELECT id FROM accounting_ledgertransaction WHERE key = 'closing:1:2026-05-04T12:00:00+00:00')"
PRICING = "(SELECT id FROM accounting_ledgertransaction WHERE kind = 'pricing')"


def entries_of(booked: str, *kinds: str) -> str:
    kind = ", ".join(f"'{one}'" for one in kinds)
    return (
        f"transaction_id IN {booked} AND account_id IN"  # noqa: S608
        f" (SELECT id FROM accounting_ledgeraccount WHERE kind IN ({kind}))"
    )


def amounts(new: str, booked: str, *kinds: str) -> str:
    return f"UPDATE accounting_ledgerentry SET amount = {new} WHERE {entries_of(booked, *kinds)}"  # noqa: S608


def removed(table: str, where: str) -> str:
    return f"DELETE FROM accounting_{table} WHERE {where}"  # noqa: S608


def moved(booked: str, kind: str, to: str) -> str:
    """Returns SQL that moves ledger entries to an account of kind `to` that has the same unit.

    `booked`: SQL that selects the ids of the entries' transactions. `kind`: the kind of the entries' present account.
    """
    return (
        "UPDATE accounting_ledgerentry SET account_id = (SELECT other.id FROM accounting_ledgeraccount other"  # noqa: S608
        " JOIN accounting_ledgeraccount account ON account.unit = other.unit WHERE account.id = account_id"
        f" AND other.kind = '{to}') WHERE {entries_of(booked, kind)}"
    )


# Changes that pass all earlier checks, and the message of the check that finds them.
FORGERIES = {
    "what a tenant pays, on both sides": (
        [amounts("amount * 2", OPEN, "cost", "revenue")],
        "the amounts of a transaction differ from the amounts of its vouchers .*: usage:5:.*, cost, EUR",
    ),
    "that and the price with it": (
        [
            amounts("amount * 2", OPEN, "cost", "revenue"),
            "UPDATE accounting_usagesegment SET price_per_gpu_hour = 6, cost = cost * 2 WHERE book = 2",
        ],
        "a usage segment does not have the price that was valid at its time: .*, 5, ",
    ),
    "that by less than is rounded": (
        [
            amounts("amount + 0.00001 * sign(amount)", OPEN, "cost", "revenue"),
            "UPDATE accounting_usagesegment SET cost = cost + 0.00001 WHERE book = 2",
        ],
        "the cost of a usage segment is not its GPU time multiplied by its price: .*, 5, ",
    ),
    "the price list": (
        ["UPDATE accounting_price SET per_gpu_hour = 4 WHERE per_gpu_hour = 3"],
        "a usage segment does not have the price that was valid at its time: .*, 1, ",
    ),
    "the currency of a price": (
        ["UPDATE accounting_price SET currency = 'USD' WHERE per_gpu_hour = 3"],
        "a bill or a closed hour is in another currency than its price: usagesegment, .*, EUR",
    ),
    "the currency in which an hour was closed": (
        [
            "UPDATE accounting_capacitysegment SET currency = 'USD'",
            "UPDATE accounting_ledgeraccount SET unit = 'USD' WHERE unit = 'EUR'"
            " AND kind IN ('free', 'others', 'drained', 'down', 'rounding')",
            "INSERT INTO accounting_ledgeraccount (kind, unit) VALUES ('revenue', 'USD')",
            "UPDATE accounting_ledgerentry SET account_id = (SELECT max(id) FROM accounting_ledgeraccount)"
            " WHERE account_id = (SELECT id FROM accounting_ledgeraccount WHERE (kind, unit) = ('revenue', 'EUR'))"
            " AND transaction_id IN (SELECT id FROM accounting_ledgertransaction WHERE kind = 'closing')",
        ],
        "a bill or a closed hour is in another currency than its price: capacitysegment, .*, USD",
    ),
    "when a price began": (
        ["UPDATE accounting_price SET valid = tstzrange('2026-05-04 12:10+0', NULL) WHERE per_gpu_hour = 3"],
        "a usage segment does not have the price that was valid at its time: .*, 1, ",
    ),
    "the price of a class": (
        ["UPDATE accounting_classcharge SET idle_price = 2"],
        "a charge for idle, preemptible or borrowed GPU time does not match its GPU time and prices",
    ),
    "that what was idle has a price": (
        [
            removed("ledgerentry", f"transaction_id = {PRICING}"),
            "DELETE FROM accounting_classcharge",
            *(
                removed(name, f"transaction_id = {PRICING}")
                for name in ("usagehour", "usageday", "jobday")
            ),
            removed("ledgertransaction", f"id = {PRICING}"),
        ],
        "idle GPU time of a closed hour has no charge at the price for idle time: .*, 1, ",
    ),
    "what the cluster earned": (
        [moved(OPEN, "revenue", "classes")],
        "the amounts of a transaction differ from the amounts of its vouchers .*: usage:5:.*, classes, EUR",
    ),
    "what was taken back": (
        ["UPDATE accounting_ledgeraccount SET kind = 'drained' WHERE kind = 'waived' AND generation_id IS NULL"],
        "the amounts of a transaction differ from the amounts of its vouchers .*: correction:.*, drained, EUR",
    ),
    "what was free": (
        ["UPDATE accounting_ledgeraccount SET kind = 'down' WHERE kind = 'free' AND generation_id IS NOT NULL"],
        "the amounts of a transaction differ from the amounts of its vouchers .*:"
        " closing:1:2026-05-04T00:.*, down, GPU-s",
    ),
    "how many GPUs there were": (
        [amounts("amount + sign(amount)", NOONS, "installed", "free") + " AND abs(amount) > 10000"],
        "the amounts of a transaction differ from the amounts of its vouchers .*:"
        " closing:1:2026-05-04T12:.*, free, GPU-s",
    ),
    "of which generation an account is": (
        [
            "UPDATE accounting_ledgeraccount SET generation_id ="
            " (SELECT id FROM accounting_generation WHERE name = 'V100') WHERE kind = 'installed'"
        ],
        "the unit of a ledger account does not match the account's GPU type: .*, installed, GPU-s A100",
    ),
    "to whom a trade gave": (
        [
            "UPDATE accounting_ledgerentry SET account_id = (SELECT account_id FROM accounting_ledgerentry"
            " WHERE amount = -60) WHERE amount = 60"
        ],
        "a trade is not an exchange of two GPU types between two teams: trade:1",
    ),
    "of which kind a transaction is": (
        [
            "UPDATE accounting_ledgertransaction SET kind = 'trade' WHERE book = 2",
            "DELETE FROM accounting_usagesegment WHERE book = 2",
        ],
        "a transaction has an entry in an account that transactions of its kind never use: usage:5:.*, trade, ",
    ),
    "in which book it is": (
        ["UPDATE accounting_usagesegment SET book = 3 WHERE book = 2"],
        r"a voucher \(usage segment or charge\) has no transaction of the same kind, book and time: usagesegment",
    ),
    "that it was booked anew": (
        [
            "UPDATE accounting_usagesegment SET version = 1 WHERE book = 2",
            moved(OPEN, "revenue", "waived"),
            moved(OPEN, "capacity", "waived"),
        ],
        "a usage segment was booked again, although no correction took back its earlier version: .*, 5, 1",
    ),
    "a closing": (
        [
            removed("ledgerentry", f"transaction_id = {NOONS}"),
            removed("capacitysegment", f"transaction_id = {NOONS}"),
            "DELETE FROM accounting_nodehour WHERE hour = '2026-05-04 12:00+0'",
            removed("ledgertransaction", f"id = {NOONS}"),
        ],
        "the GPU time or cost of a closed hour differs from the bills of the hour: 1, 2026-05-04 12:",
    ),
    "until when hours are closed": (
        [
            "UPDATE accounting_closedbook"
            " SET until = until - interval '1 hour', priced_until = until - interval '1 hour'"
        ],
        "an hour has a closing transaction but is not marked as closed: 1, .2026-05-04 23:",
    ),
    "of which class capacity was": (
        [
            "UPDATE accounting_capacitysegment SET down = free, free = 0, down_value = free_value, free_value = 0",
            "UPDATE accounting_ledgeraccount SET kind = 'down' WHERE kind = 'free'",
        ],
        "in a closed hour, the nodes' GPU time differs from the GPU time in the transaction that closed the hour:"
        " 1, 2026-05-04 00:",
    ),
    "what an hour costs": (
        ["UPDATE accounting_usagehour SET cost = cost + 1 WHERE hour = '2026-05-04 13:00+0'"],
        "the rollups of an hour differ from the sums of its usage segments: 1, 2026-05-04 13:",
    ),
    "what a day costs": (
        ["UPDATE accounting_usageday SET cost = cost + 1"],
        "the rollups of a day differ from the sums of its hourly rollups: 1, 2026-05-04",
    ),
    "what a day of a job costs": (
        ["UPDATE accounting_jobday SET cost = cost + CASE job_id WHEN 2 THEN 1 ELSE -1 END WHERE user_id = "
         "(SELECT user_id FROM accounting_jobday GROUP BY user_id HAVING count(DISTINCT job_id) > 1)"
         " AND id IN (SELECT max(id) FROM accounting_jobday GROUP BY job_id, user_id)"],
        "the daily rollups of a job differ from the sums of its usage segments: 1, 2026-05-04",
    ),
    "who wrote the sums": (
        ["UPDATE accounting_usageday SET transaction_id = transaction_id + 999999"],
        "a rollup refers to a transaction that does not exist: usageday",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "found"), FORGERIES.values(), ids=FORGERIES.keys())
def test_what_was_forged_to_fit_is_found_all_the_same(closed: Cast, changes: list[str], found: str) -> None:
    """Proves that verify_ledger finds forged rows that were not sealed yet, so that no seal can reveal the change.

    Some of the forgeries change several tables, so that the changed rows still agree with one another.
    """
    assert first_found() is None
    with without_guards(), connection.cursor() as cursor:
        for change in changes:
            cursor.execute(change)
            assert cursor.rowcount > 0, change
    with pytest.raises(CommandError, match=found):
        call_command("verify_ledger")


def test_what_was_rounded_to_four_decimals_is_right_for_time_before_costs_had_six(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proves that verification accepts costs that an earlier release rounded to four decimals.

    That release booked, closed and sealed the time. This release settles the time and bills it to another team.
    """
    Price.objects.filter(generation=cast.a100).update(per_gpu_hour=Decimal("0.17"), idle=Decimal("0.02"))
    with monkeypatch.context() as release:
        release.setattr("accounting.pricing.tariff.MICRO", Decimal("0.0001"))
        book(cast, gpus=1, ends=NOON + minutes(1 / 60))
        (wrong,) = book(cast, lease_id=2, gpus=1, ends=NOON + minutes(7))
        book(cast, lease_id=3, gpus=1, ends=NOON + minutes(7), unused=[(NOON, NOON + minutes(2))])
        close_hours(cast, NOON, NOON + HOUR)
    assert [one.cost for one in UsageSegment.objects.order_by("lease_id")] == [
        Decimal(cost) for cost in ("0", "0.0198", "0.0198")
    ]
    assert seal_book(1) > 0
    assert first_found() is None
    settle_hours()
    assert ClassCharge.objects.get().segment.lease_id == 3
    with transaction.atomic():
        correct_usage(actor=cast.ada, segments=[wrong], reason="Bio's", payer=Payer(cast.bio))
    book(cast, lease_id=4, begins=NOON + HOUR, ends=NOON + HOUR + minutes(7))
    assert first_found() is None
    with transaction.atomic():
        sql("UPDATE django_migrations SET applied = %s WHERE name LIKE %s", NOON, "%costs_in_millionths")
        found = first_found()
        transaction.set_rollback(True)
    assert found is not None
    assert found.what == "the cost of a usage segment is not its GPU time multiplied by its price"
