"""The lines of a bill: GPU time of each generation at each price, and what corrections took back of it.

Lines are what stands: they sum to the ledger to the last digit, corrections included. A segment has one price, so a
generation whose price did not change is read from the sums of closed time, and another one from its segments. What
the prices of classes changed (accounting/class_prices.py) is a line of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from functools import partial
from itertools import pairwise
from typing import Any, TypeAlias

from django.db.models import F, Max, Min, OuterRef, QuerySet, Subquery, Sum
from django.db.models.functions import Coalesce

from accounting.archived import archived_hours, has_all
from accounting.clipping import LOWER, UPPER, cost_between, earliest, gpu_seconds_between, latest, moment
from accounting.models import ArchivedHour, LedgerTransaction, Price, Tenant, UsageSegment, User
from accounting.models.usage import UsageSegmentQuerySet
from accounting.reports import By, UsageRow, usage_report
from accounting.tariff import CENTS_OF_A_CENT
from accounting.visibility import ANOTHER, tenants_seen

FREE = Decimal(0)
Hours: TypeAlias = QuerySet[ArchivedHour] | None


@dataclass(frozen=True, slots=True)
class Line:
    """GPU time of one generation at one price an hour. Each hour's part of `cost` is rounded by itself.

    Without a price it is what all prices of classes charged or credited for time that stands in other lines; or
    time of hours at several prices, if it has any, which an earlier release archived.
    """

    generation: str
    price: Decimal | None
    gpu_seconds: Decimal
    cost: Decimal
    currency: str


@dataclass(frozen=True, slots=True)
class TakenBack:
    """What a correction took back of a period of one job; below zero what it billed instead, which is among the lines.

    Of archived time it has no job, no counterpart and nothing that it corrects.
    """

    correction: int  # the transaction's number
    at: datetime
    reason: str
    actor: str
    job_id: int | None
    job: str | None
    generation: str
    # Numbers of the first and the last transaction that booked what was taken back.
    corrects: tuple[int, int] | None
    team: str
    # Who was billed instead, or before; None: nobody.
    counterpart: str | None
    gpu_seconds: Decimal
    cost: Decimal
    currency: str


def lines_of(
    viewer: User,
    begins: datetime,
    ends: datetime,
    tenant: Tenant,
    *,
    by_generation: Sequence[UsageRow] | None = None,
) -> list[Line]:
    """Of `tenant` with all below it in [begins, ends), as far as `viewer` may see.

    `by_generation` are rows of the usage report, if they are known already. Six queries at most where nothing of it
    is archived.
    """
    prices = list(
        Price.objects.filter(valid__overlap=(begins, ends)).values_list(
            "generation_id", "valid", "per_gpu_hour"
        )
    )
    changing = {
        generation
        for generation, valid, _ in prices
        if any(edge is not None and begins < edge < ends for edge in (valid.lower, valid.upper))
    }
    steady = {generation: price for generation, _, price in prices if generation not in changing}
    report = partial(usage_report, by=[By.GENERATION], tenant=tenant, totals=False)
    rows = report(viewer, begins, ends).rows if by_generation is None else by_generation
    changed = [row for row in rows if row.generation_id in changing]
    hours = _archived(viewer, begins, ends, tenant)
    in_pieces = bool(changed) and hours is not None and not has_all(begins, ends)
    charged = _charged(viewer, begins, ends, tenant, hours, without=changing if in_pieces else set())
    lines = [
        Line(
            row.generation or "",
            steady.get(row.generation_id or 0, FREE),
            row.gpu_seconds,
            row.cost - charged.get((row.generation or "", row.currency), FREE),
            row.currency,
        )
        for row in rows
        if row.generation_id not in changing
    ]
    if in_pieces:
        lines += _of_each_piece(viewer, begins, ends, tenant, changed)
    elif changed:
        lines += _at_each_price(viewer, begins, ends, tenant, hours, generations=changing)
    lines += [
        Line(generation, None, FREE, amount, currency)
        for (generation, currency), amount in charged.items()
        if amount
    ]
    return sorted(
        lines, key=lambda line: (line.currency, line.generation, line.price is None, line.price or FREE)
    )


def _charged(
    viewer: User, begins: datetime, ends: datetime, tenant: Tenant, hours: Hours, *, without: Collection[int]
) -> dict[tuple[str, str], Decimal]:
    """By generation and currency, what the prices of classes added to what stands, or took off."""
    charged = _of(viewer, tenant).uncorrected().filter(class_charge__isnull=False)
    segments = _within(charged.exclude(generation__in=without), begins, ends)
    sums = segments.values_list("generation__name", "currency").annotate(
        full=_cost(begins, ends), plain=_cost(begins, ends, of="cost")
    )
    found = {(generation, currency): full - plain for generation, currency, full, plain in sums}
    if hours is not None:
        of_hours = hours.filter(correction_id=None).exclude(charged=0).exclude(generation__in=without)
        for *key, amount in of_hours.values_list("generation__name", "currency").annotate(Sum("charged")):
            found[key[0], key[1]] = found.get((key[0], key[1]), FREE) + _as_booked(amount)
    return found


def _at_each_price(
    viewer: User, begins: datetime, ends: datetime, tenant: Tenant, hours: Hours, *, generations: set[int]
) -> list[Line]:
    found = _within(_of(viewer, tenant).uncorrected().filter(generation__in=generations), begins, ends)
    names = "generation__name", "price_per_gpu_hour", "currency"
    rows = list(
        found.values_list(*names).annotate(
            gpu_seconds_sum=_gpu_seconds(begins, ends), cost_sum=_cost(begins, ends, of="cost")
        )
    )
    if hours is not None:
        stands = hours.filter(correction_id=None, generation__in=generations)
        told = stands.values_list(*names).annotate(Sum("gpu_seconds"), Sum("cost"))
        rows += [(*row, _as_booked(cost)) for *row, cost in told]
    sums: dict[tuple[str, Decimal, str], tuple[Decimal, Decimal]] = {}
    for generation, price, currency, gpu_seconds, cost in rows:
        known = sums.get((generation, price, currency), (FREE, FREE))
        sums[generation, price, currency] = known[0] + gpu_seconds, known[1] + cost
    return [
        Line(generation, price, gpu_seconds, cost, currency)
        for (generation, price, currency), (gpu_seconds, cost) in sums.items()
    ]


def _of_each_piece(
    viewer: User, begins: datetime, ends: datetime, tenant: Tenant, rows: Sequence[UsageRow]
) -> list[Line]:
    """The same where an earlier release left only sums, piece by piece between changes of prices, with classes.

    An hour within which a price changed is in no piece: a line without a price has it.
    """
    generations = {row.generation_id for row in rows}
    prices = list(Price.objects.filter(generation__in=generations, valid__overlap=(begins, ends)))
    edges = {edge for price in prices for edge in (price.valid.lower, price.valid.upper) if edge is not None}
    cuts = sorted({begins, ends} | {edge for edge in edges if begins < edge < ends})
    found: dict[tuple[str, Decimal | None, str], Line] = {}

    def add(row: UsageRow, price: Decimal | None, sign: int = 1) -> None:
        key = row.generation or "", price, row.currency
        old = found.get(key, Line(key[0], price, FREE, FREE, row.currency))
        found[key] = replace(
            old, gpu_seconds=old.gpu_seconds + sign * row.gpu_seconds, cost=old.cost + sign * row.cost
        )

    for row in rows:
        add(row, None)
    for piece in pairwise(cuts):
        at = {price.generation_id: price.per_gpu_hour for price in prices if piece[0] in price.valid}
        for row in usage_report(viewer, *piece, by=[By.GENERATION], tenant=tenant, totals=False).rows:
            if row.generation_id in generations:
                add(row, at.get(row.generation_id or 0, FREE))
                add(row, None, -1)
    return [line for line in found.values() if line.gpu_seconds or line.cost]


def taken_back(viewer: User, begins: datetime, ends: datetime, tenant: Tenant) -> list[TakenBack]:
    """What corrections took from `tenant` and those below it of [begins, ends), or billed them, latest first.

    A reversal and what was billed instead match row by row, whatever was settled since. Four queries; one or two more
    where something is archived.
    """
    whose = _of(viewer, tenant)
    hours = _archived(viewer, begins, ends, tenant)
    back = whose.exclude(taken_back=None).annotate(
        correction=F("taken_back__transaction_id"),
        corrected=F("transaction_id"),
        other=_version(1, "tenant_id"),
    )
    anew = whose.filter(version__gt=0).annotate(
        correction=_version(-1, "taken_back__transaction_id"),
        corrected=_version(-1, "transaction_id"),
        other=_version(-1, "tenant_id"),
    )
    rows = [
        *_corrected(back, begins, ends, 1, cost="full_cost"),
        *_corrected(anew, begins, ends, -1, cost="booked_cost"),
    ]
    if hours is not None:
        rows += _corrected_hours(hours, "correction_id", 1, charged="charged")
        rows += _corrected_hours(hours, "anew_by_id", -1, charged="brought")
    if not rows:
        return []
    numbers = {row["correction"] for row in rows}
    corrections = LedgerTransaction.objects.filter(pk__in=numbers).select_related("actor").in_bulk()
    teams = Tenant.objects.in_bulk({pk for row in rows for pk in (row["tenant"], row["other"]) if pk})
    seen = tenants_seen(viewer)
    return [
        TakenBack(
            correction=row["correction"],
            at=(correction := corrections[row["correction"]]).recorded_at,
            reason=correction.description,
            actor=correction.actor.get_username() if correction.actor else "Fairlot",
            job_id=row["job_id"],
            job=row["job"],
            generation=row["generation__name"],
            corrects=row["corrects"],
            team=teams[row["tenant"]].name,
            counterpart=None
            if row["other"] is None
            else teams[row["other"]].name
            if seen is None or row["other"] in seen
            else ANOTHER,
            gpu_seconds=row["sign"] * row["seconds"],
            cost=row["sign"] * row["total"],
            currency=row["currency"],
        )
        for row in sorted(
            rows,
            key=lambda row: (
                -row["correction"],
                row["job_id"] or 0,
                row["generation__name"],
                row["currency"],
                -row["sign"],
            ),
        )
    ]


def _corrected(
    segments: UsageSegmentQuerySet, begins: datetime, ends: datetime, sign: int, *, cost: str
) -> list[dict[str, Any]]:
    within: Any = _within(segments, begins, ends)
    rows = within.values("correction", "job_id", "generation__name", "currency", "tenant", "other").annotate(
        job=Max("job_name"),
        first=Min("corrected"),
        last=Max("corrected"),
        seconds=_gpu_seconds(begins, ends),
        total=_cost(begins, ends, of=cost),
    )
    return [row | {"corrects": (row["first"], row["last"]), "sign": sign} for row in rows]


def _corrected_hours(
    hours: QuerySet[ArchivedHour], by: str, sign: int, *, charged: str
) -> list[dict[str, Any]]:
    rows = (
        hours.filter(**{f"{by}__isnull": False})
        .values("generation__name", "currency", "tenant", correction=F(by))
        .annotate(seconds=Sum("gpu_seconds"), total=Sum(F("cost") + F(charged)))
    )
    unknown = {"job_id": None, "job": None, "other": None, "corrects": None, "sign": sign}
    return [row | unknown | {"total": _as_booked(row["total"])} for row in rows]


def _version(step: int, field: str) -> Subquery:
    """A field of the version of the same time that is so many after it."""
    found = UsageSegment.objects.filter(
        month=OuterRef("month"),
        lease_id=OuterRef("lease_id"),
        period=OuterRef("period"),
        version=OuterRef("version") + step,
    )
    return Subquery(found.values(field)[:1])


def _archived(
    viewer: User, begins: datetime, ends: datetime, tenant: Tenant
) -> QuerySet[ArchivedHour] | None:
    hours = archived_hours(begins, ends)
    return None if hours is None else hours.filter(tenant__in=tenants_seen(viewer, tenant) or [])


def _as_booked(amount: Decimal) -> Decimal:
    """Sums have more decimals than bills, all of them zero."""
    return amount.quantize(CENTS_OF_A_CENT)


def _of(viewer: User, tenant: Tenant) -> UsageSegmentQuerySet:
    segments: UsageSegmentQuerySet = UsageSegment.objects.with_charges()
    return segments.filter(tenant__in=tenants_seen(viewer, tenant) or [])


def _within(segments: UsageSegmentQuerySet, begins: datetime, ends: datetime) -> UsageSegmentQuerySet:
    within: UsageSegmentQuerySet = (
        segments.overlapping(begins, ends)
        .order_by()
        .annotate(part_start=latest(LOWER, moment(begins)), part_end=earliest(UPPER, moment(ends)))
        .filter(part_start__lt=F("part_end"))
    )
    return within


def _gpu_seconds(begins: datetime, ends: datetime) -> Coalesce:
    return gpu_seconds_between(latest(LOWER, moment(begins)), earliest(UPPER, moment(ends)))


def _cost(begins: datetime, ends: datetime, *, of: str = "full_cost") -> Coalesce:
    return cost_between(latest(LOWER, moment(begins)), earliest(UPPER, moment(ends)), of=of)
