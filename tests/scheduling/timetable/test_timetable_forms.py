"""Due times can be written in several notations, and each accepted notation can be shown in words.

An unknown notation is refused with a suggestion.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.timetable import Timetable, TimetableError
from scheduling.timetable.cron_fields import FIELDS, Field
from scheduling.timetable.normal_form import CALENDARS, MACROS

BERLIN = "Europe/Berlin"
SUGGESTED = re.compile(r'"([^"]+)"(?= instead| \()')
INSTEAD = [
    ("*/90 * * * *", "R/2026-01-01T00:00/PT90M"),
    ("5-9/60 * * * *", "5 * * * *"),
    ("*/90 9-17 * * MON-FRI", "0 9-17 * * MON-FRI"),
    ("30 */36 * * *", "R/2026-01-01T00:30/PT36H"),
    ("0 0 1 */18 *", "R/2026-01-01T00:00/P18M"),
    ("0 0 * */12 *", "0 0 * 1 *"),
    ("0 0 * * */14", "R/2026-01-01T00:00/P14D"),
    ("*/0 * * * *", "* * * * *"),
    ("50-10 * * * *", "50-59,0-10 * * * *"),
    ("0 22-5/2 * * *", "0 22,0,2,4 * * *"),
    ("0 0 * * FRI-MON", "0 0 * * FRI-SAT,SUN-MON"),
    ("0 0 * * SAT-SUN", "0 0 * * SAT,SUN"),
    ("0 0 * NOV-FEB *", "0 0 * NOV-DEC,JAN-FEB *"),
    ("0 24 * * *", "0 0 * * *"),
    ("0 0 31 2 *", "0 0 L 2 *"),
    ("0 0 1,31 APR,6 *", "0 0 1,L APR,6 *"),
    ("@every 1h30m", "R/2026-01-01T00:00/PT1H30M"),
    ("every 2 months", "R/2026-01-01T00:00/P2M"),
    ("every Monday", "0 0 * * MON"),
    ("rate(5 minutes)", "R/2026-01-01T00:00/PT5M"),
    ("cron(0 12 * * ? *)", "0 12 * * *"),
    ("*/10 * * * * *", "* * * * *"),
    ("0 */10 * * * *", "*/10 * * * *"),
    ("0 0 12 * * ?", "0 12 * * *"),
    ("0 0 12 ? * 2-6 2026", "0 12 * * MON-FRI"),
    ("0 15 10 ? * 6L", "15 10 * * 5L"),
    ("0 15 10 ? * 6#3", "15 10 * * FRI#3"),
    ("0 12 15W * *", "0 12 15 * *"),
    ("0 12 * * L", "0 12 * * SAT"),
    ("0 12 * * FRIL", "0 12 * * 5L"),
    ("0 12 * * monday", "0 12 * * MON"),
    ("0 12 1 january *", "0 12 1 JAN *"),
    ("H 2 * * *", "0 2 * * *"),
    ("H/15 H(8-17) * * *", "*/15 8 * * *"),
    ("0 2 * * * python train.py --lr 0.1", "0 2 * * *"),
    ("CRON_TZ=Asia/Tokyo 0 2 * * *", "0 2 * * *"),
    ("Mon..Fri *-*-* 02:30:00", "30 2 * * MON-FRI"),
    ("*-*-01 00:00", "0 0 1 * *"),
    ("09:05", "5 9 * * *"),
    ("FREQ=WEEKLY;INTERVAL=2", "R/2026-01-01T00:00/P2W"),
    ("R//PT1H", "R/2026-01-01T00:00/PT1H"),
    ("R5/PT1H", "R5/2026-01-01T00:00/PT1H"),
    ("P1D", "R/2026-01-01T00:00/P1D"),
    ("R-1/2026-01-31T09:00/P1D", "R/2026-01-31T09:00/P1D"),
    ("R/2026-01-31T09:00/PT1.5H", "R/2026-01-31T09:00/PT90M"),
    ("R/P1D/2026-01-31T09:00", "R/2026-01-31T09:00/P1D"),
    *CALENDARS.items(),
]


def refusal(expression: str) -> str:
    with pytest.raises(TimetableError) as refused:
        Timetable.read(expression, BERLIN)
    return refused.value.message


@pytest.mark.parametrize(("expression", "instead"), INSTEAD)
def test_notations_of_other_programs_are_refused_with_a_suggestion(expression: str, instead: str) -> None:
    assert f'Write "{instead}" instead.' in refusal(expression)
    assert Timetable.read(instead, BERLIN).expression == instead


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("5,99 * * * *", "minute 99"),
        ("5,,6 * * * *", "empty entry"),
        ("-5 * * * *", "empty entry"),
        ("0 0 0 * *", "accepted: 1 to 31"),
        ("0 0 * MON JAN", "MON is a weekday, which belongs in the fifth field"),
        ("JAN 0 * * *", "JAN is a month, which belongs in the fourth field"),
        ("0 0 * * MON#6", "1 to 5"),
        ("0 0 L-3 * *", "L is the last day"),
        ("L * * * *", "only for days and weekdays"),
        ("* * * *", "five fields, not 4"),
        ("@reboot", "does not name a time"),
        ("@fortnightly", "accepted: @hourly, @daily"),
        ("PT5S", "the start is missing"),
        ("@every 30s", "notations such as “every 5 minutes” are not supported"),
        ("tomorrow", "not a supported way to write times"),
        ("FREQ=WEEKLY;BYDAY=MO", "iCalendar"),
        ("R/2026-01-31T09:00/2026-02-01T09:00", "R[n]/start/period"),
    ],
)
def test_an_ambiguous_time_is_refused_with_the_accepted_notations(expression: str, said: str) -> None:
    message = refusal(expression)
    assert said.lower() in message.lower()
    assert 'Accepted forms: "30 2 * * MON-FRI"' in message


junk = st.one_of(
    st.from_regex(r"[\d*/,\-LWH?#A-Z ]{1,30}", fullmatch=True),
    st.from_regex(r"R?[\d-]{0,2}/?[\dT:\-]{0,16}/?P[\dYMWDTHS.]{0,9}", fullmatch=True),
    st.lists(
        st.sampled_from(["*", "*/9", "*/90", "5-2", "99", "?", "H/7", "L", "1,31", "MON", "2"]), min_size=4, max_size=7
    ).map(" ".join),
)  # fmt: skip


@settings(deadline=None, max_examples=300)
@given(junk)
def test_the_suggestion_of_a_refusal_is_accepted(text: str) -> None:
    try:
        Timetable.read(text, BERLIN)
    except TimetableError as error:
        for instead in SUGGESTED.findall(error.message):
            assert Timetable.read(instead, BERLIN).rule.in_words()


@pytest.mark.parametrize(("macro", "expression"), MACROS.items())
def test_macros_of_crontab_are_accepted_and_kept_as_five_fields(macro: str, expression: str) -> None:
    assert Timetable.read(macro.upper(), BERLIN).expression == expression
    assert Timetable.read("  30\t2 * * mon-fri ", BERLIN).expression == "30 2 * * MON-FRI"


def test_timetables_accepted_earlier_still_run() -> None:
    """A stored expression keeps its due times, although a new schedule with the same expression would be refused."""
    table = Timetable.stored("*/90 * * * *", BERLIN, None, None)
    assert table.after(datetime(2026, 1, 1, 0, 30, tzinfo=UTC)) == datetime(2026, 1, 1, 1, tzinfo=UTC)


def test_steps_that_restart_are_marked() -> None:
    rule = Timetable.read("*/45 * * * *", BERLIN).rule
    assert rule.in_words() == "At minutes 0 and 45 of every hour"
    assert rule.notes() == [
        "Steps of 45 minutes start again with each hour, so the last step in the hour can be shorter. "
        'For a run every 45 minutes, write "R/2026-01-01T00:00/PT45M".'
    ]
    for even in ("*/15 */6 * */3 *", "*/7,5 */1 * * *"):
        assert not Timetable.read(even, BERLIN).rule.notes()
    assert len(Timetable.read("*/7 0-23/5 */2 */5 */2", BERLIN).rule.notes()) == 5


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("* * * * *", "Every minute"),
        ("*/15 * * * *", "Every 15 minutes"),
        ("5 * * * *", "At minute 5 of every hour"),
        ("0 */2 * * *", "Every 2 hours, first at 00:00 every day"),
        ("30 2 * * MON-FRI", "At 02:30 on Monday to Friday"),
        ("0 0 1,2,3,11,13,31 * *", "At 00:00 on the 1st, 2nd, 3rd, 11th, 13th and 31st of every month"),
        ("0 0 12,21,22,23 * *", "At 00:00 on the 12th, 21st, 22nd and 23rd of every month"),
        ("0 0 31 * *", "At 00:00 on the 31st of every month"),
        ("0 0 L 2 *", "At 00:00 on the last day of February"),
        ("0 12 * * MON#1", "At 12:00 on the 1st Monday of the month"),
        ("0 12 * 6-8 5L", "At 12:00 on the last Friday of the month in June to August"),
        ("0 0 1 * MON", "At 00:00 on the 1st of every month, and on Monday"),
        ("0 0 */10 * MON", "At 00:00 on the 1st, 11th, 21st and 31st of every month, but only on Monday"),
        ("R/2026-01-31T09:00/PT24H", "Every 24 hours from 31 January 2026, 09:00, without end"),
        ("R5/2026-01-31T08:00Z/P1M", "Every month from 31 January 2026, 09:00, 5 times"),
        ("R1/2026-01-31T09:00:30/P1Y2M", "Once, on 31 January 2026, 09:00:30"),
        ("R/2026-01-31T09:00/P2M3W", "Every 2 months and 3 weeks from 31 January 2026, 09:00, without end"),
    ],
)  # fmt: skip
def test_expressions_read_as_sentences(expression: str, words: str) -> None:
    assert Timetable.read(expression, BERLIN).rule.in_words() == words


def part_of(field: Field) -> st.SearchStrategy[str]:
    """Returns a Hypothesis strategy for one cron field: "*", a number, a list, a range, steps, or a special form of the
    field."""
    numbers = st.integers(field.first, field.top)
    spans = st.tuples(numbers, numbers).map(sorted).map(lambda pair: f"{pair[0]}-{pair[1]}")
    lists = st.lists(numbers, min_size=1, max_size=4, unique=True).map(
        lambda found: ",".join(map(str, found))
    )
    steps = st.integers(2, max(2, (field.top - field.first) // 2)).map(lambda step: f"*/{step}")
    special = {"day": ["L", "LW", "1,L"], "weekday": ["1L", "MON#2", "FRI#1,0"]}.get(field.name, ["*"])
    return st.one_of(st.just("*"), st.just("*"), lists, spans, steps, st.sampled_from(special))


whole_crons = st.tuples(*map(part_of, FIELDS)).map(" ".join)


def meant(expression: str) -> tuple[object, ...]:
    """Returns (minutes, hours, matching days of four years) of a cron expression.

    Expressions with equal results have the same due times.
    """
    fields = CronSim(expression, datetime(2000, 1, 1))
    days = (datetime(2024, 1, 1) + timedelta(days=number) for number in range(366 + 3 * 365))
    held = [number for number, day in enumerate(days) if day.month in fields.months and fields.match_day(day)]
    return tuple(sorted(fields.minutes)), tuple(sorted(fields.hours)), tuple(held)


@settings(deadline=None, max_examples=60)
@given(whole_crons, whole_crons, st.integers(0, 4))
def test_expressions_that_read_the_same_fire_at_the_same_times(one: str, other: str, kept: int) -> None:
    """Expressions that are shown in the same words have the same due times.

    The compared expressions differ in at most one field, because such pairs are the most likely to have the same words.
    """
    near = " ".join(
        b if at == kept else a for at, (a, b) in enumerate(zip(one.split(), other.split(), strict=True))
    )
    try:
        words = [Timetable.read(text, BERLIN).rule.in_words() for text in (one, near)]
    except TimetableError:
        return
    assert not re.search(r"[*/#]|\b(?:1|2|3)th\b|1[1-3](?:st|nd|rd)|[^1][1-3]th", words[0])
    if words[0] == words[1]:
        assert meant(one) == meant(near)


UNITS = ("year", "month", "week", "day", "hour", "minute", "second")
amounts = st.tuples(*(st.integers(0, 99) for _ in UNITS)).filter(lambda found: any(found[:6]))


@settings(deadline=None, max_examples=60)
@given(amounts)
def test_every_period_reads_without_letters_of_iso_and_back(found: tuple[int, ...]) -> None:
    date, time = ("".join(f"{n}{letter}" for n, letter in zip(part, letters, strict=True) if n)
                  for part, letters in ((found[:4], "YMWD"), (found[4:], "HMS")))  # fmt: skip
    table = Timetable.read(f"R/2026-01-31T09:00/P{date}{'T' if time else ''}{time}", BERLIN)
    words = table.rule.in_words().removeprefix("Every ").partition(" from ")[0]
    read = {
        unit: int(number or 1)
        for number, unit in re.findall(r"(?:(\d+) )?\b([a-z]+?)s?\b(?=,| and|$)", words)
    }
    assert read == {unit: number for unit, number in zip(UNITS, found, strict=True) if number}
    assert not re.search(r"P\d|T\d|\d[YMWDHS]", table.rule.in_words())
