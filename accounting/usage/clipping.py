"""Database expressions for the part of a usage segment between two moments.

They are exact: the parts of a segment, however it is cut, sum to the whole. Money is rounded on its running total
since the segment began, so that a later part gets what an earlier one left.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db.models import DateTimeField, DecimalField, ExpressionWrapper, F, Func, Sum, Value
from django.db.models.expressions import Combinable
from django.db.models.functions import Coalesce, Greatest, Least, Round

LOWER, UPPER = F("period__startswith"), F("period__endswith")


def _amount() -> DecimalField[Any, Any]:
    return DecimalField(max_digits=24, decimal_places=6)


class Seconds(Func):
    """The seconds from the second moment to the first, to the microsecond."""

    template = "EXTRACT(EPOCH FROM (%(expressions)s))"
    arg_joiner = " - "
    output_field = _amount()


def moment(at: datetime) -> Value:
    return Value(at, output_field=DateTimeField())


def start_of(unit: str, at: Combinable, time_zone: str) -> Func:
    """Returns when the "day" or "hour" of `at` began in `time_zone`."""
    return Func(Value(unit), at, Value(time_zone), function="date_trunc", output_field=DateTimeField())


def latest(*moments: Combinable | None) -> Any:
    given = [at for at in moments if at is not None]
    return Greatest(*given) if len(given) > 1 else given[0]


def earliest(*moments: Combinable | None) -> Any:
    given = [at for at in moments if at is not None]
    return Least(*given) if len(given) > 1 else given[0]


def gpu_seconds_of_each(start: Combinable, end: Combinable) -> ExpressionWrapper[Any]:
    """Returns the GPU-seconds of each segment from `start` to `end`, both of which must lie in it."""
    return ExpressionWrapper(F("gpus") * Seconds(end, start), _amount())


def gpu_seconds_between(start: Combinable, end: Combinable) -> Coalesce:
    """Returns the sum of `gpu_seconds_of_each`."""
    return Coalesce(Sum(gpu_seconds_of_each(start, end)), Value(0), output_field=_amount())


def cost_of_each(start: Combinable, end: Combinable, *, of: str = "full_cost") -> ExpressionWrapper[Any]:
    """Returns the cost of each segment from `start` to `end`; `of` "full_cost" needs segments `with_charges`.

    `of` "cost" is the cost without charges.
    """
    return ExpressionWrapper(_cost_until(end, of) - _cost_until(start, of), _amount())


def cost_between(start: Combinable, end: Combinable, *, of: str = "full_cost") -> Coalesce:
    """Returns the sum of `cost_of_each`."""
    return Coalesce(Sum(cost_of_each(start, end, of=of)), Value(0), output_field=_amount())


def part_of_each(name: str, start: Combinable, end: Combinable) -> Round:
    """Returns the part of an amount between `start` and `end`, as if it were evenly spread over the segment."""
    share = F(name) * Seconds(end, start) / Seconds(UPPER, LOWER)
    return Round(ExpressionWrapper(share, _amount()), precision=6)


def _cost_until(at: Combinable, of: str) -> Round:
    share = F(of) * Seconds(at, LOWER) / Seconds(UPPER, LOWER)
    return Round(ExpressionWrapper(share, _amount()), precision=6)
