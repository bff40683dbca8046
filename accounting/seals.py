"""The chain of seals: what every book said when it was sealed, so that a later change shows.

A leaf is the SHA-256 of all that a transaction says, with its entries and vouchers. A seal has the leaves of
the transactions since the seal before it, and a digest of these and of that seal's digest. Where it stands
for all: whoever noted a digest can tell later whether anything before it has changed.

When the vouchers of a month are archived, the leaves of their transactions cannot be computed any more. So the chain
gets links with leaves of what stays of these, the transactions with their entries.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date

from django.db import connection, transaction
from django.db.models import Max

from accounting.models import LedgerSeal, LedgerTransaction

LEAF_BYTES = hashlib.sha256().digest_size
# As many transactions as one seal tells of at most, and as are read at once to verify them.
AT_ONCE = 1000

# What a transaction says, as text that is the same on every server: amounts with their scale, moments in
# microseconds since 1970.
LEAVES = """
    SELECT booked.id, booked.key, sha256(convert_to((jsonb_build_array(
        booked.id, booked.book, booked.key, booked.kind, (extract(epoch FROM lower(booked.period)) * 1000000)::bigint,
        (extract(epoch FROM upper(booked.period)) * 1000000)::bigint,
        (extract(epoch FROM booked.recorded_at) * 1000000)::bigint,
        booked.description, booked.actor_id, booked.corrects_id,
        (SELECT jsonb_agg(jsonb_build_array(entry.id, entry.account_id, entry.amount) ORDER BY entry.id)
           FROM accounting_ledgerentry entry
          WHERE entry.transaction_id = booked.id AND entry.month = booked.month),
        (SELECT jsonb_agg(jsonb_build_array(
                    segment.id, segment.book, segment.lease_id, segment.version, segment.job_id, segment.job_name,
                    segment.tenant_id, segment.tenant_name, segment.user_id, segment.user_name,
                    segment.generation_id, segment.gpus,
                    (extract(epoch FROM lower(segment.period)) * 1000000)::bigint,
                    (extract(epoch FROM upper(segment.period)) * 1000000)::bigint,
                    segment.gpu_seconds, segment.assembling, segment.idle, segment.price_per_gpu_hour, segment.cost,
                    segment.currency
                ) ORDER BY segment.id)
           FROM accounting_usagesegment segment
          WHERE segment.transaction_id = booked.id AND segment.month = booked.month),
        (SELECT jsonb_agg(jsonb_build_array(
                    closing.id, closing.book, closing.generation_id,
                    (extract(epoch FROM lower(closing.period)) * 1000000)::bigint,
                    (extract(epoch FROM upper(closing.period)) * 1000000)::bigint,
                    closing.busy, closing.idle, closing.assembling, closing.free, closing.others, closing.drained,
                    closing.down, closing.capacity, closing.price_per_gpu_hour, closing.currency, closing.charged,
                    closing.free_value, closing.others_value, closing.drained_value, closing.down_value,
                    closing.rounding, closing.value
                ) ORDER BY closing.id)
           FROM accounting_capacitysegment closing
          WHERE closing.transaction_id = booked.id AND closing.month = booked.month),
        (SELECT jsonb_agg(corrected.segment_id ORDER BY corrected.segment_id)
           FROM accounting_correctedsegment corrected
          WHERE corrected.transaction_id = booked.id AND corrected.month = booked.month)
    ) || coalesce((
        -- Only where there are any: what was sealed before there were prices of classes says what it said.
        SELECT jsonb_build_array(jsonb_agg(jsonb_build_array(
                   charge.segment_id, charge.idle, charge.idle_price, charge.preemptible, charge.preemptible_price,
                   charge.borrowed, charge.borrowed_price, charge.amount
               ) ORDER BY charge.segment_id))
          FROM accounting_classcharge charge
         WHERE charge.transaction_id = booked.id AND charge.month = booked.month HAVING count(*) > 0
    ), '[]'::jsonb))::text, 'UTF8')) AS leaf,
    -- Whether its vouchers are archived; then it does not say any more what was sealed.
    booked.corrects_id IS NULL AND booked.kind IN ('usage', 'pricing', 'correction')
    AND NOT booked.month = ANY((SELECT accounting_months_with_vouchers())::date[]) AS archived
    FROM accounting_ledgertransaction booked
"""
# What stays of a month's transactions when their vouchers are archived. With the accounts' parties, which only
# vouchers tell otherwise.
REMAINS = """
    SELECT booked.id, booked.key, sha256(convert_to(jsonb_build_array(
        'remains', booked.id, booked.book, booked.month, booked.key, booked.kind,
        (extract(epoch FROM lower(booked.period)) * 1000000)::bigint,
        (extract(epoch FROM upper(booked.period)) * 1000000)::bigint,
        (extract(epoch FROM booked.recorded_at) * 1000000)::bigint,
        booked.description, booked.actor_id, booked.corrects_id,
        (SELECT jsonb_agg(jsonb_build_array(
                    entry.id, entry.account_id, account.kind, account.unit, account.generation_id, account.tenant_id,
                    account.user_id, entry.amount
                ) ORDER BY entry.id)
           FROM accounting_ledgerentry entry LEFT JOIN accounting_ledgeraccount account ON account.id = entry.account_id
          WHERE entry.transaction_id = booked.id AND entry.month = booked.month)
    )::text, 'UTF8')) AS leaf
    FROM accounting_ledgertransaction booked
    WHERE booked.book = %s AND booked.month = %s AND booked.id BETWEEN %s AND %s
      AND booked.corrects_id IS NULL AND booked.kind IN ('usage', 'pricing', 'correction')
    ORDER BY booked.id
"""


@dataclass(frozen=True, slots=True)
class Broken:
    """The first place of a book that is not as it was when it was sealed."""

    book: int
    seal: int
    what: str


@dataclass(frozen=True, slots=True)
class Remains:
    """What stays of some transactions of a month, in one link of the chain."""

    book: int
    month: date
    first_id: int
    last_id: int
    leaves: bytes


def hold_books(books: Iterable[int]) -> None:
    """Keeps these books from being sealed until the transaction ends, so that no seal misses what it books."""
    with connection.cursor() as cursor:
        for book in sorted(set(books)):
            cursor.execute("SELECT pg_advisory_xact_lock_shared(%s)", [_lock(book)])


def seal_book(book: int) -> int:
    """Seals what a book has got since its last seal; returns how many transactions."""
    total = 0
    while sealed := _seal_some(book):
        total += sealed
    return total


@transaction.atomic(durable=True)
def _seal_some(book: int) -> int:
    _have_alone(book)
    with connection.cursor() as cursor:
        cursor.execute(
            f"{LEAVES} WHERE booked.book = %s AND booked.id > %s ORDER BY booked.id LIMIT %s",
            [book, sealed_until(book), AT_ONCE],
        )
        rows = cursor.fetchall()
    if not rows:
        return 0
    leaves = b"".join(bytes(leaf) for _, _, leaf, _ in rows)
    _append(book, rows[0][0], rows[-1][0], leaves)
    return len(rows)


def sealed_until(book: int) -> int:
    """The id of the last transaction that is sealed as a whole; 0 if none is."""
    last = LedgerSeal.objects.filter(book=book, month=None).order_by("-number")
    return last.values_list("last_id", flat=True).first() or 0


def unsealed_remains(months: Iterable[date]) -> list[Remains]:
    """What is to be sealed of these months as their vouchers are archived; it must be sealed as a whole before.

    Nothing of it changes any more, so nobody need be kept from booking.
    """
    return [
        remains
        for month in months
        for book in sorted(
            set(LedgerTransaction.objects.filter(month=month).order_by().values_list("book", flat=True))
        )
        for remains in _unsealed_remains(book, month)
    ]


def _unsealed_remains(book: int, month: date) -> Iterator[Remains]:
    before = LedgerSeal.objects.filter(book=book, month=month).aggregate(last=Max("last_id"))["last"] or 0
    with connection.cursor() as cursor:
        cursor.execute(REMAINS, [book, month, before + 1, sealed_until(book)])
        while rows := cursor.fetchmany(AT_ONCE):
            leaves = b"".join(bytes(leaf) for _, _, leaf in rows)
            yield Remains(book, month, rows[0][0], rows[-1][0], leaves)


def seal_remains(remains: Sequence[Remains]) -> None:
    """Puts links into the chains of their books, which nobody else books in until the caller's transaction ends."""
    for book in sorted({one.book for one in remains}):
        _have_alone(book)
    for one in remains:
        _append(one.book, one.first_id, one.last_id, one.leaves, month=one.month)


def _have_alone(book: int) -> None:
    """Waits for those who book just now, so that whatever they book is either seen then or numbered later."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_lock(book)])


def _append(book: int, first_id: int, last_id: int, leaves: bytes, *, month: date | None = None) -> None:
    last = LedgerSeal.objects.filter(book=book).order_by("-number").only("number", "digest").first()
    LedgerSeal.objects.create(
        book=book,
        number=last.number + 1 if last else 1,
        first_id=first_id,
        last_id=last_id,
        month=month,
        leaves=leaves,
        digest=digest_of(bytes(last.digest) if last else b"", leaves),
    )


def digest_of(before: bytes, leaves: bytes) -> bytes:
    """Of a seal with these leaves after one with the digest `before`; that is empty for the first."""
    return hashlib.sha256(before + leaves).digest()


def first_broken() -> Broken | None:
    """Where the chain of a book does not hold what the book says now; None if every one does."""
    before: LedgerSeal | None = None
    whole_until = 0
    for seal in LedgerSeal.objects.order_by("book", "number").iterator(chunk_size=200):
        if before is None or before.book != seal.book:
            before, whole_until = None, 0
        broken = _broken(seal, before, whole_until)
        if broken is not None:
            return Broken(seal.book, seal.number, broken)
        before = seal
        if seal.month is None:
            whole_until = seal.last_id
    return None


def _broken(seal: LedgerSeal, before: LedgerSeal | None, whole_until: int) -> str | None:
    if seal.number != (before.number + 1 if before else 1):
        return "seals before it are missing"
    leaves = bytes(seal.leaves)
    if digest_of(bytes(before.digest) if before else b"", leaves) != bytes(seal.digest):
        return "the seal itself was changed, or one before it"
    sealed = [leaves[at : at + LEAF_BYTES] for at in range(0, len(leaves), LEAF_BYTES)]
    if seal.month is not None:
        return _broken_remains(seal, seal.month, sealed)
    now = list(_leaves(seal.book, whole_until, seal.last_id))
    for (key, leaf, archived), was in zip(now, sealed, strict=False):
        if leaf != was and not archived:
            return f"{key} was changed, removed or put in after it was sealed"
    if len(now) != len(sealed):
        return f"{len(sealed)} transactions were sealed, {len(now)} are there"
    return None


def _broken_remains(seal: LedgerSeal, month: date, sealed: list[bytes]) -> str | None:
    with connection.cursor() as cursor:
        cursor.execute(REMAINS, [seal.book, month, seal.first_id, seal.last_id])
        now = [(key, bytes(leaf)) for _, key, leaf in cursor.fetchall()]
    for (key, leaf), was in zip(now, sealed, strict=False):
        if leaf != was:
            return f"{key} was changed, removed or put in after {month:%Y-%m} was archived"
    if len(now) != len(sealed):
        return f"{len(sealed)} transactions of {month:%Y-%m} were sealed when it was archived, {len(now)} are there"
    return None


def _leaves(book: int, after: int, until: int) -> Iterator[tuple[str, bytes, bool]]:
    """Key, leaf, and whether its vouchers are archived."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"{LEAVES} WHERE booked.book = %s AND booked.id > %s AND booked.id <= %s ORDER BY booked.id",
            [book, after, until],
        )
        for _, key, leaf, archived in cursor.fetchall():
            yield key, bytes(leaf), archived


def _lock(book: int) -> int:
    """A number for PostgreSQL's advisory locks that nothing else here uses."""
    digest = hashlib.sha256(f"fairlot ledger book {book}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)
