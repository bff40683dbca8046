"""The migration that partitions the ledger's tables by month loses no row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db import connections, transaction
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

from tests.upgrading import ALIAS, database_as_of, manage

BEFORE = [("accounting", "0003_closed_books"), ("scheduling", "0025_bare_pods")]
LAST_OF_APRIL = datetime(2026, 4, 30, 23, tzinfo=UTC)
HOUR = timedelta(hours=1)

Amounts = Mapping[str, Decimal]


@pytest.fixture
def old_portal(transactional_db: None) -> Iterator[Any]:
    with database_as_of(BEFORE) as executor:
        yield executor.loader.project_state(BEFORE).apps


def make(apps: Any, model: str, **fields: Any) -> Any:
    return apps.get_model(*model.split(".")).objects.using(ALIAS).create(**fields)


class OldBooks:
    """Rows of an earlier version: a lease that spans the end of April, a trade, and two corrections.

    One correction concerns an hour of the lease, the other an hour of the trade.
    """

    def __init__(self, apps: Any) -> None:
        self.apps = apps
        self.accounts: dict[tuple[Any, ...], Any] = {}
        self.bob = make(apps, "accounting.User", username="bob")
        self.tenants = [
            make(apps, "accounting.Tenant", name=name, slug=name, path=f"{number}/")
            for number, name in enumerate(("astro", "bio"), start=1)
        ]
        self.a100, self.v100 = (make(apps, "accounting.Generation", name=name) for name in ("A100", "V100"))
        self.cluster = make(apps, "scheduling.Cluster", name="here")
        make(
            apps, "accounting.Price", generation=self.a100, per_gpu_hour=3,
            valid=DateTimeTZRange(LAST_OF_APRIL - HOUR, None),
        )  # fmt: skip
        job = make(
            apps, "scheduling.Job", name="train", tenant=self.tenants[0], owner=self.bob, cluster=self.cluster,
            spec={}, workers=1, gpus_per_worker=2,
        )  # fmt: skip
        self.lease = make(
            apps, "scheduling.Lease", job=job, cluster=self.cluster, epoch=1, generation=self.a100, gpus=2,
            state="closed", held_from=LAST_OF_APRIL, running_from=LAST_OF_APRIL + HOUR / 4,
            held_until=LAST_OF_APRIL + 3 * HOUR, billed_until=LAST_OF_APRIL + 3 * HOUR,
        )  # fmt: skip

    def account(
        self, kind: str, unit: str, generation: Any = None, tenant: Any = None, user: Any = None
    ) -> Any:
        key = kind, unit, generation, tenant, user
        if key not in self.accounts:
            self.accounts[key] = make(
                self.apps, "accounting.LedgerAccount", kind=kind, unit=unit, generation=generation,
                tenant=tenant, user=user,
            )  # fmt: skip
        return self.accounts[key]

    def transaction(self, key: str, kind: str, begins: datetime, entries: Any, **fields: Any) -> Any:
        period = DateTimeTZRange(begins, begins + HOUR)
        booked = make(self.apps, "accounting.LedgerTransaction", key=key, kind=kind, period=period, **fields)
        for account, amount in entries:
            make(self.apps, "accounting.LedgerEntry", transaction=booked, account=account, amount=amount)
        return booked

    def book(self) -> None:
        who = self.tenants[0], self.bob
        for count in range(3):
            begins = LAST_OF_APRIL + count * HOUR
            entries = [
                (self.account("usage", "GPU-s A100", self.a100, *who), 7200),
                (self.account("capacity", "GPU-s A100", self.a100), -7200),
                (self.account("cost", "EUR", None, *who), 6),
                (self.account("revenue", "EUR"), -6),
            ]
            with transaction.atomic(using=ALIAS):
                booked = self.transaction(
                    f"usage:{self.lease.pk}:{begins.isoformat()}", "usage", begins, entries
                )
                make(
                    self.apps, "accounting.UsageSegment", transaction=booked, lease_id=self.lease.pk,
                    job_id=self.lease.job_id, job_name="train", tenant=who[0], tenant_name="astro", user=who[1],
                    user_name="bob", generation=self.a100, gpus=2, period=booked.period, gpu_seconds=7200,
                    price_per_gpu_hour=3, cost=6, currency="EUR",
                )  # fmt: skip
        self.take_back(booked, entries)
        round_ = make(
            self.apps,
            "scheduling.Round",
            cluster=self.cluster,
            number=1,
            kind="quantum",
            draw="stride",
            seed=1,
            gpus_up=2,
            gpus_given=2,
            jobs_considered=1,
            started=1,
            stopped=0,
            read_ms=1,
            decide_ms=1,
        )
        traded = make(
            self.apps, "scheduling.Trade", round=round_, seller=self.tenants[0], buyer=self.tenants[1],
            slow=self.v100, fast=self.a100, fast_gpus=1, slow_gpus=2, price=2, seller_speedup=1.5, buyer_speedup=3,
        )  # fmt: skip
        of = [
            self.account("trade", f"GPU-s {g.name}", g, t)
            for g in (self.a100, self.v100)
            for t in self.tenants
        ]
        entries = list(zip(of, (-3600, 3600, 7200, -7200), strict=True))
        with transaction.atomic(using=ALIAS):
            booked = self.transaction(f"trade:{traded.pk}", "trade", LAST_OF_APRIL, entries)
        self.take_back(booked, entries)

    def take_back(self, booked: Any, entries: Any) -> None:
        reverse = [(account, -amount) for account, amount in entries]
        with transaction.atomic(using=ALIAS):
            self.transaction(
                f"correction:{booked.pk}", "correction", booked.period.lower, reverse, corrects=booked
            )

    def amounts(self) -> list[Any]:
        with connections[ALIAS].cursor() as cursor:
            cursor.execute(
                "SELECT kind, unit, tenant_id, user_id, sum(amount), count(*) FROM accounting_ledgerentry entry"
                " JOIN accounting_ledgeraccount account ON account.id = account_id GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3"
            )
            return cursor.fetchall()


def test_the_books_of_before_are_kept_by_month_and_sealed(old_portal: Any) -> None:
    books = OldBooks(old_portal)
    books.book()
    before = books.amounts()
    manage("migrate", "--verbosity", "0")
    assert books.amounts() == before
    with connections[ALIAS].cursor() as cursor:
        cursor.execute("SELECT month::text, count(*) FROM accounting_usagesegment GROUP BY 1 ORDER BY 1")
        assert cursor.fetchall() == [("2026-04-01", 1), ("2026-05-01", 2)]
        cursor.execute("SELECT DISTINCT book FROM accounting_ledgertransaction")
        assert cursor.fetchall() == [(books.cluster.pk,)]
        cursor.execute("SELECT assembling, idle FROM accounting_usagesegment ORDER BY id")
        assert cursor.fetchall() == [(1800, 0), (0, 0), (0, 0)]
        cursor.execute(
            "SELECT lower(period) FROM accounting_usagesegment JOIN accounting_correctedsegment c ON c.segment_id = id"
        )
        assert cursor.fetchall() == [(LAST_OF_APRIL + 2 * HOUR,)]
    assert "OK" in manage("verify_ledger")
