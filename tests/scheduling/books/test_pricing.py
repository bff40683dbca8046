"""Rounds record when leases were preemptible and how much each team borrowed. As soon as these facts are known for a
closed hour, the hour's classes of GPU time are charged."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal

import pytest
from django.core.management import call_command
from django.db import transaction
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

from accounting.closing.hours import open_book
from accounting.core.calendar import HOUR, start_of_hour
from accounting.core.clock import now_from_database
from accounting.models import ClassCharge, Price, Quota, UsageHour
from scheduling.books.closing import LATE, close_hours
from scheduling.books.pricing import price_classes, price_next_hour
from scheduling.leases.actions import bill_running
from scheduling.models import Cluster, Lease, NodeChange, PreemptibleTime, ShareInterval
from scheduling.shares.hour_sums import sum_share_hours
from tests.ledger_guard import without_triggers
from tests.make import LONG_AGO
from tests.scheduling.shares.test_share_hours import interval
from tests.scheduling.world import World, start, world

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def lab(transactional_db: None) -> World:
    return world(v100=4, a100=8)


def limit(lab: World, gpu_hours: int) -> Quota:
    return Quota.objects.create(
        tenant=lab.people.astro, kind=Quota.Kind.GPU_HOURS, limit=gpu_hours, at_limit="idle", period="month"
    )


class TestRounds:
    def test_rounds_record_when_a_gang_runs_on_idle_gpus(self, lab: World) -> None:
        spent = limit(lab, 0)
        lease = lab.lease(start(lab, gpus=4, generations=["A100"]))
        (noted,) = PreemptibleTime.objects.all()
        assert (noted.lease, noted.during.lower, noted.during.upper) == (lease, lease.decided_at, None)
        lab.quantum()
        lab.fill()
        assert PreemptibleTime.objects.get() == noted  # the same interval continues
        spent.delete()
        lab.fill()
        lab.cluster.refresh_from_db()
        assert PreemptibleTime.objects.get().during.upper == lab.cluster.last_round_at
        limit(lab, 0)
        lab.quantum()
        later = PreemptibleTime.objects.latest("pk")
        assert (later.lease, later.during.upper) == (lease, None)
        assert PreemptibleTime.objects.count() == 2

    def test_preemptible_time_does_not_count_as_borrowed(self, lab: World) -> None:
        """A team whose only running job is preemptible has borrowed nothing."""
        limit(lab, 0)
        start(lab, gpus=4)
        lab.quantum()
        had = ShareInterval.objects.filter(tenant=lab.people.astro)
        assert had.exists()
        assert not had.filter(borrowed__gt=0).exists()

    def test_say_nothing_of_gangs_whose_teams_have_a_claim(self, lab: World) -> None:
        limit(lab, 0)
        bob = lab.lease(start(lab, gpus=4))
        lab.submit(lab.people.charlie, lab.people.bio, gpus=4)
        lab.fill()
        assert [one.lease for one in PreemptibleTime.objects.all()] == [bob]


@pytest.fixture
def hour(lab: World, books_at: Callable[[datetime], None]) -> datetime:
    """Returns the start of the last full hour. In this hour all nodes existed, and A100s had a price for each class."""
    last = start_of_hour(now_from_database()) - HOUR
    books_at(last + HOUR + LATE)
    with without_triggers("scheduling_nodechange"):
        NodeChange.objects.update(at=last - HOUR)
    with transaction.atomic():
        open_book(book=lab.cluster.pk, since=last)
    Price.objects.filter(generation=lab.people.a100).delete()
    Price.objects.create(
        generation=lab.people.a100,
        per_gpu_hour=3,
        preemptible=1,
        borrowed=2,
        valid=DateTimeTZRange(LONG_AGO, None),
    )
    return last


def held(lab: World, hour: datetime, *, gpus: int = 4) -> Lease:
    """Returns a lease that has held GPUs since `hour` and is billed until now; the hour is closed."""
    lease = lab.lease(start(lab, gpus=gpus, generations=["A100"]))
    lease.held_from = lease.running_from = hour
    lease.last_seen_at = now_from_database()
    lease.save(update_fields=["held_from", "running_from", "last_seen_at"])
    lease.held_gpus.update(during=DateTimeTZRange(hour, None))
    bill_running(cluster_id=lab.cluster.pk)
    assert close_hours(cluster_id=lab.cluster.pk) == 1
    Cluster.objects.update(last_round_at=hour)  # as if no round had run since `hour`
    return lease


def shares_known(lab: World, hour: datetime, *, borrowed: float) -> None:
    ShareInterval.objects.all().delete()
    interval(lab, hour, hour + HOUR, of=lab.people.a100, borrowed=borrowed)
    Cluster.objects.update(last_round_at=now_from_database())
    assert sum_share_hours(cluster_id=lab.cluster.pk) == 1


def paid(lab: World) -> Decimal:
    return sum((row.cost for row in UsageHour.objects.filter(tenant=lab.people.astro)), Decimal(0))


def test_an_hour_is_settled_when_its_shares_are_known_and_only_once(lab: World, hour: datetime) -> None:
    held(lab, hour)
    assert (price_classes(cluster_id=lab.cluster.pk), paid(lab)) == (0, 12)
    shares_known(lab, hour, borrowed=2 * 3600)
    assert (price_classes(cluster_id=lab.cluster.pk), paid(lab)) == (1, 10)
    assert not price_next_hour(cluster_id=lab.cluster.pk)
    assert paid(lab) == 10
    call_command("verify_ledger")


def test_preemptible_time_has_its_own_price_and_only_the_rest_is_borrowed(lab: World, hour: datetime) -> None:
    lease = held(lab, hour)
    for begins, ends in ((-50, -10), (0, 15), (30, 45)):
        during = DateTimeTZRange(hour + timedelta(minutes=begins), hour + timedelta(minutes=ends))
        PreemptibleTime.objects.create(lease=lease, during=during)
    shares_known(lab, hour, borrowed=3600)
    price_classes(cluster_id=lab.cluster.pk)
    charge = ClassCharge.objects.get()
    assert (charge.preemptible / 3600, charge.borrowed / 3600) == (2, 1)
    assert paid(lab) == 2 * 1 + 1 * 2 + 1 * 3


def test_a_lease_that_is_still_preemptible_is_so_until_the_hour_ends(lab: World, hour: datetime) -> None:
    lease = held(lab, hour)
    PreemptibleTime.objects.create(lease=lease, during=DateTimeTZRange(hour + HOUR / 2, None))
    shares_known(lab, hour, borrowed=0)
    price_classes(cluster_id=lab.cluster.pk)
    assert ClassCharge.objects.get().preemptible == 2 * 3600


def test_an_hour_without_shares_before_a_later_round_has_nothing_borrowed(lab: World, hour: datetime) -> None:
    held(lab, hour)
    assert not price_next_hour(cluster_id=lab.cluster.pk)
    Cluster.objects.update(last_round_at=now_from_database())
    assert price_classes(cluster_id=lab.cluster.pk) == 1
    assert paid(lab) == 12


def test_a_detached_cluster_is_closed_without_waiting_for_shares(lab: World, hour: datetime) -> None:
    held(lab, hour)
    Cluster.objects.update(detached_at=now_from_database())
    assert price_classes(cluster_id=lab.cluster.pk) == 1
    assert (paid(lab), ClassCharge.objects.count()) == (12, 0)
