"""Reads the usage of one period for a report of many figures."""

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
    """One row for each group, in the order of their keys: GPU-microseconds that it held, and `idle` ones among them."""

    keys: Mapping[str, Ints]
    held: Ints
    idle: Ints


class UsageReader:
    """Usage that `viewer` may see in [begins, ends), of `tenant` with all below it.

    Create one for each report, inside `consistent_read`, and pass it to all functions that need it: what several of
    them ask (teams, books, the rows of jobs) is read once. A viewer None sees all usage. Who pays for a job is who a
    correction names.
    """

    def __init__(
        self, viewer: User | None, begins: datetime, ends: datetime, tenant: Tenant | None = None
    ) -> None:
        self.viewer, self.begins, self.ends, self.tenant = viewer, begins, ends, tenant
        self.scope = Scope(viewer, begins, ends, tenant=tenant)

    @property
    def tenants(self) -> list[int] | None:
        """Returns the ids of the tenants whose usage it is; None means all tenants."""
        return self.scope.tenants

    @property
    def books(self) -> Books:
        return self.scope.books

    def within(self, begins: datetime, ends: datetime) -> UsageReader:
        """Returns the reader of another period, which reads neither the tenants nor the books again."""
        if (begins, ends) == (self.begins, self.ends):
            return self
        other = UsageReader(self.viewer, begins, ends, self.tenant)
        other.scope = self.scope.within(begins, ends)
        return other

    def of_everyone(self) -> UsageReader:
        """Returns the reader of all usage of the period, which does not read the books again."""
        other = UsageReader(None, self.begins, self.ends)
        other.scope = replace(self.scope, viewer=None, tenant=None, only=None)
        return other

    def plan(self, buckets: Buckets = ALL_TIME, *, by_job: bool) -> UsagePlan:
        return UsagePlan(self.scope, buckets, by_job=by_job)

    @cached_property
    def job_rows(self) -> list[Rows]:
        """Returns all rows by job, with their cost: the one query of which all figures about jobs are made."""
        return read_rows(self.plan(by_job=True), _groups(JOB), [*AMOUNTS, "cost", "segments"])

    def by_user(self) -> GroupedUsage:
        """Returns what was held by each of `USER`."""
        return self._read(USER, EVERYTHING)

    def by_job(self, only: Q) -> GroupedUsage:
        """Returns what was held by each of `JOB`, of rows that fulfil `only`: a condition on job_id and idle."""
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
    stands = held > 0  # corrections took back the rest
    return GroupedUsage(
        {name: key[stands] for name, key in zip(names, keys, strict=True)}, held[stands], idle[stands]
    )
