"""Tests that seals of an earlier release stay valid after the upgrade."""

from __future__ import annotations

import hashlib
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db import DatabaseError, connections, transaction
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

from tests.upgrading import ALIAS, database_as_of, manage, rows_of

BEFORE, AFTER = ("accounting", "0021_closed_hours_sum"), ("accounting", "0022_leaves_apart")
NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def micros(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


class OldBook:
    """A book in the schema of an earlier release, in which Bob of team Astro used two GPUs for an hour."""

    def __init__(self, make: Any) -> None:
        self.make = make
        self.tenant = make("accounting", "Tenant", name="Astro", slug="astro", path="1/")
        self.user = make("accounting", "User", username="bob")
        self.a100 = make("accounting", "Generation", name="A100")
        self.period = DateTimeTZRange(NOON, NOON + HOUR)
        make(
            "accounting",
            "Price",
            generation=self.a100,
            per_gpu_hour=3,
            valid=DateTimeTZRange(NOON - HOUR, None),
        )
        sql("SELECT accounting_add_month('2026-05-01')")
        with transaction.atomic(using=ALIAS):
            self.book()

    def book(self) -> None:
        make, tenant, user = self.make, self.tenant, self.user
        common = {"book": 1, "month": date(2026, 5, 1), "period": self.period}
        self.booked = make(
            "accounting", "LedgerTransaction", key="usage:1", kind="usage", description="2 A100", **common
        )
        self.segment = make(
            "accounting", "UsageSegment", transaction=self.booked, lease_id=1, job_id=7, job_name="train",
            tenant=tenant, tenant_name="Astro", user=user, user_name="bob", generation=self.a100, gpus=2,
            gpu_seconds=7200, assembling=0, idle=60, price_per_gpu_hour=3, cost=6, currency="EUR", **common,
        )  # fmt: skip
        whose = {"tenant": tenant, "user": user}
        accounts = [
            make(
                "accounting", "LedgerAccount", kind="usage", unit="GPU-s A100", generation=self.a100, **whose
            ),
            make("accounting", "LedgerAccount", kind="capacity", unit="GPU-s A100", generation=self.a100),
            make("accounting", "LedgerAccount", kind="cost", unit="EUR", **whose),
            make("accounting", "LedgerAccount", kind="revenue", unit="EUR"),
        ]
        entry = type(self.booked)._meta.apps.get_model("accounting", "LedgerEntry")
        self.entries = entry.objects.using(ALIAS).bulk_create(
            entry(transaction=self.booked, month=date(2026, 5, 1), account=account, amount=Decimal(amount))
            for account, amount in zip(accounts, (7200, -7200, 6, -6), strict=True)
        )

    def leaf(self) -> bytes:
        """Returns the transaction's leaf as the earlier release computed it.

        The leaf is the SHA-256 of a JSON text of the transaction, its entries and its vouchers.
        """
        self.booked.refresh_from_db()
        times = f"{micros(NOON)}, {micros(NOON + HOUR)}"
        entries = ", ".join(f"[{one.pk}, {one.account_id}, {one.amount}.000000]" for one in self.entries)
        segment = (
            f'[{self.segment.pk}, 1, 1, 0, 7, "train", {self.tenant.pk}, "Astro", {self.user.pk}, "bob",'
            f' {self.a100.pk}, 2, {times}, 7200.000000, 0.000000, 60.000000, 3.000000, 6.000000, "EUR"]'
        )
        text = (
            f'[{self.booked.pk}, 1, "usage:1", "usage", {times}, {micros(self.booked.recorded_at)}, "2 A100", null,'
            f" null, [{entries}], [{segment}], null, null]"
        )
        return hashlib.sha256(text.encode()).digest()

    def seal(self) -> None:
        leaf = self.leaf()
        self.make("accounting", "LedgerSeal", book=1, number=1, first_id=self.booked.pk, last_id=self.booked.pk,
                  leaves=leaf, digest=hashlib.sha256(leaf).digest())  # fmt: skip


def sql(command: str) -> list[Any]:
    with connections[ALIAS].cursor() as cursor:
        cursor.execute(command)
        return cursor.fetchall() if cursor.description else []


@pytest.mark.django_db(transaction=True)
def test_seals_of_a_former_release_hold() -> None:
    with database_as_of([BEFORE, ("scheduling", "0038_indexes_by_team")]) as executor:
        book = OldBook(rows_of(executor, BEFORE))
        book.seal()
        manage("migrate", "--verbosity", "0")
        # The book, the accounts (-5) and the existing tickets (-2) have one seal each.
        sealed = sql("SELECT book, number, encode(digest, 'hex') FROM accounting_ledgerseal ORDER BY book")
        assert [(book, number) for book, number, _ in sealed] == [(-5, 1), (-2, 1), (1, 1)]
        for kept in ("number, encode(digest, 'hex') FROM accounting_sealedbook",
                     "seal, encode(seal_digest, 'hex') FROM accounting_ledgerhead"):  # fmt: skip
            assert sql(f"SELECT book, {kept} ORDER BY book") == sealed
        said = manage("verify_ledger").splitlines()
        assert said[0].startswith("head:3:"), "the migrations sign"
        assert said[-1] == "OK: 1 transactions, 4 entries, 1 segments"
        manage("verify_ledger", "--noted", f"1:1:{sealed[-1][2]}")
        # The older leaves do not cover the owners of accounts, but changes of what they cover are still found.
        part = "accounting_usagesegment_2026_05"
        sql(f"ALTER TABLE {part} DISABLE TRIGGER append_only")
        sql(f"UPDATE {part} SET job_name = 'another'")  # noqa: S608
        sql(f"ALTER TABLE {part} ENABLE ALWAYS TRIGGER append_only")
        assert "book 1, seal 1: row usage:1 was changed" in manage("verify_ledger", returncode=1)


@pytest.mark.django_db(transaction=True)
def test_the_upgrade_goes_back_until_something_is_sealed_in_the_newer_form() -> None:
    with database_as_of([BEFORE]) as executor:
        OldBook(rows_of(executor, BEFORE)).seal()
        for target in (AFTER, BEFORE, AFTER):
            executor.loader.build_graph()
            executor.migrate([target])
        make = rows_of(executor, AFTER)
        make("accounting", "SealedBook", book=2, number=1, digest=b"")
        make(
            "accounting",
            "LedgerSeal",
            book=2,
            number=1,
            first_id=1,
            last_id=1,
            leaves=b"",
            digest=b"",
            form=2,
        )
        executor.loader.build_graph()
        with pytest.raises(DatabaseError, match="leaves of a form that it could not have before"):
            executor.migrate([BEFORE])
