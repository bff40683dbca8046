"""Schedules miss no due time and run none twice, in every time zone, even on days with a change of daylight saving
time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.timetable import Timetable, TimetableError
from scheduling.timetable.local_time import when_reached, when_shown

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
BERLIN = "Europe/Berlin"
# Time zones whose clocks change by an hour, by half an hour, by two hours, at midnight, around Ramadan, on the southern
# hemisphere, or never.
ZONES = (
    BERLIN, "America/New_York", "Australia/Lord_Howe", "Antarctica/Troll", "Africa/Cairo", "Asia/Beirut",
    "Africa/Casablanca", "America/Santiago", "America/St_Johns", "Pacific/Chatham", "Asia/Kathmandu", "UTC",
)  # fmt: skip


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def due(expression: str, zone: str, after: str, most: int = 3) -> list[str]:
    """Returns the next `most` due times after the moment `after` (in UTC), as ISO 8601 local times with the UTC
    offset."""
    table = Timetable.read(expression, zone)
    found = table.next_ones(utc(after), most)
    return [moment.astimezone(table.zone).isoformat(timespec="minutes") for moment in found]


@cache
def changes(zone: str) -> list[datetime]:
    """Returns the starts, in UTC, of the hours of 2026 in which the UTC offset of the time zone changes."""

    def steps(begin: datetime, step: timedelta, many: int) -> list[datetime]:
        """Returns the moments after which the UTC offset changes, among `many` moments from `begin` on at intervals of
        `step`."""
        moments = [begin + number * step for number in range(many + 1)]
        offsets = [moment.astimezone(ZoneInfo(zone)).utcoffset() for moment in moments]
        return [at for at, here, there in zip(moments, offsets, offsets[1:], strict=False) if here != there]

    return [hour for day in steps(utc("2026-01-01"), DAY, 365) for hour in steps(day, HOUR, 24)]


@st.composite
def around_a_change(draw: st.DrawFn) -> tuple[str, datetime]:
    zone = draw(st.sampled_from(ZONES))
    near = draw(st.sampled_from(changes(zone) or [utc("2026-05-05")]))
    return zone, near + draw(st.integers(-300, 60)) * MINUTE


minutes = st.sampled_from(["*", "*/7", "*/20", "0", "30", "0,30", "5,59", "10-50/20"])
hours = st.sampled_from(["*", "*/2", "2", "0", "0-3", "1,2,23", "3"])
days = st.sampled_from(["* * *", "* * *", "*/2 * *", "* * SUN", "L * *"])
crons = st.builds(lambda minute, hour, day: f"{minute} {hour} {day}", minutes, hours, days)


def by_looking_at_each_minute(
    expression: str, zone: ZoneInfo, begin: datetime, end: datetime
) -> set[datetime]:
    """Returns the due times between `begin` and `end`, found by checking the local time of each minute against the
    expression."""
    fields = CronSim(expression, datetime(2000, 1, 1))

    def is_meant(wall: datetime) -> bool:
        return wall.minute in fields.minutes and wall.hour in fields.hours and fields.match_day(wall.date())

    at_set_times = not any(part.startswith("*") for part in expression.split()[:2])
    found, seen_up_to = set(), begin.astimezone(zone).replace(tzinfo=None)
    moment = begin
    while moment < end:
        moment += MINUTE
        local = moment.astimezone(zone)
        wall = local.replace(tzinfo=None, fold=0)
        if not at_set_times:
            if is_meant(wall):
                found.add(moment)
            continue
        while seen_up_to < wall:  # skipped times are due now; times shown before are not due again
            seen_up_to += MINUTE
            if is_meant(seen_up_to):
                found.add(moment)
    return found


@settings(deadline=None, max_examples=60)
@given(around_a_change(), crons)
def test_cron_is_due_exactly_when_the_clock_shows_a_matching_time(
    where: tuple[str, datetime], expression: str
) -> None:
    zone, begin = where
    # Begins before the change of clocks, because the watching function does not know which times were shown earlier.
    begin -= 3 * HOUR + MINUTE
    end = begin + 9 * HOUR
    table = Timetable.read(expression, zone, ends=end)
    found = list(table.next_ones(begin, 1000))
    assert set(found) == by_looking_at_each_minute(expression, table.zone, begin, end)
    assert found == sorted(set(found))


periods = st.sampled_from(
    ["PT1M", "PT90S", "PT6H", "P1D", "P1W", "P1M", "P1Y", "P1DT12H", "P1M1D", "P2M3DT4H5M6S", "P13M"]
)
starts = st.datetimes(datetime(2025, 1, 1), datetime(2027, 12, 31)).map(lambda at: at.replace(microsecond=0))


@st.composite
def repeats(draw: st.DrawFn) -> str:
    times = draw(st.sampled_from(["", "", "1", "2", "7", "1000"]))
    start = draw(starts).isoformat() + draw(st.sampled_from(["", "Z", "+05:30"]))
    return f"R{times}/{start}/{draw(periods)}"


@settings(deadline=None, max_examples=80)
@given(around_a_change(), st.one_of(crons, repeats()), st.integers(0, 10**6))
def test_the_next_due_time_does_not_depend_on_when_it_is_asked(
    where: tuple[str, datetime], expression: str, seconds: int
) -> None:
    """At each moment between two due times, the timetable gives the later one as the next. So no due time is missed or
    comes twice."""
    zone, moment = where
    table = Timetable.read(expression, zone)
    first = table.after(moment)
    if first is None:
        return
    assert first > moment
    between = moment + (first - moment) * (seconds / 10**6)
    assert table.after(min(between, first - timedelta(microseconds=1))) == first
    second = table.after(first)
    assert second is None or second > first
    assert second is None or table.after(first + (second - first) / 2) == second


@settings(deadline=None, max_examples=50)
@given(around_a_change(), st.one_of(crons, repeats()), st.integers(1, 40 * 24 * 60))
def test_the_latest_one_is_found_without_going_through_all(
    where: tuple[str, datetime], expression: str, length: int
) -> None:
    zone, moment = where
    table, until = Timetable.read(expression, zone), moment + length * MINUTE
    first = table.after(moment)
    if first is None or first > until:
        return
    latest = table.latest(first, until)
    assert first <= latest <= until
    following = table.after(latest)
    assert following is None or following > until


@settings(deadline=None, max_examples=80)
@given(st.sampled_from(ZONES), repeats(), st.integers(1, 30))
def test_repeats_come_in_the_order_of_their_numbers_each_once(zone: str, expression: str, most: int) -> None:
    table = Timetable.read(expression, zone)
    times = int(expression.partition("/")[0][1:] or 10**6)
    found = list(table.next_ones(utc("2020-01-01"), most))
    assert len(found) == min(most, times)
    assert found == sorted(set(found))
    assert all(table.after(moment - timedelta(microseconds=1)) == moment for moment in found)


@settings(deadline=None, max_examples=80)
@given(st.sampled_from(ZONES), st.datetimes(datetime(2026, 1, 1), datetime(2027, 12, 31)))
def test_every_wall_is_reached_and_what_is_shown_is_shown_then(zone: str, wall: datetime) -> None:
    wall = wall.replace(second=0, microsecond=0)
    reached, shown = when_reached(wall, ZoneInfo(zone)), when_shown(wall, ZoneInfo(zone))
    if shown:
        assert reached == shown[0]
    just_before = (reached - timedelta(seconds=1)).astimezone(ZoneInfo(zone)).replace(tzinfo=None)
    assert just_before < wall <= reached.astimezone(ZoneInfo(zone)).replace(tzinfo=None)


@settings(deadline=None, max_examples=150)
@given(st.one_of(st.text(max_size=30), st.from_regex(r"[\d*/,\-LW#A-Z ]{0,30}", fullmatch=True), st.from_regex(
    r"R\d{0,7}/[\dT:\-+Z]{0,25}/P[\dYMWDTHS]{0,15}", fullmatch=True)))  # fmt: skip
def test_no_text_makes_the_reader_stumble(text: str) -> None:
    try:
        table = Timetable.read(text, BERLIN)
    except TimetableError as error:
        assert error.message  # noqa: PT017 - either outcome is right
    else:
        table.after(utc("2026-01-01"))
        assert table.rule.in_words()


def test_a_time_in_the_skipped_hour_comes_when_that_is_over() -> None:
    assert due("30 2 * * *", BERLIN, "2026-03-28T00:00") == [
        "2026-03-28T02:30+01:00", "2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00",
    ]  # fmt: skip


def test_a_time_in_the_doubled_hour_comes_once() -> None:
    assert due("30 2 * * *", BERLIN, "2026-10-24T12:00") == ["2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00", "2026-10-27T02:30+01:00"]  # fmt: skip  # noqa: E501


def test_clock_schedules_skip_the_missing_hour_and_repeat_the_doubled_one() -> None:
    assert due("*/30 2 * * *", BERLIN, "2026-03-28T12:00", 1) == ["2026-03-30T02:00+02:00"]
    assert due("*/30 2 * * *", BERLIN, "2026-10-24T12:00", 5) == [
        "2026-10-25T02:00+02:00", "2026-10-25T02:30+02:00", "2026-10-25T02:00+01:00", "2026-10-25T02:30+01:00",
        "2026-10-26T02:00+01:00",
    ]  # fmt: skip
    assert due("0 * * * *", BERLIN, "2026-03-29T00:00", 2) == [
        "2026-03-29T03:00+02:00",
        "2026-03-29T04:00+02:00",
    ]


def test_where_clocks_change_at_midnight_the_day_still_has_its_run() -> None:
    """A run at midnight takes place at 01:00 if the clocks skip midnight, as in Cairo on 24 April 2026."""
    assert due("0 0 * * *", "Africa/Cairo", "2026-04-23T12:00", 2) == [
        "2026-04-24T01:00+03:00", "2026-04-25T00:00+03:00",
    ]  # fmt: skip


def test_the_last_day_of_a_month_stays_the_last() -> None:
    assert due("R/2026-01-31T09:00/P1M", BERLIN, "2026-01-01T00:00", 4) == [
        "2026-01-31T09:00+01:00", "2026-02-28T09:00+01:00", "2026-03-31T09:00+02:00", "2026-04-30T09:00+02:00",
    ]  # fmt: skip


def test_days_follow_the_calendar_and_hours_pass() -> None:
    assert due("R/2026-03-28T12:00/P1D", BERLIN, "2026-03-28T00:00", 2)[1] == "2026-03-29T12:00+02:00"
    assert due("R/2026-03-28T12:00/PT24H", BERLIN, "2026-03-28T00:00", 2)[1] == "2026-03-29T13:00+02:00"


def test_a_repeat_ends_after_as_many_runs_as_it_says() -> None:
    assert due("R2/2026-03-28T12:00Z/P1D", "UTC", "2020-01-01", 9) == ["2026-03-28T12:00+00:00", "2026-03-29T12:00+00:00"]  # fmt: skip  # noqa: E501
    assert due("R2/2026-03-28T12:00Z/P1D", "UTC", "2026-03-29T12:00") == []


def test_begin_and_end_are_included() -> None:
    table = Timetable.read("0 12 * * *", "UTC", utc("2026-01-02T12:00"), utc("2026-01-04T12:00"))
    assert [moment.day for moment in table.next_ones(utc("2020-01-01"), 9)] == [2, 3, 4]


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("", "in 1 to 120 characters"),
        ("* * * *", "five fields"),
        ("*/10 * * * * *", "five fields"),
        ("61 * * * *", "accepted: 0 to 59"),
        ("0 0 31 2 *", "never has day 31"),
        ("* * */20 * 1L", "No day in the next 50 years"),
        ("R/soon/P1D", "SOON is not a date and time"),
        ("R/2026-01-31T09:00/1D", "R[n]/start/period"),
        ("R/2026-01-31T09:00/P", "R[n]/start/period"),
        ("R/2026-01-31T09:00/P1DT", "P1DT is not a period"),
        ("R/2026-01-31T09:00/PT59S", "at least one minute"),
        ("R0/2026-01-31T09:00/P1D", "R0 never runs"),
        ("R/1999-01-31T09:00/P1D", "2000 to 2200"),
    ],
)
def test_an_invalid_limit_is_refused_clearly(expression: str, said: str) -> None:
    with pytest.raises(TimetableError) as refused:
        Timetable.read(expression, BERLIN)
    assert refused.value.field == "expression"
    assert said in refused.value.message


def test_zones_and_ends_are_checked() -> None:
    with pytest.raises(TimetableError, match="Europe/Berlin"):
        Timetable.read("* * * * *", "../etc/passwd")
    with pytest.raises(TimetableError, match="must not be before"):
        Timetable.read("* * * * *", "UTC", utc("2026-01-02"), utc("2026-01-01"))
