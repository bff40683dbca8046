"""What a usage report is about: whose usage, of which period, divided into which days or hours."""

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
    """Usage of the tenants that `viewer` sees in [begins, ends); None as a bound means no bound.

    `narrow` are further filters, which must fit rollups and usage segments alike. All queries of one scope share what
    it has read of tenants and books.
    """

    viewer: User | None  # None: all usage, for what Fairlot itself counts
    begins: datetime | None
    ends: datetime | None
    narrow: Mapping[str, Any] = field(default_factory=dict)
    tenant: Tenant | None = None  # with all below it
    only: list[int] | None = None  # ids of tenants to read instead of those that the viewer sees
    books: Books = field(default_factory=Books, compare=False)

    @cached_property
    def tenants(self) -> list[int] | None:
        """Returns the ids of the tenants whose usage it is; None means all tenants."""
        return tenants_seen(self.viewer, self.tenant) if self.only is None else self.only

    def within(self, begins: datetime | None, ends: datetime | None) -> Scope:
        """Returns the scope of another period, which reads neither the tenants nor the books again."""
        return replace(self, begins=begins, ends=ends, only=self.tenants)


@dataclass(frozen=True)
class Buckets:
    """Each "day" or "hour" of a time zone, for which a report has separate rows; with None one row for all time."""

    unit: str | None
    time_zone: str

    def start_of(self, moment: datetime) -> datetime:
        """Returns when the day or hour began in which `moment` lies."""
        local = moment.astimezone(ZoneInfo(self.time_zone))
        start = local.replace(minute=0, second=0, microsecond=0)
        return start.replace(hour=0) if self.unit == "day" else start


ALL_TIME = Buckets(None, "UTC")
