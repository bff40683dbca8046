"""Reads the figures of a team's statement. tables.py converts them to the tables that all formats show."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from functools import cache
from typing import TypeAlias

from django.conf import settings

from accounting.core.calendar import months_after
from accounting.core.clock import now_from_database
from accounting.core.consistent_read import consistent_read
from accounting.core.name_order import by_name
from accounting.ledger.heads import last_head
from accounting.limits.forecast import forecast
from accounting.limits.past_budgets import PastBudget, past_budgets
from accounting.limits.spending import UnbookedUsage, money_held
from accounting.models import LedgerHead, Membership, Tenant, User
from accounting.reports.invoice import Line, TakenBack, lines_of, taken_back
from accounting.reports.team_usage import (
    GenerationTime,
    Largest,
    LargestJobs,
    jobs_of,
    largest_jobs_of,
    largest_names_of,
    usage_of_team,
)
from accounting.reports.usage import By, UsageRow, report_of
from accounting.usage.reader import UsageReader
from portal.reports.periods import GIVEN, ReportPeriod
from portal.reports.unbooked import Unbooked, unbooked
from portal.reports.unsettled import Unsettled, unsettled_of
from scheduling.core.amounts import Amounts
from scheduling.limits.caps import unbooked as not_booked
from scheduling.models import LabelKey
from scheduling.reports.job_waits import Expansion, Wait, expansions, waits
from scheduling.reports.job_waste import Wasted, wasted_in_all
from scheduling.reports.label_values import values_of
from scheduling.shares.fairness import Scope, fairness_rows

MOST_USERS, MOST_JOBS, MOST_LABELS, MOST_KEYS = 100, 20, 20, 5
ALL = sys.maxsize
# reads the unbooked usage at the first call, and returns the same result at later calls
HeldNow: TypeAlias = Callable[[], Sequence[UnbookedUsage]]
# Statements of longer periods have no figures by day.
MOST_DAYS = 400


@dataclass(frozen=True)
class ByLabel:
    """Usage by the values of one label key.

    - `rows`: the values that the statement shows, which are those with the most usage.
    - `rest`: all other usage.
    - `count`: the number of all values, including those in `rest`.
    """

    key: str
    rows: Sequence[UsageRow]
    rest: Sequence[UsageRow]
    count: int


@dataclass(frozen=True)
class Ahead:
    """The cost of the current calendar month in one currency: until now, and as a forecast for the whole month.

    `spent` is the cost until now, including usage that the ledger has not booked yet. `forecast` is None in the first
    two days of the month.
    """

    begins: datetime
    ends: datetime
    spent: Decimal
    forecast: Decimal | None
    currency: str


@dataclass(frozen=True)
class Statement:
    """The figures of a tenant and the tenants below it, for whole days in one time zone.

    It includes only what `viewer` may see. `lines` are the bill lines: GPU time with its cost. `totals` has the sum of
    `lines` for each currency.
    """

    issuer: str
    tenant: Tenant
    viewer: User
    period: ReportPeriod
    at: datetime
    lines: Sequence[Line]
    taken_back: Sequence[TakenBack]
    totals: Sequence[UsageRow]
    held: Sequence[GenerationTime]
    unbooked: Unbooked
    budgets: Sequence[PastBudget]
    ahead: Sequence[Ahead]  # one per currency; empty unless the period contains today
    users: Largest
    jobs: LargestJobs
    labels: Sequence[ByLabel]
    more_keys: int  # number of label keys that are left out
    generations: Sequence[UsageRow]
    days: Sequence[UsageRow]
    shares: Sequence[tuple[str, Amounts]]
    waits: Sequence[Wait]
    expansions: Sequence[Expansion]
    waste: Wasted
    unsettled: Unsettled
    is_whole: bool  # False: of very many users, jobs, labels and days only the largest are shown
    head: LedgerHead | None  # the latest head of the hash chain, which covers all sealed transactions
    lacks_before: (
        datetime | None
    )  # bills before this time are archived, so some figures lack parts of those bills

    @property
    def number(self) -> str:
        """Returns the statement's number, such as VISION-2026-03. It contains the team, the days, and the time zone if
        it is not UTC.

        Statements of the same team, days and time zone have the same number.
        """
        zone = self.period.zone.key
        return f"{self.tenant.slug.upper()}-{period_name(self.period)}" + (
            "" if zone == "UTC" else f"-{zone}"
        )

    @property
    def is_provisional(self) -> bool:
        """Returns whether figures of the period may still change.

        This is so until three conditions are met: the period is over, all its usage is booked, and all its prices are
        final.
        """
        return self.at < self.period.ends or self.unbooked.jobs > 0 or bool(self.unsettled)

    @property
    def latest_budgets(self) -> Sequence[PastBudget]:
        """Returns the latest monthly budget and the latest quarterly budget in the statement's period, if there are
        any."""
        return list({one.period: one for one in self.budgets}.values())

    @property
    def gpu_seconds(self) -> Decimal:
        return sum((row.gpu_seconds for row in self.totals), Decimal(0))


def period_name(period: ReportPeriod) -> str:
    """Returns the period as text: "2026-03" for a whole month, otherwise first and last day,
    "2026-03-01-2026-03-15"."""
    after = period.last + timedelta(days=1)
    whole = period.first.day == after.day == 1 and (after - period.first).days <= 31
    return f"{period.first:%Y-%m}" if whole else period.in_a_name


def statement_of(viewer: User, tenant: Tenant, period: ReportPeriod, *, whole: bool = False) -> Statement:
    """Returns the statement of a tenant for a period.

    All figures are read in one database snapshot, so that sums agree even while usage is booked. With `whole`, the
    statement has all users, jobs, labels and days, for files that programs read. If `viewer` may not see the tenant,
    the statement is empty, so callers must check the permission first.
    """
    with consistent_read():
        return _statement(viewer, tenant, period, whole=whole)


def _statement(viewer: User, tenant: Tenant, period: ReportPeriod, *, whole: bool) -> Statement:
    reader = UsageReader(viewer, period.begins, period.ends, tenant)
    of_tenants = reader.tenants, period.begins, period.ends
    now = now_from_database()
    held_now = cache(lambda: not_booked(reader.tenants))
    is_long = not whole and period.ends - period.begins > timedelta(days=MOST_DAYS)
    users, of_jobs = (ALL, ALL) if whole else (MOST_USERS, MOST_JOBS)
    usage = usage_of_team(reader, zone=period.zone, days=not is_long, most=users)
    jobs = largest_jobs_of(reader, most=of_jobs)
    labels, more_keys = _labels(viewer, reader, tenant, usage.totals, whole=whole)
    return Statement(
        issuer=settings.FAIRLOT_ISSUER,
        tenant=tenant,
        viewer=viewer,
        period=period,
        at=now,
        lines=lines_of(reader, by_generation=usage.generations),
        taken_back=taken_back(reader),
        totals=usage.totals,
        held=usage.held,
        unbooked=unbooked(*of_tenants),
        budgets=_budgets(viewer, tenant, period, now, held_now),
        ahead=_ahead(reader, period, now, usage.totals, held_now),
        users=usage.users,
        jobs=jobs,
        labels=labels,
        more_keys=more_keys,
        is_whole=whole,
        generations=usage.generations,
        days=usage.days,
        shares=_shares(viewer, tenant, period),
        waits=[one for one in waits(*of_tenants) if one.generation is None],
        expansions=[one for one in expansions(*of_tenants) if one.generation is None],
        waste=wasted_in_all(reader),
        unsettled=unsettled_of(*of_tenants),
        head=last_head(),
        lacks_before=max(
            (before for before in (usage.lacks_before, jobs.lacks_before) if before), default=None
        ),
    )


def _budgets(
    viewer: User, tenant: Tenant, period: ReportPeriod, now: datetime, held_now: HeldNow
) -> list[PastBudget]:
    """Returns the tenant's monthly and quarterly budgets whose months or quarters overlap the period.

    The amount and the money spent are as of the end of the month or quarter, the end of `period`, or `now`, whichever
    is earliest. `held_now` is called without arguments, and returns the usage that the ledger has not booked yet. The
    list is empty if the viewer has no permission to read budgets.
    """
    manages = Tenant.objects.visible_to(viewer, role=Membership.Role.MANAGER).filter(pk=tenant.pk)
    if not viewer.is_operator and not manages.exists():
        return []
    return past_budgets(tenant, period.first, period.last, until=period.ends, now=now, held=held_now())


def _ahead(
    reader: UsageReader,
    period: ReportPeriod,
    now: datetime,
    totals: Sequence[UsageRow],
    held_now: HeldNow,
) -> list[Ahead]:
    """Returns the cost of the current month until now, and the forecast for the whole month, for each currency.

    Includes only usage that the viewer may see. `totals` is the usage that the ledger has booked in the period.
    `held_now` is a function that returns the usage that is not booked yet. The list is empty unless the period contains
    the current time.
    """
    if not period.begins <= now < period.ends:
        return []
    first = now.astimezone(period.zone).date().replace(day=1)
    month = ReportPeriod(GIVEN, first, months_after(first, 1) - timedelta(days=1), period.zone, {})
    if period.first != first:
        totals = report_of(reader.scope.within(month.begins, now), by=[By.GENERATION], totals=False).rows
    spent = defaultdict(Decimal, money_held(month.begins, now, held_now()))
    for row in totals:
        spent[row.currency] += row.cost
    return [
        Ahead(
            month.begins,
            month.ends,
            money,
            forecast(money, begins=month.begins, now=now, ends=month.ends),
            currency,
        )
        for currency, money in sorted(spent.items()) or [(settings.FAIRLOT_CURRENCY, Decimal(0))]
    ]


def _labels(
    viewer: User, reader: UsageReader, tenant: Tenant, totals: Sequence[UsageRow], *, whole: bool
) -> tuple[list[ByLabel], int]:
    """Returns the usage by values of each label key, and the number of label keys that were left out.

    `totals` is the statement's whole usage, with one row for each currency. Only the first MOST_KEYS keys are included,
    each with the MOST_LABELS values that have the most usage. With `whole`, all keys and values are included.
    """
    known = LabelKey.objects.visible_to(viewer).filter(tenant__path__startswith=tenant.path)
    every = list(known.order_by(*by_name("key")).values_list("key", flat=True).distinct())
    keys = every if whole else every[:MOST_KEYS]
    if not keys:
        return [], 0
    names = values_of(keys, jobs_of(reader), reader.tenants)
    most = ALL if whole else MOST_LABELS
    found = [
        ByLabel(key, told.rows, _rest(told, totals), told.count)
        for key in keys
        for told in [largest_names_of(reader, names[key], most=most)]
    ]
    return found, len(every) - len(keys)


def _rest(told: Largest, totals: Sequence[UsageRow]) -> list[UsageRow]:
    """Returns the usage of the groups that the statement does not show, as one row for each currency.

    `told` has the groups that the statement shows, which are those with the most usage. `totals` is the usage of all
    groups. The list is empty if all groups are shown.
    """
    rest = []
    if told.count > len(told.rows):
        for total in totals:
            rows = [row for row in told.rows if row.currency == total.currency]
            seconds = total.gpu_seconds - sum(row.gpu_seconds for row in rows)
            cost = total.cost - sum(row.cost for row in rows)
            rest.append(UsageRow(seconds, cost, total.currency, 0))
    return rest


def _shares(viewer: User, tenant: Tenant, period: ReportPeriod) -> list[tuple[str, Amounts]]:
    """Returns a pair (name of a generation, amounts) for each generation.

    The amounts are GPU time: the tenant's entitlement, and what it lent, borrowed, traded and received. They are sums
    over the tenant and the tenants below it.
    """
    sums: dict[str, Amounts] = {}
    for row in fairness_rows(Scope.of(viewer, period.begins, period.ends, tenant=tenant, cluster=None)):
        name = row.generation.name
        sums[name] = sums.get(name, Amounts()) + row.amounts
    return list(sums.items())
