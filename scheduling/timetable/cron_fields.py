"""Checks the five fields of a cron expression. A Fault says what is wrong and, if known, what to write instead."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cronsim.cronsim import Field as Parsed

MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
WEEKDAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
MOST_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)  # days of each month, in a leap year
START = "2026-01-01T"  # start of the intervals that faults suggest
NUMBER = re.compile(r"\d{1,4}", re.ASCII)


@dataclass(frozen=True)
class Fault:
    """What is wrong with an expression (`message`), and what to write (`instead`); `instead` is empty if that is
    unknown."""

    message: str
    instead: str = ""


@dataclass(frozen=True)
class Field:
    name: str
    first: int
    last: int
    place: str
    around: str  # the unit in which the field's values repeat
    unit: str
    period: str  # ISO 8601 duration that replaces steps which do not divide the unit
    names: tuple[str, ...] = ()

    @property
    def top(self) -> int:
        """Returns the last value of the field that is not an alias. For weekdays this is 6, because 7 is an alias of 0
        (Sunday)."""
        return self.first + len(self.names) - 1 if self.names else self.last

    def number(self, text: str) -> int | None:
        """Returns the value of a number or a name (such as MON) in this field; None if the text is not valid in this
        field."""
        if text in self.names:
            return self.names.index(text) + self.first
        return int(text) if NUMBER.fullmatch(text) and self.first <= int(text) <= self.last else None

    def label(self, number: int, *, as_name: bool) -> str:
        return self.names[number - self.first] if as_name else str(number)

    @property
    def accepted(self) -> str:
        names = f" or {self.names[0]} to {self.names[-1]}" if self.names else ""
        return f"{self.first} to {self.last}{names}"


MINUTE = Field("minute", 0, 59, "first", "hour", "minute", "PT{}M")
HOUR = Field("hour", 0, 23, "second", "day", "hour", "PT{}H")
DAY = Field("day", 1, 31, "third", "month", "day", "P{}D")
MONTH = Field("month", 1, 12, "fourth", "year", "month", "P{}M", MONTHS)
WEEKDAY = Field("weekday", 0, 7, "fifth", "week", "day", "P{}D", WEEKDAYS)
FIELDS = (MINUTE, HOUR, DAY, MONTH, WEEKDAY)

_NAME = "|".join(WEEKDAYS)
# Entries that are valid besides numbers, names, ranges and steps.
LETTERS = {DAY: re.compile("L|LW"), WEEKDAY: re.compile(rf"[0-7]L|([0-7]|{_NAME})#[1-5]")}
# Syntax of other programs: its field (None: any), its pattern, the message, and what to write instead.
Write = Callable[[re.Match[str], Field], str]
FOREIGN: tuple[tuple[Field | None, str, str, Write], ...] = (
    (None, r"H(?:\((.+)\))?/(\d+)", "the letter H of Jenkins is not supported", lambda m, _: f"{m[1] or '*'}/{m[2]}"),
    (
        None,
        r"H(?:\((\w+)-.+\))?",
        "the letter H of Jenkins is not supported",
        lambda m, field: m[1] or str(field.first),
    ),
    (None, r"\?", '"?", which Quartz uses for any value, is not supported', lambda m, _: "*"),
    (DAY, r"(LW?)/.*", "L and LW are single days, which cannot have steps", lambda m, _: m[1]),
    (DAY, r"L-\d+", "days cannot be counted from the end of a month; L is the last day", lambda m, _: ""),
    (DAY, r"(\d+)W", "the nearest weekday (W) is not supported; LW is the last weekday of a month", lambda m, _: m[1]),
    (WEEKDAY, r"L", "L needs a weekday, as in 5L for the last Friday; in Quartz, L is Saturday", lambda m, _: "SAT"),
    (WEEKDAY, rf"({_NAME})L", "L needs a number, as in 5L for the last Friday", lambda m, f: f"{f.number(m[1])}L"),
    (WEEKDAY, r".*#.*", "# takes a weekday and 1 to 5, as in MON#1 for the first Monday", lambda m, _: ""),
    (None, r"LW?(-.*)?|\d+L", "L is accepted only for days and weekdays", lambda m, _: ""),
    (None, r".*#.*", "# is accepted only for weekdays", lambda m, _: ""),
    (MINUTE, r"60", "60 is not a minute; accepted: 0 to 59", lambda m, _: "0"),
    (HOUR, r"24", "24 is not an hour; accepted: 0 to 23", lambda m, _: "0"),
)  # fmt: skip


def fault_of_fields(expression: str) -> Fault | None:
    """Returns the first fault of an expression; None if the expression is valid.

    The caller has made sure that the expression has five fields and is in upper case.
    """
    parts = expression.split(" ")
    for at, field in enumerate(FIELDS):
        terms = parts[at].split(",")
        for index, term in enumerate(terms):
            fault = _fault_of_term(field, term, parts)
            if fault is None:
                continue
            instead = fault.instead
            if instead and not instead.startswith("R"):
                mended = ",".join([*terms[:index], instead, *terms[index + 1 :]])
                instead = " ".join([*parts[:at], mended, *parts[at + 1 :]])
            return Fault(f"{field.name} {term[:20]}: {fault.message}", instead)
    return _fault_of_days(parts)


def uneven_steps(expression: str) -> Iterator[tuple[Field, int]]:
    """Yields (field, step) for each field with steps of unequal length.

    For example, */45 runs at minutes 0 and 45, and only 15 minutes pass from minute 45 to the next minute 0.
    """
    for field, part in zip(FIELDS, expression.split(" "), strict=True):
        base, _, step = part.partition("/")
        if base not in ("*", f"{field.first}", f"{field.first}-{field.last}") or not NUMBER.fullmatch(step):
            continue
        if int(step) == 1:
            continue
        if field in (DAY, WEEKDAY) or (field.top + 1 - field.first) % int(step):
            yield field, int(step)


def interval_of(parts: list[str], field: Field, step: int) -> str:
    """Returns an ISO 8601 repeating interval, to suggest instead of a cron field whose steps have unequal lengths.

    For example, `30 */5 * * *` runs at 20:30 and again at 0:30, only four hours later. The suggestion is
    R/2026-01-01T00:30/PT5H, which means every five hours from 0:30.

    - `parts`: the five fields of the cron expression.
    - `field`, `step`: the field with unequal steps, and its step. In the example, these are the hour and 5.

    Returns an empty text unless the other four fields have these values:

    - The minute and the hour, if they stand before `field`: one number each.
    - The day of the month, if `field` is the month: 1.
    - All others: *.
    """
    at = FIELDS.index(field)
    finer = parts[: min(at, 2)]
    others = {place: parts[place] for place in range(at + 1 if at < 2 else 2, len(parts)) if place != at}
    wanted = {place: "1" if field is MONTH and place == 2 else "*" for place in others}
    if others != wanted or not all(NUMBER.fullmatch(part) for part in finer):
        return ""
    minute, hour, *_ = [*map(int, finer), 0, 0]
    return f"R/{START}{hour:02}:{minute:02}/{field.period.format(step)}"


def _fault_of_term(field: Field, term: str, parts: list[str]) -> Fault | None:
    if field in LETTERS and LETTERS[field].fullmatch(term):
        return None
    for of, form, message, write in FOREIGN:
        if (match := re.fullmatch(form, term)) and of in (None, field):
            return Fault(message, write(match, field))
    base, slash, step = term.partition("/")
    first, last = field.first, field.top
    if base != "*":
        low, dash, high = base.partition("-")
        for value in (low, high) if dash else (low,):
            if field.number(value) is None:
                return _fault_of_value(field, value, term)
        first, last = field.number(low) or 0, field.number(high if dash else low) or 0
        if last < first:
            return _backwards(field, base, step)
        last = last if dash or not slash else field.last
    if not slash:
        return None
    if not NUMBER.fullmatch(step) or int(step) == 0:
        return Fault("a step must be a whole number of 1 or more, such as the 5 in */5", base)
    if 1 < int(step) > last - first:
        interval = interval_of(parts, field, int(step)) if base == "*" else ""
        return Fault(
            f"the step {step} is too large: in each {field.around}, only {field.name} {first} matches",
            interval or str(first),
        )
    return None


def _fault_of_value(field: Field, value: str, term: str) -> Fault:
    wrong = f"{value[:20] or 'an empty entry'} is not a {field.name}; accepted: {field.accepted}"
    for named in (MONTH, WEEKDAY):
        if value.isalpha() and value[:3] in named.names:
            if named is not field:
                return Fault(f"{value[:20]} is a {named.name}, which belongs in the {named.place} field")
            if value != value[:3]:
                return Fault(
                    "names must have three letters, such as MON or JAN",
                    re.sub("[A-Z]{4,}", lambda name: name[0][:3], term),
                )
    return Fault(wrong)


def _backwards(field: Field, base: str, step: str) -> Fault:
    """Returns the fault of a range that runs backwards, such as hours 22-5. It suggests two ranges to write instead."""
    as_name = not base[0].isdecimal()
    low, _, high = base.partition("-")
    over = (
        [*range(field.number(low) or 0, field.top + 1)],
        [*range(field.first, (field.number(high) or 0) + 1)],
    )
    if NUMBER.fullmatch(step) and int(step):
        instead = ",".join(
            field.label(value, as_name=as_name) for value in [*over[0], *over[1]][:: int(step)]
        )
    else:
        ends = [dict.fromkeys((values[0], values[-1])) for values in over]
        instead = ",".join("-".join(field.label(value, as_name=as_name) for value in pair) for pair in ends)
    return Fault("a range must go from the smaller value to the larger", instead)


def _fault_of_days(parts: list[str]) -> Fault | None:
    """Returns a fault if the day field has a day that none of the given months has, such as 31 February; otherwise
    None."""
    months = sorted({month for month in Parsed.MONTH.parse(parts[3]) if isinstance(month, int)})
    most = max(MOST_DAYS[month - 1] for month in months)
    terms = parts[2].split(",")
    never = [term for term in terms if (day := re.match(r"\d+", term, re.ASCII)) and int(day[0]) > most]
    if not never:
        return None
    kept = ",".join(dict.fromkeys("L" if term in never else term for term in terms))
    names = ", ".join(MONTHS[month - 1] for month in months)
    has = "has" if len(months) == 1 else "have"
    return Fault(
        f"{names} never {has} day {never[0]}; write L for the last day",
        " ".join([*parts[:2], kept, *parts[3:]]),
    )
