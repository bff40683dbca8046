"""A trade whose terms do not change continues over rounds, and the ledger books each trade to the microsecond."""

from datetime import datetime, timedelta
from decimal import Decimal

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.models import F, Sum
from django.test.utils import CaptureQueriesContext

from accounting.core.clock import now_from_database
from accounting.models import LedgerEntry, LedgerTransaction
from scheduling.jobs.actions import cancel_job
from scheduling.models import Job, JobSpeed, Lease, Trade
from tests.scheduling.world import World, world

pytestmark = pytest.mark.django_db


def trading_world() -> World:
    """Returns a world with two teams that trade, because Bio's jobs speed up more on A100s than Astro's."""
    lab = world(v100=4, a100=4, trading=True)
    for _ in range(8):
        for owner, tenant, speedup in (
            (lab.people.bob, lab.people.astro, 1.2),
            (lab.people.charlie, lab.people.bio, 4.0),
        ):
            job = lab.submit(owner, tenant)
            JobSpeed.objects.create(job=job, generation=lab.people.v100, steps=10, seconds=10)
            JobSpeed.objects.create(job=job, generation=lab.people.a100, steps=10 * speedup, seconds=10)
    return lab


def within_the_hour() -> float:
    """Returns by how many seconds, at most 60, a test can backdate a trade that must begin in the present hour."""
    now = now_from_database()
    return min(60.0, (now - full_hour(now)).total_seconds() / 4)


def full_hour(at: datetime) -> datetime:
    return at.replace(minute=0, second=0, microsecond=0)


def change_speeds(lab: World) -> None:
    JobSpeed.objects.filter(generation=lab.people.a100).update(steps=F("steps") * 1.3)


def booked(trade: Trade) -> dict[str, Decimal]:
    """Returns {generation: GPU-seconds} that the ledger has booked to the trade's buyer.

    GPU time that the buyer gave is negative.
    """
    rows = LedgerEntry.objects.filter(transaction__key=f"trade:{trade.pk}", account__tenant=trade.buyer)
    return dict(rows.values_list("account__generation__name").annotate(Sum("amount")))


def moved(trade: Trade) -> dict[str, Decimal]:
    """Returns {generation: GPU-seconds} that the trade's buyer got according to the columns of the ended trade.

    GPU time that the buyer gave is negative.
    """
    assert trade.ends is not None
    seconds = Decimal(str((trade.ends - trade.begins).total_seconds()))
    got, gave = (Decimal(str(gpus)) * seconds for gpus in (trade.fast_gpus, -trade.slow_gpus))
    return {
        trade.fast.name: got.quantize(Decimal("0.000001")),
        trade.slow.name: gave.quantize(Decimal("0.000001")),
    }


def test_teams_with_different_speed_ups_trade_and_the_ledger_books_it() -> None:
    lab = trading_world()
    lab.quantum()
    trade = Trade.objects.get()
    assert (trade.seller, trade.buyer) == (lab.people.astro, lab.people.bio)
    assert trade.seller_speedup < trade.price < trade.buyer_speedup
    assert trade.slow_gpus == pytest.approx(trade.price * trade.fast_gpus)
    lab.pass_time(60)
    change_speeds(lab)
    lab.quantum()
    first, second = Trade.objects.order_by("id")
    assert (first.ends, second.ends) == (second.begins, None)
    assert booked(first) == moved(first)
    sums = LedgerEntry.objects.values("account__unit").annotate(sum=Sum("amount"))
    assert {row["sum"] for row in sums} == {0}


def test_a_trade_of_which_nothing_changes_goes_on_over_rounds() -> None:
    lab = trading_world()
    lab.quantum()
    trade, passes = Trade.objects.get(), within_the_hour()
    for next_round in (lab.quantum, lab.fill, lab.quantum):
        lab.pass_time(passes)
        next_round()
        assert Trade.objects.get().ends is None
    assert not LedgerTransaction.objects.filter(kind="trade").exists()
    lab.pass_time(passes)
    change_speeds(lab)
    ends = lab.quantum()
    assert ends is not None
    trade.refresh_from_db()
    assert trade.ends == ends.at
    assert trade.ends - trade.begins >= timedelta(seconds=4 * passes)
    assert booked(trade) == moved(trade)
    call_command("verify_ledger")


def test_no_trade_goes_on_beyond_its_hour() -> None:
    lab = trading_world()
    lab.quantum()
    Trade.objects.update(begins=full_hour(now_from_database()) - timedelta(seconds=1))
    lab.quantum()
    first, second = Trade.objects.order_by("id")
    assert (first.ends, second.ends) == (second.begins, None)
    assert (first.fast_gpus, first.slow_gpus) == (second.fast_gpus, second.slow_gpus)
    assert booked(first) == moved(first)


def test_trades_end_with_the_last_job() -> None:
    lab = trading_world()
    lab.quantum()
    lab.pass_time(30)
    for job in Job.objects.all():
        cancel_job(actor=lab.people.ada, job=job)
    Job.objects.update(state=Job.State.CANCELLED)
    lab.quantum()
    trade = Trade.objects.get()
    assert trade.ends is not None
    assert booked(trade) == moved(trade)


def test_while_fairlot_stood_still_nothing_was_traded() -> None:
    lab = trading_world()
    lab.quantum()
    lab.pass_time(3600)
    begins = Trade.objects.get().begins
    Lease.objects.update(last_seen_at=begins)
    lab.quantum()
    first, second = Trade.objects.order_by("id")
    assert first.ends is not None
    assert first.ends - begins < timedelta(seconds=3500)
    assert second.begins > first.ends
    assert booked(first) == moved(first)


def test_a_clock_that_is_set_back_ends_trades_where_the_last_round_was() -> None:
    lab = trading_world()
    lab.quantum()
    lab.pass_time(within_the_hour())
    last = lab.quantum()
    assert last is not None
    begins = Trade.objects.get().begins
    lab.pass_time(-600)
    lab.quantum()
    first, second = Trade.objects.order_by("id")
    assert first.ends is not None
    assert (first.ends - first.begins, second.ends) == (last.at - begins, None)
    assert booked(first) == moved(first)


def test_many_trades_are_settled_with_as_many_queries_as_one() -> None:
    lab = trading_world()

    def queries_of_next_round() -> int:
        lab.pass_time(60)
        Trade.objects.filter(ends=None).update(slow_gpus=F("slow_gpus") * 0.9)  # so that none continues
        with CaptureQueriesContext(connection) as queries:
            lab.quantum()
        return len(queries)

    lab.quantum()
    queries_of_next_round()  # the first round also creates ledger accounts
    with_one = queries_of_next_round()
    trade = Trade.objects.get(ends=None)
    for _ in range(80):
        trade.pk = None
        trade.save()
    assert queries_of_next_round() == with_one
