"""The scope of a usage report: its tenants, its period, and the days or hours into which it is divided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Any
from zoneinfo import ZoneInfo

from accounting.access.visibility import tenants_seen
from accounting.models import Tenant, User
from accounting.usage.books import Books


@dataclass(frozen=True)
class Scope:
    """The usage in [begins, ends) of the tenants that `viewer` may see; a bound of None means no bound.

    `narrow` are additional filters on fields that both rollups and usage segments have. A scope queries its tenants
    and books once, for all queries that use the scope.
    """

    viewer: User | None  # None: Fairlot, for all usage
    begins: datetime | None
    ends: datetime | None
    narrow: Mapping[str, Any] = field(default_factory=dict)
    tenant: Tenant | None = None  # reads only this tenant and its subtree
    only: list[int] | None = None  # ids of tenants to read, instead of those that the viewer may see
    books: Books = field(default_factory=Books, compare=False)

    @cached_property
    def tenants(self) -> list[int] | None:
        """Returns the ids of the tenants whose usage is read; None means all tenants."""
        return tenants_seen(self.viewer, self.tenant) if self.only is None else self.only

    def within(self, begins: datetime | None, ends: datetime | None) -> Scope:
        """Returns the scope with another period, which shares the tenants and books that this scope has queried."""
        return replace(self, begins=begins, ends=ends, only=self.tenants)


@dataclass(frozen=True)
class Buckets:
    """The division of a report into rows by "day" or "hour" of a time zone; with `unit` None, one row for all time."""

    unit: str | None
    time_zone: str

    def start_of(self, moment: datetime) -> datetime:
        """Returns the start, in local time, of the day or hour in which `moment` lies."""
        local = moment.astimezone(ZoneInfo(self.time_zone))
        start = local.replace(minute=0, second=0, microsecond=0)
        return start.replace(hour=0) if self.unit == "day" else start


ALL_TIME = Buckets(None, "UTC")
