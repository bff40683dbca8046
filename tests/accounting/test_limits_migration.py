"""Quotas as they were come through the migration as what they are now."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

BEFORE, AFTER = ("accounting", "0004_ledger_by_month"), ("accounting", "0005_limits")


@pytest.fixture
def before(transactional_db: None) -> Iterator[MigrationExecutor]:
    executor = MigrationExecutor(connection)
    latest = executor.loader.graph.leaf_nodes("accounting")
    executor.migrate([BEFORE])
    yield executor
    executor.loader.build_graph()
    executor.migrate(latest)


def test_hours_of_a_month_become_hours_with_a_month_for_their_period(before: MigrationExecutor) -> None:
    old = before.loader.project_state([BEFORE]).apps
    tenant = old.get_model("accounting", "Tenant").objects.create(name="Astro", slug="astro", path="1/")
    quotas = old.get_model("accounting", "Quota").objects
    quotas.create(tenant=tenant, kind="gpu_hours_month", limit=5000)
    quotas.create(tenant=tenant, kind="gpus", limit=6)
    before.loader.build_graph()
    before.migrate([AFTER])
    new = before.loader.project_state([AFTER]).apps.get_model("accounting", "Quota").objects
    found = list(new.order_by("kind").values_list("kind", "period", "at_limit", "limit"))
    assert found == [("gpu_hours", "month", "block", 5000), ("gpus", "", "block", 6)]
    new.all().delete()
