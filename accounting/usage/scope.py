"""The scope of a usage report: its tenants, its period, and the days or hours into which the period is divided."""

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
    """Represents the usage that a report covers: in [begins, ends), of the tenants that `viewer` may see.

    A bound of None means no bound. `narrow`: additional filters on fields that exist in both rollups and usage
    segments. All queries of a report share one scope, which queries its tenants and books (clusters' ledgers) only
    once.
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
        """Returns this scope with another period. Reuses the tenants and ledgers that this scope has queried."""
        return replace(self, begins=begins, ends=ends, only=self.tenants)


@dataclass(frozen=True)
class Buckets:
    """Represents the division of a report's period into days or hours of a time zone.

    `unit`: "day" or "hour"; None if the period is not divided.
    """

    unit: str | None
    time_zone: str

    def start_of(self, moment: datetime) -> datetime:
        """Returns the start, in local time, of the day or hour that contains `moment`."""
        local = moment.astimezone(ZoneInfo(self.time_zone))
        start = local.replace(minute=0, second=0, microsecond=0)
        return start.replace(hour=0) if self.unit == "day" else start


ALL_TIME = Buckets(None, "UTC")
