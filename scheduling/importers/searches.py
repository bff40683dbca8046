"""What searches of other systems have in common: which values they try, how many, and what they compare."""

from __future__ import annotations

import math
from typing import Any

from scheduling.importers.documents import shown
from scheduling.importers.report import Fate, Report
from scheduling.spec.members import LARGEST, why_no_metric

DIGITS = 12  # significant digits of computed values
NO_EARLY_END = "Fairlot draws all values at random, and ends no member early."


def spaced(low: float, high: float, count: int) -> list[float]:
    """Returns `count` numbers at equal distances from `low` to `high`."""
    if count == 1:
        return [low]
    return [rounded(low + (high - low) * at / (count - 1)) for at in range(count)]


def rounded(number: float) -> float:
    """Returns the number without the last digits, which computing has made."""
    return float(f"{number:.{DIGITS}g}")


def power(base: float, exponent: float) -> float:
    """Returns a power; infinity if it is greater than any number, or is no number."""
    try:
        found = base**exponent
    except (OverflowError, ZeroDivisionError):
        return math.inf
    return rounded(found) if isinstance(found, float | int) else math.inf


def usable(*numbers: float) -> bool:
    """Returns whether the values of a sweep can be these numbers."""
    return all(abs(number) <= LARGEST for number in numbers)


def rules_of(report: Report, metric: str, metric_at: str, *, smaller: bool) -> dict[str, Any]:
    """Returns the options of a sweep that compare its members by a metric. The programs have to print it."""
    if why := why_no_metric(metric):
        report.dropped(metric_at, f"The name of a metric {why}.")
        return {}
    report.add(
        Fate.APPROXIMATED, metric_at, "metric",
        f"The sweep compares its members by this metric. The program must print {shown(metric)}=VALUE.",
    )  # fmt: skip
    return {"metric": metric, "goal": "min" if smaller else "max"}
