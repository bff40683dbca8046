"""Formats numbers, times and durations for people, in mails and on pages."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import date, datetime
from decimal import ROUND_HALF_UP, Decimal
from functools import lru_cache
from math import isfinite

from accounting.core.numbers import MICRO


def exact(local: datetime) -> str:
    return f"{_day(local.date(), '%A, %-d %B %Y')}, {_clock(local)} {local.tzname()}"


def to_the_second(local: datetime, now: datetime) -> str:
    """Returns a local time such as "3 Feb 14:05:09". Includes the year if it differs from the year of `now`."""
    form = "%-d %b" if local.year == now.astimezone(local.tzinfo).year else "%-d %b %Y"
    return f"{_day(local.date(), form)} {_clock(local)}"


def _clock(local: datetime) -> str:
    # several times faster than `strftime`
    return local.isoformat(timespec="seconds")[11:19]


@lru_cache(1024)  # a page shows times of few different days
def _day(day: date, form: str) -> str:
    return day.strftime(form)


def to_the_minute(local: datetime) -> str:
    return local.strftime("%-d %B %Y, %H:%M %Z")


def shown(value: object) -> str:
    """Returns a value as JSON for an error message, cut after 40 characters."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:40]}…"


def unknown_choice(what: str, value: str, choices: Iterable[str]) -> str:
    """Returns the error message for a value that is not one of `choices`. `what` is the name of the setting or field.

    The message shows at most 40 characters of the value.
    """
    return f'Unknown {what} "{value!s:.40}". Choose one of: {", ".join(choices)}.'


NO_NUMBER = "–"  # shown for infinity and not-a-number
# A no-break space separates thousands, and a number from its unit.
SPACE = "\N{NO-BREAK SPACE}"


def counted(count: int, noun: str) -> str:
    """Returns a number with its noun: "1 GPU", or "3 GPUs" with an "s" added to the noun."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


@lru_cache(4096)  # a page has many zeros, and the next page shows the same numbers
def number(value: float) -> str:
    """Formats a number for people, with about three digits.

    Numbers from 100 on are rounded to whole numbers. Numbers from 1 to 100 get three significant digits, and numbers
    below 1 get three decimals. Values very close to 0 become "<0.001" or ">−0.001", and infinite or NaN values become
    "–".
    """
    if not isfinite(value):
        return NO_NUMBER
    size, sign = abs(value), "−" if value < 0 else ""
    if 0 < size < 0.0005:
        return ">−0.001" if sign else "<0.001"
    if size >= 100 or size == int(size):
        return fixed(value)
    text = f"{size:.3g}" if size >= 1 else f"{size:.3f}"
    return sign + (text.rstrip("0").rstrip(".") if "." in text else text)


def fixed(value: float | Decimal, digits: int = 0) -> str:
    """Formats a number with `digits` decimals and with spaces between thousands.

    A value that rounds to zero gets no sign.
    """
    text = f"{abs(value):,.{digits}f}".replace(",", SPACE)
    return f"−{text}" if value < 0 and text.strip("0.") else text


def exact_number(value: Decimal) -> str:
    """Formats a number with all its digits except trailing zeros, and with spaces between thousands."""
    text = f"{abs(value):,f}".replace(",", SPACE)
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return f"−{text}" if value < 0 and text != "0" else text


def percent(part: float) -> str:
    """Formats a fraction as a percentage: 0.834 becomes "83 %". Percentages below 10 % get two significant digits."""
    if not isfinite(part):
        return NO_NUMBER
    value = Decimal(f"{part * 100:.6f}")
    if 0 < abs(value) < 10:
        return f"{f'{value:.2g}'.replace('-', '−')}{SPACE}%"
    return f"{fixed(value.quantize(Decimal(1), ROUND_HALF_UP))}{SPACE}%"


def duration(seconds: float) -> str:
    """Formats seconds as "1 d 4 h", "2 h 05 min", "3 min 20 s" or "12 s"."""
    whole = max(int(seconds), 0)
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes:02} min" if minutes else f"{hours} h"
    if minutes:
        return f"{minutes} min {whole % 60:02} s" if whole % 60 else f"{minutes} min"
    return f"{whole} s"


def data_size(size: int) -> str:
    """Formats a number of bytes as "312 bytes", "4.5 KiB" or "1.2 TiB"."""
    if size < 1024:
        return f"{size}{SPACE}{'byte' if size == 1 else 'bytes'}"
    value, units = float(size), iter(("KiB", "MiB", "GiB", "TiB", "PiB", "EiB"))
    unit = ""
    while value >= 1023.5:
        value, unit = value / 1024, next(units)
    return f"{fixed(value, 0 if value >= 99.95 else 1)}{SPACE}{unit}"


def in_millionths(amount: Decimal) -> Decimal:
    """Rounds an amount to millionths, the smallest unit of the ledger, for machine-readable output.

    Amounts with fewer decimals are returned unchanged.
    """
    exponent = amount.as_tuple().exponent
    return amount.quantize(MICRO) if isinstance(exponent, int) and exponent < -6 else amount
