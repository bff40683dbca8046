"""Tests that the database records the history of budgets, and that their state at any past time can be computed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest
from django.db import DatabaseError, connection, transaction

from accounting import actions
from accounting.limits.past_budgets import PastBudget, past_budgets
from accounting.limits.spending import UnbookedUsage
from accounting.models import BudgetChange, Tenant
from tests.accounting.booking import book
from tests.make import Cast
from tests.upgrading import ALIAS, database_as_of, rows_of

BEFORE, AFTER = ("accounting", "0016_seals_of_what_stays"), ("accounting", "0017_past_budgets")
MAY, JUNE, JULY = (datetime(2026, month, 1, tzinfo=UTC) for month in (5, 6, 7))
DAY = timedelta(days=1)
HOUR_COSTS = Decimal(3)


@pytest.mark.django_db
def test_the_database_writes_down_every_change_of_an_amount_and_lets_none_be_changed(cast: Cast) -> None:
    for amount, percentages in ((100, [80]), (100, [50]), (120, [50])):
        budget = actions.set_budget(
            actor=cast.ada, tenant=cast.astro, amount=Decimal(amount), percentages=percentages
        )
    actions.remove_budget(actor=cast.ada, budget=budget)
    actions.set_budget(actor=cast.ada, tenant=cast.astro, amount=Decimal(120))
    noted = BudgetChange.objects.filter(tenant_id=cast.astro.pk)
    assert list(noted.values_list("amount", flat=True)) == [100, 120, None, 120]
    for change in ("UPDATE accounting_budgetchange SET amount = 0", "DELETE FROM accounting_budgetchange"):
        with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
            connection.cursor().execute(change)


def _set(tenant: Tenant, amount: int | None, at: datetime | None, period: str = "month") -> None:
    BudgetChange.objects.create(tenant_id=tenant.pk, period=period, amount=amount, at=at)


def _standings(
    cast: Cast,
    first: date,
    last: date,
    now: datetime,
    *,
    held: Sequence[UnbookedUsage] = (),
    until: datetime | None = None,
) -> list[PastBudget]:
    until = until or datetime(last.year, last.month, last.day, tzinfo=UTC) + DAY
    return past_budgets(cast.astro, first, last, until=until, now=now, held=held)


def _told(found: list[PastBudget]) -> list[tuple[str, int, Decimal, Decimal]]:
    """Returns (period, month of its begin, amount of money, GPU-hours spent) for each budget.

    GPU-hours are the spent money divided by HOUR_COSTS, the price of every GPU-hour in these tests.
    """
    return [(one.period, one.begins.month, one.amount, one.spent / HOUR_COSTS) for one in found]


@pytest.fixture
def used(cast: Cast) -> Cast:
    """Books ten GPU-hours in April, twenty in May and forty in June."""
    for lease, (begins, hours) in enumerate(((MAY - 5 * DAY, 10), (MAY + 9 * DAY, 20), (JUNE + 9 * DAY, 40))):
        book(cast, begins=begins, ends=begins + timedelta(hours=hours), gpus=1, lease_id=lease)
    return cast


@pytest.mark.django_db
def test_a_statement_of_may_tells_of_may_whenever_it_is_read(used: Cast) -> None:
    _set(used.astro, 100, None)
    _set(used.astro, 500, JUNE + 3 * DAY)
    may = date(2026, 5, 1), date(2026, 5, 31)
    for now in (JUNE, JUNE + timedelta(hours=6), JULY + 9 * DAY):
        [one] = _standings(used, *may, now)
        assert _told([one]) == [("month", 5, 100, 20)]
        assert (one.at, one.is_over, one.forecast) == (JUNE, True, None)
    [june] = _standings(used, date(2026, 6, 1), date(2026, 6, 30), JULY)
    assert _told([june]) == [("month", 6, 500, 40)]


@pytest.mark.django_db
def test_a_month_of_another_clock_has_the_budget_of_the_whole_month(used: Cast) -> None:
    _set(used.astro, 100, None)
    for hours in (-14, -2, 0, 8):
        told = _standings(
            used, date(2026, 5, 1), date(2026, 5, 31), JULY, until=JUNE + timedelta(hours=hours)
        )
        assert [(one.begins, one.at) for one in told] == [(MAY, JUNE)]


@pytest.mark.django_db
def test_a_budget_that_runs_on_is_told_as_of_the_last_day(used: Cast) -> None:
    _set(used.astro, 100, None, "quarter")
    _set(used.astro, 300, JUNE + 3 * DAY, "quarter")
    [one] = _standings(used, date(2026, 5, 1), date(2026, 5, 31), JULY)
    assert _told([one]) == [("quarter", 4, 100, 30)]
    assert one.forecast == pytest.approx(Decimal(30) * HOUR_COSTS * 91 / 61)
    assert _told(_standings(used, date(2026, 4, 1), date(2026, 6, 30), JULY)) == [("quarter", 4, 300, 70)]


@pytest.mark.django_db
def test_what_was_not_set_then_is_not_told(used: Cast) -> None:
    _set(used.astro, 100, MAY + 3 * DAY)
    _set(used.astro, None, JUNE + 3 * DAY)
    _set(used.bio, 100, None)
    told = _standings(used, date(2026, 4, 1), date(2026, 6, 30), JULY)
    assert _told(told) == [("month", 5, 100, 20)]
    assert _told(_standings(used, date(2026, 5, 1), date(2026, 5, 3), JULY)) == []


@pytest.mark.django_db
def test_the_month_that_runs_is_told_as_of_now_with_what_is_held(used: Cast) -> None:
    _set(used.astro, 100, None)
    now = JUNE + 10 * DAY
    held = [UnbookedUsage(used.astro.pk, used.bob.pk, used.a100.pk, 2, now - timedelta(hours=3))]
    before = UnbookedUsage(used.bio.pk, used.bob.pk, used.a100.pk, 2, now - timedelta(hours=3))
    [may, june] = _standings(used, date(2026, 5, 20), date(2026, 6, 10), now, held=[*held, before])
    assert _told([may]) == [("month", 5, 100, 20)]
    assert _told([june]) == [("month", 6, 100, 24 + 6)]  # 24 of June's forty hours have passed
    assert june.forecast == june.spent * 3


@pytest.mark.django_db(transaction=True)
def test_an_upgrade_takes_what_was_set_from_the_audit_trail() -> None:
    with database_as_of([BEFORE]) as executor:
        make = rows_of(executor, BEFORE)
        tenants = [
            make("accounting", "Tenant", name=name, slug=name, path=f"{pk}/")
            for pk, name in enumerate(("astro", "bio", "uni"), 1)
        ]
        astro, bio, _ = tenants

        def event(verb: str, at: datetime, tenant: object, **told: dict[str, str]) -> None:
            make("accounting", "AuditEvent", verb=verb, at=at, tenant=tenant, actor_name="", target_type="",
                 target_id="", target_name="", **told)  # fmt: skip

        month = {"period": "month", "amount": "100.00"}
        event("budget.set", MAY, astro, after=month)
        event("budget.set", MAY + DAY, astro, before=month, after=month | {"amount": "250.50"})
        event("tenant.rename", MAY + DAY, astro, after={"period": "month"})
        event("budget.set", MAY, bio, after=month | {"period": "quarter"})
        event("budget.remove", JUNE, bio, before=month | {"period": "quarter"})
        for tenant, amount in zip(tenants, (250.5, 70, 80), strict=True):
            removed = JUNE if tenant is bio else None
            make("accounting", "Budget", tenant=tenant, amount=amount, percentages=[80], removed_at=removed,
                 period="quarter" if tenant is bio else "month")  # fmt: skip
        executor.loader.build_graph()
        executor.migrate([AFTER])
        apps = executor.loader.project_state([AFTER]).apps
        noted = apps.get_model("accounting", "BudgetChange").objects.using(ALIAS).order_by("id")
        assert list(noted.values_list("tenant_id", "period", "amount", "at")) == [
            (1, "month", 100, MAY),
            (1, "month", Decimal("250.50"), MAY + DAY),
            (2, "quarter", 100, MAY),
            (2, "quarter", None, JUNE),
            (3, "month", 80, None),
        ]
        executor.loader.build_graph()
        executor.migrate([BEFORE])
        of_before = executor.loader.project_state([BEFORE]).apps
        of_before.get_model("accounting", "Budget").objects.using(ALIAS).update(
            amount=5
        )  # the downgrade has removed all triggers
