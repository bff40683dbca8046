"""The hours of a cluster are closed from recorded observations. The classes of GPU time in each hour add up to the
capacity."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal

import pytest
from django.core.management import call_command
from django.db import IntegrityError, connection, transaction
from django.db.models import Sum

from accounting.closing.hours import open_book
from accounting.core.calendar import start_of_day, start_of_hour
from accounting.core.clock import now_from_database
from accounting.ledger import Usage, book_usage
from accounting.models import CapacitySegment, ClosedBook, NodeHour, UsageHour, UsageSegment
from scheduling.backends.base import End, Phase
from scheduling.books.closing import (
    LATE,
    changes_of_nodes,
    close_hours,
    close_next_hour,
    clusters_to_close,
    keeping_open,
    note_all_nodes,
)
from scheduling.clusters.actions import remove_node
from scheduling.draining.actions import drain_node, return_node
from scheduling.jobs.actions import cancel_job
from scheduling.leases.actions import bill_running, close_never_started
from scheduling.models import Cluster, Job, Lease, Node, NodeChange
from tests.ledger_guard import without_triggers
from tests.scheduling.bygone import changed
from tests.scheduling.world import World, start, world

pytestmark = pytest.mark.django_db(transaction=True)
HOUR = timedelta(hours=1)


@pytest.fixture
def lab(transactional_db: None) -> World:
    return world(v100=4, a100=8)


@pytest.fixture
def hour(lab: World, books_at: Callable[[datetime], None]) -> datetime:
    """Returns the start of the last full hour. The nodes existed throughout this hour."""
    last = start_of_hour(now_from_database()) - HOUR
    books_at(last + HOUR + LATE)
    there_since(last - HOUR)
    with transaction.atomic():
        open_book(book=lab.cluster.pk, since=last)
    return last


def there_since(moment: datetime) -> None:
    """Backdates all changes of nodes to `moment`, so that the nodes have existed since then."""
    with without_triggers("scheduling_nodechange"):
        NodeChange.objects.update(at=moment)


def hours(of: str) -> dict[str, Decimal]:
    """Returns {class: GPU-hours} of the node named `of` in its only closed hour, without classes that have no time."""
    row = NodeHour.objects.get(node_name=of)
    names = "busy", "idle", "assembling", "free", "others", "drained", "down"
    return {name: getattr(row, name) / 3600 for name in names if getattr(row, name)}


def test_every_change_of_a_node_is_recorded(lab: World) -> None:
    node = Node.objects.get(name="a100-0")
    key = node.pk
    drain_node(actor=lab.people.olga, node=node, reason="dust")
    return_node(actor=lab.people.olga, node=node)
    Node.objects.filter(pk=node.pk).update(state_reason="nobody counts this", failed_gpus=1)
    Node.objects.filter(pk=node.pk).update(cpus=4)
    remove_node(actor=lab.people.ada, node=node)
    told = NodeChange.objects.filter(node_id=key).values_list("gpus", "state", "failed_gpus")
    assert list(told) == [
        (8, "ready", 0),
        (8, "drained", 0),
        (8, "ready", 0),
        (8, "ready", 1),
        (0, "ready", 1),
    ]
    for change in ("UPDATE scheduling_nodechange SET gpus = 9", "DELETE FROM scheduling_nodechange"):
        with pytest.raises(IntegrityError, match="append-only"), connection.cursor() as cursor:
            cursor.execute(change)


def test_changes_of_a_node_stay_in_order_when_the_clock_is_set_back(lab: World) -> None:
    """After the clock was set back, the change of a node that is recorded last still counts as the latest."""
    node = Node.objects.get(name="a100-0")
    ahead = now_from_database() + 5 * HOUR
    changed(node, ahead, state="drained")
    Node.objects.filter(pk=node.pk).update(failed_gpus=1)
    note_all_nodes(lab.cluster, gone=True)
    told = NodeChange.objects.filter(node_id=node.pk, at__gte=ahead).order_by("pk")
    assert list(told.values_list("at", "state", "failed_gpus", "gpus")) == [
        (ahead, "drained", 0, 8),
        (ahead, "ready", 1, 8),
        (ahead, "ready", 1, 0),
    ]
    last = changes_of_nodes(lab.cluster.pk, ahead + HOUR, ahead + 2 * HOUR)
    assert [one.gpus for one in last if one.node_id == node.pk] == [0]


def test_an_hour_is_closed_with_the_state_of_its_nodes_at_that_time(lab: World, hour: datetime) -> None:
    fast, slow = Node.objects.get(name="a100-0"), Node.objects.get(name="v100-0")
    changed(fast, hour + HOUR / 4, failed_gpus=1, others_gpus=2)
    changed(slow, hour + HOUR / 2, state="drained")
    changed(slow, hour + 3 * HOUR / 4, state="down")
    assert close_hours(cluster_id=lab.cluster.pk) == 1
    assert hours("a100-0") == {"free": Decimal("5.75"), "down": Decimal("0.75"), "others": Decimal("1.5")}
    assert hours("v100-0") == {"free": 2, "drained": 1, "down": 1}
    assert not close_next_hour(cluster_id=lab.cluster.pk)  # the current hour has not ended
    call_command("verify_ledger")


def test_an_hour_stays_open_a_minute_for_late_reports(
    lab: World, hour: datetime, books_at: Callable[[datetime], None]
) -> None:
    """An hour closes only a minute after its end, because a failure in its last second is recorded later."""
    books_at(hour + HOUR + LATE - timedelta(microseconds=1))
    assert close_hours(cluster_id=lab.cluster.pk) == 0
    changed(Node.objects.get(name="a100-0"), hour + HOUR - timedelta(seconds=1), state="down")
    books_at(hour + HOUR + LATE)
    assert close_hours(cluster_id=lab.cluster.pk) == 1
    assert NodeHour.objects.get(node_name="a100-0").down == 8


def closed_ahead(lab: World) -> datetime:
    """Closes hours up to 3 h after the start of the present hour, and returns the end of the closed hours.

    The books are in this state after a clock that was ahead has been set right.
    """
    until = start_of_hour(now_from_database()) + 3 * HOUR
    with transaction.atomic():
        open_book(book=lab.cluster.pk, since=until - 9 * HOUR)
    ClosedBook.objects.update(until=until, priced_until=until)
    return until


def test_a_gang_does_not_begin_within_a_closed_hour(lab: World) -> None:
    """If a gang starts while the clock shows a time within closed hours, its lease begins at the end of these hours.

    If the lease began earlier, its end could never be booked, and the job could never resume.
    """
    until = closed_ahead(lab)
    job = start(lab)
    lease = lab.lease(job)
    assert (lease.held_from, lease.running_from) == (until, until)
    assert [gpu.during.lower for gpu in lease.held_gpus.all()] == [until]
    lab.see(lease, Phase.ENDED, end=End.SUCCEEDED, exit_code=0, ended_age=0.0)
    assert lab.states([job]) == [Job.State.SUCCEEDED]
    assert not UsageSegment.objects.exists()


def test_a_gang_that_the_ledger_refuses_blocks_no_other(lab: World, hour: datetime) -> None:
    leases = [lab.lease(start(lab, gpus=1)) for _ in range(3)]
    for lease in leases:
        ran(lease, hour + HOUR / 2)
    refused = leases[1]
    with transaction.atomic():  # this usage has another period than the lease
        book_usage([usage_of(refused, hour + HOUR / 2, hour + HOUR * 3 / 4)])
    assert bill_running(cluster_id=lab.cluster.pk) == 2
    billed = Lease.objects.filter(billed_until__gte=hour + HOUR)
    assert set(billed) == {leases[0], leases[2]}
    assert list(keeping_open(lab.cluster.pk, hour + HOUR)) == [refused]


def test_a_start_that_cannot_be_taken_back_holds_up_no_other(lab: World, hour: datetime) -> None:
    jobs = [lab.submit(lab.people.bob, lab.people.astro) for _ in range(3)]
    lab.fill()
    leases = [lab.lease(job) for job in jobs]
    for job, lease in zip(jobs, leases, strict=True):
        ran(lease, hour + HOUR / 2)
        cancel_job(actor=lab.people.bob, job=job)
    with transaction.atomic():
        book_usage([usage_of(leases[1], hour + HOUR / 2, hour + HOUR * 3 / 4)])
    told = [lease.pk for lease in leases]
    closed = close_never_started(cluster_id=lab.cluster.pk, lease_ids=told)
    assert closed == {leases[0].pk, leases[2].pk}
    assert lab.states(jobs) == [Job.State.CANCELLED, Job.State.CANCELLING, Job.State.CANCELLED]


def usage_of(lease: Lease, begins: datetime, ends: datetime) -> Usage:
    job = lease.job
    return Usage(
        book=lease.cluster_id, lease_id=lease.pk, job_id=job.pk, job_name=job.name, tenant=job.tenant,
        user=job.owner, generation=lease.generation, gpus=lease.gpus, begins=begins, ends=ends, running_from=begins,
    )  # fmt: skip


def test_held_time_is_assembling_until_all_workers_run(lab: World, hour: datetime) -> None:
    job = start(lab, gpus=2)
    lease = lab.lease(job)
    ran(lease, hour + HOUR / 2, running_from=hour + HOUR * 3 / 4)
    bill_running(cluster_id=lab.cluster.pk)
    assert close_hours(cluster_id=lab.cluster.pk) == 1
    (node,) = NodeHour.objects.exclude(assembling=0)
    assert (node.assembling / 3600, node.busy / 3600) == (Decimal("0.5"), Decimal("0.5"))
    row = UsageHour.objects.get()
    assert (row.user, row.gpu_seconds / 3600, row.assembling / 3600) == (lab.people.bob, 1, Decimal("0.5"))
    call_command("verify_ledger")


def ran(
    lease: Lease, held_from: datetime, *, running_from: datetime | None = None, until: datetime | None = None
) -> None:
    """Backdates a running lease. The lease has held its GPUs since `held_from`, and its gang has run since
    `running_from` (by default `held_from`) and was last seen at `until` (by default now)."""
    lease.refresh_from_db()
    lease.held_from, lease.running_from = held_from, running_from or held_from
    lease.last_seen_at = until or now_from_database()
    lease.save(update_fields=["held_from", "running_from", "last_seen_at"])
    for gpu in lease.held_gpus.all():
        gpu.during = type(gpu.during)(held_from, None, "[)")
        gpu.save(update_fields=["during"])


def test_an_hour_stays_open_until_all_that_was_held_in_it_is_known(lab: World, hour: datetime) -> None:
    job = start(lab)
    lease = lab.lease(job)
    died = hour + HOUR / 2
    ran(lease, hour, until=died)
    bill_running(cluster_id=lab.cluster.pk)  # bills only until the gang was last seen
    assert not close_next_hour(cluster_id=lab.cluster.pk)
    assert list(keeping_open(lab.cluster.pk, hour + HOUR)) == [lease]
    silence = (now_from_database() - died).total_seconds()
    lab.see(lease, Phase.ENDED, end=End.LOST, ended_age=silence)
    assert close_next_hour(cluster_id=lab.cluster.pk)
    held = CapacitySegment.objects.aggregate(held=Sum("busy"))["held"]
    assert abs(held - 1800) < 1
    call_command("verify_ledger")


def test_a_node_that_went_while_its_gang_was_there_counts_as_long_as_that_was_billed(
    lab: World, hour: datetime
) -> None:
    job = start(lab, gpus=8)
    lease = lab.lease(job)
    ran(lease, hour)
    changed(Node.objects.get(name="a100-0"), hour + HOUR / 4, gpus=0, state="down")
    lab.see(
        lease, Phase.ENDED, end=End.LOST, ended_age=(now_from_database() - hour - HOUR / 2).total_seconds()
    )
    assert close_next_hour(cluster_id=lab.cluster.pk)
    assert {name: round(count, 2) for name, count in hours("a100-0").items()} == {"busy": 4}
    call_command("verify_ledger")


def test_hours_without_jobs_are_closed_one_after_another(lab: World, hour: datetime) -> None:
    with without_triggers("scheduling_nodechange"):
        NodeChange.objects.update(at=hour - 29 * HOUR)
    ClosedBook.objects.update(since=hour - 29 * HOUR, until=hour - 29 * HOUR, priced_until=hour - 29 * HOUR)
    assert close_hours(cluster_id=lab.cluster.pk, at_most=20) == 20
    assert close_hours(cluster_id=lab.cluster.pk) == 10
    capacity = CapacitySegment.objects.aggregate(Sum("capacity"), Sum("free"))
    assert set(capacity.values()) == {30 * 12 * 3600}
    call_command("verify_ledger")


def test_books_begin_with_the_day_of_the_first_node_which_counts_from_when_it_was_there(
    lab: World, books_at: Callable[[datetime], None]
) -> None:
    until = start_of_hour(now_from_database())
    books_at(until + LATE)
    there_since(until - HOUR / 2)
    close_hours(cluster_id=lab.cluster.pk)
    book = ClosedBook.objects.get()
    assert (book.since, book.until) == (start_of_day(until - HOUR / 2), until)
    assert CapacitySegment.objects.aggregate(Sum("capacity")) == {"capacity__sum": 12 * 1800}
    call_command("verify_ledger")


def test_days_without_gpus_are_closed_at_once_until_something_is_there_again(
    lab: World, hour: datetime
) -> None:
    """Successive days without any node are closed in one step, not hour by hour. Here no node exists for half a year;
    then one node is back."""
    node = Node.objects.get(name="a100-0")
    gone, back = start_of_day(hour) - timedelta(days=180), start_of_day(hour) - timedelta(days=2)
    with without_triggers("scheduling_nodechange"):
        NodeChange.objects.update(at=gone - 5 * HOUR)
        for other in Node.objects.all():
            changed(other, gone, gpus=0)
        changed(node, back + 7 * HOUR)
    ClosedBook.objects.update(**dict.fromkeys(("since", "until", "priced_until"), gone - 5 * HOUR))
    assert close_hours(cluster_id=lab.cluster.pk) <= 5 + 1 + 3 * 24
    assert ClosedBook.objects.get().until == hour + HOUR
    there = (hour + HOUR - back - 7 * HOUR) / HOUR
    capacity = CapacitySegment.objects.aggregate(Sum("capacity"))["capacity__sum"]
    assert capacity == (5 * 12 + Decimal(there) * 8) * 3600
    call_command("verify_ledger")


def test_days_of_a_detached_cluster_are_closed_at_once(lab: World, hour: datetime) -> None:
    """The whole days since a cluster was detached are closed in one step, so that this cluster does not hold up
    reports.

    Reports on all clusters end where the first cluster's closed hours end.
    """
    detached_at = hour - 60 * HOUR
    Cluster.objects.filter(pk=lab.cluster.pk).update(detached_at=detached_at)
    note_all_nodes(lab.cluster, gone=True)
    with without_triggers("scheduling_nodechange"):
        NodeChange.objects.filter(gpus=0).update(at=detached_at)
        NodeChange.objects.filter(gpus__gt=0).update(at=detached_at - 10 * HOUR)
    ClosedBook.objects.update(**dict.fromkeys(("since", "until", "priced_until"), detached_at - 10 * HOUR))
    assert clusters_to_close() == [lab.cluster.pk]
    steps = close_hours(cluster_id=lab.cluster.pk)
    assert ClosedBook.objects.get().until == hour + HOUR
    assert 11 <= steps <= 10 + 24 + 1 + 24
    assert CapacitySegment.objects.aggregate(Sum("capacity")) == {"capacity__sum": 10 * 12 * 3600}
    assert not close_next_hour(cluster_id=lab.cluster.pk)
    call_command("verify_ledger")
