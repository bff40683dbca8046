"""Converts what users write into one of two stored forms: cron with five fields, or an ISO 8601 repeating interval.

Also accepts the other forms of crontab(5): macros such as @daily, and names in any letter case. Forms of other programs
are refused, with a suggestion of what to write instead if it is known.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from zoneinfo import ZoneInfo

from scheduling.timetable.cron import Cron
from scheduling.timetable.cron_fields import FIELDS, MONTHS, START, WEEKDAYS, Fault, fault_of_fields
from scheduling.timetable.repeats import Repeats

MACROS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
EXAMPLES = '"30 2 * * MON-FRI" (cron) and "R/2026-01-31T09:00/P1M" (a repeating interval of ISO 8601)'
# By a shorthand of systemd.time(7) or an everyday word: the cron expression to suggest.
CALENDARS = {
    "minutely": "* * * * *", "hourly": "0 * * * *", "daily": "0 0 * * *", "midnight": "0 0 * * *",
    "nightly": "0 0 * * *", "weekly": "0 0 * * MON", "monthly": "0 0 1 * *", "quarterly": "0 0 1 1,4,7,10 *",
    "semiannually": "0 0 1 1,7 *", "yearly": "0 0 1 1 *", "annually": "0 0 1 1 *", "weekdays": "0 0 * * MON-FRI",
}  # fmt: skip
UNITS = {"s": "T{}S", "m": "T{}M", "h": "T{}H", "d": "{}D", "w": "{}W", "mo": "{}M", "y": "{}Y"}
AMOUNT = re.compile(
    r"(\d{0,5})\s*(months?|mo|m(?:in(?:ute)?s?)?|s(?:ec(?:ond)?s?)?|h(?:(?:ou)?rs?)?|d(?:ays?)?|w(?:eeks?)?|y(?:ears?)?)"
    r"(?![a-z])\s*",
    re.IGNORECASE | re.ASCII,
)
CALENDAR = re.compile(
    r"(?:(?P<weekdays>[a-z]{3,}(?:(?:,|\.\.|-)[a-z]{3,})*)\s+)?"
    r"(?:(?:\d{4}|\*)-(?P<month>[\d*/,.]+)-(?P<day>[\d*/,.]+)(?:[\sT]+|$))?"
    r"(?:(?P<hour>[\d*/,.]+):(?P<minute>[\d*/,.]+)(?::00)?)?",
    re.IGNORECASE | re.ASCII,
)
DURATION = re.compile(r"P(?=.)(?:\d+[YMWD])*(?:T(?:\d+[HMS])+)?", re.ASCII)
FRACTION = re.compile(r"(?P<whole>\d+)[.,](?P<part>\d{1,4})(?P<unit>[HM])", re.ASCII)


def normal_form(expression: str) -> str:
    """Returns the expression in normal form: cron with five fields, or an ISO 8601 repeating interval.

    Raises ValueError with a message that says what is wrong and what to write instead.
    """
    text = tidy(expression)
    fault = first = _fault_of(text)
    if first is None:
        return text
    for _ in range(20):  # a suggestion may have faults of its own, which are mended in turn
        if fault is None or not fault.instead:
            break
        instead = tidy(fault.instead)
        fault = _fault_of(instead)
    if fault is None and _is_right(instead):
        raise ValueError(f'{first.message}. Write "{instead}" instead')
    raise ValueError(f"{first.message}. Accepted forms: {EXAMPLES}")


def rule_of(expression: str, zone: ZoneInfo) -> Cron | Repeats:
    """Returns the rule for an expression in normal form: a Cron or a Repeats. Raises ValueError if it is in neither
    form."""
    return (Repeats if expression.startswith("R") else Cron)(expression, zone)


def _is_right(expression: str) -> bool:
    try:
        rule_of(expression, ZoneInfo("UTC"))
    except ValueError:
        return False
    return True


def tidy(expression: str) -> str:
    """Returns the expression with single spaces between fields, and in upper case where case has no meaning.

    Replaces macros such as @daily with five fields.
    """
    text = " ".join(expression.split())
    text = MACROS.get(text.lower(), text)
    is_kept = text[:1].isdecimal() or text[:1] in "*RrPp"
    return text.upper() if is_kept or len(text.split()) == len(FIELDS) else text


def _fault_of(text: str) -> Fault | None:
    for form, mend in FORMS:
        if match := re.fullmatch(form, text, re.IGNORECASE):
            return mend(match)
    if re.match(r"R[\d/-]|P\d|PT", text, re.ASCII):
        return _fault_of_interval(text)
    parts = text.split(" ")
    if not any(char.isdecimal() or char in "*?" for char in text) or ":" in text:
        return Fault(f"{text[:40]} is not a supported way to write times")
    if len(parts) == len(FIELDS):
        return fault_of_fields(text)
    return _fault_of_count(parts)


def _fault_of_count(parts: list[str]) -> Fault:
    """Returns the fault of an expression that does not have five fields.

    If there are more fields, the fault suggests an expression without the seconds, the year or the command.
    """
    if len(parts) < len(FIELDS):
        return Fault(
            f"a cron expression has five fields, not {len(parts)}: minute, hour, day, month, weekday"
        )
    if not re.fullmatch(rf"[\d*?/,#LWH()-]+|({'|'.join(WEEKDAYS + MONTHS)})([-,/#].*)?", parts[5], re.ASCII):
        return Fault(
            "write only the five cron fields here; the job's spec has the command", " ".join(parts[:5])
        )
    has_year = len(parts) == 6 and (
        re.match(r"(19|20)\d\d", parts[5], re.ASCII) or "?" in (parts[2], parts[4])
    )
    fields = parts[:5] if has_year else parts[1:6]
    if "?" in parts:  # "?" shows the syntax of Quartz, which counts weekdays from 1 for Sunday
        fields[4] = re.sub(
            r"(?<![#/\d])[1-7](?!\d)", lambda day: WEEKDAYS[int(day[0]) - 1], fields[4], flags=re.ASCII
        )
        fields[4] = re.sub(f"({'|'.join(WEEKDAYS)})L", lambda day: f"{WEEKDAYS.index(day[1])}L", fields[4])
    why = (
        "instead of the year, set the dates “No runs before” and “No runs after”"
        if has_year
        else "there is no field for seconds"
    )
    return Fault(f"a cron expression has five fields, not {len(parts)}: {why}", " ".join(fields))


def _fault_of_interval(text: str) -> Fault | None:
    """Returns the fault of an ISO 8601 interval that does not have the form R[n]/start/period; None if it has this
    form."""
    times, *rest = [part for part in text.split("/") if part] if text[0] == "R" else ["R", *text.split("/")]
    period = next((part for part in rest if part[0] == "P"), "")
    starts = [part for part in rest if part[0] != "P"]
    if fraction := FRACTION.search(period):
        smaller = {"H": "M", "M": "S"}[fraction["unit"]]
        amount = round(60 * float(f"{fraction['whole']}.{fraction['part']}"))
        mended = f"{period[: fraction.start()]}{amount}{smaller}{period[fraction.end() :]}"
        return Fault(
            "the numbers in a period must be whole, as in PT90M for 90 minutes", text.replace(period, mended)
        )
    if times.startswith("R-"):
        return Fault("for repeats without an end, write R without a number", text.replace(times, "R", 1))
    if not period or not DURATION.fullmatch(period) or len(rest) > 2 or len(starts) > 1:
        return None if text[0] == "R" and text.count("/") == 2 and period else Fault(
            "a repeating interval must have the form R[n]/start/period, such as R/2026-01-31T09:00/P1M"
        )  # fmt: skip
    if not starts:
        return Fault("the start is missing in the repeating interval", f"{times}/{START}00:00/{period}")
    if rest[0] == period:
        return Fault(
            "write the start first and then the period, as in R/2026-01-31T09:00/P1M",
            f"{times}/{starts[0]}/{period}",
        )
    return None


def _every(text: str) -> str:
    """Converts a text such as "1h30m" or "2 weeks" to a repeating interval, and the name of a weekday to cron fields.

    Returns an empty text for all other texts.
    """
    amounts, at = [], 0
    while match := AMOUNT.match(text, at):
        at = match.end()
        unit = match[2].lower()
        unit = "mo" if unit.startswith("mo") else unit[0]
        amounts.append(UNITS[unit].format(match[1] or 1))
    if not amounts or at < len(text):
        day = text[:3].upper()
        return f"0 0 * * {day}" if day in WEEKDAYS else ""
    days, times = [one for one in amounts if one[0] != "T"], [one[1:] for one in amounts if one[0] == "T"]
    return f"R/{START}00:00/P{''.join(days)}{'T' if times else ''}{''.join(times)}"


def _word(text: str) -> str:
    return CALENDARS.get(text.lower().replace("-", ""), "")


def _calendar(match: re.Match[str]) -> Fault:
    """Returns the fault of a systemd calendar event such as Mon..Fri *-*-* 02:30. It suggests cron fields to write
    instead."""
    said = {
        name: re.sub(r"\b0+(?=\d)", "", text.replace("..", "-"), flags=re.ASCII)
        for name, text in match.groupdict("").items()
    }
    weekdays = re.sub(r"[a-z]{4,}", lambda day: day[0][:3], said["weekdays"].lower()).upper()
    time = f"{said['minute'] or '0'} {said['hour'] or '0'}"
    return Fault(
        "times such as 02:30 and calendars of systemd such as Mon *-*-* 02:30 are not supported",
        f"{time} {said['day'] or '*'} {said['month'] or '*'} {weekdays or '*'}",
    )


def _rule(match: re.Match[str]) -> Fault:
    """Returns the fault of an iCalendar recurrence rule.

    Suggests a repeating interval only if the rule has no parts other than FREQ and INTERVAL.
    """
    parts = dict(part.upper().partition("=")[::2] for part in match[1].split(";"))
    unit = {"MINUTELY": "m", "HOURLY": "h", "DAILY": "d", "WEEKLY": "w", "MONTHLY": "mo", "YEARLY": "y"}
    known = unit.get(parts.pop("FREQ", "")), parts.pop("INTERVAL", "1")
    instead = _every(f"{known[1]}{known[0]}") if known[0] and not parts and known[1].isdecimal() else ""
    return Fault("rules of iCalendar, such as FREQ=DAILY, are not supported", instead)


# Patterns of whole expressions in the syntax of other programs, with their faults. None is valid as five fields.
FORMS: tuple[tuple[str, Callable[[re.Match[str]], Fault]], ...] = (
    (r"(?:CRON_)?TZ=\S+ (.+)", lambda m: Fault("leave the time zone out: it has its own field", m[1])),
    (r"cron\((.+)\)", lambda m: Fault("write only the five cron fields, without cron(…)", m[1])),
    (r"@reboot", lambda m: Fault("@reboot does not name a time")),
    (
        r"(?:@every |every |rate\()(.+?)\)?",
        lambda m: Fault("notations such as “every 5 minutes” are not supported", _every(m[1])),
    ),
    (r"@(.+)", lambda m: Fault(f"@{m[1][:20]} is not supported; accepted: {', '.join(MACROS)}")),
    (r"(?:RRULE:)?(FREQ=.+)", _rule),
    (r"([a-z-]+)", lambda m: Fault(f"{m[1][:40]} is not a supported way to write times", _word(m[1]))),
    (CALENDAR.pattern, _calendar),
)  # fmt: skip
