"""Numbers and moments as people read them, in letters and on pages."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from functools import lru_cache

from accounting.tariff import MICRO


def exact(local: datetime) -> str:
    return f"{_day(local.date(), '%A, %-d %B %Y')}, {_clock(local)} {local.tzname()}"


def to_the_second(local: datetime) -> str:
    return f"{_day(local.date(), '%-d %b')} {_clock(local)}"


def _clock(local: datetime) -> str:
    """Hours, minutes and seconds; `strftime` takes several times as long."""
    return local.isoformat(timespec="seconds")[11:19]


@lru_cache(1024)  # what a page shows is of few days
def _day(day: date, form: str) -> str:
    return day.strftime(form)


def to_the_minute(local: datetime) -> str:
    return local.strftime("%-d %B %Y, %H:%M %Z")


@lru_cache(4096)  # a page has many zeros, and the next one has the same figures
def number(value: float) -> str:
    """Whole from 100 on, thousands separated; three digits from 1 on; three decimals below, but never a false 0."""
    size, sign = abs(value), "−" if value < 0 else ""
    if 0 < size < 0.0005:
        return "0" if sign else "<0.001"
    if size >= 100 or size == int(size):
        return f"{sign}{size:,.0f}".replace(",", " ")
    text = f"{size:.3g}" if size >= 1 else f"{size:.3f}"
    return sign + (text.rstrip("0").rstrip(".") if "." in text else text)


def in_millionths(amount: Decimal) -> Decimal:
    """As programs get it: all that the ledger counts, and nothing of what a division leaves behind that."""
    exponent = amount.as_tuple().exponent
    return amount.quantize(MICRO) if isinstance(exponent, int) and exponent < -6 else amount


def exact_number(value: Decimal) -> str:
    """All digits of a number, thousands separated as in `number`."""
    digits = f"{abs(value):,f}".replace(",", " ")
    if "." in digits:
        digits = digits.rstrip("0").rstrip(".")
    return f"−{digits}" if value < 0 and digits != "0" else digits
