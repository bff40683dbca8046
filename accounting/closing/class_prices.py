"""Bills class prices: idle, preemptible or borrowed GPU time may have a price that differs from the plain price.

Usage is first billed at the plain price. The class of a lease's time is known only after its hour is closed and the
tenants' fair shares in that hour are computed. The hour is then settled: each segment with time in a priced class gets
a charge or a credit for the difference.

- If time is in several priced classes, idle takes precedence over preemptible, and preemptible over borrowed.
- For each generation, the borrowed GPU time of a team is known only as a total for the hour. It is spread evenly over
  the team's time that was not preemptible.
- Corrections do not change the class of any time. If usage is posted again for another payer, that payer pays what the
  first payer would have paid.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import ROUND_DOWN, ROUND_HALF_EVEN, Decimal, localcontext
from functools import reduce
from operator import or_

from django.db import IntegrityError
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange
from django.db.models import Exists, Min, OuterRef, Q

from accounting.core.calendar import HOUR, first_of_month, start_of_hour
from accounting.core.errors import BookedOtherwise
from accounting.core.numbers import MICRO
from accounting.ledger.checks import require_transaction
from accounting.ledger.posting import Booking, entries_of_charges, insert
from accounting.ledger.rollups import correct_sums
from accounting.models import ClassCharge, ClosedBook, LedgerAccount, LedgerTransaction, Price, UsageSegment
from accounting.pricing.tariff import gpu_seconds

HAS_CLASSES = Q(idle__isnull=False) | Q(preemptible__isnull=False) | Q(borrowed__isnull=False)
# Filters segments of a generation that had a class price when the segment began.
HAS_PRICES_OF_CLASSES = Exists(
    Price.objects.filter(
        HAS_CLASSES, generation=OuterRef("generation"), valid__contains=OuterRef("period__startswith")
    )
)
Stretch = tuple[datetime, datetime]


@dataclass(frozen=True, slots=True)
class TimeByClass:
    """Represents which GPU time of one hour was borrowed, preemptible or idle.

    `borrowed`: GPU-seconds by (tenant id, generation id). `preemptible` and `idle`: the intervals in which a lease was
    preemptible or idle, by lease id.
    """

    # Borrowed GPU-seconds by (tenant id, generation id), without those of the tenants below.
    borrowed: Mapping[tuple[int, int], Decimal]
    # By lease id: the intervals in which it was preemptible, and those in which it was idle; sorted, without overlaps.
    preemptible: Mapping[int, Sequence[Stretch]]
    idle: Mapping[int, Sequence[Stretch]]


def next_hour_to_price(*, book: int) -> datetime | None:
    """Returns the first closed hour with bills that class prices may still change; None if there is no such hour.

    All hours before the result are marked as settled: class prices can no longer change their bills. If the result is
    None, all closed hours are marked. Must run in the caller's transaction. `book`: the id of the cluster.
    """
    require_transaction()
    closed = ClosedBook.objects.select_for_update().filter(book=book).first()
    if closed is None or closed.priced_until == closed.until:
        return None
    hours = DateTimeTZRange(closed.priced_until, closed.until)
    first = None
    if Price.objects.filter(HAS_CLASSES, valid__overlap=hours).exists():
        billed = UsageSegment.objects.uncorrected().filter(
            HAS_PRICES_OF_CLASSES,
            book=book,
            month__gte=first_of_month(closed.priced_until),
            month__lte=first_of_month(closed.until),
            period__startswith__gte=closed.priced_until,
            period__startswith__lt=closed.until,
        )
        first = billed.order_by("period__startswith").values_list("period__startswith", flat=True).first()
    hour = closed.until if first is None else start_of_hour(first)
    ClosedBook.objects.filter(book=book).update(priced_until=hour)
    return None if first is None else hour


def unsettled(
    begins: datetime, ends: datetime, *, tenants: Collection[int] | None = None, book: int | None = None
) -> dict[int, datetime]:
    """Returns, by book (cluster's ledger), the first moment in [begins, ends) with a bill that class prices may still
    change.

    Leaves out books without such a bill. `tenants`: considers only the bills of these tenants. `book`: considers only
    this book.
    """
    books = ClosedBook.objects.filter(*[] if book is None else [Q(book=book)], priced_until__lt=ends)
    waiting = [
        Q(book=number, period__startswith__gte=until)
        for number, until in books.values_list("book", "priced_until")
    ]
    if not waiting:
        return {}
    billed = (
        UsageSegment.objects.uncorrected()
        .overlapping(begins, ends)
        .filter(reduce(or_, waiting), HAS_PRICES_OF_CLASSES)
    )
    if tenants is not None:
        billed = billed.filter(tenant__in=tenants)
    firsts = billed.order_by().values_list("book").annotate(Min("period__startswith"))
    return {number: max(first, begins) for number, first in firsts}


def price_hour(*, book: int, hour: datetime, how: TimeByClass) -> list[LedgerTransaction]:
    """Posts the class charges and credits of the closed hour that begins at `hour`. Returns the transactions.

    `how`: which time of the leases was borrowed, preemptible or idle. All charges form one transaction, and all credits
    another. Must run in the caller's transaction. Raises BookedOtherwise if `hour` is not the next hour to settle, or
    if its charges were already posted.
    """
    require_transaction()
    closed = ClosedBook.objects.select_for_update().get(book=book)
    if closed.priced_until != hour or hour >= closed.until:
        raise BookedOtherwise(f"the next hour to be priced is {closed.priced_until}, not {hour}")
    charges = list(_charges(book, hour, how))
    # Charges and credits get separate transactions: together they could cancel out and leave a transaction without
    # entries.
    bookings = [
        _booking(book, hour, name, some)
        for name, some in (
            ("charges", [one for one in charges if one.amount > 0]),
            ("credits", [one for one in charges if one.amount < 0]),
        )
        if some
    ]
    try:
        insert(bookings)
    except IntegrityError as error:
        raise BookedOtherwise(f"the hour from {hour} in book {book} cannot be priced: {error}") from error
    correct_sums(book=book, bookings=bookings)
    ClosedBook.objects.filter(book=book).update(priced_until=hour + HOUR)
    return [booking.transaction for booking in bookings]


def _booking(book: int, hour: datetime, name: str, charges: Sequence[ClassCharge]) -> Booking:
    booked = LedgerTransaction(
        book=book,
        month=first_of_month(hour),
        key=f"pricing:{book}:{hour.astimezone(UTC).isoformat()}:{name}",
        kind=LedgerTransaction.Kind.PRICING,
        period=DateTimeTZRange(hour, hour + HOUR),
        description=(
            f"{name.capitalize()} for idle, preemptible and borrowed GPU time in the hour from"
            f" {hour.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
        ),
    )
    return Booking(booked, entries_of_charges(charges, LedgerAccount.Kind.CLASSES), charges=charges)


def _charges(book: int, hour: datetime, how: TimeByClass) -> Iterable[ClassCharge]:
    prices = list(Price.objects.filter(HAS_CLASSES, valid__overlap=DateTimeTZRange(hour, hour + HOUR)))
    versions = list(
        UsageSegment.objects.filter(
            book=book,
            month=first_of_month(hour),
            generation__in={price.generation_id for price in prices},
            period__startswith__gte=hour,
            period__startswith__lt=hour + HOUR,
        )
        .select_related("taken_back")
        .order_by("pk")
    )
    preemptible = {one.pk: _held_in(one, how.preemptible.get(one.lease_id, ())) for one in versions}
    held = {(one.lease_id, one.period.lower): one for one in versions if one.version == 0}
    teams = _teams(held.values(), preemptible, how)
    for one in versions:
        if hasattr(one, "taken_back"):  # the segment was reversed
            continue
        valid = (price for price in prices if price.generation_id == one.generation_id)
        price = next((price for price in valid if one.period.lower in price.valid), None)
        if price is None:
            continue
        both = _held_in(one, _in_both(how.preemptible, how.idle, one.lease_id))
        holder = held[one.lease_id, one.period.lower]
        charge = _charge(one, price, preemptible[one.pk], both, teams[holder.tenant_id, holder.generation_id])
        # An earlier release rounded costs to four decimals; a difference from rounding alone is no reason for a charge.
        if charge.amount and (charge.idle or charge.preemptible or charge.borrowed):
            yield charge


@dataclass(slots=True)
class _Team:
    """Represents the GPU-seconds of one generation that a tenant's leases held in the hour.

    The time counts for this tenant even if a correction has billed it to another tenant.
    """

    borrowed: Decimal
    held: Decimal = Decimal(0)
    preemptible: Decimal = Decimal(0)  # the preemptible part of `held`

    @property
    def borrowed_part(self) -> Decimal:
        """Returns the borrowed fraction (0 to 1) of the tenant's time that was not preemptible.

        Preemptible time never counts as borrowed.
        """
        held = self.held - self.preemptible
        return min(Decimal(1), self.borrowed / held) if held else Decimal(0)


def _teams(
    segments: Iterable[UsageSegment], preemptible: Mapping[int, Decimal], how: TimeByClass
) -> Mapping[tuple[int, int], _Team]:
    """Returns the sums of the segments' GPU-seconds by (tenant id, generation id).

    `preemptible`: each segment's preemptible GPU-seconds, by segment id. `how`: only its `borrowed` is used: the
    borrowed GPU-seconds by (tenant id, generation id).
    """
    found: dict[tuple[int, int], _Team] = {}
    for one in segments:
        key = one.tenant_id, one.generation_id
        team = found.setdefault(key, _Team(how.borrowed.get(key, Decimal(0))))
        team.held += one.gpu_seconds
        team.preemptible += preemptible[one.pk]
    return found


def _in_both(
    one: Mapping[int, Sequence[Stretch]], other: Mapping[int, Sequence[Stretch]], lease: int
) -> Iterator[Stretch]:
    for a, z in one.get(lease, ()):
        for b, y in other.get(lease, ()):
            yield max(a, b), min(z, y)


def _held_in(segment: UsageSegment, stretches: Iterable[Stretch]) -> Decimal:
    begins, ends = segment.period.lower, segment.period.upper
    cut = [(max(a, begins), min(z, ends)) for a, z in stretches]
    return sum((gpu_seconds(segment.gpus, a, z) for a, z in cut if a < z), Decimal(0))


def _charge(
    segment: UsageSegment, price: Price, preemptible: Decimal, preemptible_and_idle: Decimal, team: _Team
) -> ClassCharge:
    """Returns the class charge of a segment: its GPU-seconds in each priced class, and the difference from its plain
    cost.

    `preemptible`: the segment's preemptible GPU-seconds. `preemptible_and_idle`: the part of these that was also idle.
    `team`: the sums for the segment's tenant and generation.
    """
    nothing = Decimal(0)
    idle, both = (nothing, nothing) if price.idle is None else (segment.idle, preemptible_and_idle)
    otherwise = segment.gpu_seconds - preemptible - (idle - both)
    only_wanted_here = preemptible - both
    # It is not known which time of the segment was borrowed, so the team's fraction applies.
    borrowed = (otherwise * team.borrowed_part).quantize(MICRO, ROUND_DOWN)
    if price.preemptible is None:  # without a preemptible price, this time counts in the team's other classes
        borrowed, only_wanted_here = borrowed + only_wanted_here, nothing
    if price.borrowed is None:
        borrowed = nothing
    charge = ClassCharge(
        segment=segment,
        month=segment.month,
        idle=idle,
        idle_price=price.of_class("idle"),
        preemptible=only_wanted_here,
        preemptible_price=price.of_class("preemptible"),
        borrowed=borrowed,
        borrowed_price=price.of_class("borrowed"),
    )
    charge.amount = _cost(charge) - segment.cost
    return charge


def _cost(charge: ClassCharge) -> Decimal:
    """Returns the cost of the whole segment at its class prices, rounded once, to a millionth of the currency unit."""
    segment = charge.segment
    plain = segment.gpu_seconds - charge.idle - charge.preemptible - charge.borrowed
    with localcontext(prec=60):
        worth = (
            plain * segment.price_per_gpu_hour
            + charge.idle * charge.idle_price
            + charge.preemptible * charge.preemptible_price
            + charge.borrowed * charge.borrowed_price
        )
        return (worth / 3600).quantize(MICRO, ROUND_HALF_EVEN)
