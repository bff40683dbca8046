"""What the database itself refuses, tried by raw SQL under the portal's own role, the tables' owner."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from django.db import IntegrityError, connection, transaction

from accounting import audit
from accounting.ledger import book_trade, book_usage, correct
from accounting.models import AuditEvent, LedgerAccount, LedgerEntry, LedgerTransaction, UsageSegment
from tests import make
from tests.ledger_guard import APPEND_ONLY

pytestmark = pytest.mark.django_db(transaction=True)

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)


def sql(command: str, *values: object) -> None:
    with connection.cursor() as cursor:
        cursor.execute(command, values)


@pytest.fixture
def cast(transactional_db: None) -> make.Cast:
    return make.cast()


@contextmanager
def refused(why: str) -> Iterator[None]:
    """A database transaction that is refused, at the latest at its commit."""
    with pytest.raises(IntegrityError, match=why), transaction.atomic():
        yield


def half_an_hour(cast: make.Cast, **changes: object) -> dict[str, object]:
    usage = {
        "lease_id": 1, "job_id": 7, "job_name": "train", "tenant": cast.astro, "user": cast.bob,
        "generation": cast.a100, "gpus": 4, "begins": NOON, "ends": NOON + timedelta(minutes=30),
    }  # fmt: skip
    return usage | changes


@pytest.fixture
def segment(cast: make.Cast) -> UsageSegment:
    with transaction.atomic():
        audit.record(actor=cast.ada, verb="test", target=cast.astro, tenant=cast.astro)
        (booked,) = book_usage(**half_an_hour(cast))
    return booked


def insert_blank(kind: str = "trade", **columns: object) -> int:
    row = {
        "key": "forged", "kind": kind, "period": "[2026-05-04 12:00Z, 2026-05-04 12:30Z)",
        "description": "forged", "recorded_at": NOON,
    } | columns  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO accounting_ledgertransaction ({', '.join(row)})"  # noqa: S608 - own names
            f" VALUES ({', '.join(['%s'] * len(row))}) RETURNING id",
            list(row.values()),
        )
        return cursor.fetchone()[0]


def insert_entry(into: int, account: LedgerAccount, amount: str) -> None:
    sql(
        "INSERT INTO accounting_ledgerentry (transaction_id, account_id, amount) VALUES (%s, %s, %s)",
        into,
        account.pk,
        amount,
    )


@pytest.fixture
def trade_accounts(cast: make.Cast) -> list[LedgerAccount]:
    """Astro's and Bio's trade accounts of A100, then Astro's of V100."""
    unit, kind = "GPU-s A100", LedgerAccount.Kind.TRADE
    return [
        LedgerAccount.objects.create(kind=kind, unit=unit, generation=cast.a100, tenant=cast.astro),
        LedgerAccount.objects.create(kind=kind, unit=unit, generation=cast.a100, tenant=cast.bio),
        LedgerAccount.objects.create(kind=kind, unit="GPU-s V100", generation=cast.v100, tenant=cast.astro),
    ]


@pytest.mark.parametrize("table", APPEND_ONLY)
@pytest.mark.parametrize(
    "command",
    [
        "UPDATE {} SET id = id",
        "DELETE FROM {}",
        "TRUNCATE {} CASCADE",
        "MERGE INTO {0} kept USING {0} other ON kept.id = other.id WHEN MATCHED THEN DELETE",
        "INSERT INTO {0} SELECT * FROM {0} ON CONFLICT (id) DO UPDATE SET id = excluded.id",
    ],
)
def test_nothing_booked_is_changed_or_removed(segment: UsageSegment, table: str, command: str) -> None:
    for role in ("origin", "replica"):
        with refused(r"append-only|is closed"):
            sql(f"SET LOCAL session_replication_role = {role}")
            sql(command.format(table))


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
        for place, amount in enumerate(amounts):
            insert_entry(forged, trade_accounts[place % 2], amount)
    assert not LedgerTransaction.objects.exists()


def test_each_unit_balances_on_its_own(trade_accounts: list[LedgerAccount]) -> None:
    with refused("does not balance"):
        forged = insert_blank()
        insert_entry(forged, trade_accounts[0], "5")
        insert_entry(forged, trade_accounts[2], "-5")


def test_a_transaction_without_entries_is_refused(cast: make.Cast) -> None:
    with refused("fewer than two"):
        insert_blank()


def test_checking_early_opens_no_way_around_the_balance(trade_accounts: list[LedgerAccount]) -> None:
    with refused("does not balance"):
        forged = insert_blank()
        insert_entry(forged, trade_accounts[0], "5")
        insert_entry(forged, trade_accounts[1], "-5")
        sql("SET CONSTRAINTS ALL IMMEDIATE")
        sql("SET CONSTRAINTS ALL DEFERRED")
        insert_entry(forged, trade_accounts[0], "1")


def test_a_booked_transaction_is_closed_forever(
    segment: UsageSegment, trade_accounts: list[LedgerAccount]
) -> None:
    before = LedgerEntry.objects.count()
    with refused("is closed"):
        insert_entry(segment.transaction_id, trade_accounts[0], "5")
        insert_entry(segment.transaction_id, trade_accounts[1], "-5")
    assert LedgerEntry.objects.count() == before


def test_an_earlier_transaction_cannot_pretend_to_be_of_now(trade_accounts: list[LedgerAccount]) -> None:
    """Whoever books chooses neither the time nor the database transaction that is noted with it."""
    with transaction.atomic():
        forged = insert_blank(recorded_at=NOON + timedelta(days=9999), booked_in="99999999")
        insert_entry(forged, trade_accounts[0], "5")
        insert_entry(forged, trade_accounts[1], "-5")
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
            " SELECT id, pg_current_xact_id() AS booked_in, now() AS recorded_at"
            " FROM public.accounting_ledgertransaction"
        )
        insert_entry(segment.transaction_id, trade_accounts[0], "5")


def test_entries_of_a_savepoint_belong_to_their_transaction(cast: make.Cast) -> None:
    with transaction.atomic():
        with transaction.atomic():
            forged = LedgerTransaction.objects.create(
                key="nested", kind="trade", period="[2026-05-04, 2026-05-05)", description=""
            )
        with transaction.atomic():
            kind, unit = LedgerAccount.Kind.TRADE, "GPU-s A100"
            for tenant, amount in ((cast.astro, 5), (cast.bio, -5)):
                account = LedgerAccount.objects.create(
                    kind=kind, unit=unit, generation=cast.a100, tenant=tenant
                )
                LedgerEntry.objects.create(transaction=forged, account=account, amount=amount)
    assert LedgerEntry.objects.filter(transaction=forged).count() == 2


def test_usage_without_its_voucher_is_refused(segment: UsageSegment) -> None:
    usage, capacity = (LedgerAccount.objects.get(kind=kind) for kind in ("usage", "capacity"))
    with refused("not those of its usage"):
        forged = insert_blank("usage")
        insert_entry(forged, usage, "100")
        insert_entry(forged, capacity, "-100")


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
        for kind, amount in (
            ("usage", segment.gpu_seconds), ("capacity", -segment.gpu_seconds),
            ("cost", segment.cost), ("revenue", -segment.cost),
        ):  # fmt: skip
            insert_entry(transaction_id, LedgerAccount.objects.get(kind=kind), str(amount))


def test_entries_of_another_tenant_than_the_vouchers_are_refused(
    cast: make.Cast, segment: UsageSegment
) -> None:
    with transaction.atomic():
        book_usage(**half_an_hour(cast, lease_id=2, tenant=cast.bio, user=cast.charlie))
    accounts = {
        "usage": LedgerAccount.objects.get(kind="usage", tenant=cast.bio),
        "capacity": LedgerAccount.objects.get(kind="capacity"),
        "cost": LedgerAccount.objects.get(kind="cost", tenant=cast.bio),
        "revenue": LedgerAccount.objects.get(kind="revenue"),
    }
    with refused("not those of its usage"):
        segment.pk, segment.lease_id, segment.transaction_id = None, 3, insert_blank("usage")
        segment.save(force_insert=True)
        for kind, amount in {"usage": 7200, "capacity": -7200, "cost": 6, "revenue": -6}.items():
            insert_entry(segment.transaction_id, accounts[kind], str(amount))


def test_a_correction_reverses_exactly(segment: UsageSegment, trade_accounts: list[LedgerAccount]) -> None:
    with refused("not those of its correction"):
        forged = insert_blank("correction", corrects_id=segment.transaction_id)
        insert_entry(forged, trade_accounts[0], "5")
        insert_entry(forged, trade_accounts[1], "-5")


def test_a_trade_moves_no_money(segment: UsageSegment) -> None:
    with refused("not those of its trade"):
        forged = insert_blank("trade")
        insert_entry(forged, LedgerAccount.objects.get(kind="cost"), "-5")
        insert_entry(forged, LedgerAccount.objects.get(kind="revenue"), "5")


def test_an_account_has_the_unit_of_its_generation(cast: make.Cast) -> None:
    with refused("is not that of generation"):
        LedgerAccount.objects.create(kind="trade", unit="GPU-s V100", generation=cast.a100, tenant=cast.astro)
    with refused("has_the_unit_of_its_kind"):
        LedgerAccount.objects.create(kind="revenue", unit="GPU-s V100")
    with refused("has_the_parties_of_its_kind"):
        LedgerAccount.objects.create(kind="cost", unit="EUR", tenant=cast.astro)


def test_the_ledgers_own_verbs_pass_all_guards(cast: make.Cast, segment: UsageSegment) -> None:
    with transaction.atomic():
        book_trade(
            key="trade:1", seller=cast.astro, buyer=cast.bio, slow=cast.v100, fast=cast.a100,
            fast_gpu_seconds=Decimal(60), slow_gpu_seconds=Decimal(150), begins=NOON,
            ends=NOON + timedelta(minutes=1), description="",
        )  # fmt: skip
    with transaction.atomic():
        correct(actor=cast.ada, transaction=segment.transaction, reason="wrong tenant")
    assert set(LedgerTransaction.objects.values_list("kind", flat=True)) == {"usage", "trade", "correction"}
