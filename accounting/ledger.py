"""Booking into the ledger. Every function runs inside its caller's transaction and books all or nothing.

What is booked once stays: the database refuses any change. Booking the same again has no effect and
returns what is there; booking something else under the same key raises BookedOtherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import ROUND_HALF_EVEN, Decimal

from django.conf import settings
from django.db import IntegrityError, connection, transaction
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

from accounting.entries import ROWS_AT_ONCE, AccountKey, Entries, insert, unit_of
from accounting.errors import BookedOtherwise, Refused
from accounting.models import (
    Generation,
    LedgerAccount,
    LedgerEntry,
    LedgerTransaction,
    Tenant,
    UsageSegment,
    User,
)
from accounting.tariff import Tariff, cost_of, gpu_seconds, tariffs_of

MICRO = Decimal("0.000001")


@dataclass(frozen=True, kw_only=True)
class Usage:
    """A gang of `gpus` GPUs of one generation held from `begins` (included) to `ends` (excluded)."""

    lease_id: int
    job_id: int
    job_name: str
    tenant: Tenant
    user: User
    generation: Generation
    gpus: int
    begins: datetime
    ends: datetime

    def __post_init__(self) -> None:
        if self.gpus < 1:
            raise ValueError(f"a lease holds at least one GPU, not {self.gpus}")
        if self.ends < self.begins:
            raise ValueError(f"usage ends at {self.ends} before it begins at {self.begins}")


def book_usage(
    *,
    lease_id: int,
    job_id: int,
    job_name: str,
    tenant: Tenant,
    user: User,
    generation: Generation,
    gpus: int,
    begins: datetime,
    ends: datetime,
) -> list[UsageSegment]:
    """Books what one lease held; see `book_usage_many`."""
    usage = Usage(
        lease_id=lease_id,
        job_id=job_id,
        job_name=job_name,
        tenant=tenant,
        user=user,
        generation=generation,
        gpus=gpus,
        begins=begins,
        ends=ends,
    )
    return book_usage_many([usage])


def book_usage_many(usages: Sequence[Usage]) -> list[UsageSegment]:
    """Books what leases held, cut at full UTC hours and at changes of price; a segment each piece.

    Returns the segments of all usages in their order. Holds off changes of price until the caller's
    transaction ends. Raises BookedOtherwise when a lease was booked differently for some of the time.
    """
    _require_transaction()
    usages = [usage for usage in usages if usage.begins < usage.ends]
    if not usages:
        return []
    generations = {usage.generation.pk: usage.generation for usage in usages}
    _hold_prices(sorted(generations))
    first, last = min(u.begins for u in usages), max(u.ends for u in usages)
    tariffs = tariffs_of(generations, first, last)
    wanted: dict[str, UsageSegment] = {}
    for usage in usages:
        for piece in _pieces(usage, tariffs[usage.generation.pk]):
            _require_same(wanted.setdefault(_usage_key(piece), piece), piece)
    booked = _booked_segments(wanted)
    while len(booked) < len(wanted):
        missing = {key: piece for key, piece in sorted(wanted.items()) if key not in booked}
        try:
            with transaction.atomic():
                booked |= _insert_segments(missing, generations)
        except IntegrityError as error:
            now_booked = _booked_segments(wanted)  # another process may have booked the very same meanwhile
            if len(now_booked) == len(booked):
                leases = sorted({piece.lease_id for piece in missing.values()})
                raise BookedOtherwise(f"some of the time of leases {leases} is booked already") from error
            booked = now_booked
    return [booked[key] for key in wanted]


def book_trade(
    *,
    key: str,
    seller: Tenant,
    buyer: Tenant,
    slow: Generation,
    fast: Generation,
    fast_gpu_seconds: Decimal,
    slow_gpu_seconds: Decimal,
    begins: datetime,
    ends: datetime,
    description: str,
) -> LedgerTransaction:
    """Books that `seller` gave `fast_gpu_seconds` of `fast` to `buyer` for `slow_gpu_seconds` of `slow`.

    Amounts are rounded to microseconds and must be positive.
    """
    _require_transaction()
    given = fast_gpu_seconds.quantize(MICRO, ROUND_HALF_EVEN)
    taken = slow_gpu_seconds.quantize(MICRO, ROUND_HALF_EVEN)
    if given <= 0 or taken <= 0 or seller.pk == buyer.pk or slow.pk == fast.pk:
        raise ValueError("a trade moves positive amounts of two generations between two tenants")
    trade = LedgerAccount.Kind.TRADE
    entries = {
        AccountKey(trade, fast_unit := unit_of(fast), fast.pk, seller.pk): -given,
        AccountKey(trade, fast_unit, fast.pk, buyer.pk): given,
        AccountKey(trade, slow_unit := unit_of(slow), slow.pk, seller.pk): taken,
        AccountKey(trade, slow_unit, slow.pk, buyer.pk): -taken,
    }
    wanted = LedgerTransaction(
        key=key,
        kind=LedgerTransaction.Kind.TRADE,
        period=DateTimeTZRange(begins, ends),
        description=description,
    )
    booked = _booked_trade(wanted, entries)
    if booked is None:
        try:
            with transaction.atomic():
                insert([(wanted, entries)])
            booked = wanted
        except IntegrityError:
            booked = _booked_trade(wanted, entries)
            if booked is None:
                raise
    return booked


def correct(*, actor: User | None, transaction: LedgerTransaction, reason: str) -> LedgerTransaction:
    """Books the reverse of `transaction`, for the same period: reports then show what is left, nothing.

    Raises Refused when `transaction` is a correction itself, or has been corrected already.
    """
    _require_transaction()
    if transaction.kind == LedgerTransaction.Kind.CORRECTION:
        raise Refused("A correction cannot be corrected.")
    if LedgerTransaction.objects.filter(corrects=transaction).exists():
        raise Refused("This transaction has been corrected already.")
    if not reason.strip():
        raise Refused("Say why the transaction is corrected.", "reason")
    correction = LedgerTransaction.objects.create(
        key=f"correction:{transaction.pk}",
        kind=LedgerTransaction.Kind.CORRECTION,
        period=transaction.period,
        description=reason,
        actor=actor,
        corrects=transaction,
    )
    entries = transaction.entries.values_list("account_id", "amount")
    LedgerEntry.objects.bulk_create(
        LedgerEntry(transaction=correction, account_id=account, amount=-amount) for account, amount in entries
    )
    return correction


def _require_transaction() -> None:
    if not connection.in_atomic_block:
        raise transaction.TransactionManagementError("the ledger books only inside a transaction")


def _hold_prices(generation_ids: Sequence[int]) -> None:
    """Until the transaction ends `set_price` waits, so that no price changes under what is booked."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT id FROM accounting_generation WHERE id = ANY(%s) ORDER BY id FOR SHARE",
            [list(generation_ids)],
        )


def _usage_key(piece: UsageSegment) -> str:
    return f"usage:{piece.lease_id}:{piece.period.lower.isoformat()}"


def _pieces(usage: Usage, tariff: Tariff) -> Iterator[UsageSegment]:
    """Unsaved segments, in order of time."""
    for begins, ends, price in tariff.cut(usage.begins, usage.ends):
        seconds = gpu_seconds(usage.gpus, begins, ends)
        yield UsageSegment(
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
            price_per_gpu_hour=price,
            cost=cost_of(seconds, price),
            currency=settings.FAIRLOT_CURRENCY,
        )


def _require_same(booked: UsageSegment, piece: UsageSegment) -> None:
    """Names may have changed since, what happened may not."""
    facts = "lease_id", "job_id", "tenant_id", "user_id", "generation_id", "gpus", "period"
    for fact in facts:
        old, new = getattr(booked, fact), getattr(piece, fact)
        if old != new:
            raise BookedOtherwise(f"{_usage_key(booked)} has {fact} {old} in the ledger, not {new}")


def _booked_segments(wanted: Mapping[str, UsageSegment]) -> dict[str, UsageSegment]:
    found: dict[str, UsageSegment] = {}
    keys = list(wanted)
    for start in range(0, len(keys), ROWS_AT_ONCE):
        some = keys[start : start + ROWS_AT_ONCE]
        segments = UsageSegment.objects.filter(transaction__key__in=some).select_related("transaction")
        for segment in segments:
            _require_same(segment, wanted[segment.transaction.key])
            found[segment.transaction.key] = segment
    return found


def _insert_segments(
    pieces: Mapping[str, UsageSegment], generations: Mapping[int, Generation]
) -> Mapping[str, UsageSegment]:
    bookings = []
    for key, piece in pieces.items():
        booking = LedgerTransaction(
            key=key,
            kind=LedgerTransaction.Kind.USAGE,
            period=piece.period,
            description=f"{piece.gpus} {generations[piece.generation_id].name} for {piece.job_name}",
        )
        bookings.append((booking, _usage_entries(piece, unit_of(generations[piece.generation_id]))))
        piece.transaction = booking
    insert(bookings)
    UsageSegment.objects.bulk_create(pieces.values(), batch_size=ROWS_AT_ONCE)
    return pieces


def _usage_entries(piece: UsageSegment, unit: str) -> Entries:
    kind, who = LedgerAccount.Kind, (piece.tenant_id, piece.user_id)
    entries = {
        AccountKey(kind.USAGE, unit, piece.generation_id, *who): piece.gpu_seconds,
        AccountKey(kind.CAPACITY, unit, piece.generation_id): -piece.gpu_seconds,
    }
    if piece.cost:
        entries[AccountKey(kind.COST, piece.currency, None, *who)] = piece.cost
        entries[AccountKey(kind.REVENUE, piece.currency)] = -piece.cost
    return entries


def _booked_trade(wanted: LedgerTransaction, entries: Entries) -> LedgerTransaction | None:
    booked = LedgerTransaction.objects.filter(key=wanted.key).first()
    if booked is None:
        return None
    there = {
        AccountKey(LedgerAccount.Kind(kind), *rest): amount
        for kind, *rest, amount in booked.entries.values_list(
            *(f"account__{field}" for field in AccountKey._fields), "amount"
        )
    }
    if (booked.kind, booked.period, there) != (wanted.kind, wanted.period, entries):
        raise BookedOtherwise(f"{wanted.key} is something else in the ledger")
    return booked
