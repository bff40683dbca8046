"""Prices over time. Cuts usage at full hours and at price changes, and computes the cost of each piece."""

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
    """Represents the price of a GPU-hour, with the currency in which the price was set."""

    per_gpu_hour: Decimal
    currency: str


@dataclass(frozen=True, slots=True)
class PricePeriod:
    """Represents the interval in which a GPU-hour costs `rate`.

    If `begins` or `ends` is None, the interval has no such bound.
    """

    begins: datetime | None
    ends: datetime | None
    rate: Rate


@dataclass(frozen=True, slots=True)
class Tariff:
    """Represents the prices of one generation over time. Time without a valid price costs nothing."""

    periods: tuple[PricePeriod, ...] = ()

    def at(self, moment: datetime) -> Rate:
        for period in self.periods:
            begun = period.begins is None or period.begins <= moment
            if begun and (period.ends is None or moment < period.ends):
                return period.rate
        return Rate(Decimal(0), settings.FAIRLOT_CURRENCY)

    def cut(self, begins: datetime, ends: datetime) -> list[tuple[datetime, datetime, Rate]]:
        """Cuts [begins, ends) at full UTC hours and at price changes. Returns (start, end, rate) for each piece, in
        UTC."""
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
    """Returns the cost of `seconds` GPU-seconds, rounded to six decimals (half to even)."""
    with localcontext(prec=60):  # enough digits that only quantize() rounds
        return (seconds * per_gpu_hour / 3600).quantize(MICRO, ROUND_HALF_EVEN)


def tariffs_of(generation_ids: Iterable[int], begins: datetime, ends: datetime) -> Mapping[int, Tariff]:
    """Returns the Tariff of each generation, by generation id, with all prices that are valid at any time in [begins,
    ends)."""
    found: dict[int, list[PricePeriod]] = {pk: [] for pk in generation_ids}
    prices = Price.objects.filter(generation__in=list(found), valid__overlap=DateTimeTZRange(begins, ends))
    for generation, valid, price, currency in prices.values_list(
        "generation", "valid", "per_gpu_hour", "currency"
    ):
        found[generation].append(PricePeriod(valid.lower, valid.upper, Rate(price, currency)))
    return {pk: Tariff(tuple(periods)) for pk, periods in found.items()}


def prices_at(moment: datetime) -> Mapping[int, Decimal]:
    """Returns the price of a GPU-hour at `moment`, by generation id.

    Leaves out generations that have no price in Fairlot's present currency.
    """
    prices = Price.objects.filter(valid__contains=moment, currency=settings.FAIRLOT_CURRENCY)
    return dict(prices.values_list("generation", "per_gpu_hour"))
