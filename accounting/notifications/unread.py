"""Keeps the number of unread notifications on the row of each user, so that pages show it without a query."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from django.db import connection

from accounting.models import Notification, User

# Called in the transaction that changes the numbers, so that scheduling can inform open pages after the commit.
listeners: list[Callable[[Iterable[int]], None]] = []


def lock_readers(users: Iterable[int]) -> list[int]:
    """Locks the rows of users until the transaction ends, and returns their ids.

    Everybody who adds, reads or deletes notifications calls this first. So changes of one user's notifications follow
    each other, and `recount` sees them all.
    """
    rows = User.objects.select_for_update(no_key=True).filter(pk__in=list(users)).order_by("pk")
    return list(rows.values_list("pk", flat=True))


def recount(users: Iterable[int]) -> None:
    """Counts the unread notifications of users whose rows the caller has locked."""
    ids = list(users)
    if not ids:
        return
    table, notifications = User._meta.db_table, Notification._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE {table} SET unread = (SELECT count(*) FROM {notifications} one"  # noqa: S608 - own names
            f" WHERE one.user_id = {table}.id AND one.read_at IS NULL) WHERE id = ANY(%s)",
            [ids],
        )
    for listen in listeners:
        listen(ids)
