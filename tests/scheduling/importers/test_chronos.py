"""Jobs of Chronos."""

from __future__ import annotations

import json

import pytest

from scheduling.importers.registry import convert
from scheduling.importers.report import Fate, WorkKind
from tests.scheduling.importers.foreign_samples import SAMPLES


def test_a_job_with_a_schedule_becomes_a_schedule() -> None:
    found = convert(SAMPLES["chronos-nightly"])
    (work,) = found.works
    assert work.kind is WorkKind.SCHEDULE
    assert work.options["expression"] == "R10/2015-03-08T20:00:00.000Z/PT2H"
    assert (work.options["time_zone"], work.options["catch_up_seconds"]) == ("Europe/Berlin", 1800)
    assert (work.spec["cpu"], work.spec["memory"]) == (0.5, "1Gi")
    assert work.spec["command"] == "python train.py --name 'two words'"
    texts = {line.source: line.text for line in found.report}
    assert "Pause it" in texts["disabled"]
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
        ("R//P1D", "R/2000-01-01T00:00:00Z/P1D"),
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
