"""Tests that the lines of a bill sum to the ledger's amounts, with any prices, corrections and closed hours."""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from django.db import transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accounting import actions
from accounting.closing.class_prices import TimeByClass
from accounting.core.numbers import MICRO
from accounting.ledger import Payer, correct_usage
from accounting.models import UsageSegment, User
from accounting.reports.invoice import Line, lines_of, taken_back
from accounting.reports.team_usage import usage_of_team
from accounting.reports.usage import usage_report
from accounting.usage.reader import UsageReader
from tests.accounting.booking import HOUR, NOON, book, close_hours, minutes
from tests.accounting.closing.test_class_prices import price_all, set_prices
from tests.accounting.reports.test_usage import in_ledger
from tests.make import Cast
from tests.query_counts import queries_of

AS_ASKED = {"zone": ZoneInfo("UTC"), "days": False, "most": 9}


@pytest.fixture
def booked(cast: Cast) -> Cast:
    """Books two days of usage of both teams. The price of one generation changes twice, once in the middle of an
    hour."""
    odd = timedelta(minutes=37, microseconds=123457)
    for lease in range(10):
        if lease == 4:
            actions.set_price(
                actor=cast.ada,
                generation=cast.a100,
                per_gpu_hour=Decimal("3.333333"),
                since=NOON + HOUR * 16.3,
            )
        if lease == 6:
            actions.set_price(
                actor=cast.ada, generation=cast.a100, per_gpu_hour=Decimal("2.5"), since=NOON + HOUR * 23
            )
        book(
            cast,
            lease_id=lease,
            job_id=lease,
            tenant=cast.astro if lease % 3 else cast.bio,
            user=cast.bob if lease % 3 else cast.charlie,
            generation=(cast.a100, cast.v100)[lease % 2],
            gpus=lease + 1,
            begins=NOON + lease * odd * 6,
            ends=NOON + lease * odd * 6 + odd * 4,
            running_from=NOON + lease * odd * 6 + minutes(10),
        )
    return cast


def from_segments(cast: Cast) -> dict[tuple[str, Decimal], tuple[Decimal, Decimal]]:
    """Returns the GPU-seconds and the cost of team Astro's uncorrected segments, by generation and price per
    GPU-hour."""
    sums: dict[tuple[str, Decimal], list[Decimal]] = defaultdict(lambda: [Decimal(0)] * 2)
    for one in UsageSegment.objects.uncorrected().filter(tenant=cast.astro).select_related("generation"):
        known = sums[one.generation.name, one.price_per_gpu_hour]
        sums[one.generation.name, one.price_per_gpu_hour] = [known[0] + one.gpu_seconds, known[1] + one.cost]
    return {key: (value[0], value[1]) for key, value in sums.items()}


def assert_as_told(lines: list[Line], wanted: dict[tuple[str, Decimal], tuple[Decimal, Decimal]]) -> None:
    """Asserts that each line with a price has the expected GPU-seconds and costs time × price.

    `wanted` contains (GPU-seconds, cost) by generation and price. The costs may differ by less than a cent of rounding.
    """
    priced = [line for line in lines if line.price is not None]
    assert {(one.generation, one.price): one.gpu_seconds for one in priced} == {
        key: seconds for key, (seconds, _) in wanted.items()
    }
    for one in priced:
        assert one.cost == (one.gpu_seconds * one.price / 3600).quantize(MICRO)
        assert abs(one.cost - wanted[one.generation, one.price][1]) < Decimal("0.01")


@pytest.mark.parametrize("closed", [0, 15, 60])
def test_lines_are_what_the_segments_say_and_sum_to_the_ledger(booked: Cast, closed: int) -> None:
    close_hours(booked, NOON - 12 * HOUR, NOON + closed * HOUR)
    wide = NOON - 48 * HOUR, NOON + 96 * HOUR
    for corrected in (False, True):
        if corrected:
            wrong = UsageSegment.objects.filter(lease_id__in=[2, 4]).select_related("generation")
            actions.take_back_usage(actor=booked.ada, segments=list(wrong), reason="a test")
        lines = lines_of(UsageReader(booked.bob, *wide, booked.astro))
        assert_as_told(lines, from_segments(booked))
        sums = sum(line.gpu_seconds for line in lines), sum(line.cost for line in lines)
        assert sums == in_ledger([booked.astro])
        prices = {line.price for line in lines if line.generation == "A100" and line.kind == "owned"}
        assert len(prices) == (1 if corrected else 3)
    assert lines_of(UsageReader(booked.charlie, *wide, booked.astro)) == []


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.integers(-50_000, 200_000), st.integers(1, 200_000), st.integers(0, 60), st.booleans())
def test_in_any_period_lines_and_what_gpus_did_sum_to_the_report(
    booked: Cast, first: int, length: int, closed: int, corrected: bool
) -> None:
    begins = NOON + timedelta(seconds=first, microseconds=77)
    ends = begins + timedelta(seconds=length)
    with transaction.atomic():
        close_hours(booked, NOON - 12 * HOUR, NOON + closed * HOUR)
        if corrected:
            segments = list(UsageSegment.objects.filter(lease_id__in=[3, 5]).select_related("generation"))
            payer = Payer(booked.astro, booked.alice)
            correct_usage(actor=None, segments=segments, reason="a test", payer=payer)
        lines = lines_of(UsageReader(booked.olga, begins, ends, booked.uni))
        held = usage_of_team(UsageReader(booked.olga, begins, ends, booked.uni), **AS_ASKED).held
        (total,) = usage_report(booked.olga, begins, ends, tenant=booked.uni).totals
        transaction.set_rollback(True)
    assert sum(line.gpu_seconds for line in lines) == total.gpu_seconds == sum(one.held for one in held)
    assert sum(line.cost for line in lines) == total.cost
    assert all(one.busy >= 0 and one.idle == 0 for one in held)


def test_the_time_before_all_workers_ran_is_told(booked: Cast) -> None:
    held = usage_of_team(
        UsageReader(booked.bob, NOON - 48 * HOUR, NOON + 96 * HOUR, booked.astro), **AS_ASKED
    ).held
    segments = list(UsageSegment.objects.filter(tenant=booked.astro))
    assert sum(one.assembling for one in held) == sum(one.assembling for one in segments) > 0
    assert sum(one.busy for one in held) == sum(one.gpu_seconds - one.assembling for one in segments)


def test_what_was_taken_back_of_a_period_is_told_with_its_reason(booked: Cast) -> None:
    wrong = list(UsageSegment.objects.filter(lease_id=4).select_related("generation"))
    actions.take_back_usage(actor=booked.ada, segments=wrong, reason="a broken node")
    (one,) = taken_back(UsageReader(booked.bob, NOON - 48 * HOUR, NOON + 96 * HOUR, booked.astro))
    assert (one.actor, one.reason.startswith("a broken node") or "a broken node" in one.reason) == (
        "ada",
        True,
    )
    assert (one.gpu_seconds, one.cost) == (
        sum(segment.gpu_seconds for segment in wrong), sum(segment.cost for segment in wrong),
    )  # fmt: skip
    middle = wrong[1].period.lower + minutes(1)
    (part,) = taken_back(UsageReader(booked.bob, middle, middle + minutes(1), booked.astro))
    assert part.gpu_seconds == 60 * wrong[1].gpus
    assert taken_back(UsageReader(booked.charlie, NOON - 48 * HOUR, NOON + 96 * HOUR, booked.astro)) == []


def test_how_many_queries_lines_take(booked: Cast) -> None:
    with queries_of("lines of an invoice"):
        lines_of(UsageReader(booked.bob, NOON - 48 * HOUR, NOON + 96 * HOUR, booked.astro))


def test_whoever_sees_no_team_sees_no_line(booked: Cast) -> None:
    stranger = User.objects.create_user(username="stranger")
    assert lines_of(UsageReader(stranger, NOON, NOON + HOUR, booked.astro)) == []


def test_each_class_is_a_line_of_its_own_time_and_price(cast: Cast) -> None:
    set_prices(cast, per_gpu_hour=3, borrowed=1)
    book(cast, lease_id=1, gpus=4)
    book(cast, lease_id=2, gpus=2, ends=NOON + HOUR)
    book(cast, lease_id=3, gpus=1, generation=cast.v100)
    close_hours(cast, NOON, NOON + HOUR)
    price_all(TimeByClass({(cast.astro.pk, cast.a100.pk): Decimal(3600)}, {}, {}))
    for begins, ends in ((NOON, NOON + HOUR), (NOON + minutes(7), NOON + minutes(41))):
        lines = lines_of(UsageReader(cast.bob, begins, ends, cast.astro))
        assert [(line.generation, line.kind, line.price) for line in lines] == [
            ("A100", "owned", 3),
            ("A100", "borrowed", 1),
            ("V100", "owned", Decimal("1.2")),
        ]
        (total,) = usage_report(cast.bob, begins, ends, tenant=cast.astro).totals
        assert sum(line.cost for line in lines) == total.cost
        assert sum(line.gpu_seconds for line in lines) == total.gpu_seconds
    whole = lines_of(UsageReader(cast.bob, NOON, NOON + HOUR, cast.astro))
    assert [line.cost for line in whole] == [9, 1, Decimal("0.6")]
    wrong = UsageSegment.objects.filter(lease_id=1).select_related("generation")
    actions.take_back_usage(actor=cast.ada, segments=list(wrong), reason="a test")
    assert [line.cost for line in lines_of(UsageReader(cast.bob, NOON, NOON + HOUR, cast.astro))] == [
        Decimal("4.5"),
        Decimal("0.5"),
        Decimal("0.6"),
    ]
    (one,) = taken_back(UsageReader(cast.bob, NOON, NOON + HOUR, cast.astro))
    assert (one.gpu_seconds, one.cost) == (7200, 5)


def test_a_price_that_changes_within_is_two_lines_of_the_time_of_each(cast: Cast) -> None:
    """Proves that a bill has separate lines for the time before and after each price change, even if the old price
    returns."""
    set_prices(cast, per_gpu_hour=3, borrowed=1)
    for at, price, borrowed in ((20, 4, 2), (40, 3, 1)):
        actions.set_price(
            actor=cast.ada,
            generation=cast.a100,
            per_gpu_hour=Decimal(price),
            borrowed=Decimal(borrowed),
            since=NOON + minutes(at),
        )
    book(cast, gpus=2, ends=NOON + HOUR)
    close_hours(cast, NOON, NOON + HOUR)
    price_all(TimeByClass({(cast.astro.pk, cast.a100.pk): Decimal(1800)}, {}, {}))
    lines = lines_of(UsageReader(cast.bob, NOON, NOON + HOUR, cast.astro))
    moments = [NOON + minutes(at) for at in (0, 20, 40, 60)]
    assert [(one.kind, one.begins, one.ends, one.price, one.gpu_seconds) for one in lines] == [
        line
        for begins, ends, owned, borrowed in zip(moments, moments[1:], (3, 4, 3), (1, 2, 1), strict=False)
        for line in (("owned", begins, ends, owned, 1800), ("borrowed", begins, ends, borrowed, 600))
    ]


def test_the_team_that_a_correction_bills_reads_of_it(cast: Cast) -> None:
    wrong = book(cast)
    payer = Payer(cast.bio, cast.charlie)
    actions.take_back_usage(actor=cast.ada, segments=wrong, reason="it was Bio's", payer=payer)
    told = [
        [
            (one.reason, one.actor, one.gpu_seconds, one.cost)
            for one in taken_back(UsageReader(viewer, NOON, NOON + HOUR, tenant))
        ]
        for viewer, tenant in ((cast.bob, cast.astro), (cast.charlie, cast.bio), (cast.charlie, cast.astro))
    ]
    assert told == [[("it was Bio's", "ada", 7200, 6)], [("it was Bio's", "ada", -7200, -6)], []]
    (half,) = taken_back(UsageReader(cast.charlie, NOON, NOON + minutes(15), cast.bio))
    assert (half.cost, half.currency) == (-3, "EUR")
    of_both = taken_back(UsageReader(cast.olga, NOON, NOON + HOUR, cast.uni))
    assert [one.cost for one in of_both] == [6, -6]


def test_a_correction_names_the_job_what_it_corrects_and_who_was_billed_instead(cast: Cast) -> None:
    wrong = book(cast, gpus=2) + book(cast, lease_id=2, job_id=8, job_name="sweep", generation=cast.v100)
    payer = Payer(cast.bio, cast.charlie)
    first, _ = actions.take_back_usage(actor=cast.ada, segments=wrong, reason="it was Bio's", payer=payer)
    of_both = taken_back(UsageReader(cast.olga, NOON, NOON + HOUR, cast.uni))
    booked_by = [(one.transaction_id, one.transaction_id) for one in wrong]
    assert [
        (one.correction, one.job_id, one.job, one.generation, one.corrects, one.team, one.counterpart)
        for one in of_both
    ] == [
        (first.pk, 7, "train", "A100", booked_by[0], "Astro", "Bio"),
        (first.pk, 7, "train", "A100", booked_by[0], "Bio", "Astro"),
        (first.pk, 8, "sweep", "V100", booked_by[1], "Astro", "Bio"),
        (first.pk, 8, "sweep", "V100", booked_by[1], "Bio", "Astro"),
    ]
    assert [one.cost for one in of_both] == [3, -3, Decimal("2.4"), Decimal("-2.4")]
    # A reader who may see only one of the two teams reads "another team" for the other.
    assert {one.counterpart for one in taken_back(UsageReader(cast.bob, NOON, NOON + HOUR, cast.astro))} == {
        "another team"
    }
    again = UsageSegment.objects.uncorrected().filter(job_id=8).select_related("generation")
    actions.take_back_usage(actor=cast.ada, segments=list(again), reason="a broken node")
    (latest, *_) = taken_back(UsageReader(cast.charlie, NOON, NOON + HOUR, cast.bio))
    assert (latest.reason, latest.counterpart, latest.cost) == ("a broken node", None, Decimal("2.4"))
