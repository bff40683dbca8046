"""Tests that the migration turns quotas of earlier versions into equivalent limits."""

from __future__ import annotations

import pytest

from tests.upgrading import ALIAS, database_as_of

BEFORE, AFTER = ("accounting", "0004_ledger_by_month"), ("accounting", "0005_limits")


@pytest.mark.django_db(transaction=True)
def test_hours_of_a_month_become_hours_with_a_month_for_their_period() -> None:
    with database_as_of([BEFORE]) as executor:
        old = executor.loader.project_state([BEFORE]).apps
        tenants = old.get_model("accounting", "Tenant").objects.using(ALIAS)
        tenant = tenants.create(name="Astro", slug="astro", path="1/")
        quotas = old.get_model("accounting", "Quota").objects.using(ALIAS)
        quotas.create(tenant=tenant, kind="gpu_hours_month", limit=5000)
        quotas.create(tenant=tenant, kind="gpus", limit=6)
        executor.loader.build_graph()
        executor.migrate([AFTER])
        apps = executor.loader.project_state([AFTER]).apps
        new = apps.get_model("accounting", "Quota").objects.using(ALIAS)
        found = list(new.order_by("kind").values_list("kind", "period", "at_limit", "limit"))
    assert found == [("gpu_hours", "month", "block", 5000), ("gpus", "", "block", 6)]
