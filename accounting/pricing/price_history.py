"""The history of prices, with the user who set each price."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from accounting.core.name_order import by_name
from accounting.models import Price


@dataclass(frozen=True, slots=True)
class PriceLine:
    """Represents a price of one generation, valid from `since` to `until` (None: still valid).

    - `idle`, `preemptible`, `borrowed`: the class prices; None if the class costs the plain price.
    - `before`: the previous plain price; None for the first price and after a change of the currency.
    - `set_by`, `set_at`: empty and None for prices that an early release stored without them.
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
    """Returns the prices that were valid at any time in [begins, ends), sorted by generation and time. Makes one
    query."""
    prices = Price.objects.select_related("generation", "set_by").order_by(
        *by_name("generation__name"), "valid"
    )
    lines: list[PriceLine] = []
    last: dict[str, Price] = {}
    for price in prices:
        name, since = price.generation.name, price.valid.lower
        before, last[name] = last.get(name), price
        if since < ends and (price.valid.upper is None or price.valid.upper > begins):
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
                    set_by=_set_by(price),
                    set_at=price.set_at,
                )
            )
    return lines


def _set_by(price: Price) -> str:
    if price.set_by is not None:
        return price.set_by.get_username()
    return "" if price.set_at is None else "Fairlot"
