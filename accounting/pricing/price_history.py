"""What GPU-hours cost from when to when, and who said so."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from accounting.core.name_order import by_name
from accounting.models import AuditEvent, Price


@dataclass(frozen=True, slots=True)
class PriceLine:
    """`until` None: until another one is set. Who set it is empty where the audit trail does not say.

    What time of a class costs is None where it costs the same. All is in `currency`; so is `before`, which is None
    where the price before it was in another one.
    """

    generation: str
    since: datetime
    until: datetime | None
    per_gpu_hour: Decimal
    before: Decimal | None
    idle: Decimal | None
    preemptible: Decimal | None
    borrowed: Decimal | None
    currency: str
    set_by: str
    set_at: datetime | None


def price_history(begins: datetime, ends: datetime) -> list[PriceLine]:
    """Prices that hold at any moment of the period, by generation and time. Two queries."""
    prices = Price.objects.select_related("generation").order_by(*by_name("generation__name"), "valid")
    told = _told()
    lines: list[PriceLine] = []
    last: dict[str, Price] = {}
    for price in prices:
        name, since = price.generation.name, price.valid.lower
        before, last[name] = last.get(name), price
        if since < ends and (price.valid.upper is None or price.valid.upper > begins):
            who, at = told.get((str(price.generation_id), _key(since)), ("", None))
            lines.append(
                PriceLine(
                    generation=name,
                    since=since,
                    until=price.valid.upper,
                    per_gpu_hour=price.per_gpu_hour,
                    before=before.per_gpu_hour if before and before.currency == price.currency else None,
                    idle=price.idle,
                    preemptible=price.preemptible,
                    borrowed=price.borrowed,
                    currency=price.currency,
                    set_by=who,
                    set_at=at,
                )
            )
    return lines


def _told() -> dict[tuple[str, datetime], tuple[str, datetime]]:
    """Who set the price of a generation that begins at a moment, and when; the last who did."""
    events = AuditEvent.objects.filter(verb="price.set", target_type="generation").order_by("id")
    return {
        (target, _key(datetime.fromisoformat(after["since"]))): (who, at)
        for target, after, who, at in events.values_list("target_id", "after", "actor_name", "at")
        if after.get("since")
    }


def _key(moment: datetime) -> datetime:
    """The audit trail keeps moments to the millisecond."""
    return moment - timedelta(microseconds=moment.microsecond % 1000)
