"""Jobs of Chronos."""

from __future__ import annotations

import json
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.importers.chronos import for_chronos
from scheduling.importers.registry import convert
from scheduling.importers.report import Fate, WorkKind
from scheduling.timetable.local_time import wall_at, when_reached, when_shown
from scheduling.timetable.repeats import Repeats
from tests.scheduling.importers.foreign_samples import SAMPLES


def test_a_job_with_a_schedule_becomes_a_schedule() -> None:
    found = convert(SAMPLES["chronos-nightly"])
    (work,) = found.works
    assert work.kind is WorkKind.SCHEDULE
    assert work.options["expression"] == "R10/2015-03-08T20:00:00/PT2H"
    assert (work.options["time_zone"], work.options["catch_up_seconds"]) == ("Europe/Berlin", 1800)
    assert (work.spec["cpu"], work.spec["memory"]) == (0.5, "1Gi")
    assert work.spec["command"] == "python train.py --name 'two words'"
    texts = {line.source: line.text for line in found.report}
    assert "not paused" in texts["disabled"]
    assert "10 runs, the first on 08 March 2015" in texts["schedule"]


def test_a_job_that_depends_on_others_becomes_a_job_and_the_report_says_so() -> None:
    found = convert(SAMPLES["chronos-list"])
    assert [work.kind for work in found.works] == [WorkKind.SCHEDULE, WorkKind.JOB]
    assert any(line.source == "[1].parents" and line.fate is Fate.DROPPED for line in found.report)


@pytest.mark.parametrize(
    ("epsilon", "caught_up"), [("PT30M", 1800), ("P1DT1H", 90_000), ("P90D", 2_592_000), ("soon", None)]
)
def test_epsilon_says_how_late_a_run_may_be(epsilon: str, caught_up: int | None) -> None:
    text = json.dumps(
        {"name": "a", "command": "b", "schedule": "R/2030-01-01T00:00:00Z/P1D", "epsilon": epsilon}
    )
    assert convert(text).works[0].options.get("catch_up_seconds") == caught_up


@pytest.mark.parametrize(
    "schedule", ["R/2014-09-25T17:22:00Z/PT10S", "R0/2014-09-25T17:22:00Z/P1D", "R/never/P1D"]
)
def test_a_schedule_that_fairlot_cannot_keep_is_refused(schedule: str) -> None:
    assert convert(json.dumps({"name": "a", "command": "b", "schedule": schedule})).refused


@pytest.mark.parametrize(
    ("schedule", "expression"),
    [
        ("R/1970-01-01T00:00:00Z/PT15M", "R/2000-01-01T00:00:00+00:00/PT15M"),
        ("R/1999-12-31T03:00:00Z/P7D", "R/2000-01-07T03:00:00+00:00/P7D"),
        ("R//P1D", "R/2000-01-01T00:00:00/P1D"),
        ("R5/2031-01-01T00:00:00Z/P1M", "R5/2031-01-01T00:00:00Z/P1M"),
    ],
)
def test_a_start_long_ago_is_moved_by_whole_periods(schedule: str, expression: str) -> None:
    (work,) = convert(json.dumps({"name": "a", "command": "b", "schedule": schedule})).works
    assert work.options["expression"] == expression


def test_a_single_run_without_a_start_is_a_job() -> None:
    (work,) = convert(
        json.dumps({"name": "a", "command": "b", "schedule": "R1//PT24H", "epsilon": "PT5M"})
    ).works
    assert work.kind is WorkKind.JOB
    assert convert(json.dumps({"name": "a", "command": "b", "schedule": "R3//PT24H"})).refused


ZONES = st.sampled_from(["UTC", "America/New_York", "Europe/Berlin", "Asia/Kolkata"])
OFFSETS = st.sampled_from(["", "Z", "+02:00", "-11:30"])
PERIODS = st.sampled_from(["P1D", "P1M", "PT6H", "P7DT1H"])


@given(st.datetimes(datetime(2001, 1, 1), datetime(2099, 1, 1)), OFFSETS, ZONES, PERIODS)
def test_a_start_is_a_clock_time_of_the_time_zone_whatever_its_offset(
    start: datetime, offset: str, zone: str, period: str
) -> None:
    start = start.replace(microsecond=0)
    job = {
        "name": "a",
        "command": "b",
        "schedule": f"R/{start.isoformat()}{offset}/{period}",
        "scheduleTimeZone": zone,
    }
    (work,) = convert(json.dumps(job)).works
    assert work.options["time_zone"] == zone
    found = Repeats(work.options["expression"], ZoneInfo(zone))
    assert found.start == when_reached(start, ZoneInfo(zone))


@given(st.datetimes(datetime(2001, 1, 1), datetime(2099, 1, 1)), OFFSETS, ZONES, PERIODS)
def test_a_schedule_that_is_shown_to_chronos_and_sent_back_is_due_at_the_same_times(
    start: datetime, offset: str, zone: str, period: str
) -> None:
    expression = f"R/{start.replace(microsecond=0).isoformat()}{offset}/{period}"
    own = Repeats(expression, ZoneInfo(zone))
    if when_shown(wall_at(own.start, own.zone), own.zone)[0] != own.start:
        return  # the second of two equal clock times, which Chronos cannot write
    shown = for_chronos(expression, own.zone)
    job = {"name": "a", "command": "b", "schedule": shown, "scheduleTimeZone": zone}
    (work,) = convert(json.dumps(job)).works
    back = Repeats(work.options["expression"], own.zone)
    assert (back.start, back.period) == (own.start, own.period)


def test_a_timetable_that_chronos_does_not_know_is_shown_as_it_is() -> None:
    assert for_chronos("0 3 * * *", ZoneInfo("UTC")) == "0 3 * * *"
    assert for_chronos("R/2030-01-01T02:00:00Z/P1D", ZoneInfo("UTC")) == "R/2030-01-01T02:00:00Z/P1D"


def test_without_a_time_zone_the_offset_of_the_start_counts() -> None:
    job = {"name": "a", "command": "b", "schedule": "R/2030-07-01T10:00:00+02:00/P1D"}
    (work,) = convert(json.dumps(job)).works
    assert (work.options["expression"], work.options["time_zone"]) == (
        "R/2030-07-01T10:00:00+02:00/P1D",
        "UTC",
    )


def test_the_report_says_what_a_missing_start_means() -> None:
    job = {"name": "a", "command": "b", "schedule": "R//P1D", "scheduleTimeZone": "America/New_York"}
    found = convert(json.dumps(job))
    assert any("at once" in line.text and "America/New_York" in line.text for line in found.report)
    assert "due at the same times" not in str(found.report)


def test_hours_of_a_start_long_ago_pass_whatever_the_clocks_do() -> None:
    job = {
        "name": "a",
        "command": "b",
        "schedule": "R/1990-07-01T00:00:00Z/PT6H",
        "scheduleTimeZone": "Europe/Berlin",
    }
    (work,) = convert(json.dumps(job)).works
    assert work.options["expression"] == "R/2000-01-01T04:00:00+00:00/PT6H"


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"name": "a", "command": "b", "schedule": "R/2030-01-01T00:00:00Z/P1D", "disabled": True}),
        SAMPLES["kubernetes-cronjob"].replace("  schedule:", "  suspend: true\n  schedule:"),
    ],
)
def test_a_schedule_that_is_paused_there_is_created_paused(text: str) -> None:
    found = convert(text)
    assert found.works[0].options["paused"] is True
    assert [line.text for line in found.report if line.target == "paused"] == [
        "The schedule is created paused."
    ]
    assert convert(text.replace("true", "false")).works[0].options["paused"] is False


@pytest.mark.parametrize("when", [{}, {"schedule": "R1//P1D"}])
def test_a_disabled_job_that_would_run_at_once_is_refused(when: dict[str, str]) -> None:
    found = convert(json.dumps({"name": "a", "command": "b", "disabled": True} | when), name="chronos")
    assert not found.works
    assert [line.text for line in found.report if line.fate is Fate.REFUSED] == [
        "The job is disabled there, and an imported one would start: it has no schedule that could be paused."
    ]
