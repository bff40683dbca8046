"""Prices over time: where to cut usage, and the cost of each piece."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import ROUND_HALF_EVEN, Decimal, localcontext
from itertools import pairwise
from typing import NamedTuple

from django.conf import settings
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

from accounting.core.calendar import HOUR, MICROSECOND
from accounting.core.numbers import MICRO
from accounting.models import Price


class Rate(NamedTuple):
    """The price of a GPU-hour, with the currency in which it was set."""

    per_gpu_hour: Decimal
    currency: str


@dataclass(frozen=True, slots=True)
class PricePeriod:
    """The interval in which a GPU-hour costs `rate`. `begins` None means no start, and `ends` None no end yet."""

    begins: datetime | None
    ends: datetime | None
    rate: Rate


@dataclass(frozen=True, slots=True)
class Tariff:
    """The prices of one generation; time without a valid price is free."""

    periods: tuple[PricePeriod, ...] = ()

    def at(self, moment: datetime) -> Rate:
        for period in self.periods:
            begun = period.begins is None or period.begins <= moment
            if begun and (period.ends is None or moment < period.ends):
                return period.rate
        return Rate(Decimal(0), settings.FAIRLOT_CURRENCY)

    def cut(self, begins: datetime, ends: datetime) -> list[tuple[datetime, datetime, Rate]]:
        """Returns [begins, ends) in UTC as (start, end, rate) pieces, each within one full hour and with one price."""
        begins, ends = begins.astimezone(UTC), ends.astimezone(UTC)
        cuts = {begins, ends}
        hour = begins.replace(minute=0, second=0, microsecond=0) + HOUR
        while hour < ends:
            cuts.add(hour)
            hour += HOUR
        changes = {edge.astimezone(UTC) for p in self.periods for edge in (p.begins, p.ends) if edge}
        cuts |= {change for change in changes if begins < change < ends}
        return [(start, end, self.at(start)) for start, end in pairwise(sorted(cuts))]


def gpu_seconds(gpus: int, begins: datetime, ends: datetime) -> Decimal:
    """Returns the GPU-seconds of `gpus` GPUs from `begins` to `ends`, exact to the microsecond."""
    return Decimal(gpus * ((ends - begins) // MICROSECOND)).scaleb(-6)


def cost_of(seconds: Decimal, per_gpu_hour: Decimal) -> Decimal:
    """Returns the cost of GPU-seconds, rounded half to even to six decimals."""
    with localcontext(prec=60):  # enough digits that only quantize() rounds
        return (seconds * per_gpu_hour / 3600).quantize(MICRO, ROUND_HALF_EVEN)


def tariffs_of(generation_ids: Iterable[int], begins: datetime, ends: datetime) -> Mapping[int, Tariff]:
    """Returns, by generation id, the tariff with the prices valid at any time in [begins, ends)."""
    found: dict[int, list[PricePeriod]] = {pk: [] for pk in generation_ids}
    prices = Price.objects.filter(generation__in=list(found), valid__overlap=DateTimeTZRange(begins, ends))
    for price in prices:
        found[price.generation_id].append(
            PricePeriod(price.valid.lower, price.valid.upper, Rate(price.per_gpu_hour, price.currency))
        )
    return {pk: Tariff(tuple(periods)) for pk, periods in found.items()}


def prices_at(moment: datetime) -> Mapping[int, Decimal]:
    """Returns the price of a GPU-hour at `moment`, by generation id.

    Leaves out generations without a price in Fairlot's present currency.
    """
    prices = Price.objects.filter(valid__contains=moment, currency=settings.FAIRLOT_CURRENCY)
    return dict(prices.values_list("generation", "per_gpu_hour"))
