"""Where reports read usage: the sums of what is closed, and usage segments of all other time.

Sums are of whole UTC hours, and of jobs of whole UTC days. They are read where such an hour or day lies in the
report's period, is closed, and lies in one of the days or hours that the report has rows for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db.models import DateTimeField, ExpressionWrapper, F, Q, QuerySet, Value
from django.db.models.expressions import Combinable

from accounting.clipping import LOWER, start_of
from accounting.models import ClosedBook, JobDay, UsageHour, UsageSegment, User
from accounting.models.usage import UsageSegmentQuerySet
from accounting.sums import DAY, HOUR, start_of_day, start_of_hour
from accounting.tariff import MICROSECOND


@dataclass(frozen=True)
class Scope:
    """Whose usage between which moments a report is about; `narrow` are filters that all sources understand."""

    viewer: User | None  # None: all of it, for what Fairlot itself counts
    begins: datetime | None
    ends: datetime | None
    narrow: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """What a report has rows for beside tenants and such: each "day" or "hour" of a time zone; None: neither."""

    unit: str | None
    time_zone: str


class Sources:
    """The two sources of one report; together they have all of its time, and none of it twice."""

    def __init__(self, scope: Scope, row: Row, *, by_job: bool) -> None:
        self._scope, self._row, self.by_job = scope, row, by_job
        self._step = DAY if by_job else HOUR
        self._first = None if scope.begins is None else self._next(scope.begins)
        self._last = None if scope.ends is None else self._start(scope.ends)
        self._closed = list(ClosedBook.objects.order_by("book"))

    def sums(self) -> QuerySet[Any]:
        """Sums of hours or days, which begin at `hour`."""
        model: Any = JobDay if self.by_job else UsageHour
        found: QuerySet[Any] = self._visible(model.objects.all()).between(self._first, self._last)
        found = found.filter(**self._scope.narrow).order_by()
        if self._row.unit is None:
            return found
        found = found.alias(first=self._row_of(F("hour")), last=self._row_of(self._end(F("hour"))))
        return found.filter(first=F("last"))

    def segments(self) -> UsageSegmentQuerySet:
        """Segments of all other time; those at the period's edges reach beyond it."""
        scope = self._scope
        found: UsageSegmentQuerySet = self._visible(UsageSegment.objects.all())
        found = found.uncorrected().filter(**scope.narrow)
        found = found.overlapping(scope.begins, scope.ends).order_by()
        elsewhere = self._open() | self._at_edges()
        if self._row.unit is not None:
            hour = start_of("day" if self.by_job else "hour", LOWER, "UTC")
            found = found.alias(first=self._row_of(hour), last=self._row_of(self._end(hour)))
            elsewhere |= ~Q(first=F("last"))
        return found.filter(elsewhere)

    def _visible(self, rows: Any) -> Any:
        return rows if self._scope.viewer is None else rows.visible_to(self._scope.viewer)

    def _open(self) -> Q:
        """What is not closed."""
        is_open = ~Q(book__in=[one.book for one in self._closed])
        for one in self._closed:
            since, until = self._next(one.since), self._start(one.until)
            begins_there = Q(period__startswith__gte=since, period__startswith__lt=until)
            is_open |= Q(book=one.book) & ~begins_there
        return is_open

    def _at_edges(self) -> Q:
        """What begins in an hour or day of which only a part is in the period."""
        at_edges = Q(pk__in=[])
        if self._first is not None:
            at_edges |= Q(period__startswith__lt=self._first)
        if self._last is not None:
            at_edges |= Q(period__startswith__gte=self._last)
        return at_edges

    def _start(self, moment: datetime) -> datetime:
        return start_of_day(moment) if self.by_job else start_of_hour(moment)

    def _next(self, moment: datetime) -> datetime:
        """The first full hour or day that does not begin before `moment`."""
        return self._start(moment - MICROSECOND) + self._step

    def _row_of(self, moment: Combinable) -> Combinable:
        return start_of(self._row.unit or "", moment, self._row.time_zone)

    def _end(self, start: Combinable) -> Combinable:
        """The last microsecond of the hour or day that begins at `start`."""
        length = Value(self._step - timedelta(microseconds=1))
        return ExpressionWrapper(start + length, output_field=DateTimeField())
