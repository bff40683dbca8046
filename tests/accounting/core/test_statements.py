"""Tests of SQL statements that PostgreSQL plans only once per connection."""

from __future__ import annotations

import pytest
from django.db import DataError, connection, transaction
from django.db.backends.signals import connection_created

from accounting.core.statements import Statement, plan_once
from tests.query_counts import queries_of

pytestmark = pytest.mark.django_db(transaction=True)


def test_values_come_as_they_were_given_and_the_preparation_is_not_counted() -> None:
    echo = Statement("SELECT $1, $2 + 1, 'it''s 100%'", "text", "bigint")
    with queries_of("a statement that is run twice"):
        assert echo.ask(["o'brien %s", 2**40]) == [("o'brien %s", 2**40 + 1, "it's 100%")]
        assert echo.ask(["", -1]) == [("", 0, "it's 100%")]
    assert Statement("SELECT 1").ask() == [(1,)]


def test_each_connection_prepares_it_for_itself() -> None:
    number = Statement("SELECT $1", "bigint")
    for value in (1, 2):
        assert number.ask([value]) == [(value,)]
        connection.close()
    assert number.ask([3]) == [(3,)]


def test_what_was_prepared_outlives_a_transaction_that_is_taken_back() -> None:
    half = Statement("SELECT 10 / $1", "bigint")
    with pytest.raises(DataError), transaction.atomic():
        half.ask([0])
    assert half.ask([5]) == [(2,)]


def test_a_connection_forgets_what_nobody_uses_any_more() -> None:
    def known() -> list[str]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT statement FROM pg_prepared_statements")
            return [text.partition(" AS ")[2] for (text,) in cursor.fetchall()]

    connection.close()
    first, kept = Statement("SELECT 1"), Statement("SELECT 2")
    assert [first.ask(), kept.ask()] == [[(1,)], [(2,)]]
    del first
    assert sorted(known()) == ["SELECT 1", "SELECT 2"]
    last = Statement("SELECT 3")
    assert [last.ask(), kept.ask()] == [[(3,)], [(2,)]]
    assert sorted(known()) == ["SELECT 2", "SELECT 3"]


def test_it_is_planned_once_where_that_is_asked_for() -> None:
    plan_once()
    try:
        connection.close()
        of_one = Statement("SELECT count(*) FROM accounting_user WHERE id = $1", "bigint")
        for value in range(3):
            of_one.ask([value])
        with connection.cursor() as cursor:
            cursor.execute("SELECT generic_plans, custom_plans FROM pg_prepared_statements")
            assert cursor.fetchall() == [(3, 0)]
    finally:
        connection_created.disconnect(dispatch_uid="plan once")
        connection.close()
