"""Determines which part of a report's period the daily or hourly rollups cover."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db.models import Q

from accounting.core.calendar import DAY, HOUR, MICROSECOND, start_of_day, start_of_hour
from accounting.usage.books import Book
from accounting.usage.scope import Scope


class Level:
    """Represents the rollups in one table, and the time that they cover.

    - `model`: the Django model of the rollups: UsageDay, JobDay or UsageHour.
    - `unit`: "day" or "hour", the UTC period of each rollup.
    - `spans`: for each book (cluster's ledger), the interval within the report's period that these rollups cover.
    """

    def __init__(self, model: Any, unit: str, scope: Scope, closed: Sequence[Book]) -> None:
        self.model, self.unit = model, unit
        self.length = DAY if unit == "day" else HOUR
        self.first = None if scope.begins is None else self._next(scope.begins)
        self.last = None if scope.ends is None else self._start(scope.ends)
        self.spans = {
            one.book: (
                max(filter(None, (self._next(one.since), self.first))),
                min(filter(None, (self._start(one.until), self.last))),
            )
            for one in closed
        }

    def covered(self, moment: str) -> Q:
        """Returns the condition for rows that begin within the intervals in `spans`, which the rollups of this level
        cover.

        `moment`: the name of the field with the row's start.
        """
        covered = Q(pk__in=[])
        for book, (begins, ends) in self.spans.items():
            covered |= Q(book=book, **_within(moment, begins, ends))
        return covered

    def beyond(self, inner: Level, moment: str) -> list[Q]:
        """Returns conditions that select the rows whose start is covered by this level but not by the level `inner`.

        All time that `inner` covers must also be covered by this level. A row fulfils at most one of the conditions.
        `moment`: the name of the field with the row's start.
        """
        beyond = []
        for book, (begins, ends) in self.spans.items():
            first, last = inner.spans[book]
            parts = [(begins, first), (last, ends)] if first < last else [(begins, ends)]
            beyond += [Q(book=book, **_within(moment, *part)) for part in parts if part[0] < part[1]]
        return beyond

    def begins_at(self, moment: datetime) -> bool:
        """Returns whether a UTC day or hour (the unit of this level) begins exactly at `moment`."""
        return self._start(moment) == moment

    def _start(self, moment: datetime) -> datetime:
        return start_of_day(moment) if self.unit == "day" else start_of_hour(moment)

    def _next(self, moment: datetime) -> datetime:
        """Returns the start of the first day or hour (the unit of this level) that begins at or after `moment`."""
        return self._start(moment - MICROSECOND) + self.length


def _within(moment: str, begins: datetime, ends: datetime) -> dict[str, datetime]:
    return {f"{moment}__gte": begins, f"{moment}__lt": ends}
