"""A broken database connection is replaced before a request uses it, and the check costs no extra query."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connection
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import Error

pytestmark = pytest.mark.django_db


def _another() -> Iterator[BaseDatabaseWrapper]:
    made = connection.copy()
    yield made
    made.close()


ours, others = pytest.fixture(_another, name="ours"), pytest.fixture(_another, name="others")


def number(of: BaseDatabaseWrapper) -> int:
    with of.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


def end(which: int, by: BaseDatabaseWrapper) -> None:
    with by.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 10000)", [which])
        assert cursor.fetchone() == (True,)


def test_a_connection_that_the_server_has_ended_is_replaced(
    ours: BaseDatabaseWrapper, others: BaseDatabaseWrapper
) -> None:
    ended = number(ours)
    end(ended, others)
    ours.close_if_unusable_or_obsolete()  # as at the beginning of each request
    assert number(ours) != ended


def test_so_is_one_that_ended_in_the_middle_of_a_request(
    ours: BaseDatabaseWrapper, others: BaseDatabaseWrapper
) -> None:
    ended = number(ours)
    end(ended, others)
    with pytest.raises(Error):
        number(ours)
    ours.close_if_unusable_or_obsolete()
    assert number(ours) != ended


def test_one_that_was_left_in_a_broken_transaction_is_replaced(ours: BaseDatabaseWrapper) -> None:
    broken = number(ours)
    ours.connection.autocommit = False
    with ours.connection.cursor() as plain, pytest.raises(Exception, match="division by zero"):
        plain.execute("SELECT 1 / 0")
    ours.close_if_unusable_or_obsolete()
    assert number(ours) != broken


def test_one_that_serves_is_kept_and_not_asked(
    ours: BaseDatabaseWrapper, others: BaseDatabaseWrapper
) -> None:
    kept = number(ours)
    ours.close_if_unusable_or_obsolete()
    ours.ensure_connection()
    ours.close_if_health_check_failed()
    with others.cursor() as cursor:
        cursor.execute("SELECT query FROM pg_stat_activity WHERE pid = %s", [kept])
        assert cursor.fetchone() == ("SELECT pg_backend_pid()",)
    assert number(ours) == kept
