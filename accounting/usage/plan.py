"""Where reports read usage: the sums of what is closed, and usage segments of all other time.

Sums are of whole UTC days, by user or by job, and of whole UTC hours, by user. They are read where such a day or
hour lies in the report's period, is closed, and lies in one of the days or hours that the report has rows for;
days before hours.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property, reduce
from operator import or_
from typing import Any
from zoneinfo import ZoneInfo

from django.db.models import DateTimeField, ExpressionWrapper, F, Q, QuerySet, Value
from django.db.models.expressions import Combinable

from accounting.access.visibility import tenants_seen
from accounting.core.consistent_read import read_once
from accounting.core.statements import Statement
from accounting.ledger.partitions import first_of_month
from accounting.ledger.rollups import DAY, HOUR, start_of_day, start_of_hour
from accounting.models import JobDay, Tenant, UsageDay, UsageHour, UsageSegment, User
from accounting.models.usage import UsageSegmentQuerySet
from accounting.pricing.tariff import MICROSECOND
from accounting.usage.clipping import LOWER, start_of

NO_TIME = timedelta(0)


@dataclass(frozen=True)
class Scope:
    """Whose usage between which moments a report is about; `narrow` are filters that all sources understand."""

    viewer: User | None  # None: all of it, for what Fairlot itself counts
    begins: datetime | None
    ends: datetime | None
    narrow: Mapping[str, Any] = field(default_factory=dict)
    tenant: Tenant | None = None  # with all below it
    only: list[int] | None = None  # ids of tenants to read instead of those that the viewer sees

    @cached_property
    def tenants(self) -> list[int] | None:
        """Whose usage that is; None: all tenants'. Asked once, as it stands in each of a report's queries."""
        return tenants_seen(self.viewer, self.tenant) if self.only is None else self.only


@dataclass(frozen=True)
class Row:
    """What a report has rows for beside tenants and such: each "day" or "hour" of a time zone; None: neither."""

    unit: str | None
    time_zone: str


def start_of_row(row: Row, moment: datetime) -> datetime:
    """When the day or hour of the report began in which `moment` is."""
    local = moment.astimezone(ZoneInfo(row.time_zone))
    start = local.replace(minute=0, second=0, microsecond=0)
    return start.replace(hour=0) if row.unit == "day" else start


class _Level:
    """Sums of one kind, and which time they cover: of each book from one moment to another."""

    def __init__(self, model: Any, unit: str, scope: Scope, closed: Sequence[_Book]) -> None:
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
        """What begins in these spans; `moment` is the field that says when it begins."""
        covered = Q(pk__in=[])
        for book, (begins, ends) in self.spans.items():
            covered |= Q(book=book, **_within(moment, begins, ends))
        return covered

    def beyond(self, inner: _Level, moment: str) -> list[Q]:
        """The same in parts, without what `inner`, all of whose time this level covers too, does."""
        beyond = []
        for book, (begins, ends) in self.spans.items():
            first, last = inner.spans[book]
            parts = [(begins, first), (last, ends)] if first < last else [(begins, ends)]
            beyond += [Q(book=book, **_within(moment, *part)) for part in parts if part[0] < part[1]]
        return beyond

    def begins_at(self, moment: datetime) -> bool:
        """Whether one of its days or hours does."""
        return self._start(moment) == moment

    def _start(self, moment: datetime) -> datetime:
        return start_of_day(moment) if self.unit == "day" else start_of_hour(moment)

    def _next(self, moment: datetime) -> datetime:
        """The first of its days or hours that does not begin before `moment`."""
        return self._start(moment - MICROSECOND) + self.length


def _within(moment: str, begins: datetime, ends: datetime) -> dict[str, datetime]:
    return {f"{moment}__gte": begins, f"{moment}__lt": ends}


class Sources:
    """The sources of one report; together they have all of its time, and none of it twice."""

    def __init__(self, scope: Scope, row: Row, *, by_job: bool) -> None:
        self._scope, self._row = scope, row
        closed, self._unopened = _read_books()
        self._closed = closed
        levels: list[tuple[Any, str]] = (
            [(JobDay, "day")] if by_job else [(UsageDay, "day"), (UsageHour, "hour")]
        )
        # No whole day lies in an hour.
        units = ["hour"] if row.unit == "hour" else ["day", "hour"]
        self._details_since = _bills_since(closed)
        self._levels = [_Level(model, unit, scope, closed) for model, unit in levels if unit in units]

    @property
    def about(self) -> Hashable:
        """Returns all on which the SQL of the sources depends, except ids of tenants and `narrow` of the scope."""
        scope = self._scope
        # In UTC, as moments of the same zone equal each other where clocks are put back, though they are two.
        bounds = [at and at.astimezone(UTC) for at in (scope.begins, scope.ends)]
        levels = [(one.model, one.unit) for one in self._levels]
        return (*bounds, self._row, *levels, *self._closed, *self._unopened)

    def of(self, tenants: list[int] | None, **narrow: Any) -> Sources:
        """Returns the same sources for the usage of other tenants, by their ids; None means all tenants.

        `narrow` are further filters.
        """
        narrow = {**self._scope.narrow, **narrow}
        others = copy(self)
        others._scope = replace(self._scope, viewer=None, tenant=None, only=tenants, narrow=narrow)
        return others

    def lacks_before(self) -> datetime | None:
        """Where bills are archived of which the report needs more than sums, until when; None: it has all of its time.

        That is where it begins or ends within an hour (by job: a day, UTC), or has rows that begin within one.
        """
        until, scope, finest = self._details_since, self._scope, self._levels[-1] if self._levels else None
        if until is None or (scope.begins is not None and scope.begins >= until):
            return None
        edges = [edge for edge in (scope.begins, scope.ends) if edge is not None and edge < until]
        if finest is None or any(not finest.begins_at(edge) for edge in edges):
            return until
        if self._row.unit is None:
            return None
        first = scope.begins or min((one.since for one in self._closed), default=until)
        days = range((until - first).days + 1)
        starts = (start_of_row(self._row, first + timedelta(days=day)) for day in days)
        return None if all(finest.begins_at(start) for start in starts) else until

    def sums(self) -> list[QuerySet[Any]]:
        """Sums of days and of hours, which begin at `hour`."""
        found = (self._sums(level, self._levels[:place]) for place, level in enumerate(self._levels))
        return [some for some in found if some is not None]

    def segments(self) -> list[UsageSegmentQuerySet]:
        """Segments of all other time; those at the period's edges reach beyond it. None has what another one has."""
        if not self._levels:
            return [self._all_segments()]
        if self._straddles(self._levels[-1]):
            left: UsageSegmentQuerySet = self._without(
                self._all_segments(), self._levels, "period__startswith", LOWER
            )
            return [left]
        return [self._all_segments().filter(part) for part in self._left_by(self._levels[-1])]

    def _all_segments(self) -> UsageSegmentQuerySet:
        scope = self._scope
        found: UsageSegmentQuerySet = self._visible(UsageSegment.objects.with_charges())
        found = found.uncorrected().filter(**scope.narrow)
        return found.overlapping(scope.begins, scope.ends).order_by()

    def _left_by(self, finest: _Level) -> Iterator[Q]:
        """What a level leaves that covers all that others do, said so that indexes find it: mostly the last hours."""
        scope = self._scope
        before, after = {}, {}
        whole = [*self._unopened]
        for book, (begins, ends) in finest.spans.items():
            if begins >= ends:
                whole.append(book)
                continue
            # No segment crosses a full hour, so none reaches into a span that begins with the period.
            if scope.begins is None or begins > scope.begins:
                before[book] = begins
            if scope.ends is None or ends < scope.ends:
                after[book] = ends
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

    def _sums(self, level: _Level, taken: Sequence[_Level]) -> QuerySet[Any] | None:
        """Of one level what those before it leave; None where it is clear that there is nothing."""
        beyond = None
        if taken and not any(map(self._straddles, (level, *taken))):
            (inner,) = taken
            beyond = level.beyond(inner, "hour")
        if beyond == [] or not any(begins < ends for begins, ends in level.spans.values()):
            return None
        found: Any = self._visible(level.model.objects.all()).between(level.first, level.last)
        found = found.filter(**self._scope.narrow).order_by()
        if beyond is not None:
            return found.filter(_any_of(beyond))  # type: ignore[no-any-return]
        found = found.filter(level.covered("hour"))
        if self._straddles(level):
            found = found.alias(**self._rows_of(level, F("hour"))).filter(self._in_one_row(level))
        left: QuerySet[Any] = self._without(found, taken, "hour", F("hour"))
        return left

    def _without(self, found: Any, levels: Sequence[_Level], moment: str, at: F) -> Any:
        """Without what these levels have."""
        for level in levels:
            covered = level.covered(moment)
            if self._straddles(level):
                found = found.alias(**self._rows_of(level, start_of(level.unit, at, "UTC")))
                covered &= self._in_one_row(level)
            found = found.filter(~covered)
        return found

    def _straddles(self, level: _Level) -> bool:
        """Whether some of a level's days or hours may lie in two rows: none does in a row of the same clock."""
        if self._row.unit is None or self._row.time_zone == "UTC":
            return False
        return level.unit == "day" or not self._has_full_hours

    @cached_property
    def _has_full_hours(self) -> bool:
        """Whether all hours of the rows' clock begin with hours of UTC."""
        moments = [one.since for one in self._closed] + [one.until for one in self._closed]
        first = self._scope.begins or min(moments, default=self._scope.ends)
        last = self._scope.ends or max(moments, default=first)
        if first is None or last is None:
            return False
        days = (first + timedelta(days=day) for day in range((last - first).days + 2))
        return all(self._offset(day) % HOUR == NO_TIME for day in days)

    def _offset(self, moment: datetime) -> timedelta:
        return moment.astimezone(ZoneInfo(self._row.time_zone)).utcoffset() or NO_TIME

    def _visible(self, rows: Any) -> Any:
        tenants = self._scope.tenants
        return rows if tenants is None else rows.filter(tenant__in=tenants)

    def _rows_of(self, level: _Level, start: Combinable) -> dict[str, Combinable]:
        """In which rows of the report the level's day or hour begins and ends that begins at `start`."""
        end = ExpressionWrapper(start + Value(level.length - MICROSECOND), output_field=DateTimeField())
        return {f"first_of_{level.unit}": self._row_of(start), f"last_of_{level.unit}": self._row_of(end)}

    def _in_one_row(self, level: _Level) -> Q:
        return Q(**{f"first_of_{level.unit}": F(f"last_of_{level.unit}")})

    def _row_of(self, moment: Combinable) -> Combinable:
        return start_of(self._row.unit or "", moment, self._row.time_zone)


def _any_of(parts: Iterable[Q]) -> Q:
    return reduce(or_, parts)


def closed_sums(begins: datetime, ends: datetime, *, book: int | None = None) -> list[QuerySet[Any]]:
    """Sums of what is closed between two full hours (UTC), of one book or of all; none has what another one has."""
    scope = Scope(None, begins, ends, {} if book is None else {"book": book})
    return Sources(scope, Row(None, "UTC"), by_job=False).sums()


def bills_since() -> datetime | None:
    """Of what was held before it bills are archived; None: nowhere. No query where a report reads the books anyway."""
    closed, _ = _read_books()
    return _bills_since(closed)


def _bills_since(closed: Iterable[_Book]) -> datetime | None:
    return max((one.details_since for one in closed if one.details_since), default=None)


@dataclass(frozen=True, slots=True)
class _Book:
    """Of a ClosedBook what matters here."""

    book: int
    since: datetime
    until: datetime
    details_since: datetime | None


# All books in which something was booked are found from each one to the next, by an index.
_books = Statement("""
    WITH RECURSIVE booked (book) AS (
        SELECT min(book) FROM accounting_ledgertransaction
        UNION ALL
        SELECT (SELECT min(later.book) FROM accounting_ledgertransaction later WHERE later.book > booked.book)
          FROM booked WHERE booked.book IS NOT NULL)
    SELECT book, since, until, details_since
      FROM accounting_closedbook FULL JOIN (SELECT book FROM booked WHERE book IS NOT NULL) every_book USING (book)
     ORDER BY book
""")


@read_once
def _read_books() -> tuple[list[_Book], list[int]]:
    """Books of which hours may be closed, and all others in which something was booked."""
    rows = _books.ask()
    return [_Book(*row) for row in rows if row[1] is not None], [row[0] for row in rows if row[1] is None]
