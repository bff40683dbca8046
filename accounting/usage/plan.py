"""The plan of a usage report: which rollups to read for closed time, and which usage segments for all other time.

There are daily rollups (UTC) by user and by job, and hourly rollups by user. A plan can read a rollup under three
conditions:

- Its hour or day is closed.
- Its hour or day lies within the report's period.
- Its usage belongs to a single row of the report.

The plan prefers daily rollups to hourly ones, because they are fewer.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cached_property, reduce
from operator import or_
from typing import Any
from zoneinfo import ZoneInfo

from django.db.models import DateTimeField, ExpressionWrapper, F, Q, QuerySet, Value
from django.db.models.expressions import Combinable

from accounting.core.calendar import HOUR, MICROSECOND, first_of_month
from accounting.models import JobDay, UsageDay, UsageHour, UsageSegment
from accounting.models.usage import UsageSegmentQuerySet
from accounting.usage.clipping import LOWER, start_of
from accounting.usage.levels import Level
from accounting.usage.scope import ALL_TIME, Buckets, Scope

NO_TIME = timedelta(0)


class UsagePlan:
    """Represents the queries of one report. Together they read all usage in the report's scope exactly once."""

    def __init__(self, scope: Scope, buckets: Buckets = ALL_TIME, *, by_job: bool) -> None:
        self.scope, self.buckets = scope, buckets
        self._closed, self._unopened = scope.books.closed, scope.books.unopened
        levels: list[tuple[Any, str]] = (
            [(JobDay, "day")] if by_job else [(UsageDay, "day"), (UsageHour, "hour")]
        )
        # No whole day lies within an hour.
        units = ["hour"] if buckets.unit == "hour" else ["day", "hour"]
        self._levels = [Level(model, unit, scope, self._closed) for model, unit in levels if unit in units]

    @property
    def about(self) -> Hashable:
        """Returns a cache key for the plan's SQL.

        It contains everything that determines the SQL, except the ids of the tenants and the scope's additional filters
        (`narrow`).
        """
        scope = self.scope
        # In UTC, because two different moments in one time zone compare as equal where clocks are set back.
        bounds = [at and at.astimezone(UTC) for at in (scope.begins, scope.ends)]
        levels = [(one.model, one.unit) for one in self._levels]
        return (*bounds, self.buckets, *levels, *self._closed, *self._unopened)

    def of(self, tenants: list[int] | None, **narrow: Any) -> UsagePlan:
        """Returns the same plan for the usage of other tenants, given by id; None means all tenants.

        `narrow`: additional filters.
        """
        narrow = {**self.scope.narrow, **narrow}
        others = copy(self)
        others.scope = replace(self.scope, viewer=None, tenant=None, only=tenants, narrow=narrow)
        return others

    def lacks_before(self) -> datetime | None:
        """Returns the time before which the report may lack archived usage; None if the report is complete.

        For archived time, the database has only rollups. A rollup covers a whole UTC hour; in reports by job, a whole
        UTC day. Usage may be missing in two cases:

        - The report's period begins or ends within such an hour or day.
        - The report has a row for each day or hour, and one of them begins within such an hour or day. For example,
          days in India begin at 18:30 UTC.
        """
        scope, until = self.scope, self.scope.books.bills_since
        finest = self._levels[-1] if self._levels else None
        if until is None or (scope.begins is not None and scope.begins >= until):
            return None
        edges = [edge for edge in (scope.begins, scope.ends) if edge is not None and edge < until]
        if finest is None or any(not finest.begins_at(edge) for edge in edges):
            return until
        if self.buckets.unit is None:
            return None
        first = scope.begins or min((one.since for one in self._closed), default=until)
        days = range((until - first).days + 1)
        starts = (self.buckets.start_of(first + timedelta(days=day)) for day in days)
        return None if all(finest.begins_at(start) for start in starts) else until

    def rollups(self) -> list[QuerySet[Any]]:
        """Returns the queries of rollups: at most one of daily and one of hourly rollups.

        The field `hour` is the start of the day or hour.
        """
        found = (self._rollup(level, self._levels[:place]) for place, level in enumerate(self._levels))
        return [some for some in found if some is not None]

    def segments(self) -> list[UsageSegmentQuerySet]:
        """Returns queries of the usage segments in all time that the rollups do not cover. No segment is in two
        queries.

        Segments are not clipped: they may extend beyond the report's period.
        """
        if not self._levels:
            return [self._all_segments()]
        if self._straddles(self._levels[-1]):
            left: UsageSegmentQuerySet = self._without(
                self._all_segments(), self._levels, "period__startswith", LOWER
            )
            return [left]
        return [self._all_segments().filter(part) for part in self._left_by(self._levels[-1])]

    def _all_segments(self) -> UsageSegmentQuerySet:
        scope = self.scope
        found: UsageSegmentQuerySet = self._visible(UsageSegment.objects.with_charges())
        found = found.uncorrected().filter(**scope.narrow)
        return found.overlapping(scope.begins, scope.ends).order_by()

    def _left_by(self, finest: Level) -> Iterator[Q]:
        """Yields conditions for the segments in time that rollups do not cover.

        `finest`: the hourly rollups if the plan may read these, and the daily rollups if not. They cover all time that
        any rollups cover.
        """
        scope = self.scope
        before, after = {}, {}
        whole = [*self._unopened]
        for book, (begins, ends) in finest.spans.items():
            if begins >= ends:
                whole.append(book)
                continue
            # No segment crosses a full hour, so no segment reaches into a span that begins together with the period.
            if scope.begins is None or begins > scope.begins:
                before[book] = begins
            if scope.ends is None or ends < scope.ends:
                after[book] = ends
        # The bounds for all books together let PostgreSQL use indexes.
        if before:
            latest = max(before.values())
            left = Q(month__lte=first_of_month(latest), period__startswith__lt=latest)
            yield left & _any_of(Q(book=book, period__startswith__lt=at) for book, at in before.items())
        if after:
            first = min(after.values())
            left = Q(month__gte=first_of_month(first), period__startswith__gte=first)
            yield left & _any_of(Q(book=book, period__startswith__gte=at) for book, at in after.items())
        if whole:
            yield Q(book__in=whole)

    def _rollup(self, level: Level, taken: Sequence[Level]) -> QuerySet[Any] | None:
        """Returns a query of the rollups of `level`; None if there cannot be rows.

        `taken`: the levels for which the plan already has a query. Leaves out the time that these levels cover, so that
        no usage counts twice.
        """
        beyond = None
        if taken and not any(map(self._straddles, (level, *taken))):
            (inner,) = taken
            beyond = level.beyond(inner, "hour")
        if beyond == [] or not any(begins < ends for begins, ends in level.spans.values()):
            return None
        found: Any = self._visible(level.model.objects.all()).between(level.first, level.last)
        found = found.filter(**self.scope.narrow).order_by()
        if beyond is not None:
            return found.filter(_any_of(beyond))  # type: ignore[no-any-return]
        found = found.filter(level.covered("hour"))
        if self._straddles(level):
            found = found.alias(**self._rows_of(level, F("hour"))).filter(self._in_one_row(level))
        left: QuerySet[Any] = self._without(found, taken, "hour", F("hour"))
        return left

    def _without(self, found: Any, levels: Sequence[Level], moment: str, at: F) -> Any:
        """Returns the query `found` without the rows whose usage the plan reads from the rollups of `levels`.

        `moment`: the name of the field with the row's start. `at`: the row's start as a database expression.
        """
        for level in levels:
            covered = level.covered(moment)
            if self._straddles(level):
                found = found.alias(**self._rows_of(level, start_of(level.unit, at, "UTC")))
                covered &= self._in_one_row(level)
            found = found.filter(~covered)
        return found

    def _straddles(self, level: Level) -> bool:
        """Returns whether a rollup of this level (a UTC day or hour) can contain usage of two rows of the report.

        This is possible if the report has rows by day or hour in a time zone other than UTC.
        """
        if self.buckets.unit is None or self.buckets.time_zone == "UTC":
            return False
        return level.unit == "day" or not self._has_full_hours

    @cached_property
    def _has_full_hours(self) -> bool:
        """Returns whether all hours of the report's time zone begin at the same moments as UTC hours."""
        moments = [one.since for one in self._closed] + [one.until for one in self._closed]
        first = self.scope.begins or min(moments, default=self.scope.ends)
        last = self.scope.ends or max(moments, default=first)
        if first is None or last is None:
            return False
        days = (first + timedelta(days=day) for day in range((last - first).days + 2))
        return all(self._offset(day) % HOUR == NO_TIME for day in days)

    def _offset(self, moment: datetime) -> timedelta:
        return moment.astimezone(ZoneInfo(self.buckets.time_zone)).utcoffset() or NO_TIME

    def _visible(self, rows: Any) -> Any:
        tenants = self.scope.tenants
        return rows if tenants is None else rows.filter(tenant__in=tenants)

    def _rows_of(self, level: Level, start: Combinable) -> dict[str, Combinable]:
        """Returns two expressions, by name. If they have the same value, a whole rollup belongs to one row of the
        report.

        They are the report's day or hour that contains the first and the last microsecond of the rollup. `level`: the
        level of the rollup. `start`: the rollup's start.
        """
        end = ExpressionWrapper(start + Value(level.length - MICROSECOND), output_field=DateTimeField())
        return {
            f"first_of_{level.unit}": self._bucket_of(start),
            f"last_of_{level.unit}": self._bucket_of(end),
        }

    def _in_one_row(self, level: Level) -> Q:
        return Q(**{f"first_of_{level.unit}": F(f"last_of_{level.unit}")})

    def _bucket_of(self, moment: Combinable) -> Combinable:
        return start_of(self.buckets.unit or "", moment, self.buckets.time_zone)


def _any_of(parts: Iterable[Q]) -> Q:
    return reduce(or_, parts)


def closed_sums(begins: datetime, ends: datetime, *, book: int | None = None) -> list[QuerySet[Any]]:
    """Returns queries of the rollups in [begins, ends), which must be full UTC hours. No usage is in two queries.

    `book`: one cluster's book; None means all books.
    """
    scope = Scope(None, begins, ends, {} if book is None else {"book": book})
    return UsagePlan(scope, by_job=False).rollups()
