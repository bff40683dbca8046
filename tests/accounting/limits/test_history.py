"""Tests that the database records the history of tickets and limits, and that their values at any past time can be
read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import DatabaseError, connection, connections, transaction
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting import actions
from accounting.limits.history import quotas_between, tickets_between
from accounting.models import Membership, Quota, QuotaChange, TicketChange
from tests.make import Cast
from tests.upgrading import ALIAS, database_as_of, rows_of

BEFORE, FIRST = ("accounting", "0012_indexes_of_reports"), ("accounting", "0013_past_terms")
AFTER = ("accounting", "0014_past_terms_end")
NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
# Changes in order: the hour (None: before recording began), one of three holders, and the value (None: removed).
CHANGES = st.lists(
    st.tuples(st.none() | st.integers(-5, 29), st.integers(1, 3), st.none() | st.integers(1, 9)), max_size=12
).map(lambda changes: sorted(changes, key=lambda change: -99 if change[0] is None else change[0]))


@pytest.mark.django_db
def test_the_database_writes_down_every_change_and_lets_none_be_changed(cast: Cast) -> None:
    actions.set_tickets(actor=cast.ada, tenant=cast.astro, tickets=250)
    actions.rename_tenant(actor=cast.ada, tenant=cast.astro, name="Astronomy")
    membership = Membership.objects.get(user=cast.bob, tenant=cast.astro)
    actions.change_membership(actor=cast.ada, membership=membership, role="viewer")
    actions.change_membership(actor=cast.ada, membership=membership, tickets=7)
    actions.remove_member(actor=cast.ada, membership=membership)
    noted = TicketChange.objects.filter(tenant_id=cast.astro.pk)
    assert list(noted.filter(user_id=None).values_list("tickets", flat=True)) == [100, 250]
    assert list(noted.filter(user_id=cast.bob.pk).values_list("tickets", flat=True)) == [100, 7, None]
    for limit in (5, 5, 8):
        quota = actions.set_quota(actor=cast.ada, tenant=cast.astro, kind=Quota.Kind.GPUS, limit=limit)
    actions.remove_quota(actor=cast.ada, quota=quota)
    limits = QuotaChange.objects.filter(tenant_id=cast.astro.pk).values_list("limit", flat=True)
    assert list(limits) == [5, 8, None]
    for table in ("ticketchange", "quotachange"):
        for change in ("UPDATE accounting_{} SET tenant_id = 0", "DELETE FROM accounting_{}"):
            with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
                connection.cursor().execute(change.format(table))


@pytest.mark.django_db(transaction=True)
def test_what_was_so_before_anybody_wrote_it_down_is_taken_to_have_been_so_always() -> None:
    with database_as_of([BEFORE]) as executor:
        make = rows_of(executor, BEFORE)
        tenant = make("accounting", "Tenant", name="Astro", slug="astro", path="1/", tickets=300)
        bob = make("accounting", "User", username="bob")
        make("accounting", "Tenant", name="Old", slug="old", path="2/", archived_at=NOON)
        make("accounting", "Membership", tenant=tenant, user=bob, role="member", tickets=40)
        quota = make("accounting", "Quota", tenant=tenant, kind="gpus", limit=8, user=bob)
        executor.loader.build_graph()
        executor.migrate([AFTER])
        apps = executor.loader.project_state([AFTER]).apps
        of_tickets = apps.get_model("accounting", "TicketChange").objects.using(ALIAS)
        of_limits = apps.get_model("accounting", "QuotaChange").objects.using(ALIAS)
        old = {(2, None, 100, None), (2, None, None, NOON)}
        tickets = {(1, None, 300, None), (1, bob.pk, 40, None), *old}
        assert set(of_tickets.values_list("tenant_id", "user_id", "tickets", "at")) == tickets
        limits = of_limits.values_list("quota_id", "tenant_id", "user_id", "kind", "limit", "at")
        assert list(limits) == [(quota.pk, tenant.pk, bob.pk, "gpus", 8, None)]
        quota.delete()
        assert [(one.limit, one.at is None) for one in of_limits.order_by("id")] == [(8, True), (None, False)]


@pytest.mark.django_db(transaction=True)
def test_an_upgrade_writes_down_what_was_missed() -> None:
    with database_as_of([FIRST]) as executor:
        make = rows_of(executor, FIRST)
        tenant = make("accounting", "Tenant", name="Astro", slug="astro", path="1/", tickets=300)
        bob, alice = (make("accounting", "User", username=name) for name in ("bob", "alice"))
        left, _ = [
            make("accounting", "Membership", tenant=tenant, user=one, tickets=40) for one in (bob, alice)
        ]
        more, gone, _ = [
            make("accounting", "Quota", tenant=tenant, kind="gpus", limit=8, user=one)
            for one in (bob, alice, None)
        ]
        left.delete()
        with connections[ALIAS].cursor() as cursor:
            cursor.execute("SET session_replication_role = replica")
            more.limit = 9
            more.save()
            gone_pk = gone.pk
            gone.delete()
            new = make("accounting", "Quota", tenant=tenant, kind="queued_jobs", limit=3)
            cursor.execute("SET session_replication_role = origin")
        executor.loader.build_graph()
        executor.migrate([AFTER])
        apps = executor.loader.project_state([AFTER]).apps
        of_tickets = apps.get_model("accounting", "TicketChange").objects.using(ALIAS)
        of_limits = apps.get_model("accounting", "QuotaChange").objects.using(ALIAS)
        noted = of_tickets.order_by("id").values_list("user_id", "tickets")
        assert list(noted) == [(None, 300), (bob.pk, 40), (alice.pk, 40), (bob.pk, None)]
        limits = of_limits.order_by("id").values_list("quota_id", "kind", "limit")[3:]
        assert set(limits) == {(more.pk, "gpus", 9), (gone_pk, "gpus", None), (new.pk, "queued_jobs", 3)}
        assert not of_limits.filter(at=None).exists()
        # Downgrades and upgrades again.
        executor.loader.build_graph()
        executor.migrate([FIRST])
        assert list(noted.all()) == [(None, 300), (bob.pk, 40), (alice.pk, 40)]
        executor.loader.build_graph()
        executor.migrate([AFTER])
        assert list(noted.all()) == [(None, 300), (bob.pk, 40), (alice.pk, 40), (bob.pk, None)]


def hour(count: float | None) -> datetime | None:
    return None if count is None else NOON + timedelta(hours=count)


def standing(changes: list[tuple[int | None, int, int | None]], at: float) -> dict[int, int]:
    """Returns the value of each holder at the time `at`: the value of the holder's last change until then.

    A change is (time or None for "always", holder, value or None for "removed").
    """
    found = {which: value for since, which, value in changes if since is None or since <= at}
    return {which: value for which, value in found.items() if value is not None}


@pytest.mark.django_db
@settings(max_examples=60)
@given(changes=CHANGES)
def test_tickets_of_any_moment_are_those_of_the_last_change_before_it(
    changes: list[tuple[int | None, int, int | None]],
) -> None:
    with transaction.atomic():
        TicketChange.objects.bulk_create(
            TicketChange(tenant_id=whose, tickets=value, at=hour(at)) for at, whose, value in changes
        )
        parts = list(tickets_between(NOON, NOON + timedelta(hours=24)))
        transaction.set_rollback(True)
    assert [parts[0].begins, *(one.ends for one in parts)] == [*(one.begins for one in parts), hour(24)]
    for one in parts:
        at = (one.begins - NOON) / timedelta(hours=1)
        assert one.tickets == {(whose, None): value for whose, value in standing(changes, at).items()}
    moments = {at for at, _, _ in changes if at is not None and 0 < at < 24}
    assert {(one.begins - NOON) / timedelta(hours=1) for one in parts} == {0, *moments}


@pytest.mark.django_db
@settings(max_examples=60)
@given(changes=CHANGES)
def test_a_limit_of_any_moment_is_that_of_its_last_change_before_it(
    changes: list[tuple[int | None, int, int | None]],
) -> None:
    with transaction.atomic():
        QuotaChange.objects.bulk_create(
            QuotaChange(
                quota_id=which, tenant_id=1, each_user=False, kind="gpus", at_limit=at_limit, limit=value, at=hour(at)
            )
            for at, number, value in changes
            for which, at_limit in ((number, "block"), (number + 3, "warn"))
        )  # fmt: skip
        found = list(
            quotas_between(NOON, NOON + timedelta(hours=24), kinds=["gpus"], at_limit=[Quota.AtLimit.BLOCK])
        )
        transaction.set_rollback(True)
    for at in range(24):
        moment = NOON + timedelta(hours=at)
        told = {one.quota.pk: one.quota.limit for one in found if one.begins <= moment < one.ends}
        assert told == standing(changes, at)


@pytest.mark.django_db
def test_a_clock_that_is_set_back_puts_no_change_before_an_earlier_one() -> None:
    for value, at in ((5, 8), (7, 6)):
        TicketChange.objects.create(tenant_id=1, tickets=value, at=hour(at))
    told = [
        (one.begins, one.tickets.get((1, None))) for one in tickets_between(NOON, NOON + timedelta(hours=24))
    ]
    assert told == [(NOON, None), (hour(8), 7)]


@pytest.mark.django_db
def test_of_a_limit_only_the_amount_may_change(cast: Cast) -> None:
    quota = actions.set_quota(actor=cast.ada, tenant=cast.astro, kind=Quota.Kind.GPUS, limit=5)
    with pytest.raises(DatabaseError, match="only the amount may change"), transaction.atomic():
        Quota.objects.filter(pk=quota.pk).update(at_limit="warn")
