"""Tests that the database itself rejects changes of closed books, even in raw SQL by the portal's role, which owns the
tables."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from decimal import Decimal

import pytest
from django.db import IntegrityError, connection, transaction

from accounting.access import audit
from accounting.ledger import Payer, Usage, book_usage, correct_usage
from accounting.models import AuditEvent, LedgerAccount, LedgerEntry, LedgerTransaction, UsageSegment
from tests import make
from tests.accounting.booking import NOON, book, trade, usage
from tests.ledger_guard import APPEND_ONLY

pytestmark = pytest.mark.django_db(transaction=True)

MAY = "2026-05-01"


def sql(command: str, *values: object) -> None:
    with connection.cursor() as cursor:
        cursor.execute(command, values)


@pytest.fixture
def cast(transactional_db: None) -> make.Cast:
    return make.cast()


@contextmanager
def refused(why: str) -> Iterator[None]:
    """Context manager that asserts that the database rejects the transaction in the block, at the latest at its
    commit."""
    with pytest.raises(IntegrityError, match=why), transaction.atomic():
        yield


@pytest.fixture
def segment(cast: make.Cast) -> UsageSegment:
    with transaction.atomic():
        audit.record(actor=cast.ada, verb="test", target=cast.astro, tenant=cast.astro)
        (booked,) = book_usage([Usage(**usage(cast))])
    return booked


def insert_blank(kind: str = "trade", **columns: object) -> int:
    row = {
        "book": 1, "month": MAY, "key": "forged", "kind": kind, "period": "[2026-05-04 12:00Z, 2026-05-04 12:30Z)",
        "description": "forged", "recorded_at": NOON,
    } | columns  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO accounting_ledgertransaction ({', '.join(row)})"  # noqa: S608 - own names
            f" VALUES ({', '.join(['%s'] * len(row))}) RETURNING id",
            list(row.values()),
        )
        return cursor.fetchone()[0]


def insert_entries(
    into: int, *entries: tuple[LedgerAccount, str], table: str = "accounting_ledgerentry"
) -> None:
    """Inserts all entries of one ledger transaction in a single SQL statement. The database refuses to add entries to
    the transaction later."""
    rows = ", ".join(["(%s, %s, %s, %s)"] * len(entries))
    values = [value for account, amount in entries for value in (into, MAY, account.pk, amount)]
    sql(f"INSERT INTO {table} (transaction_id, month, account_id, amount) VALUES {rows}", *values)  # noqa: S608


@pytest.fixture
def trade_accounts(cast: make.Cast) -> list[LedgerAccount]:
    """Creates three trade accounts: A100 of team Astro, A100 of team Bio, and V100 of team Astro."""
    unit, kind = "GPU-s A100", LedgerAccount.Kind.TRADE
    return [
        LedgerAccount.objects.create(kind=kind, unit=unit, generation=cast.a100, tenant=cast.astro),
        LedgerAccount.objects.create(kind=kind, unit=unit, generation=cast.a100, tenant=cast.bio),
        LedgerAccount.objects.create(kind=kind, unit="GPU-s V100", generation=cast.v100, tenant=cast.astro),
    ]


# Tables that are partitioned by month have the month in their primary key.
KEYS = dict.fromkeys(APPEND_ONLY, "id, month") | {
    "accounting_correctedsegment": "segment_id, month",
    "accounting_classcharge": "segment_id, month",
    "accounting_ledgeraccount": "id",
    "accounting_ledgerseal": "id",
    "accounting_ledgerhead": "number",
    "accounting_auditevent": "id",
    "accounting_archiverecord": "id",
}


# The rows of accounting_sealedbook may change, but only forwards (test_hash_chain.py).
@pytest.mark.parametrize("table", [table for table in APPEND_ONLY if table != "accounting_sealedbook"])
@pytest.mark.parametrize(
    "command",
    [
        "UPDATE {table} SET {column} = {column}",
        "DELETE FROM {table}",
        "TRUNCATE {table} CASCADE",
        "MERGE INTO {table} kept USING {table} other ON kept.{column} = other.{column} WHEN MATCHED THEN DELETE",
        "INSERT INTO {table} SELECT * FROM {table} ON CONFLICT ({key}) DO UPDATE SET {column} = excluded.{column}",
    ],
)
def test_nothing_booked_is_changed_or_removed(segment: UsageSegment, table: str, command: str) -> None:
    key = KEYS[table]
    for role in ("origin", "replica"):
        with refused(r"append-only|is closed"):
            sql(f"SET LOCAL session_replication_role = {role}")
            sql(command.format(table=table, key=key, column=key.split(",", maxsplit=1)[0]))


def test_nothing_booked_is_changed_through_the_models(segment: UsageSegment) -> None:
    for model in (LedgerTransaction, LedgerEntry, LedgerAccount, UsageSegment, AuditEvent):
        row = model.objects.first()
        assert row is not None
        with refused("append-only"):
            row.save()
        with refused("append-only"):
            model.objects.filter(pk=row.pk)._raw_delete("default")


@pytest.mark.parametrize(
    "amounts", [("5", "-4"), ("NaN", "1"), ("NaN", "NaN"), ("0.000001", "0.000001"), ("5", "-5", "1")]
)
def test_an_unbalanced_transaction_is_refused(
    trade_accounts: list[LedgerAccount], amounts: tuple[str, ...]
) -> None:
    with refused("does not balance"):
        forged = insert_blank()
        insert_entries(forged, *((trade_accounts[place % 2], amount) for place, amount in enumerate(amounts)))
    assert not LedgerTransaction.objects.exists()


@pytest.mark.parametrize("wrong", range(3))
def test_one_that_does_not_balance_is_refused_among_others_that_do(
    trade_accounts: list[LedgerAccount], wrong: int
) -> None:
    with refused(f"trade {wrong} does not balance"):
        forged = [insert_blank(key=f"trade {i}") for i in range(3)]
        rows = [(one, MAY, trade_accounts[0].pk, "5") for one in forged]
        rows += [
            (one, MAY, trade_accounts[1].pk, "-4" if i == wrong else "-5") for i, one in enumerate(forged)
        ]
        columns = zip(*rows, strict=True)
        sql(
            "INSERT INTO accounting_ledgerentry (transaction_id, month, account_id, amount)"
            " SELECT * FROM unnest(%s::bigint[], %s::date[], %s::bigint[], %s::numeric[])",
            *map(list, columns),
        )


def test_each_unit_balances_on_its_own(trade_accounts: list[LedgerAccount]) -> None:
    with refused("does not balance"):
        forged = insert_blank()
        insert_entries(forged, (trade_accounts[0], "5"), (trade_accounts[2], "-5"))


def test_a_transaction_without_entries_is_refused(cast: make.Cast) -> None:
    with refused("has no entries"):
        insert_blank()


def test_entries_that_come_later_are_refused_even_in_the_same_transaction(
    trade_accounts: list[LedgerAccount],
) -> None:
    with refused("is closed"):
        forged = insert_blank()
        insert_entries(forged, (trade_accounts[0], "5"), (trade_accounts[1], "-5"))
        sql("SET CONSTRAINTS ALL IMMEDIATE")
        insert_entries(forged, (trade_accounts[0], "1"), (trade_accounts[1], "-1"))


def test_vouchers_that_come_later_are_refused_even_in_the_same_transaction(cast: make.Cast) -> None:
    with refused("is closed"):
        (booked,) = book_usage([Usage(**usage(cast))])
        booked.pk, booked.lease_id = None, 2
        booked.save(force_insert=True)


@pytest.mark.parametrize("table", ["accounting_ledgerentry", "accounting_ledgerentry_2026_05"])
def test_every_month_is_guarded_when_it_is_spoken_to_directly(
    trade_accounts: list[LedgerAccount], table: str
) -> None:
    with refused("does not balance"):
        insert_entries(insert_blank(), (trade_accounts[0], "5"), (trade_accounts[1], "-4"), table=table)
    traded = trade_of(trade_accounts)
    with refused("append-only"):
        sql(f"DELETE FROM {table} WHERE transaction_id = %s", traded)  # noqa: S608 - own names
    with refused("is closed"):
        insert_entries(traded, (trade_accounts[0], "5"), (trade_accounts[1], "-5"), table=table)


def trade_of(accounts: list[LedgerAccount]) -> int:
    with transaction.atomic():
        forged = insert_blank(key="a trade")
        insert_entries(forged, (accounts[0], "5"), (accounts[1], "-5"))
    return forged


def test_a_booked_transaction_is_closed_forever(
    segment: UsageSegment, trade_accounts: list[LedgerAccount]
) -> None:
    before = LedgerEntry.objects.count()
    with refused("is closed"):
        insert_entries(segment.transaction_id, (trade_accounts[0], "5"), (trade_accounts[1], "-5"))
    assert LedgerEntry.objects.count() == before


def test_an_earlier_transaction_cannot_pretend_to_be_of_now(trade_accounts: list[LedgerAccount]) -> None:
    """Proves that a caller cannot choose the recorded time of a ledger transaction or its database transaction ID.

    A trigger sets both values.
    """
    with transaction.atomic():
        forged = insert_blank(recorded_at=NOON + timedelta(days=9999), booked_in="99999999")
        insert_entries(forged, (trade_accounts[0], "5"), (trade_accounts[1], "-5"))
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT booked_in <> '99999999', recorded_at < now() FROM accounting_ledgertransaction"
        )
        assert cursor.fetchall() == [(True, True)]


def test_a_shadowing_temporary_table_deceives_no_trigger(
    segment: UsageSegment, trade_accounts: list[LedgerAccount]
) -> None:
    with refused("is closed"):
        sql(
            "CREATE TEMPORARY TABLE accounting_ledgertransaction ON COMMIT DROP AS"
            " SELECT id, month, pg_current_xact_id() AS booked_in, now() AS recorded_at"
            " FROM public.accounting_ledgertransaction"
        )
        insert_entries(segment.transaction_id, (trade_accounts[0], "5"))


def test_entries_of_a_savepoint_belong_to_their_transaction(trade_accounts: list[LedgerAccount]) -> None:
    with transaction.atomic():
        with transaction.atomic():
            forged = insert_blank()
        with transaction.atomic():
            insert_entries(forged, (trade_accounts[0], "5"), (trade_accounts[1], "-5"))
    assert LedgerEntry.objects.filter(transaction=forged).count() == 2


def test_usage_without_its_voucher_is_refused(segment: UsageSegment) -> None:
    used, capacity = (LedgerAccount.objects.get(kind=kind) for kind in ("usage", "capacity"))
    with refused("not those of its usage"):
        forged = insert_blank("usage")
        insert_entries(forged, (used, "100"), (capacity, "-100"))


@pytest.mark.parametrize(
    "forged",
    [
        {"gpu_seconds": Decimal(7201)},
        {"cost": Decimal("5.9000")},
        {"gpus": 5},
        {"period": "[2026-05-04 12:30Z, 2026-05-04 13:10Z)"},
        {"period": "[2026-05-04 12:30Z, 2026-05-04 12:40Z]"},
        {"period": "empty"},
        {"period": "[2026-05-04 12:30Z,)"},
    ],
)
def test_a_voucher_that_does_not_add_up_is_refused(
    cast: make.Cast, segment: UsageSegment, forged: dict[str, object]
) -> None:
    with refused("violates check constraint"):
        transaction_id = insert_blank("usage", **{k: v for k, v in forged.items() if k == "period"})
        for field, value in forged.items():
            setattr(segment, field, value)
        segment.pk, segment.lease_id, segment.transaction_id = None, 2, transaction_id
        segment.save(force_insert=True)
        told = {
            "usage": segment.gpu_seconds, "capacity": -segment.gpu_seconds,
            "cost": segment.cost, "revenue": -segment.cost,
        }  # fmt: skip
        accounts = {kind: LedgerAccount.objects.get(kind=kind) for kind in told}
        insert_entries(transaction_id, *((accounts[kind], str(amount)) for kind, amount in told.items()))


def test_entries_of_another_tenant_than_the_vouchers_are_refused(
    cast: make.Cast, segment: UsageSegment
) -> None:
    book(cast, lease_id=2, tenant=cast.bio, user=cast.charlie)
    accounts = {
        "usage": LedgerAccount.objects.get(kind="usage", tenant=cast.bio),
        "capacity": LedgerAccount.objects.get(kind="capacity"),
        "cost": LedgerAccount.objects.get(kind="cost", tenant=cast.bio),
        "revenue": LedgerAccount.objects.get(kind="revenue"),
    }
    with refused("not those of its usage"):
        segment.pk, segment.lease_id, segment.transaction_id = None, 3, insert_blank("usage")
        segment.save(force_insert=True)
        told = {"usage": 7200, "capacity": -7200, "cost": 6, "revenue": -6}
        entries = ((accounts[kind], str(amount)) for kind, amount in told.items())
        insert_entries(segment.transaction_id, *entries)


def test_a_correction_reverses_exactly(
    cast: make.Cast, segment: UsageSegment, trade_accounts: list[LedgerAccount]
) -> None:
    traded = trade_of(trade_accounts)
    with refused("not those of its correction"):
        forged = insert_blank("correction", corrects_id=traded)
        insert_entries(forged, (trade_accounts[0], "-4"), (trade_accounts[1], "4"))
    waived = [
        LedgerAccount.objects.create(kind="waived", unit="GPU-s A100", generation=cast.a100),
        LedgerAccount.objects.create(kind="waived", unit="EUR"),
    ]
    usage_, cost = (LedgerAccount.objects.get(kind=kind) for kind in ("usage", "cost"))
    used = (usage_, waived[0], cost, waived[1])
    for vouchers, amounts in ((1, (-7199, 7199, -6, 6)), (1, (-7200, 7200)), (0, (-7200, 7200, -6, 6))):
        with refused("not those of its correction"):
            forged = insert_blank("correction")
            for _ in range(vouchers):
                sql(
                    "INSERT INTO accounting_correctedsegment (segment_id, month, transaction_id) VALUES (%s, %s, %s)",
                    segment.pk, MAY, forged,
                )  # fmt: skip
            insert_entries(forged, *((account, str(n)) for account, n in zip(used, amounts, strict=False)))


def test_time_that_was_not_taken_back_is_not_billed_anew(cast: make.Cast, segment: UsageSegment) -> None:
    with refused("bills a lease twice"):
        segment.pk, segment.version, segment.transaction_id = None, 1, insert_blank("usage")
        segment.save(force_insert=True)
        used, cost = (LedgerAccount.objects.get(kind=kind) for kind in ("usage", "cost"))
        time = LedgerAccount.objects.create(kind="waived", unit="GPU-s A100", generation=cast.a100)
        money = LedgerAccount.objects.create(kind="waived", unit="EUR")
        insert_entries(segment.transaction_id, (used, "7200"), (time, "-7200"), (cost, "6"), (money, "-6"))


def test_a_trade_moves_no_money(segment: UsageSegment) -> None:
    cost, revenue = (LedgerAccount.objects.get(kind=kind) for kind in ("cost", "revenue"))
    with refused("not those of its trade"):
        insert_entries(insert_blank("trade"), (cost, "-5"), (revenue, "5"))


def test_an_account_has_the_unit_of_its_generation(cast: make.Cast) -> None:
    with refused("is not that of generation"):
        LedgerAccount.objects.create(kind="trade", unit="GPU-s V100", generation=cast.a100, tenant=cast.astro)
    with refused("has_the_unit_of_its_kind"):
        LedgerAccount.objects.create(kind="revenue", unit="GPU-s V100")
    with refused("has_the_parties_of_its_kind"):
        LedgerAccount.objects.create(kind="cost", unit="EUR", tenant=cast.astro)


def test_the_ledgers_own_verbs_pass_all_guards(cast: make.Cast, segment: UsageSegment) -> None:
    trade(cast)
    with transaction.atomic():
        correct_usage(
            actor=cast.ada, segments=[segment], reason="wrong tenant", payer=Payer(cast.bio, cast.charlie)
        )
    assert set(LedgerTransaction.objects.values_list("kind", flat=True)) == {"usage", "trade", "correction"}
