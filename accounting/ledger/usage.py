"""Posts the GPU time that leases held, and its cost, to the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from itertools import groupby
from typing import TypeAlias

from django.db import IntegrityError, connection, transaction
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

from accounting.core.bulk import array
from accounting.core.calendar import first_of_month
from accounting.core.errors import BookedOtherwise
from accounting.ledger.checks import require_transaction
from accounting.ledger.posting import Booking, entries_of, insert
from accounting.models import Generation, LedgerTransaction, Tenant, UsageSegment, User
from accounting.pricing.tariff import Tariff, cost_of, gpu_seconds, tariffs_of

# A lease's id, and the start of one of its segments.
Place: TypeAlias = tuple[int, datetime]


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Represents usage by a lease: `gpus` GPUs of one generation in the interval [begins, ends)."""

    book: int  # the cluster's id
    lease_id: int
    job_id: int
    job_name: str
    tenant: Tenant
    user: User
    generation: Generation
    gpus: int
    begins: datetime
    ends: datetime
    running_from: datetime | None  # when all workers ran; None: not yet at `ends`
    unused: Sequence[tuple[datetime, datetime]] = ()  # idle intervals; sorted, without overlaps

    def __post_init__(self) -> None:
        if self.gpus < 1:
            raise ValueError(f"a lease holds at least one GPU, not {self.gpus}")
        if self.ends < self.begins:
            raise ValueError(f"usage ends at {self.ends} before it begins at {self.begins}")


def book_usage(usages: Sequence[Usage]) -> list[UsageSegment]:
    """Posts usage and returns the segments of all usages in order.

    Usage is cut into segments at full UTC hours and at price changes. Segments that are already stored are not posted
    twice. Blocks price changes until the caller's transaction ends. Raises BookedOtherwise if different usage is stored
    for the same lease and time.
    """
    require_transaction()
    usages = [usage for usage in usages if usage.begins < usage.ends]
    if not usages:
        return []
    generations = {usage.generation.pk for usage in usages}
    hold_prices(sorted(generations))
    first, last = min(u.begins for u in usages), max(u.ends for u in usages)
    tariffs = tariffs_of(generations, first, last)
    wanted: dict[Place, UsageSegment] = {}
    for usage in usages:
        for piece in _pieces(usage, tariffs[usage.generation.pk]):
            _require_same(wanted.setdefault(_place(piece), piece), piece)
    booked = _booked(wanted)
    while len(booked) < len(wanted):
        missing = [piece for place, piece in wanted.items() if place not in booked]
        try:
            with transaction.atomic():
                insert(list(_bookings(missing)))
            booked |= {_place(piece): piece for piece in missing}
        except IntegrityError as error:
            now_booked = _booked(wanted)  # another process may have posted the same segments meanwhile
            if len(now_booked) == len(booked):
                raise BookedOtherwise(_booked_already(missing)) from error
            booked = now_booked
    return [booked[place] for place in wanted]


def hold_prices(generation_ids: Sequence[int]) -> None:
    """Locks the rows of the generations, so that their prices do not change until the transaction ends (`set_price`
    waits)."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT id FROM accounting_generation WHERE id = ANY(%s) ORDER BY id FOR SHARE",
            [list(generation_ids)],
        )


def _place(piece: UsageSegment) -> Place:
    return piece.lease_id, piece.period.lower


def _pieces(usage: Usage, tariff: Tariff) -> Iterator[UsageSegment]:
    """Yields the usage as unsaved segments in order of time, cut at full hours and price changes."""
    for begins, ends, rate in tariff.cut(usage.begins, usage.ends):
        seconds = gpu_seconds(usage.gpus, begins, ends)
        yield UsageSegment(
            book=usage.book,
            month=first_of_month(begins),
            lease_id=usage.lease_id,
            job_id=usage.job_id,
            job_name=usage.job_name,
            tenant=usage.tenant,
            tenant_name=usage.tenant.name,
            user=usage.user,
            user_name=usage.user.get_username(),
            generation=usage.generation,
            gpus=usage.gpus,
            period=DateTimeTZRange(begins, ends),
            gpu_seconds=seconds,
            assembling=_assembling(usage, begins, ends),
            idle=_idle(usage, begins, ends),
            price_per_gpu_hour=rate.per_gpu_hour,
            cost=cost_of(seconds, rate.per_gpu_hour),
            currency=rate.currency,
        )


def _assembling(usage: Usage, begins: datetime, ends: datetime) -> Decimal:
    return gpu_seconds(usage.gpus, begins, min(max(usage.running_from or ends, begins), ends))


def _idle(usage: Usage, begins: datetime, ends: datetime) -> Decimal:
    since = max(usage.running_from or ends, begins)
    unused = [(max(start, since), min(end, ends)) for start, end in usage.unused]
    return sum((gpu_seconds(usage.gpus, *one) for one in unused if one[0] < one[1]), Decimal(0))


def _bookings(pieces: Sequence[UsageSegment]) -> Iterator[Booking]:
    """Yields one booking (unsaved transaction) for each cluster's ledger and month in which the segments lie."""

    def where(piece: UsageSegment) -> tuple[int, date]:
        return piece.book, piece.month

    for (book, month), some in groupby(
        sorted(pieces, key=lambda one: (*where(one), *_place(one))), key=where
    ):
        segments = list(some)
        yield Booking(
            LedgerTransaction(
                book=book,
                month=month,
                key=key_of(segments[0]),
                kind=LedgerTransaction.Kind.USAGE,
                period=span_of(segments),
                description=in_words(segments),
            ),
            entries_of(segments),
            segments=segments,
        )


def key_of(first: UsageSegment) -> str:
    """Returns the key of the usage transaction whose first segment is `first`.

    The key contains the segment's lease id, start and version, so that no two transactions have the same key. The
    version is 0 for the first posting, and one more each time the same usage is posted again after a correction.
    """
    version = f":{first.version}" if first.version else ""
    return f"usage:{first.lease_id}:{first.period.lower.isoformat()}{version}"


def span_of(segments: Sequence[UsageSegment]) -> DateTimeTZRange:
    return DateTimeTZRange(
        min(one.period.lower for one in segments), max(one.period.upper for one in segments)
    )


def in_words(segments: Sequence[UsageSegment]) -> str:
    first, leases = segments[0], {one.lease_id for one in segments}
    if len(leases) == 1:
        return f"Usage of {first.gpus} × {first.generation.name} by job {first.job_name}"
    return f"Usage of {len(leases)} leases"


def _require_same(booked: UsageSegment, piece: UsageSegment) -> None:
    """Raises BookedOtherwise if the stored segment differs from `piece`.

    Ignores the names of the job, tenant and user, because they may have changed.
    """
    for fact in ("book", "lease_id", "job_id", "tenant_id", "user_id", "generation_id", "gpus", "period"):
        old, new = getattr(booked, fact), getattr(piece, fact)
        if old != new:
            raise BookedOtherwise(
                f"the ledger already contains {key_of(booked)} with {fact} {old}, but the lease now has {fact} {new}"
            )


def _booked_already(pieces: Iterable[UsageSegment]) -> str:
    leases = sorted({piece.lease_id for piece in pieces})
    return f"the ledger already contains usage of leases {leases} that overlaps the usage to be booked"


def _booked(wanted: Mapping[Place, UsageSegment]) -> dict[Place, UsageSegment]:
    """Returns the segments in `wanted` that are already stored, by (lease id, start).

    Raises BookedOtherwise if a different stored segment of the same lease overlaps one of them.
    """
    pieces = wanted.values()
    stored = UsageSegment.objects.raw(
        """
        SELECT segment.* FROM unnest(%s::date[], %s::bigint[], %s::tstzrange[]) AS wanted (month, lease_id, period)
          JOIN accounting_usagesegment segment ON segment.month = wanted.month
           AND segment.lease_id = wanted.lease_id AND segment.version = 0 AND segment.period && wanted.period
        """,
        [
            array(piece.month for piece in pieces),
            array(piece.lease_id for piece in pieces),
            array(piece.period for piece in pieces),
        ],
    )
    found: dict[Place, UsageSegment] = {}
    for segment in stored:
        if _place(segment) not in wanted:
            raise BookedOtherwise(_booked_already([segment]))
        _require_same(segment, wanted[_place(segment)])
        found[_place(segment)] = segment
    return found
