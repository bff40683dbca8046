"""Tests of closings: classes sum to the capacity, and amounts of money sum to the value of the capacity."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal

import pytest
from django.db import IntegrityError, connection, transaction
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange
from django.db.models import Sum
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accounting.actions import set_price
from accounting.closing.gpu_classes import NAMES, Allocation, Availability, Condition
from accounting.closing.hours import NodeHistory, close_hour, open_book
from accounting.core.calendar import first_of_month
from accounting.core.errors import BookedOtherwise, Refused
from accounting.ledger import Payer, Usage, book_usage, correct_usage
from accounting.models import (
    CapacitySegment,
    ClosedBook,
    JobDay,
    LedgerEntry,
    LedgerTransaction,
    NodeHour,
    Price,
    UsageHour,
    UsageSegment,
)
from tests.accounting.booking import NOON, book, minutes, usage
from tests.make import Cast

HOUR = timedelta(hours=1)
MINUTE = 60_000_000  # microseconds


def story(cast: Cast, *allocations: Allocation, gpus: int = 8, **changes: object) -> NodeHistory:
    """Returns the history of one node in an hour. By default the node has eight A100, and its condition does not
    change."""
    usual = {"since": -1, "generation": cast.a100.pk, "gpus": gpus, "availability": Availability.READY}
    return NodeHistory(5, "node", [Condition(**(usual | changes))], allocations)  # type: ignore[arg-type]


def held(
    cast: Cast, *, gpus: int, begins: float = 0, ends: float = 60, assembled: float | None = 0
) -> Allocation:
    at = None if assembled is None else round(assembled * MINUTE)
    return Allocation(cast.a100.pk, gpus, round(begins * MINUTE), round(ends * MINUTE), at)


def close(hour: datetime, *nodes: NodeHistory) -> LedgerTransaction | None:
    with transaction.atomic():
        open_book(book=1, since=NOON)
        return close_hour(book=1, hour=hour, nodes=nodes)


def amounts(**of_account: object) -> dict[str, Decimal]:
    rows = LedgerEntry.objects.filter(**{f"account__{k}": v for k, v in of_account.items()})
    sums = rows.values_list("account__kind", "account__unit").annotate(Sum("amount"))
    return {f"{kind} {unit}": total for kind, unit, total in sums if total}


def test_what_nobody_held_is_booked_with_its_worth(cast: Cast) -> None:
    book(cast, gpus=4, ends=NOON + minutes(30), running_from=NOON + minutes(6))
    close(NOON, story(cast, held(cast, gpus=4, ends=30, assembled=6), others=1, failed=1))
    segment = CapacitySegment.objects.get()
    hours = {
        name: getattr(segment, name) / 3600
        for name in ("assembling", "busy", "others", "down", "free", "capacity")
    }
    assert hours == {
        "assembling": Decimal("0.4"), "busy": Decimal("1.6"), "others": 1, "down": 1, "free": 4, "capacity": 8,
    }  # fmt: skip
    assert (segment.charged, segment.free_value, segment.value, segment.rounding) == (6, 12, 24, 0)
    assert amounts() == {
        "usage GPU-s A100": 7200, "free GPU-s A100": 14400, "others GPU-s A100": 3600, "down GPU-s A100": 3600,
        "installed GPU-s A100": -8 * 3600,
        "cost EUR": 6, "free EUR": 12, "others EUR": 3, "down EUR": 3, "revenue EUR": -24,
    }  # fmt: skip
    node = NodeHour.objects.get()
    assert (node.node_name, node.free, node.down) == ("node", segment.free, segment.down)


def test_rounding_that_many_small_bills_leave_is_a_line_of_its_own(cast: Cast) -> None:
    """Proves that a closing shows the sum of many small rounding differences in a separate field.

    Each of twelve leases of five minutes costs slightly more than 0.003333 EUR, and is billed 0.003333 EUR.
    """
    Price.objects.filter(generation=cast.a100).update(per_gpu_hour=Decimal("0.040001"))
    pieces = [(5 * part, 5 * part + 5) for part in range(12)]
    for lease, (begins, ends) in enumerate(pieces):
        book(cast, lease_id=lease, gpus=1, begins=NOON + minutes(begins), ends=NOON + minutes(ends))
    close(NOON, story(cast, *(held(cast, gpus=1, begins=b, ends=e) for b, e in pieces), gpus=1))
    segment = CapacitySegment.objects.get()
    assert (segment.value, segment.charged) == (Decimal("0.040001"), 12 * Decimal("0.003333"))
    assert segment.rounding == Decimal("0.000005")
    assert amounts(kind="revenue") == {"revenue EUR": -segment.value}


def test_an_hour_in_which_everything_was_held_and_nothing_cost_anything_closes(cast: Cast) -> None:
    Price.objects.filter(generation=cast.a100).delete()
    book(cast, gpus=8, ends=NOON + HOUR)
    close(NOON, story(cast, held(cast, gpus=8)))
    assert amounts() == {"usage GPU-s A100": 8 * 3600, "installed GPU-s A100": -8 * 3600}


def test_a_change_of_price_cuts_the_hour(cast: Cast) -> None:
    Price.objects.filter(generation=cast.a100).delete()
    change = NOON + minutes(15)
    for valid, price in (((None, change), 3), ((change, None), 4)):
        Price.objects.create(generation=cast.a100, per_gpu_hour=price, valid=DateTimeTZRange(*valid))
    book(cast, gpus=8, ends=NOON + HOUR)
    close(NOON, story(cast, held(cast, gpus=8)))
    told = CapacitySegment.objects.order_by("period").values_list("capacity", "price_per_gpu_hour", "value")
    assert list(told) == [(8 * 900, 3, 6), (8 * 2700, 4, 24)]
    assert NodeHour.objects.get().busy == 8 * 3600


@pytest.mark.parametrize(
    "wrong",
    [
        lambda cast: held(cast, gpus=4, ends=31),
        lambda cast: held(cast, gpus=3, ends=30),
        lambda cast: held(cast, gpus=4, ends=30, assembled=1),
    ],
)
def test_an_hour_whose_billed_time_is_not_what_was_held_is_not_closed(
    cast: Cast, wrong: Callable[[Cast], Allocation]
) -> None:
    book(cast)
    with pytest.raises(BookedOtherwise, match="not what was billed"):
        close(NOON, story(cast, wrong(cast)))
    assert not LedgerTransaction.objects.filter(kind="closing").exists()


def test_hours_are_closed_once_and_in_order(cast: Cast) -> None:
    close(NOON, story(cast))
    for hour in (NOON, NOON + 2 * HOUR, NOON - HOUR):
        with pytest.raises(BookedOtherwise, match="the next hour"):
            close(hour, story(cast))
    close(NOON + HOUR)  # without nodes, nothing is booked
    assert ClosedBook.objects.get().until == NOON + 2 * HOUR
    assert LedgerTransaction.objects.count() == 1


def test_nothing_is_billed_in_a_closed_hour_and_its_price_stays(cast: Cast) -> None:
    close(NOON, story(cast))
    with pytest.raises(BookedOtherwise), transaction.atomic():
        book(cast)
    with pytest.raises(Refused, match="billed until 2026-05-04 13:00"):
        set_price(actor=cast.ada, generation=cast.a100, per_gpu_hour=Decimal(9), since=NOON + minutes(30))
    book(cast, begins=NOON + HOUR, ends=NOON + minutes(70))


def forged(cast: Cast, **changes: object) -> None:
    segment = CapacitySegment.objects.get()
    for name, value in ({"pk": None, "book": 2} | changes).items():
        setattr(segment, name, value)
    segment.transaction = LedgerTransaction.objects.create(
        book=2, month=segment.month, key="forged", kind="closing", period=segment.period, description=""
    )
    segment.save(force_insert=True)
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"capacity": Decimal("28800.000001")}, "classes_sum_to_capacity"),
        ({"free": Decimal(-1), "capacity": Decimal(-1)}, "check constraint"),
        ({"rounding": Decimal("0.0001")}, "worths_sum_to_the_value"),
        ({"value": Decimal(25), "free_value": Decimal(25)}, "capacity_is_worth_its_price"),
        (
            {
                "busy": Decimal(3600),
                "free": Decimal(7 * 3600),
                "free_value": Decimal(21),
                "rounding": Decimal(3),
            },
            "not what was billed",
        ),
        ({}, "has no entries"),
    ],
)
def test_the_database_refuses_a_closing_that_does_not_close(
    cast: Cast, changes: dict[str, Decimal], why: str
) -> None:
    close(NOON, story(cast))
    with pytest.raises(IntegrityError, match=why), transaction.atomic():
        forged(cast, **changes)


def test_no_hour_passes_as_closed_while_something_is_missing_of_it(cast: Cast) -> None:
    """Proves that an hour cannot be marked as closed while usage that was billed in it is missing from its closing."""
    book(cast)
    book(cast, lease_id=2, generation=cast.v100)
    with pytest.raises(BookedOtherwise, match="not what was billed"):
        close(NOON, story(cast, held(cast, gpus=4, ends=30)))
    assert not LedgerTransaction.objects.filter(kind="closing").exists()
    with transaction.atomic():
        open_book(book=1, since=NOON)
    # Constraints on the rows of a closing cannot find a missing row, so the marking itself looks for one.
    with pytest.raises(IntegrityError, match="not what was billed"), transaction.atomic():
        ClosedBook.objects.update(until=NOON + HOUR)


def test_no_hour_passes_as_closed_of_which_the_nodes_sum_to_something_else(cast: Cast) -> None:
    NodeHour.objects.create(
        book=1, month=first_of_month(NOON), hour=NOON, node_id=9, node_name="forged", generation=cast.a100,
        **dict.fromkeys(NAMES, Decimal(0)) | {"free": Decimal("0.000001")},
    )  # fmt: skip
    with pytest.raises(BookedOtherwise, match="the nodes do not sum"):
        close(NOON, story(cast))
    assert not ClosedBook.objects.filter(until__gt=NOON).exists()


def test_corrections_in_closed_hours_change_what_tenants_pay_and_nothing_else(cast: Cast) -> None:
    segments = book(cast)
    close(NOON, story(cast, held(cast, gpus=4, ends=30)))
    before = amounts(tenant=None)
    with transaction.atomic():
        correct_usage(actor=cast.ada, segments=segments, reason="theirs", payer=Payer(cast.bio, cast.charlie))
    assert amounts(tenant=None) == before
    assert amounts(tenant=cast.bio) == {"usage GPU-s A100": 7200, "cost EUR": 6}
    sums = (
        UsageHour.objects.values_list("tenant__name")
        .annotate(Sum("cost"), Sum("segments"))
        .order_by("tenant")
    )
    assert list(sums) == [("Astro", 0, 0), ("Bio", 6, 1)]
    with transaction.atomic():
        anew = UsageSegment.objects.uncorrected().select_related("generation")
        correct_usage(actor=cast.ada, segments=list(anew), reason="nobody's")
    assert amounts(tenant=None) == before | {"waived GPU-s A100": 7200, "waived EUR": 6}
    assert UsageHour.objects.aggregate(Sum("cost"))["cost__sum"] == 0


def test_a_day_is_summed_by_job_when_its_last_hour_is_closed(cast: Cast) -> None:
    midnight = NOON.replace(hour=0)
    with transaction.atomic():
        open_book(book=1, since=midnight)
    segments = book(cast)
    book(cast, lease_id=2, begins=NOON + HOUR, ends=NOON + HOUR + minutes(30))
    book(cast, lease_id=3, job_id=8, begins=NOON + 13 * HOUR, ends=NOON + 14 * HOUR)
    allocations = {NOON: held(cast, gpus=4, ends=30), NOON + HOUR: held(cast, gpus=4, ends=30)}
    for count in range(24):
        hour = midnight + count * HOUR
        assert not JobDay.objects.exists()
        close(hour, story(cast, *([allocations[hour]] if hour in allocations else [])))
    day = JobDay.objects.get()
    assert (day.hour, day.job_id, day.gpu_seconds, day.cost, day.segments) == (midnight, 7, 14400, 12, 2)
    with transaction.atomic():
        correct_usage(actor=cast.ada, segments=segments, reason="a mistake")
    assert JobDay.objects.aggregate(Sum("gpu_seconds"))["gpu_seconds__sum"] == 7200


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[int, int, int, int, int]]:
    """Draws leases of two teams. The leases of one team never overlap.

    Each lease is (index of the team, GPUs from 1 to 4, begin of the lease, start of its program, end of the lease). The
    times are in seconds after noon. A start after the end means that the program never ran.
    """
    found = []
    for slot in (0, 1):
        edges = sorted(draw(st.sets(st.integers(0, 2 * 3600), max_size=8)))
        for begins, ends in zip(edges[::2], edges[1::2], strict=False):
            found.append((slot, draw(st.integers(1, 4)), begins, draw(st.integers(begins, ends + 60)), ends))
    return found


@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(histories(), st.decimals(0, 9, places=6), st.lists(st.integers(0, 11), max_size=3))
def test_whatever_was_held_the_books_close(
    cast: Cast, leases: list[tuple[int, int, int, int, int]], price: Decimal, corrected: list[int]
) -> None:
    with transaction.atomic():
        Price.objects.filter(generation=cast.a100).update(per_gpu_hour=price)
        usages = [
            Usage(
                **usage(
                    cast, lease_id=number, gpus=gpus, begins=NOON + timedelta(seconds=begins),
                    ends=NOON + timedelta(seconds=ends), running_from=NOON + timedelta(seconds=starts),
                    tenant=(cast.astro, cast.bio)[slot], user=(cast.bob, cast.charlie)[slot],
                )
            )
            for number, (slot, gpus, begins, starts, ends) in enumerate(leases)
        ]  # fmt: skip
        segments = book_usage(usages)
        for count in (0, 1):
            if count and segments:
                some = [segments[at % len(segments)] for at in set(corrected)]
                some = list({one.pk: one for one in some}.values())
                if some:
                    correct_usage(actor=None, segments=some, reason="a test")
            shift = -3600 * count
            close(
                NOON + count * HOUR,
                story(
                    cast,
                    *(
                        held(
                            cast, gpus=gpus, begins=(begins + shift) / 60, ends=(ends + shift) / 60,
                            assembled=(starts + shift) / 60,
                        )
                        for _, gpus, begins, starts, ends in leases
                    ),
                ),
            )  # fmt: skip
        assert amounts(kind="capacity") == {}
        assert amounts(kind="installed") == {"installed GPU-s A100": -2 * 8 * 3600}
        value = CapacitySegment.objects.aggregate(Sum("value"))["value__sum"]
        assert amounts(kind="revenue").get("revenue EUR", 0) == -value
        money = {k: v for k, v in amounts().items() if k.endswith("EUR")}
        assert sum(money.values()) == 0
        stands = UsageSegment.objects.uncorrected().aggregate(Sum("cost"))["cost__sum"] or 0
        assert (UsageHour.objects.aggregate(Sum("cost"))["cost__sum"] or 0) == stands
        transaction.set_rollback(True)
