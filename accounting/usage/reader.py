"""Reads the usage of one period for a report that needs many figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property

from django.db.models import F, Q

from accounting.core.packed import Ints
from accounting.models import Tenant, User
from accounting.usage.books import Books
from accounting.usage.columns import Rows, joined, read_rows, sum_groups
from accounting.usage.plan import UsagePlan
from accounting.usage.queries import EVERYTHING, Groups
from accounting.usage.scope import ALL_TIME, Buckets, Scope

USER = ("generation_id", "tenant_id", "user_id")
JOB = ("job_id", *USER)
AMOUNTS = ("gpu_seconds", "idle")


@dataclass(frozen=True, slots=True)
class GroupedUsage:
    """Represents usage with one row for each group, in ascending order of the keys.

    `keys`: the columns by which the usage is grouped, such as generation and user. `held` and `idle` are
    GPU-microseconds, and `idle` is part of `held`.
    """

    keys: Mapping[str, Ints]
    held: Ints
    idle: Ints


class UsageReader:
    """Reads the usage in [begins, ends) of `tenant` with its subtree, as far as `viewer` may see it.

    `tenant`: None means all tenants that `viewer` may see. `viewer`: None means that all usage is visible. Usage that a
    correction moved to another payer counts for the new payer.

    Create one reader for each report, inside `consistent_read`, and pass it to all functions of the report. The reader
    queries data that several functions need only once.
    """

    def __init__(
        self, viewer: User | None, begins: datetime, ends: datetime, tenant: Tenant | None = None
    ) -> None:
        self.viewer, self.begins, self.ends, self.tenant = viewer, begins, ends, tenant
        self.scope = Scope(viewer, begins, ends, tenant=tenant)

    @property
    def tenants(self) -> list[int] | None:
        """Returns the ids of the tenants whose usage this reader reads; None means all tenants."""
        return self.scope.tenants

    @property
    def books(self) -> Books:
        return self.scope.books

    def within(self, begins: datetime, ends: datetime) -> UsageReader:
        """Returns a reader for another period. Reuses the tenants and ledgers that this reader has already queried."""
        if (begins, ends) == (self.begins, self.ends):
            return self
        other = UsageReader(self.viewer, begins, ends, self.tenant)
        other.scope = self.scope.within(begins, ends)
        return other

    def of_everyone(self) -> UsageReader:
        """Returns a reader for the usage of all tenants in the same period. Reuses the ledgers that this reader has
        queried."""
        other = UsageReader(None, self.begins, self.ends)
        other.scope = replace(self.scope, viewer=None, tenant=None, only=None)
        return other

    def plan(self, buckets: Buckets = ALL_TIME, *, by_job: bool) -> UsagePlan:
        return UsagePlan(self.scope, buckets, by_job=by_job)

    @cached_property
    def job_rows(self) -> list[Rows]:
        """Returns all usage rows by job, generation, tenant and user, with their cost.

        All figures about jobs share this one query.
        """
        return read_rows(self.plan(by_job=True), _groups(JOB), [*AMOUNTS, "cost", "segments"])

    def by_user(self) -> GroupedUsage:
        """Returns the usage by generation, tenant and user, summed over all currencies."""
        return self._read(USER, EVERYTHING)

    def by_job(self, only: Q) -> GroupedUsage:
        """Returns the usage by job, generation, tenant and user, of rows that fulfil the condition `only`.

        The condition may use the fields job_id and idle.
        """
        return self._read(JOB, only) if only else _in_all_currencies(self.job_rows, JOB)

    def _read(self, names: Sequence[str], only: Q) -> GroupedUsage:
        plan = self.plan(by_job=names == JOB)
        return _in_all_currencies(read_rows(plan, _groups(names), AMOUNTS, only=only), names)


def _groups(names: Sequence[str]) -> Groups:
    return Groups({name: F(name) for name in names})


def _in_all_currencies(rows: Sequence[Rows], names: Sequence[str]) -> GroupedUsage:
    keys, (held, idle) = sum_groups(
        [joined(one.keys[name] for one in rows) for name in names],
        [joined(one.amounts[name] for one in rows) for name in AMOUNTS],
    )
    stands = held > 0  # corrections reversed all usage of the other groups
    return GroupedUsage(
        {name: key[stands] for name, key in zip(names, keys, strict=True)}, held[stands], idle[stands]
    )
