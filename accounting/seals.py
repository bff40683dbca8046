"""The chain of seals: what every book said when it was sealed, so that a later change shows.

A leaf is the SHA-256 of all that a transaction says, with its entries and vouchers. A seal has the leaves of
the transactions since the seal before it, and a digest of these and of that seal's digest. Where it stands
for all: whoever noted a digest can tell later whether anything before it has changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from django.db import connection, transaction

from accounting.models import LedgerSeal

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


@dataclass(frozen=True, slots=True)
class Broken:
    """The first place of a book that is not as it was when it was sealed."""

    book: int
    seal: int
    what: str


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
    with connection.cursor() as cursor:
        # Waits for those who book just now, so that whatever they book is either seen here or numbered later.
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_lock(book)])
    last = LedgerSeal.objects.filter(book=book).order_by("-number").first()
    with connection.cursor() as cursor:
        cursor.execute(
            f"{LEAVES} WHERE booked.book = %s AND booked.id > %s ORDER BY booked.id LIMIT %s",
            [book, last.last_id if last else 0, AT_ONCE],
        )
        rows = cursor.fetchall()
    if not rows:
        return 0
    leaves = b"".join(bytes(leaf) for _, _, leaf, _ in rows)
    LedgerSeal.objects.create(
        book=book,
        number=last.number + 1 if last else 1,
        first_id=rows[0][0],
        last_id=rows[-1][0],
        leaves=leaves,
        digest=digest_of(bytes(last.digest) if last else b"", leaves),
    )
    return len(rows)


def digest_of(before: bytes, leaves: bytes) -> bytes:
    """Of a seal with these leaves after one with the digest `before`; that is empty for the first."""
    return hashlib.sha256(before + leaves).digest()


def first_broken() -> Broken | None:
    """Where the chain of a book does not hold what the book says now; None if every one does."""
    before: dict[int, LedgerSeal] = {}
    for seal in LedgerSeal.objects.order_by("book", "number").iterator(chunk_size=200):
        broken = _broken(seal, before.get(seal.book))
        if broken is not None:
            return Broken(seal.book, seal.number, broken)
        before = {seal.book: seal}
    return None


def _broken(seal: LedgerSeal, before: LedgerSeal | None) -> str | None:
    if seal.number != (before.number + 1 if before else 1):
        return "seals before it are missing"
    leaves = bytes(seal.leaves)
    if digest_of(bytes(before.digest) if before else b"", leaves) != bytes(seal.digest):
        return "the seal itself was changed, or one before it"
    sealed = [leaves[at : at + LEAF_BYTES] for at in range(0, len(leaves), LEAF_BYTES)]
    now = list(_leaves(seal.book, before.last_id if before else 0, seal.last_id))
    for (key, leaf, archived), was in zip(now, sealed, strict=False):
        if leaf != was and not archived:
            return f"{key} was changed, removed or put in after it was sealed"
    if len(now) != len(sealed):
        return f"{len(sealed)} transactions were sealed, {len(now)} are there"
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
