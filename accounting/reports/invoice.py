"""The lines of a team's bill: GPU time by generation, class and price, and the usage that corrections reversed.

The cost of a line is GPU time × price, rounded once, so that a reader can recompute it. The ledger rounds the cost of
each segment instead. A *rounding* line contains the difference. So all lines and corrections together equal the ledger
to the last digit.

Lines are computed from rollups. If the price of a generation changed in the period, its lines are computed from
segments.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from functools import partial
from itertools import pairwise
from typing import Any, TypeAlias

from django.db.models import F, Max, Min, OuterRef, Q, QuerySet, Subquery, Sum
from django.db.models.functions import Coalesce

from accounting.access.visibility import ANOTHER, tenants_seen
from accounting.core.calendar import HOUR
from accounting.models import ArchivedHour, LedgerTransaction, Price, Tenant, UsageSegment
from accounting.models.usage import UsageSegmentQuerySet
from accounting.pricing.tariff import cost_of
from accounting.reports.usage import By, UsageRow, report_of
from accounting.usage.archived import archived_hours, has_all
from accounting.usage.clipping import (
    LOWER,
    UPPER,
    cost_between,
    earliest,
    gpu_seconds_between,
    latest,
    moment,
    part_of_each,
)
from accounting.usage.queries import clipped
from accounting.usage.reader import UsageReader

FREE = Decimal(0)
Hours: TypeAlias = QuerySet[ArchivedHour] | None


class LineKind(StrEnum):
    """Lists the kinds of bill lines: the classes of GPU time, and special lines without a price, such as rounding.

    See accounting/closing/class_prices.py for the classes.
    """

    OWNED = "owned"
    IDLE = "idle"
    PREEMPTIBLE = "preemptible"
    BORROWED = "borrowed"
    CLASSES = (
        "by class"  # what class prices changed, where an earlier release archived nothing else about them
    )
    # hours within which a price changed, where an earlier release archived only their sums
    SEVERAL = "at several prices"
    ROUNDING = "rounding"


@dataclass(frozen=True, slots=True)
class Line:
    """Represents a bill line: GPU time of one generation and class from `begins` to `ends`.

    `price`: the price per GPU-hour; `cost` is then GPU time × price, rounded once. If `price` is None, the line is one
    of the special kinds, such as rounding.
    """

    generation: str
    kind: LineKind
    begins: datetime
    ends: datetime
    price: Decimal | None
    gpu_seconds: Decimal
    cost: Decimal
    currency: str


@dataclass(frozen=True, slots=True)
class _Held:
    """Represents GPU time of one generation at one price, and its cost in the ledger. Reversed usage is not included.

    `price` is None in two cases:

    - No price was valid, so that the time was free of charge.
    - `kind` is SEVERAL: the time was billed at several prices.
    """

    generation: str
    currency: str
    price: Price | None
    gpu_seconds: Decimal
    cost: Decimal
    kind: LineKind = LineKind.OWNED
    rest: LineKind = LineKind.ROUNDING  # the kind of the line for cost beyond time × price


@dataclass(slots=True)
class _InClasses:
    """Represents usage in the classes of GPU time that have a price: idle, preemptible and borrowed.

    `seconds`: the GPU-seconds in each class. For some archived time, they are not stored and not included. `unknown`:
    the money that class prices added to the cost of this archived time.
    """

    seconds: dict[str, Decimal] = field(default_factory=lambda: dict.fromkeys(Price.CLASSES, FREE))
    unknown: Decimal = FREE


@dataclass(frozen=True, slots=True)
class TakenBack:
    """Represents the effect of a correction on the bill of `team`, for the usage of one job.

    - If the correction took the usage off the team's bill, `gpu_seconds` and `cost` are positive.
    - If the correction moved the usage from another payer to the team, they are negative. The bill lines of the team
      then also contain the usage.

    For archived time, `job_id`, `job`, `corrects` and `counterpart` are None.
    """

    correction: int  # id of the correcting transaction
    at: datetime
    reason: str
    actor: str
    job_id: int | None
    job: str | None
    generation: str
    # Ids of the first and the last transaction that posted the reversed usage.
    corrects: tuple[int, int] | None
    team: str
    # The team that was billed instead (for negative amounts: before); None if there is no such team or it is unknown.
    counterpart: str | None
    gpu_seconds: Decimal
    cost: Decimal
    currency: str


def lines_of(reader: UsageReader, *, by_generation: Sequence[UsageRow] | None = None) -> list[Line]:
    """Returns the lines of a team's bill, sorted by currency, generation, time and kind.

    `by_generation`: the rows of the team's usage report by generation, if the caller already has them. Makes at most
    six queries if nothing in the period is archived.
    """
    begins, ends = reader.begins, reader.ends
    prices = {one.pk: one for one in Price.objects.filter(valid__overlap=(begins, ends))}
    changing = {
        one.generation_id
        for one in prices.values()
        if any(edge is not None and begins < edge < ends for edge in (one.valid.lower, one.valid.upper))
    }
    steady = {one.generation_id: one for one in prices.values() if one.generation_id not in changing}
    rows = _by_generation(reader) if by_generation is None else by_generation
    changed = [row for row in rows if row.generation_id in changing]
    hours = _archived(reader)
    in_pieces = bool(changed) and hours is not None and not has_all(reader.books, begins, ends)
    held = [
        _Held(
            row.generation or "", row.currency, steady.get(row.generation_id or 0), row.gpu_seconds, row.cost
        )
        for row in rows
        if row.generation_id not in changing
    ]
    if in_pieces:
        held += _of_each_piece(reader, changed, prices=list(prices.values()))
    elif changed:
        held += _at_each_price(reader, hours, prices=prices, generations=changing)
    classes = _in_classes(reader, hours, without=changing if in_pieces else set())
    lines: list[Line] = []
    for one in held:
        key = one.generation, one.currency, None if one.price is None else one.price.pk
        lines += _lines(one, classes.get(key, _InClasses()), begins, ends)
    order = list(LineKind)
    return sorted(
        _rounded_together(lines),
        key=lambda line: (line.currency, line.generation, line.begins, order.index(line.kind)),
    )


def _by_generation(reader: UsageReader) -> Sequence[UsageRow]:
    return report_of(reader.scope, by=[By.GENERATION], totals=False).rows


def _lines(held: _Held, classes: _InClasses, begins: datetime, ends: datetime) -> Iterator[Line]:
    """Yields one line for each class of GPU time, and up to two lines for the remaining cost.

    `held`: GPU time at one price, with its cost in the ledger. `classes`: the part of this time in classes with their
    own price. `begins`, `ends`: the period of the bill.

    The cost of a class line is its GPU time times the price of the class. The remaining cost is the cost in the ledger
    minus the cost of all class lines. It has two parts, and each part that is not 0 gets a line:

    - `classes.unknown`: what class prices added for time whose class is not stored
    - the rest, such as rounding

    If `held` was billed at several prices, yields only one line, without a price.
    """
    price = held.price
    if price is not None:
        begins, ends = max(begins, price.valid.lower or begins), min(ends, price.valid.upper or ends)
    line = partial(Line, held.generation, begins=begins, ends=ends, currency=held.currency)
    if held.kind != LineKind.OWNED:
        yield line(held.kind, price=None, gpu_seconds=held.gpu_seconds, cost=held.cost)
        return
    parts = [(LineKind.OWNED, held.gpu_seconds - sum(classes.seconds.values()), price and price.per_gpu_hour)]
    if price is not None:
        parts += [(LineKind(name), some, price.of_class(name)) for name, some in classes.seconds.items()]
    left = held.cost - classes.unknown
    for kind, seconds, per_gpu_hour in parts:
        if seconds:
            cost = cost_of(seconds, per_gpu_hour or FREE)
            left -= cost
            yield line(kind, price=per_gpu_hour or FREE, gpu_seconds=seconds, cost=cost)
    for kind, cost in ((LineKind.CLASSES, classes.unknown), (held.rest, left)):
        if cost:
            yield line(kind, price=None, gpu_seconds=FREE, cost=cost)


def _rounded_together(lines: Iterable[Line]) -> Iterator[Line]:
    """Yields the lines, but merges all rounding lines of a generation and currency into one line at the end."""
    rounding: dict[tuple[str, str], Line] = {}
    for line in lines:
        if line.kind != LineKind.ROUNDING:
            yield line
            continue
        one = rounding.get((line.generation, line.currency), replace(line, cost=FREE))
        rounding[line.generation, line.currency] = replace(
            one,
            begins=min(one.begins, line.begins),
            ends=max(one.ends, line.ends),
            cost=one.cost + line.cost,
        )
    yield from (line for line in rounding.values() if line.cost)


def _in_classes(
    reader: UsageReader, hours: Hours, *, without: Collection[int]
) -> dict[tuple[str, str, int | None], _InClasses]:
    """Returns the GPU time in classes with their own price, by (generation name, currency, price id).

    `hours`: the stored sums of archived bills; None if no bill in the period is archived. `without`: the ids of
    generations to leave out.
    """
    begins, ends = reader.begins, reader.ends
    charged = _segments(reader).uncorrected().filter(class_charge__isnull=False)
    segments = charged.exclude(generation__in=without)
    names = "generation__name", "currency", "under"
    parts = {f"{name}_sum": Sum(_part_of(f"charge__{name}", begins, ends)) for name in Price.CLASSES}
    rows = [
        (row, FREE) for row in segments.annotate(under=_price_of_segment()).values(*names).annotate(**parts)
    ]
    if hours is not None:
        of_hours = hours.filter(correction_id=None).exclude(charged=0).exclude(generation__in=without)
        # An earlier release archived only the amounts of class charges.
        told = of_hours.annotate(under=_price_of_hour()).values(*names)
        known = Q(idle__gt=0) | Q(preemptible__gt=0) | Q(borrowed__gt=0)
        sums = {f"{name}_sum": Sum(name) for name in Price.CLASSES}
        rows += [
            (row, row["unknown"])
            for row in told.annotate(**sums, unknown=Sum("charged", filter=~known, default=FREE))
        ]
    found: dict[tuple[str, str, int | None], _InClasses] = {}
    for row, unknown in rows:
        one = found.setdefault((row["generation__name"], row["currency"], row["under"]), _InClasses())
        one.unknown += unknown
        for name in Price.CLASSES:
            one.seconds[name] += row[f"{name}_sum"]
    return found


def _at_each_price(
    reader: UsageReader, hours: Hours, *, prices: Mapping[int, Price], generations: set[int]
) -> list[_Held]:
    begins, ends = reader.begins, reader.ends
    found = _segments(reader).uncorrected().filter(generation__in=generations)
    names = "generation__name", "currency", "under"
    rows = list(
        found.annotate(under=_price_of_segment())
        .values_list(*names)
        .annotate(gpu_seconds_sum=_gpu_seconds(begins, ends), cost_sum=_cost(begins, ends))
    )
    if hours is not None:
        stands = hours.filter(correction_id=None, generation__in=generations)
        told = stands.annotate(under=_price_of_hour()).values_list(*names)
        sums = told.annotate(Sum("gpu_seconds"), cost_sum=Sum(F("cost") + F("charged")))
        rows += sums
    sums_of: dict[tuple[str, str, int | None], tuple[Decimal, Decimal]] = {}
    for *key, gpu_seconds, cost in rows:
        known = sums_of.get((key[0], key[1], key[2]), (FREE, FREE))
        sums_of[key[0], key[1], key[2]] = known[0] + gpu_seconds, known[1] + cost
    return [
        _Held(generation, currency, None if under is None else prices[under], gpu_seconds, cost)
        for (generation, currency, under), (gpu_seconds, cost) in sums_of.items()
    ]


def _of_each_piece(reader: UsageReader, rows: Sequence[UsageRow], *, prices: Sequence[Price]) -> list[_Held]:
    """Returns the GPU time and cost at each price, computed from rollups, for generations whose price changed in the
    period.

    `rows`: the total usage of these generations. `prices`: the prices in the period. The usage of an hour in which the
    price changed gets a line without a price, because a rollup does not say at which price its parts were billed.
    """
    begins, ends = reader.begins, reader.ends
    generations = {row.generation_id for row in rows}
    of_these = [one for one in prices if one.generation_id in generations]
    edges = {edge for one in of_these for edge in (one.valid.lower, one.valid.upper) if edge is not None}
    cuts = sorted({begins, ends} | {edge for edge in edges if begins < edge < ends})
    found: dict[tuple[str, str, int | None], _Held] = {}

    def add(row: UsageRow, price: Price | None, sign: int = 1, kind: LineKind = LineKind.OWNED) -> None:
        key = (
            row.generation or "",
            row.currency,
            None if kind == LineKind.SEVERAL else (price and price.pk) or 0,
        )
        old = found.get(key, _Held(key[0], key[1], price, FREE, FREE, kind, LineKind.CLASSES))
        found[key] = replace(
            old, gpu_seconds=old.gpu_seconds + sign * row.gpu_seconds, cost=old.cost + sign * row.cost
        )

    for row in rows:
        add(row, None, kind=LineKind.SEVERAL)
    for piece in pairwise(cuts):
        at = {one.generation_id: one for one in of_these if piece[0] in one.valid}
        for row in _by_generation(reader.within(*piece)):
            if row.generation_id in generations:
                add(row, at.get(row.generation_id or 0))
                add(row, None, -1, LineKind.SEVERAL)
    return [one for one in found.values() if one.gpu_seconds or one.cost]


def _price_of_segment() -> Subquery:
    """Returns a subquery for the id of the price that was valid when a segment began."""
    return Subquery(
        Price.objects.filter(
            generation=OuterRef("generation"), valid__contains=OuterRef("period__startswith")
        )
        .order_by()
        .values("pk")[:1]
    )


def _price_of_hour() -> Subquery:
    """Returns a subquery for the id of the price at which an archived hour was billed.

    An ArchivedHour row stores only the amount per GPU-hour. The subquery finds the first price of the generation that
    has this amount and was valid during part of the hour.
    """
    valid = Price.objects.filter(
        generation=OuterRef("generation"), per_gpu_hour=OuterRef("price_per_gpu_hour")
    )
    within = valid.filter(
        Q(valid__startswith=None) | Q(valid__startswith__lt=OuterRef("hour") + HOUR),
        Q(valid__endswith=None) | Q(valid__endswith__gt=OuterRef("hour")),
    )
    return Subquery(within.order_by("valid").values("pk")[:1])


def _part_of(name: str, begins: datetime, ends: datetime) -> Any:
    return part_of_each(name, latest(LOWER, moment(begins)), earliest(UPPER, moment(ends)))


def taken_back(reader: UsageReader) -> list[TakenBack]:
    """Returns the effects of corrections on the team's bill, latest correction first.

    These are the usage that corrections reversed, and the usage that they moved from other payers to the team. If a
    correction moves usage from one team to another, both teams get the same amounts with opposite signs. Later changes
    of the new payer's bill by class prices are not included.
    """
    segments, hours = _segments(reader), _archived(reader)
    back = segments.exclude(taken_back=None).annotate(
        correction=F("taken_back__transaction_id"),
        corrected=F("transaction_id"),
        other=_version(1, "tenant_id"),
    )
    anew = segments.filter(version__gt=0).annotate(
        correction=_version(-1, "taken_back__transaction_id"),
        corrected=_version(-1, "transaction_id"),
        other=_version(-1, "tenant_id"),
    )
    rows = [
        *_corrected(reader, back, 1, cost="full_cost"),
        *_corrected(reader, anew, -1, cost="booked_cost"),
    ]
    if hours is not None:
        rows += _corrected_hours(hours, "correction_id", 1, charged="charged")
        rows += _corrected_hours(hours, "anew_by_id", -1, charged="brought")
    if not rows:
        return []
    numbers = {row["correction"] for row in rows}
    corrections = LedgerTransaction.objects.filter(pk__in=numbers).select_related("actor").in_bulk()
    teams = Tenant.objects.in_bulk({pk for row in rows for pk in (row["tenant"], row["other"]) if pk})
    seen = tenants_seen(reader.viewer)
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


def _corrected(reader: UsageReader, segments: Any, sign: int, *, cost: str) -> list[dict[str, Any]]:
    begins, ends = reader.begins, reader.ends
    rows = segments.values(
        "correction", "job_id", "generation__name", "currency", "tenant", "other"
    ).annotate(
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
    return [row | unknown for row in rows]


def _version(step: int, field: str) -> Subquery:
    """Returns a subquery for `field` of the next or the previous version of a segment.

    A segment gets another version if its usage is posted again after a correction. `step`: 1 for the next version, -1
    for the previous one.
    """
    found = UsageSegment.objects.filter(
        month=OuterRef("month"),
        lease_id=OuterRef("lease_id"),
        period=OuterRef("period"),
        version=OuterRef("version") + step,
    )
    return Subquery(found.values(field)[:1])


def _archived(reader: UsageReader) -> Hours:
    hours = archived_hours(reader.books, reader.begins, reader.ends)
    return None if hours is None else hours.filter(tenant__in=reader.tenants or [])


def _segments(reader: UsageReader) -> UsageSegmentQuerySet:
    """Returns a queryset of the team's segments in the period, clipped to the period. Includes reversed segments."""
    segments: Any = UsageSegment.objects.with_charges().filter(tenant__in=reader.tenants or [])
    return clipped(segments.overlapping(reader.begins, reader.ends).order_by(), LOWER, UPPER, reader.scope)


def _gpu_seconds(begins: datetime, ends: datetime) -> Coalesce:
    return gpu_seconds_between(latest(LOWER, moment(begins)), earliest(UPPER, moment(ends)))


def _cost(begins: datetime, ends: datetime, *, of: str = "full_cost") -> Coalesce:
    return cost_between(latest(LOWER, moment(begins)), earliest(UPPER, moment(ends)), of=of)
