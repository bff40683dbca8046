from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from itertools import pairwise

import pytest
from django.db import connection, transaction
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange
from django.db.models import Sum
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accounting.core.errors import BookedOtherwise, Refused
from accounting.ledger import (
    Payer,
    Usage,
    book_trades,
    book_usage,
    correct_trade,
    correct_usage,
)
from accounting.limits.spending import Spending, UnbookedUsage
from accounting.models import LedgerEntry, LedgerTransaction, Price, Quota, UsageSegment
from accounting.pricing.tariff import PricePeriod, Rate, Tariff, cost_of, gpu_seconds
from tests import make
from tests.accounting.booking import NOON, book, minutes, trade, traded, usage
from tests.make import Cast
from tests.query_counts import queries_of

HOUR = timedelta(hours=1)
moments = st.datetimes(datetime(2026, 1, 1), datetime(2026, 1, 3)).map(lambda at: at.replace(tzinfo=UTC))
prices = st.decimals(0, 500, places=6)


def amounts(**of_account: object) -> dict[str, Decimal]:
    """Returns the sums of the entries of the selected accounts. The keys are "KIND UNIT", such as "revenue EUR"."""
    rows = LedgerEntry.objects.filter(**{f"account__{k}": v for k, v in of_account.items()})
    sums = rows.values_list("account__kind", "account__unit").annotate(Sum("amount"))
    return {f"{kind} {unit}": total for kind, unit, total in sums}


@st.composite
def tariffs(draw: st.DrawFn) -> Tariff:
    edges = sorted(draw(st.sets(moments, max_size=6)))
    bounds = [None, *edges, None]
    rates = st.builds(Rate, prices, st.sampled_from(["EUR", "USD"]))
    periods = [PricePeriod(begins, ends, draw(rates)) for begins, ends in pairwise(bounds)]
    return Tariff(tuple(period for period in periods if draw(st.integers(0, 3))))  # leaves gaps


@given(tariffs(), moments, moments, st.integers(1, 4096))
def test_pieces_add_up_to_the_whole_within_one_hour_and_one_price(
    tariff: Tariff, one: datetime, other: datetime, gpus: int
) -> None:
    begins, ends = min(one, other), max(one, other)
    pieces = tariff.cut(begins, ends)
    assert sum(gpu_seconds(gpus, start, end) for start, end, _ in pieces) == gpu_seconds(gpus, begins, ends)
    assert all(end == start for (_, end, _), (start, _, _) in pairwise(pieces))
    assert not pieces or (pieces[0][0], pieces[-1][1]) == (begins, ends)
    for start, end, price in pieces:
        assert start < end <= start.replace(minute=0, second=0, microsecond=0) + HOUR
        assert {price} == {tariff.at(start), tariff.at(end - timedelta(microseconds=1))}
        inside = [edge for p in tariff.periods for edge in (p.begins, p.ends) if edge and start < edge < end]
        assert not inside


@given(st.decimals(0, 10**9, places=6), prices)
def test_cost_is_rounded_once_and_halves_go_to_the_even(seconds: Decimal, price: Decimal) -> None:
    exact = int(seconds.scaleb(6)) * int(price.scaleb(6))  # price times seconds, in units of 10^-12
    unit = 3600 * 10**6  # units of `exact` in 10^-6 of money
    whole, rest = divmod(exact, unit)
    if rest * 2 > unit or (rest * 2 == unit and whole % 2):
        whole += 1
    assert cost_of(seconds, price) == Decimal(whole).scaleb(-6)


def test_halves_of_the_last_decimal_go_to_the_even_one() -> None:
    assert cost_of(Decimal(1800), Decimal("0.000001")) == 0
    assert cost_of(Decimal(1800), Decimal("0.000003")) == Decimal("0.000002")


def test_many_jobs_of_a_second_cost_what_their_seconds_cost(cast: Cast) -> None:
    """Proves that a thousand one-second jobs cost a thousand times the price of a second, also against a limit on
    money.

    The price of a second, 0.17 / 3600, is rounded to a millionth.
    """
    Price.objects.filter(generation=cast.a100).update(per_gpu_hour=Decimal("0.17"))
    one = usage(cast, gpus=1, ends=NOON + timedelta(seconds=1))
    with transaction.atomic():
        book_usage([Usage(**one | {"lease_id": lease}) for lease in range(1000)])
    paid = LedgerEntry.objects.filter(account__kind="cost").aggregate(paid=Sum("amount"))["paid"]
    assert paid == 1000 * Decimal("0.000047")
    limit = Quota(pk=1, tenant=cast.uni, kind="money", period="month", limit=paid)
    assert Spending([limit], NOON + timedelta(hours=1), ()).used(limit, (cast.uni.pk, None)) == paid
    held = [
        UnbookedUsage(cast.astro.pk, cast.bob.pk, cast.a100.pk, 1, NOON + timedelta(seconds=second))
        for second in (8, 9)
    ]
    spent = Spending([limit], NOON + timedelta(seconds=10), held).used(limit, (cast.uni.pk, None))
    assert spent == paid + Decimal("0.000047") + Decimal("0.000094")


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.lists(st.tuples(moments, prices), max_size=4, unique_by=lambda change: change[0]),
    st.lists(moments, min_size=2, max_size=5, unique=True).map(sorted),
    st.integers(1, 64),
)
def test_what_is_booked_in_parts_adds_up_exactly(
    cast: Cast, changes: list[tuple[datetime, Decimal]], cuts: list[datetime], gpus: int
) -> None:
    with transaction.atomic():
        Price.objects.filter(generation=cast.a100).delete()
        bounds = [*sorted(changes), (None, None)]
        for (begins, price), (ends, _) in pairwise(bounds):
            Price.objects.create(
                generation=cast.a100, per_gpu_hour=price, valid=DateTimeTZRange(begins, ends)
            )
        segments = [
            segment
            for begins, ends in pairwise(cuts)
            for segment in book_usage([Usage(**usage(cast, gpus=gpus, begins=begins, ends=ends))])
        ]
        whole = gpu_seconds(gpus, cuts[0], cuts[-1])
        assert sum(segment.gpu_seconds for segment in segments) == whole
        assert amounts(tenant=cast.astro, kind="usage") == {"usage GPU-s A100": whole}
        cost = sum(segment.cost for segment in segments)
        assert amounts(tenant=cast.astro, kind="cost").get("cost EUR", 0) == cost
        for segment in UsageSegment.objects.all():  # read again from the database
            valid = Price.objects.filter(generation=cast.a100, valid__contains=segment.period.lower)
            price = valid.get().per_gpu_hour if valid else 0
            assert segment.price_per_gpu_hour == price
            assert segment.cost == cost_of(segment.gpu_seconds, Decimal(price))
        with connection.cursor() as cursor:
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
            cursor.execute("SET CONSTRAINTS ALL DEFERRED")
        transaction.set_rollback(True)


def test_usage_is_booked_on_both_sides_in_time_and_money(cast: Cast) -> None:
    (segment,) = book(cast)
    assert (segment.gpu_seconds, segment.cost, segment.currency) == (7200, Decimal("6.0000"), "EUR")
    assert (segment.tenant_name, segment.user_name, segment.job_name) == ("Astro", "bob", "train")
    assert segment.transaction.key == "usage:1:2026-05-04T12:00:00+00:00"
    assert amounts() == {
        "usage GPU-s A100": 7200, "capacity GPU-s A100": -7200, "cost EUR": 6, "revenue EUR": -6,
    }  # fmt: skip


def test_usage_is_cut_at_full_hours_and_changes_of_price(cast: Cast) -> None:
    Price.objects.filter(generation=cast.a100).delete()
    change = NOON + minutes(90)
    for valid, price in (((None, change), 3), ((change, None), 4)):
        Price.objects.create(generation=cast.a100, per_gpu_hour=price, valid=DateTimeTZRange(*valid))
    segments = book(cast, gpus=1, begins=NOON - minutes(15), ends=NOON + minutes(125))
    told = [(s.period.lower - NOON, s.gpu_seconds / 60, s.price_per_gpu_hour) for s in segments]
    assert told == [
        (minutes(-15), 15, 3), (minutes(0), 60, 3), (minutes(60), 30, 3), (minutes(90), 30, 4),
        (minutes(120), 5, 4),
    ]  # fmt: skip


def test_time_without_a_price_is_free_and_books_no_money(cast: Cast) -> None:
    (segment,) = book(cast, generation=make.generation("K80"))
    assert (segment.cost, segment.price_per_gpu_hour) == (0, 0)
    assert amounts() == {"usage GPU-s K80": 7200, "capacity GPU-s K80": -7200}


def test_booking_the_same_again_returns_what_is_there(cast: Cast) -> None:
    once = book(cast, ends=NOON + minutes(90))
    east = timezone(timedelta(hours=5))
    again = book(cast, begins=NOON.astimezone(east), ends=(NOON + minutes(90)).astimezone(east))
    assert [segment.pk for segment in once] == [segment.pk for segment in again]
    further = book(cast, begins=NOON + minutes(90), ends=NOON + minutes(120))
    assert len(once) + len(further) == UsageSegment.objects.count() == 3
    assert LedgerTransaction.objects.count() == 2


def test_booking_something_else_for_the_same_lease_and_time_is_refused(cast: Cast) -> None:
    book(cast)
    for change in ({"gpus": 5}, {"tenant": cast.bio}, {"ends": NOON + minutes(40)}, {"job_id": 8}):
        with pytest.raises(BookedOtherwise, match=r"already contains .* with .*, but the lease now has"):
            book(cast, **change)
    with pytest.raises(
        BookedOtherwise, match=r"already contains usage of leases \[1\] that overlaps the usage"
    ):
        book(cast, begins=NOON + minutes(10), ends=NOON + minutes(50))
    assert LedgerTransaction.objects.count() == 1


def test_many_are_booked_with_few_queries(cast: Cast) -> None:
    usages = [
        Usage(**usage(cast, lease_id=lease, tenant=tenant, user=user, ends=NOON + minutes(150)))
        for lease, (tenant, user) in enumerate([(cast.astro, cast.bob), (cast.bio, cast.charlie)] * 50)
    ]
    with queries_of("books 100 usages"), transaction.atomic():
        segments = book_usage(usages)
    assert [segment.lease_id for segment in segments] == [lease for lease in range(100) for _ in range(3)]
    assert amounts(kind="usage") == {"usage GPU-s A100": 100 * 4 * 150 * 60}
    with queries_of("books 100 usages again"), transaction.atomic():  # two of the queries are the savepoint
        assert book_usage(usages) == segments


def test_usage_of_no_time_books_nothing_and_nonsense_is_an_error(cast: Cast) -> None:
    assert book(cast, ends=NOON) == []
    with pytest.raises(ValueError, match="before it begins"):
        book(cast, ends=NOON - minutes(1))
    with pytest.raises(ValueError, match="at least one GPU"):
        book(cast, gpus=0)


@pytest.mark.django_db(transaction=True)
def test_the_ledger_books_only_inside_a_transaction() -> None:
    cast = make.cast()
    with pytest.raises(transaction.TransactionManagementError):
        book_usage([Usage(**usage(cast))])


def test_a_trade_moves_time_both_ways_and_sums_to_zero(cast: Cast) -> None:
    booked = trade(cast)
    assert amounts(tenant=cast.astro) == {"trade GPU-s A100": -60, "trade GPU-s V100": 150}
    assert amounts(tenant=cast.bio) == {"trade GPU-s A100": 60, "trade GPU-s V100": -150}
    assert trade(cast) == booked
    with pytest.raises(BookedOtherwise):
        trade(cast, fast_gpu_seconds=Decimal(61))
    for nonsense in ({"buyer": cast.astro}, {"slow": cast.a100}, {"slow_gpu_seconds": Decimal("1e-7")}):
        with pytest.raises(ValueError, match="a trade must exchange"):
            trade(cast, key="trade:2", **nonsense)


def test_many_trades_are_booked_with_few_queries(cast: Cast) -> None:
    trades = [traded(cast, key=f"trade:{i}", fast_gpu_seconds=Decimal(1 + i)) for i in range(120)]
    with queries_of("books 120 trades"), transaction.atomic():
        booked = book_trades(trades)
    assert [one.key for one in booked] == [one.key for one in trades]
    assert amounts(tenant=cast.bio) == {
        "trade GPU-s A100": sum(range(1, 121)),
        "trade GPU-s V100": -120 * 150,
    }
    with transaction.atomic():
        assert book_trades(trades[50:60]) == booked[50:60]
    with transaction.atomic(), pytest.raises(BookedOtherwise, match="trade:9 with different"):
        book_trades([traded(cast, key="new"), traded(cast, key="trade:9")])
    with transaction.atomic(), pytest.raises(BookedOtherwise, match="twice with different"):
        book_trades([traded(cast, key="twice", fast_gpu_seconds=Decimal(n)) for n in (1, 2)])
    assert LedgerTransaction.objects.count() == 120


def test_a_correction_takes_everything_back_once(cast: Cast) -> None:
    segments = book(cast, ends=NOON + minutes(150))
    with transaction.atomic():
        (correction,) = correct_usage(actor=cast.ada, segments=segments, reason="billed to the wrong team")
    # Nobody pays for the reversed usage; the capacity and revenue accounts stay the same.
    assert amounts(kind__in=["usage", "cost"]) == {"usage GPU-s A100": 0, "cost EUR": 0}
    assert amounts(tenant=None) == {
        "capacity GPU-s A100": -4 * 9000, "revenue EUR": -30, "waived GPU-s A100": 4 * 9000, "waived EUR": 30,
    }  # fmt: skip
    assert (correction.actor, correction.kind) == (cast.ada, "correction")
    assert set(UsageSegment.objects.uncorrected()) == set()
    for again in (segments, segments[1:2]):
        with pytest.raises(Refused, match="already"), transaction.atomic():
            correct_usage(actor=cast.ada, segments=again, reason="once more")
    for nothing in ([], segments):
        with pytest.raises(Refused), transaction.atomic():
            correct_usage(actor=cast.ada, segments=nothing, reason=" ")


def test_a_part_of_what_was_booked_at_once_is_taken_back(cast: Cast) -> None:
    first, second, third = book(cast, ends=NOON + minutes(150))
    with transaction.atomic():
        correct_usage(actor=cast.ada, segments=[second], reason="the node hung")
    assert amounts(kind="usage") == {"usage GPU-s A100": first.gpu_seconds + third.gpu_seconds}
    assert list(UsageSegment.objects.uncorrected().order_by("pk")) == [first, third]


def test_corrected_time_is_booked_anew_as_another_teams(cast: Cast) -> None:
    segments = book(cast, ends=NOON + minutes(90))
    with transaction.atomic():
        correct_usage(actor=cast.ada, segments=segments, reason="theirs", payer=Payer(cast.bio, cast.charlie))
    assert amounts(tenant=cast.astro) == {"usage GPU-s A100": 0, "cost EUR": 0}
    assert amounts(tenant=cast.bio) == {"usage GPU-s A100": 4 * 90 * 60, "cost EUR": 18}
    assert amounts(kind="waived") == {"waived GPU-s A100": 0, "waived EUR": 0}
    anew = list(UsageSegment.objects.uncorrected().order_by("period"))
    assert [(one.tenant_name, one.user_name, one.version, one.period) for one in anew] == [
        ("Bio", "charlie", 1, one.period) for one in segments
    ]
    # Booking the lease again changes nothing; the usage posted after a correction can be corrected like the original.
    assert book(cast, ends=NOON + minutes(90)) == segments
    with transaction.atomic():
        correct_usage(actor=cast.ada, segments=anew, reason="not theirs", payer=Payer(cast.astro, cast.bob))
    assert amounts(tenant=cast.astro) == {"usage GPU-s A100": 4 * 90 * 60, "cost EUR": 18}


def test_what_lies_in_two_months_and_two_clusters_is_booked_and_corrected_apart(cast: Cast) -> None:
    begins = datetime(2026, 4, 30, 23, 30, tzinfo=UTC)
    usages = [Usage(**usage(cast, book=b, lease_id=b, begins=begins, ends=begins + HOUR)) for b in (1, 2)]
    with transaction.atomic():
        segments = book_usage(usages)
    booked = LedgerTransaction.objects.order_by("month", "book").values_list("month", "book", "kind")
    april, may = begins.date().replace(day=1), begins.date().replace(month=5, day=1)
    assert list(booked) == [(month, b, "usage") for month in (april, may) for b in (1, 2)]
    with transaction.atomic():
        assert len(correct_usage(actor=None, segments=segments, reason="a test")) == 4
    assert set(amounts(kind__in=["usage", "cost"]).values()) == {0}


def test_a_month_that_nobody_made_is_made_when_something_is_booked_in_it(cast: Cast) -> None:
    long_ago = datetime(2017, 2, 28, 23, 45, tzinfo=UTC)
    segments = book(cast, begins=long_ago, ends=long_ago + minutes(30))
    assert [segment.month.month for segment in segments] == [2, 3]
    assert UsageSegment.objects.overlapping(long_ago, long_ago + minutes(1)).get() == segments[0]


def test_a_trade_is_taken_back_once(cast: Cast) -> None:
    traded = trade(cast)
    with transaction.atomic():
        correction = correct_trade(actor=cast.ada, trade=traded, reason="a clock stood still")
    assert (correction.corrects, set(amounts().values())) == (traded, {0})
    for not_again in (traded, correction):
        with pytest.raises(Refused), transaction.atomic():
            correct_trade(actor=cast.ada, trade=not_again, reason="once more")
