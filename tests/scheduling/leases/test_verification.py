"""verify_ledger finds leases and nodes that someone with full rights in the database has changed."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
from django.db import connection, transaction

from accounting.closing.hours import open_book
from accounting.core.calendar import start_of_hour
from accounting.core.clock import now_from_database
from accounting.models import LedgerHead, LedgerSeal
from accounting.verification import first_found
from scheduling.books.closing import LATE, close_hours
from scheduling.leases.actions import bill
from scheduling.models import Lease, NodeChange
from scheduling.tasks import seal_books
from tests.ledger_guard import CHANGES, without_guards, without_triggers
from tests.scheduling.world import World, start, world

pytestmark = pytest.mark.django_db(transaction=True)
HOUR = timedelta(hours=1)

# By name: the SQL of the forgery, and a regular expression of the problem that verify_ledger reports.
LEASE = r"the times or GPUs of a lease differ from its bill: \d+"
FORGERIES = {
    "when it ended": ("UPDATE scheduling_lease SET held_until = held_until + interval '1 min'", LEASE),
    "that and until when it is billed": (
        "UPDATE scheduling_lease SET held_until = held_until - interval '1 min',"
        " billed_until = billed_until - interval '1 min'",
        LEASE,
    ),
    "when it began": ("UPDATE scheduling_lease SET held_from = held_from + interval '1 min'", LEASE),
    "how many GPUs it had": ("UPDATE scheduling_lease SET gpus = gpus + 1", LEASE),
    "that it was billed": ("UPDATE scheduling_lease SET billed_until = NULL", LEASE),
    "the whole lease": ("DELETE FROM scheduling_lease", LEASE),
    "what a node was": (
        "UPDATE scheduling_nodechange SET gpus = gpus + 1 WHERE id = (SELECT max(id) FROM scheduling_nodechange)",
        r"node changes, seal \d+: row node change \d+ was changed",
    ),
    "that a node changed": (
        "DELETE FROM scheduling_nodechange WHERE id = (SELECT max(id) FROM scheduling_nodechange)",
        r"node changes, seal \d+: node change \d+ was removed",
    ),
}


@pytest.fixture
def closed(transactional_db: None, books_at: Callable[[datetime], None]) -> World:
    """Returns a world with one closed hour, in which a gang ran and ended. The hour is billed and covered by the hash
    chain."""
    lab = world(v100=4, a100=8)
    hour = start_of_hour(now_from_database()) - HOUR
    books_at(hour + HOUR + LATE)
    with without_triggers("scheduling_nodechange"):
        NodeChange.objects.update(at=hour - HOUR)
    lease = lab.lease(start(lab, gpus=2))
    with transaction.atomic():
        open_book(book=lab.cluster.pk, since=hour)
        lease.state, lease.held_from, lease.held_until = Lease.State.CLOSED, hour, hour + HOUR / 2
        lease.running_from = hour
        bill([lease], until=None)
        lease.save()
        lease.held_gpus.update(during=(hour, hour + HOUR / 2))
    assert close_hours(cluster_id=lab.cluster.pk) == 1
    seal_books()
    assert first_found() is None
    return lab


def test_forged_leases_and_nodes_are_reported(closed: World) -> None:
    for name, (change, found) in FORGERIES.items():
        with transaction.atomic(), connection.cursor() as cursor:
            with without_triggers(*CHANGES):
                cursor.execute("SET LOCAL session_replication_role = replica")
                cursor.execute(change)
                assert cursor.rowcount > 0
            assert re.search(found, str(first_found())), f"{name}: {first_found()}"
            transaction.set_rollback(True)
    assert first_found() is None


def test_beat_gives_no_seals_again_to_a_book_that_lost_them(closed: World) -> None:
    """If someone changes a bill and deletes the seals (the hash chain) of the bill's cluster, verify_ledger still
    reports a fault.

    The periodic task that seals the books makes no new seals for this cluster, because a ledger head still refers to
    the deleted ones.
    """
    book = closed.cluster.pk
    with without_guards(), connection.cursor() as cursor:
        cursor.execute("UPDATE accounting_usagesegment SET user_name = 'nobody'")
        cursor.execute("DELETE FROM accounting_ledgerseal WHERE book = %s", [book])
        cursor.execute("DELETE FROM accounting_sealedbook WHERE book = %s", [book])
    seal_books()
    assert not LedgerSeal.objects.filter(book=book).exists()
    head = LedgerHead.objects.get(book=book)
    assert (
        str(first_found())
        == f"book {book}, seal 1: this seal is missing, although head {head.pk} refers to it"
    )
