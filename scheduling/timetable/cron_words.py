"""Describes cron expressions in words. Equivalent expressions get the same words, because only the due times count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import pairwise

from cronsim import CronSim

MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MOST_TIMES, MOST_VALUES = 4, 6  # times and values that are listed one by one, at most


def in_words(expression: str) -> str:
    """Returns the expression in words, such as "At 02:30 on Monday to Friday"."""
    fields = CronSim(expression, datetime(2000, 1, 1))
    times = _times(sorted(fields.minutes), sorted(fields.hours))
    return " ".join(part for part in (times, *_dates(fields)) if part)


def ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def joined(words: Sequence[str]) -> str:
    return " and ".join(part for part in (", ".join(words[:-1]), words[-1]) if part)


def _times(minutes: list[int], hours: list[int]) -> str:
    if len(minutes) * len(hours) <= MOST_TIMES:
        return f"At {joined([f'{hour:02}:{minute:02}' for hour in hours for minute in minutes])}"
    if len(minutes) == 1 and len(hours) < 24 and (step := _filling(hours, 24)):
        return f"Every {step} hours, first at 00:{minutes[0]:02}"
    step = _filling(minutes, 60)
    said = (
        f"At {_counted('minute', minutes)}"
        if step is None
        else f"Every {step} minutes"
        if step > 1
        else "Every minute"
    )
    if len(hours) == 24:
        return said if step else f"{said} of every hour"
    of_hours = _counted("hour", hours)
    return f"{said} of {of_hours}"


def _dates(fields: CronSim) -> tuple[str, str]:
    """Returns the words for the days, and the words for the months.

    The words for the months are empty if all months count, or if the words for the days name the months already.
    """
    months = (
        _several(sorted(fields.months), lambda month: MONTHS[month - 1]) if len(fields.months) < 12 else ""
    )
    days, weekdays = _days(fields), _weekdays(fields)
    # cron runs on either match, and one of the two fields matches every day
    if not (days and weekdays) and not fields.day_and:
        days = weekdays = ""
    days = days and f"on {days} of {months or 'every month'}"
    apart = f"in {months}" if months else ""
    if days and weekdays:
        return (
            (f"{days}, but only on {weekdays}", "")
            if fields.day_and
            else (f"{days}, and on {weekdays}", apart)
        )
    if days:
        return days, ""
    return f"on {weekdays}" if weekdays else "every day" if len(fields.hours) < 24 and len(
        fields.minutes
    ) == 1 else "", apart


def _days(fields: CronSim) -> str:
    named = sorted(day for day in fields.days if day > 0)
    if len(named) == 31:
        return ""
    said = [f"the {_several(named, ordinal)}"] if named else []
    said += ["the last day"] if CronSim.LAST in fields.days else []
    said += ["the last weekday"] if CronSim.LAST_WEEKDAY in fields.days else []
    return joined(said)


def _weekdays(fields: CronSim) -> str:
    found = fields.weekdays
    plain = sorted({(day - 1) % 7 for day in found if isinstance(day, int)})
    if len(plain) == 7:
        return ""
    said = [_several(plain, lambda day: WEEKDAYS[day])] if plain else []
    for day, nth in sorted({((one[0] - 1) % 7, one[1]) for one in found if isinstance(one, tuple)}):
        which, weekday = "last" if nth == CronSim.LAST else ordinal(nth), WEEKDAYS[day]
        said.append(f"the {which} {weekday} of the month")
    return joined(said)


def _counted(unit: str, values: Sequence[int]) -> str:
    return f"{unit if len(values) == 1 else f'{unit}s'} {_several(values, str)}"


def _several(values: Sequence[int], label: Callable[[int], str]) -> str:
    step = _step(values)
    if len(values) > (2 if step == 1 else MOST_VALUES) and step:
        steps = f" in steps of {step}" if step > 1 else ""
        return f"{label(values[0])} to {label(values[-1])}{steps}"
    return joined([label(value) for value in values])


def _step(values: Sequence[int]) -> int | None:
    """Returns the difference between neighbouring values; None if it is not always the same or there is only one
    value."""
    steps = {after - before for before, after in pairwise(values)}
    return steps.pop() if len(steps) == 1 else None


def _filling(values: Sequence[int], whole: int) -> int | None:
    """Returns the step of values that start at 0 and divide `whole` into equal parts; None for other values.

    For example, 0, 15, 30, 45 divide 60 into equal parts, and their step is 15.
    """
    step = _step(values)
    return step if step and values[0] == 0 and step * len(values) == whole else None
