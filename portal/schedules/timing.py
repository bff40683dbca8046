"""The timing fields of the schedule form: their texts, their problems, and a preview of the runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Self
from zoneinfo import ZoneInfo

from django.http import QueryDict

from accounting.core.errors import Refusals, Refused
from accounting.core.numbers import DECIMAL_IN_WORDS, read_decimal
from portal.forms.fields import read_date_and_time
from scheduling.models import Schedule
from scheduling.schedules.actions import Terms
from scheduling.timetable import Timetable, TimetableError
from scheduling.timetable.local_time import when_reached

PREVIEWED = 10
TIMING = "timing"  # the name of these fields in the content of a draft
FIELDS = ("expression", "time_zone", "begins", "ends", "missed", "catch_up_hours", "overlap")
KEPT = (*FIELDS, "paused")
HOUR = 3600


@dataclass(frozen=True)
class Timing:
    """The text of each timing field, as typed. `begins` and `ends` are local times in the schedule's time zone."""

    expression: str = "0 2 * * *"
    time_zone: str = "UTC"
    begins: str = ""
    ends: str = ""
    missed: str = Schedule.Missed.ONCE
    catch_up_hours: str = "24"
    overlap: str = Schedule.Overlap.FORBID
    paused: str = ""  # of a new schedule; empty for no
    problems: dict[str, str] = field(default_factory=dict)
    stored: Schedule | None = None  # the schedule that the form edits; None for a new one

    @classmethod
    def from_post(cls, post: QueryDict, stored: Schedule | None = None) -> Self:
        texts: dict[str, Any] = {name: post.get(name, "").strip()[:200] for name in KEPT}
        return cls(**texts, stored=stored)

    @classmethod
    def of(cls, schedule: Schedule) -> Self:
        zone = ZoneInfo(schedule.time_zone)
        return cls(
            expression=schedule.expression,
            time_zone=schedule.time_zone,
            begins=_write_wall(schedule.begins, zone),
            ends=_write_wall(schedule.ends, zone),
            missed=schedule.missed,
            catch_up_hours=f"{schedule.catch_up_seconds / HOUR:g}",
            overlap=schedule.overlap,
            stored=schedule,
        )

    @classmethod
    def kept(cls, stored: Any) -> Self:
        """Returns the fields that `to_dict` wrote into a draft."""
        given = stored if isinstance(stored, dict) else {}
        texts: dict[str, Any] = {name: str(given[name]) for name in KEPT if name in given}
        return cls(**texts)

    def to_dict(self) -> dict[str, str]:
        """Returns the texts as typed, for a draft."""
        return {name: getattr(self, name) for name in KEPT}

    @classmethod
    def imported(cls, options: Mapping[str, Any], stored: Schedule | None = None) -> Self:
        """Returns the texts for the options of an imported schedule, which have the names of the API."""
        texts: dict[str, Any] = {
            name: str(options[name])[:200] for name in FIELDS if options.get(name) is not None
        }
        texts["paused"] = "on" if options.get("paused") else ""
        if (seconds := options.get("catch_up_seconds")) is not None:
            texts["catch_up_hours"] = f"{seconds / HOUR:.6g}"
        return cls(**texts, stored=stored)

    def read(self) -> Terms:
        """Converts the texts to `Terms`: the timetable of a schedule, and its rules for missed and for overlapping
        runs.

        Raises Refused, with the name of each field that has an invalid text.
        """
        refusals = Refusals()
        begins = ends = None
        with refusals.kept():
            begins, ends = self._bounds()
        hours = read_decimal(self.catch_up_hours)
        with refusals.kept():
            if hours is None:
                raise Refused(f"This must be a number of hours: {DECIMAL_IN_WORDS}.", "catch_up_hours")
        seconds = round((hours or 0) * HOUR)
        terms = Terms(
            expression=self.expression,
            time_zone=self.time_zone,
            begins=begins,
            ends=ends,
            missed=self.missed,
            catch_up_seconds=seconds,
            overlap=self.overlap,
        )
        with refusals.kept():
            terms.check(self.stored)
        refusals.raise_any()
        return terms

    def checked(self) -> Self:
        """Returns a copy whose `problems` is set to the problems of the fields."""
        try:
            self.read()
        except Refused as error:
            return self.with_problem(error)
        return replace(self, problems={})

    def with_problem(self, error: Refused) -> Self:
        names = {"catch_up_seconds": "catch_up_hours"}  # of the fields that have another unit here
        return replace(
            self, problems={names.get(one.field or "", one.field or ""): one.message for one in error.all}
        )

    def preview(self, now: datetime, reader: Any) -> dict[str, Any] | None:
        """Returns the next runs, in the time zones of the schedule and of `reader`, and the timetable as a sentence.

        Returns None if a timing field is invalid.
        """
        try:
            begins, ends = self._bounds()
            table = Terms(self.expression, self.time_zone, begins, ends).check(self.stored)
        except Refused:
            return None
        return preview_of(table, now, reader)

    def _bounds(self) -> tuple[datetime | None, datetime | None]:
        """Returns the start and the end of the schedule as datetimes. Raises Refused for an invalid text.

        If the user has changed neither the times nor the time zone, returns the stored datetimes, because the texts
        lack the seconds.
        """
        if self.stored and self._walls == Timing.of(self.stored)._walls:
            return self.stored.begins, self.stored.ends
        try:
            zone = Timetable.read("* * * * *", self.time_zone).zone
        except TimetableError as error:
            raise Refused(error.message, error.field) from None
        refusals, walls = Refusals(), {"begins": self.begins, "ends": self.ends}
        found: dict[str, datetime | None] = {}
        for name, text in walls.items():
            with refusals.kept():
                found[name] = _read_wall(text, zone, name)
        refusals.raise_any()
        return found["begins"], found["ends"]

    @property
    def _walls(self) -> tuple[str, str, str]:
        return self.time_zone, self.begins, self.ends


def preview_of(table: Timetable, now: datetime, reader: Any) -> dict[str, Any]:
    moments = list(table.next_ones(now, PREVIEWED))
    return {
        "words": table.rule.in_words(),
        "notes": table.rule.notes(),
        "zone": table.zone.key,
        "begins": table.begins and table.begins.astimezone(table.zone),
        "ends": table.ends and table.ends.astimezone(table.zone),
        "reader": str(reader),
        "both": str(reader) != table.zone.key,
        "runs": [(moment, moment.astimezone(table.zone), moment.astimezone(reader)) for moment in moments],
    }


def _read_wall(text: str, zone: ZoneInfo, name: str) -> datetime | None:
    if not text:
        return None
    try:
        given = read_date_and_time(text)
    except ValueError as error:
        raise Refused(str(error), name) from None
    return given.astimezone(UTC) if given.tzinfo else when_reached(given, zone)


def _write_wall(moment: datetime | None, zone: ZoneInfo) -> str:
    return moment.astimezone(zone).strftime("%Y-%m-%dT%H:%M") if moment else ""
