"""Tests that budget warnings of an earlier version are neither lost nor sent again after the upgrade."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.upgrading import ALIAS, database_as_of, rows_of

BEFORE, AFTER = ("accounting", "0014_past_terms_end"), ("accounting", "0015_warnings_stay")
MAY = datetime(2026, 5, 1, tzinfo=UTC)


@pytest.mark.django_db(transaction=True)
def test_of_warnings_at_several_amounts_the_latest_stands_and_all_go_back_again() -> None:
    with database_as_of([BEFORE]) as executor:
        make = rows_of(executor, BEFORE)
        uni, astro = (
            make("accounting", "Tenant", name=name, slug=name, path=f"{pk}/")
            for pk, name in enumerate(["uni", "astro"], 1)
        )
        budget, other = (
            make("accounting", "Budget", tenant=tenant, amount=110, percentages=[80])
            for tenant in (uni, astro)
        )
        told = [(budget, "80", 100), (budget, "100", 100), (other, "80", 100), (budget, "80", 110)]
        for day, (one, threshold, amount) in enumerate(told):
            make("accounting", "BudgetWarning", budget=one, begins=MAY, threshold=threshold, amount=amount,
                 at=MAY + timedelta(day), spent=105)  # fmt: skip
            make("accounting", "WebhookCall", budget=one, body="{}")
        executor.loader.build_graph()
        executor.migrate([AFTER])
        apps = executor.loader.project_state([AFTER]).apps
        warnings = apps.get_model("accounting", "BudgetWarning").objects.using(ALIAS).order_by("id")
        assert [one.lifted_at for one in warnings] == [MAY + timedelta(3), None, None, None]
        # The earlier version cannot store these: a removed budget, and two warnings of the same amount.
        apps.get_model("accounting", "Budget").objects.using(ALIAS).filter(pk=other.pk).update(removed_at=MAY)
        warnings.filter(threshold="100").update(lifted_at=MAY)
        warnings.create(budget_id=budget.pk, begins=MAY, threshold="100", amount=100, spent=105)
        executor.loader.build_graph()
        executor.migrate([BEFORE])
        apps = executor.loader.project_state([BEFORE]).apps
        left = apps.get_model("accounting", "BudgetWarning").objects.using(ALIAS).order_by("id")
        told_still = [("80", 100), ("80", 110), ("100", 100)]
        assert list(left.values_list("threshold", "amount")) == told_still
        calls = apps.get_model("accounting", "WebhookCall").objects.using(ALIAS)
        assert set(calls.values_list("budget", flat=True)) == {budget.pk}
