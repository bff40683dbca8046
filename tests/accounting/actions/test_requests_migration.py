"""Requests that an earlier version granted, after the upgrade."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.upgrading import ALIAS, database_as_of, rows_of

BEFORE, AFTER = ("accounting", "0023_what_prices_and_bills_keep"), ("accounting", "0024_grants_are_overtaken")
MAY = datetime(2026, 5, 1, tzinfo=UTC)


@pytest.mark.django_db(transaction=True)
def test_more_time_for_what_has_ended_is_over_and_no_other() -> None:
    with database_as_of([BEFORE]) as executor:
        make = rows_of(executor, BEFORE)
        tenant = make("accounting", "Tenant", name="Astro", slug="astro", path="1/")
        user = make("accounting", "User", username="alice")
        usual = {
            "tenant": tenant,
            "asked_by": user,
            "reason": "x",
            "state": "approved",
            "decided_at": MAY,
            "granted": {},
        }
        ended, lasting = [
            make("accounting", "Request", kind="tickets", ends_at=MAY, ended_at=at, **usual)
            for at in (MAY, None)
        ]
        more = [
            make("accounting", "Request", kind="extension", extends=one, **usual) for one in (ended, lasting)
        ]
        executor.loader.build_graph()
        executor.migrate([AFTER])
        requests = (
            executor.loader.project_state([AFTER])
            .apps.get_model("accounting", "Request")
            .objects.using(ALIAS)
        )
        told = {one.pk: (one.ended_at, one.ending) for one in requests.all()}
        assert told[more[0].pk] == (MAY, f"over with request {ended.pk}")
        assert told[more[1].pk] == told[lasting.pk] == (None, "")
        executor.loader.build_graph()
        executor.migrate([BEFORE])
