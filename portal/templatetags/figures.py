"""Figures of shares, trades and reports."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import ROUND_HALF_UP, Decimal

from django import template

from portal import wording

register = template.Library()

SPACE = "\u00a0"


@register.filter
def percent(part: float | None) -> str:
    """0.834 as "83 %"; two digits below 10 %."""
    if part is None:
        return "–"
    value = Decimal(f"{part * 100:.6f}")
    if 0 < abs(value) < 10:
        return f"{value:.2g}{SPACE}%"
    return f"{value.quantize(Decimal(1), ROUND_HALF_UP):,}{SPACE}%".replace(",", SPACE)


@register.filter
def gpu_hours(gpu_seconds: float | Decimal | None) -> str:
    """GPU-seconds as a plain number of GPU-hours, for tables whose head names the unit."""
    return "–" if gpu_seconds is None else wording.number(float(gpu_seconds) / 3600)


@register.filter
def item(mapping: Mapping[str, object], key: str) -> object:
    """What a mapping has under a key that a variable names."""
    return mapping[key]


@register.filter
def absolute(value: float | Decimal) -> float | Decimal:
    return abs(value)


@register.filter
def hundredfold(part: float) -> str:
    """0.05 as "5", for a field in per cent."""
    return f"{part * 100:g}"
