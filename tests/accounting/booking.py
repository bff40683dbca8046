"""Books usage of the cast in one line."""

from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import transaction

from accounting.ledger import book_usage
from accounting.models import UsageSegment
from tests.make import Cast

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)


def minutes(count: float) -> timedelta:
    return timedelta(minutes=count)


def usage(cast: Cast, **changes: Any) -> dict[str, Any]:
    """Half an hour of four A100 for Bob of Astro, from noon on, unless told otherwise."""
    usual = {
        "lease_id": 1,
        "job_id": 7,
        "job_name": "train",
        "tenant": cast.astro,
        "user": cast.bob,
        "generation": cast.a100,
        "gpus": 4,
        "begins": NOON,
        "ends": NOON + minutes(30),
    }
    return usual | changes


def book(cast: Cast, **changes: Any) -> list[UsageSegment]:
    with transaction.atomic():
        return book_usage(**usage(cast, **changes))
