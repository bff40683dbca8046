"""Database expressions for the part of a usage segment between two moments.

The expressions are exact: wherever a segment is cut, its parts sum to the whole segment. This is also true for costs,
although they are rounded. Let C(t) be the rounded cost from the start of the segment to the time t. The cost of the
part from t1 to t2 is C(t2) - C(t1).
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
    """Database expression for the first argument minus the second, in seconds and exact to the microsecond. Both are
    times."""

    template = "EXTRACT(EPOCH FROM (%(expressions)s))"
    arg_joiner = " - "
    output_field = _amount()


def moment(at: datetime) -> Value:
    return Value(at, output_field=DateTimeField())


def start_of(unit: str, at: Combinable, time_zone: str) -> Func:
    """Returns the expression for the start of the day or hour that contains `at` in `time_zone`.

    `unit`: "day" or "hour".
    """
    return Func(Value(unit), at, Value(time_zone), function="date_trunc", output_field=DateTimeField())


def latest(*moments: Combinable | None) -> Any:
    given = [at for at in moments if at is not None]
    return Greatest(*given) if len(given) > 1 else given[0]


def earliest(*moments: Combinable | None) -> Any:
    given = [at for at in moments if at is not None]
    return Least(*given) if len(given) > 1 else given[0]


def gpu_seconds_of_each(start: Combinable, end: Combinable) -> ExpressionWrapper[Any]:
    """Returns the expression for each segment's GPU-seconds from `start` to `end`. Both must lie within the segment."""
    return ExpressionWrapper(F("gpus") * Seconds(end, start), _amount())


def gpu_seconds_between(start: Combinable, end: Combinable) -> Coalesce:
    """Returns the expression for the sum of `gpu_seconds_of_each` over all rows; 0 if there are no rows."""
    return Coalesce(Sum(gpu_seconds_of_each(start, end)), Value(0), output_field=_amount())


def cost_of_each(start: Combinable, end: Combinable, *, of: str = "full_cost") -> ExpressionWrapper[Any]:
    """Returns the expression for each segment's cost from `start` to `end`.

    `of`: the column with the segment's cost:

    - "cost": the cost at the plain price.
    - "full_cost": the cost with class charges (differences due to prices for idle, preemptible or borrowed time). Only
      querysets from `UsageSegmentQuerySet.with_charges` have this column.
    """
    return ExpressionWrapper(_cost_until(end, of) - _cost_until(start, of), _amount())


def cost_between(start: Combinable, end: Combinable, *, of: str = "full_cost") -> Coalesce:
    """Returns the expression for the sum of `cost_of_each` over all rows; 0 if there are no rows."""
    return Coalesce(Sum(cost_of_each(start, end, of=of)), Value(0), output_field=_amount())


def part_of_each(name: str, start: Combinable, end: Combinable) -> Round:
    """Returns the expression for the part of a segment's amount that belongs to the time from `start` to `end`.

    `name`: the column with the amount of the whole segment, such as its idle GPU-seconds. Assumes that the amount is
    spread evenly over the segment.
    """
    share = F(name) * Seconds(end, start) / Seconds(UPPER, LOWER)
    return Round(ExpressionWrapper(share, _amount()), precision=6)


def _cost_until(at: Combinable, of: str) -> Round:
    share = F(of) * Seconds(at, LOWER) / Seconds(UPPER, LOWER)
    return Round(ExpressionWrapper(share, _amount()), precision=6)
