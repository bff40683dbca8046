"""Helpers for tests: each books usage or a trade, or closes or settles hours, in one line."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from django.db import transaction

from accounting.closing.class_prices import TimeByClass, next_hour_to_price, price_hour
from accounting.closing.gpu_classes import Allocation, Availability, Condition
from accounting.closing.hours import NodeHistory, close_hour, open_book
from accounting.core.calendar import first_of_month
from accounting.ledger import TradedTime, Usage, book_trades, book_usage
from accounting.models import LedgerTransaction, UsageSegment
from tests.make import LONG_AGO, Cast

HOUR = timedelta(hours=1)
NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
NOTHING = TimeByClass({}, {}, {})


def minutes(count: float) -> timedelta:
    return timedelta(minutes=count)


def usage(cast: Cast, **changes: Any) -> dict[str, Any]:
    """Returns arguments for Usage. By default, Bob of team Astro uses four A100 from noon for half an hour; `changes`
    replaces arguments."""
    usual = {
        "book": 1,
        "lease_id": 1,
        "job_id": 7,
        "job_name": "train",
        "tenant": cast.astro,
        "user": cast.bob,
        "generation": cast.a100,
        "gpus": 4,
        "begins": NOON,
        "ends": NOON + minutes(30),
        "running_from": LONG_AGO,
    }
    return usual | changes


def book(cast: Cast, **changes: Any) -> list[UsageSegment]:
    with transaction.atomic():
        return book_usage([Usage(**usage(cast, **changes))])


def traded(cast: Cast, **changes: object) -> TradedTime:
    """Returns a trade of one minute from noon: team Astro gives 1 A100 for 2.5 V100 of team Bio. `changes` replaces
    fields."""
    usual = {
        "book": 1, "key": "trade:1", "seller": cast.astro, "buyer": cast.bio, "slow": cast.v100, "fast": cast.a100,
        "fast_gpu_seconds": Decimal(60), "slow_gpu_seconds": Decimal("150.0000004"), "begins": NOON,
        "ends": NOON + minutes(1), "description": "Astro gave 1 A100 for 2.5 V100 of Bio",
    }  # fmt: skip
    return TradedTime(**(usual | changes))  # type: ignore[arg-type]


def trade(cast: Cast, **changes: object) -> LedgerTransaction:
    with transaction.atomic():
        (booked,) = book_trades([traded(cast, **changes)])
    return booked


def close_hours(cast: Cast, first: datetime, last: datetime, *, book: int = 1) -> None:
    """Closes the hours from `first` up to but not including `last`. The booked usage counts as the use of one node with
    a thousand A100."""
    micro = timedelta(microseconds=1)
    with transaction.atomic():
        open_book(book=book, since=first)
        for count in range((last - first) // HOUR):
            hour = first + count * HOUR
            held = UsageSegment.objects.filter(
                book=book,
                month=first_of_month(hour),
                version=0,
                period__startswith__gte=hour,
                period__startswith__lt=hour + HOUR,
            )
            allocations = []
            for one in held:
                begins = (one.period.lower - hour) // micro
                assembled = begins + int(one.assembling / one.gpus * 10**6)
                allocation = Allocation(
                    generation=one.generation_id,
                    gpus=one.gpus,
                    begins=begins,
                    ends=(one.period.upper - hour) // micro,
                    assembled=assembled,
                    unused=[(assembled, assembled + int(one.idle / one.gpus * 10**6))],
                )
                allocations.append(allocation)
            condition = Condition(-1, cast.a100.pk, 1000, Availability.READY)
            close_hour(book=book, hour=hour, nodes=[NodeHistory(1, "node", [condition], allocations)])


def settle_hours(how: TimeByClass = NOTHING, *, book: int = 1) -> None:
    """Books the class charges of all closed hours that are not settled yet.

    Class charges are differences in cost, because idle, preemptible and borrowed time have their own prices. `how`:
    which time was idle, preemptible or borrowed.
    """
    with transaction.atomic():
        while hour := next_hour_to_price(book=book):
            price_hour(book=book, hour=hour, how=how)
