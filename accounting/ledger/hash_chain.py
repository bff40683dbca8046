"""The hash chain, which reveals later changes of the ledger.

Each book (one cluster's ledger) has its own chain of seals. Each *journal* (an append-only table outside the ledger,
such as the audit trail) has one, too. A seal contains leaves, which are SHA-256 digests of rows. The *form* of a seal
is the version of the format of its leaves. Each transaction has two leaves:

- One leaf covers the rows that always stay in the database: the transaction, its entries and the owners of their
  accounts. For the closing of an hour it also covers the capacity segments and node hours.
- The other leaf covers the vouchers (detailed rows), which may be archived.

A seal contains the leaves of the transactions since the previous seal. It also contains a digest of these leaves and of
the previous seal's digest. So each digest covers all earlier transactions: anybody who noted a digest can later detect
changes of these transactions.

When the vouchers of a month are archived, the chain gets two kinds of further seals for the month:

- Seals of the rows that stay in the database.
- One *seal of rollups*, which has leaves of the month's rollups and of the archive files. A month that is restored and
  archived again gets another one. The rollups must match the last one.
"""

from __future__ import annotations

import hashlib
import io
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime
from typing import Any, TypeAlias

from django.db import connection, transaction
from django.db.models import Max

from accounting.core.clock import now_from_database
from accounting.core.run_each import run_each
from accounting.ledger import heads
from accounting.ledger.heads import HeadsFileError, SealingStopped
from accounting.ledger.journals import JOURNALS, last_id, name_of, settled_until
from accounting.models import ArchivedHour, LedgerHead, LedgerSeal, LedgerTransaction, SealedBook

logger = logging.getLogger(__name__)

LEAF_BYTES = hashlib.sha256().digest_size
# The maximum number of transactions in one seal.
AT_ONCE = 1000
FIRST_OF_ALL, LAST_OF_ALL = -(2**63), 2**63 - 1
# A row with its id, its key, its leaves, and whether its vouchers are archived.
Row: TypeAlias = tuple[int, str, bytes, bool]

# Forms of leaves. New seals use the newest form; older seals keep the form in which they were made.
WHOLE = (
    1  # one leaf per transaction, including its vouchers; excludes the owners of accounts and the node hours
)
APART = 2  # two leaves per transaction: of the rows that stay in the database, and of the vouchers
# like APART, with the transaction's id before the leaves, so that a missing transaction can be named; also for journals
NUMBERED = 3
ID_BYTES = 8
# By form: bytes per transaction, and the start and end of the bytes that cover the rows that stay in the database.
SIZES = {
    WHOLE: (LEAF_BYTES, 0, 0),
    APART: (2 * LEAF_BYTES, 0, LEAF_BYTES),
    NUMBERED: (ID_BYTES + 2 * LEAF_BYTES, 0, ID_BYTES + LEAF_BYTES),
}

# The content of transactions as text that is the same on every server: amounts with their scale, times in microseconds
# since 1970.
HEAD = """
        (extract(epoch FROM lower(booked.period)) * 1000000)::bigint,
        (extract(epoch FROM upper(booked.period)) * 1000000)::bigint,
        (extract(epoch FROM booked.recorded_at) * 1000000)::bigint,
        booked.description, booked.actor_id, booked.corrects_id
"""
ENTRIES = """
        (SELECT jsonb_agg(jsonb_build_array(entry.id, entry.account_id, entry.amount) ORDER BY entry.id)
           FROM accounting_ledgerentry entry
          WHERE entry.transaction_id = booked.id AND entry.month = booked.month)
"""
# Includes the owners of the accounts, which apart from this only the vouchers contain.
ENTRIES_OF_WHOM = """
        (SELECT jsonb_agg(jsonb_build_array(
                    entry.id, entry.account_id, account.kind, account.unit, account.generation_id, account.tenant_id,
                    account.user_id, entry.amount
                ) ORDER BY entry.id)
           FROM accounting_ledgerentry entry LEFT JOIN accounting_ledgeraccount account ON account.id = entry.account_id
          WHERE entry.transaction_id = booked.id AND entry.month = booked.month)
"""
SEGMENTS = """
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
          WHERE segment.transaction_id = booked.id AND segment.month = booked.month)
"""
CAPACITY = """
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
          WHERE closing.transaction_id = booked.id AND closing.month = booked.month)
"""
HOURS_OF_NODES = """
        (SELECT jsonb_agg(jsonb_build_array(
                    node.id, node.node_id, node.node_name, node.generation_id, node.busy, node.idle, node.assembling,
                    node.free, node.others, node.drained, node.down
                ) ORDER BY node.id)
           FROM accounting_nodehour node
          WHERE booked.kind = 'closing' AND node.book = booked.book AND node.month = booked.month
            AND node.hour = lower(booked.period))
"""
CORRECTED = """
        (SELECT jsonb_agg(corrected.segment_id ORDER BY corrected.segment_id)
           FROM accounting_correctedsegment corrected
          WHERE corrected.transaction_id = booked.id AND corrected.month = booked.month)
"""
CHARGES = """
        SELECT jsonb_agg(jsonb_build_array(
                   charge.segment_id, charge.idle, charge.idle_price, charge.preemptible, charge.preemptible_price,
                   charge.borrowed, charge.borrowed_price, charge.amount
               ) ORDER BY charge.segment_id) AS told
          FROM accounting_classcharge charge
         WHERE charge.transaction_id = booked.id AND charge.month = booked.month
"""
HAS_VOUCHERS = "booked.corrects_id IS NULL AND booked.kind IN ('usage', 'pricing', 'correction')"
# Selects each transaction's id, key and leaves, and whether its vouchers are archived and so cannot match the seal.
_LEAVES = """
    SELECT booked.id, booked.key, {leaves} AS leaves,
           {has_vouchers} AND NOT booked.month = ANY((SELECT accounting_months_with_vouchers())::date[]) AS archived
    FROM accounting_ledgertransaction booked
    WHERE booked.book = %s AND booked.id > %s AND booked.id <= %s ORDER BY booked.id LIMIT %s
"""
_APART = f"""
            sha256(convert_to(jsonb_build_array(
                'stays', booked.id, booked.book, booked.month, booked.key, booked.kind, {HEAD}, {ENTRIES_OF_WHOM},
                {CAPACITY}, {HOURS_OF_NODES}
            )::text, 'UTF8'))
            || sha256(convert_to(jsonb_build_array('vouchers', {SEGMENTS}, {CORRECTED}, ({CHARGES}))::text, 'UTF8'))
        """
LEAVES = {
    # Charges are included only if there are any, so that leaves from before class prices stay the same.
    WHOLE: _LEAVES.format(
        has_vouchers=HAS_VOUCHERS,
        leaves=f"""
            sha256(convert_to((jsonb_build_array(
                booked.id, booked.book, booked.key, booked.kind, {HEAD}, {ENTRIES}, {SEGMENTS}, {CAPACITY}, {CORRECTED}
            ) || coalesce((SELECT jsonb_build_array(told) FROM ({CHARGES} HAVING count(*) > 0) charges), '[]'::jsonb)
            )::text, 'UTF8'))
        """,  # noqa: S608 - own names
    ),
    APART: _LEAVES.format(has_vouchers=HAS_VOUCHERS, leaves=_APART),
    NUMBERED: _LEAVES.format(has_vouchers=HAS_VOUCHERS, leaves=f"int8send(booked.id) || {_APART}"),
}
# Selects leaves of the rows that stay of a month's transactions when their vouchers are archived. A leaf of form WHOLE
# does not cover these rows without the vouchers.
REMAINS = f"""
    SELECT booked.id, booked.key, sha256(convert_to(jsonb_build_array(
        'remains', booked.id, booked.book, booked.month, booked.key, booked.kind, {HEAD}, {ENTRIES_OF_WHOM}
    )::text, 'UTF8')) AS leaf
    FROM accounting_ledgertransaction booked
    WHERE booked.book = %s AND booked.month = %s AND booked.id BETWEEN %s AND %s AND {HAS_VOUCHERS}
    ORDER BY booked.id
"""  # noqa: S608 - own names
USAGE = (
    "transaction_id, book, month, extract(epoch FROM hour), tenant_id, user_id, generation_id, gpu_seconds, assembling,"
    " idle, cost, currency, segments"
)
# The tables from which reports of an archived month are made, each sorted by id. HELD has usage, which changes if a
# month is restored and corrected; NODES has the states of nodes, which never change.
HELD = {
    "usagehour": USAGE,
    "usageday": USAGE,
    "jobday": f"{USAGE}, job_id, job_name",
    "archivedhour": "book, month, extract(epoch FROM hour), tenant_id, generation_id, currency, price_per_gpu_hour,"
    " correction_id, anew_by_id, gpu_seconds, cost, charged, brought",
}
# The columns in links of form NUMBERED and later.
HELD_NOW = HELD | {"archivedhour": f"{HELD['archivedhour']}, idle, preemptible, borrowed"}
NODES = {
    "nodehour": "book, month, extract(epoch FROM hour), node_id, node_name, generation_id, busy, idle, assembling,"
    " free, others, drained, down",
}


@dataclass(frozen=True, slots=True)
class Broken:
    """Represents the first faulty seal (hash-chain link) of a book: its number, and a description of the fault."""

    book: int
    seal: int
    what: str


@dataclass(frozen=True, slots=True)
class UnsealedPart:
    """Represents a new link (seal) of the hash chain before it is added. `leaves` are the digests of the rows that it
    covers.

    - If `month` is None, the link covers new transactions.
    - If `month` is set and `of_sums` is false, it covers the rows that stay in the database when this month is
      archived.
    - If `month` is set and `of_sums` is true, it covers the rollups and the archive files of this month.
    """

    book: int
    month: date | None
    first_id: int
    last_id: int
    leaves: bytes
    of_sums: bool = False
    form: int = NUMBERED


def hold_books(books: Iterable[int]) -> None:
    """Prevents the sealing of these books (clusters' ledgers) until the caller's transaction ends.

    Sealing adds new rows to a book's hash chain. Without this lock, a seal (hash-chain link) could leave out rows that
    the transaction has not committed yet.
    """
    with connection.cursor() as cursor:
        for book in sorted(set(books)):
            cursor.execute("SELECT pg_advisory_xact_lock_shared(%s)", [_lock(book)])


def seal_book(book: int) -> int:
    """Adds the digests of new rows to the hash chain of a book or journal. Returns the number of rows.

    `book`: the id of a cluster, or the negative number of a journal. Raises SealingStopped if sealing is stopped, for
    example because a row has been missing from the chain for more than a day.
    """
    journal = JOURNALS.get(book)
    until: int | None = LAST_OF_ALL
    if journal is not None:
        until = settled_until(journal) if last_id(journal) > sealed_until(book) else 0
    total = 0
    while until and (sealed := _seal_some(book, until)):
        total += sealed
    return total


@transaction.atomic(durable=True)
def _seal_some(book: int, until: int) -> int:
    _lock_book(book)
    after = sealed_until(book)
    rows = _rows(book, NUMBERED, after, until, AT_ONCE)
    if not rows:
        return 0
    now = heads.hold()
    if why := _long_unsealed(book, now, heads.resumed_at()):
        raise SealingStopped(why)
    leaves = b"".join(bytes(leaf) for _, _, leaf, _ in rows)
    _append(UnsealedPart(book, None, rows[0][0], rows[-1][0], leaves))
    return len(rows)


def why_stopped(now: datetime) -> list[str]:
    """Returns the reasons why rows are no longer added to the hash chain; an empty list if sealing works.

    A reason concerns either all of the ledger, or one book (cluster's ledger) or journal.
    """
    if why := heads.why_stopped(now):
        return [why]
    resumed = heads.resumed_at()
    found = (
        heads.lost_end(book, _last_seal(book)) or _long_unsealed(book, now, resumed) for book in _books()
    )
    return [why for why in found if why]


def why_unsealed(now: datetime) -> str:
    """Returns the first reason why sealing (adding of rows to the hash chains) is stopped; an empty string if there is
    no reason.

    Considers only reasons that `resume_sealing` can resolve. A deleted link of a chain is not one of them, because
    resuming does not restore the link; `why_stopped` reports deleted links too.
    """
    resumed = heads.resumed_at()
    return heads.why_stopped(now) or next(
        filter(None, (_long_unsealed(book, now, resumed) for book in _books())), ""
    )


def _books() -> list[int]:
    with connection.cursor() as cursor:
        # A recursive query finds the distinct books with one index lookup for each book.
        cursor.execute(
            "WITH RECURSIVE found AS (SELECT min(book) AS book FROM accounting_ledgertransaction UNION ALL"
            " SELECT (SELECT min(book) FROM accounting_ledgertransaction WHERE book > found.book) FROM found"
            " WHERE found.book IS NOT NULL) SELECT book FROM found WHERE book IS NOT NULL"
        )
        return [*(book for (book,) in cursor.fetchall()), *sorted(JOURNALS)]


def _long_unsealed(book: int, now: datetime, resumed: datetime | None) -> str:
    """Returns a message about the first row of the book that has been missing from the hash chain for more than a day.

    Returns an empty string if no row has been missing for so long. `resumed`: the time at which somebody last resumed
    the sealing; None if nobody did. Rows that were written before this time are ignored.
    """
    journal = JOURNALS.get(book)
    if journal is None:
        key, table, written, of_book = "key", "accounting_ledgertransaction", "recorded_at", "book = %s"
    else:
        key, table, written, of_book = f"'{journal.row} ' || id", journal.table, journal.written, "%s < 0"
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT {key} FROM {table} WHERE {of_book} AND id > %s AND {written} < %s"  # noqa: S608 - own names
            f" AND {written} > coalesce(%s, '-infinity'::timestamptz) ORDER BY id LIMIT 1",
            [book, sealed_until(book), now - heads.LONGEST_PAUSE, resumed],
        )
        row = cursor.fetchone()
    return f"{name_of(book)}: row {row[0]} was written more than a day ago and has no seal." if row else ""


def _last_seal(book: int) -> LedgerSeal | None:
    return LedgerSeal.objects.filter(book=book).order_by("-number").only("number", "digest").first()


def _rows(book: int, form: int, after: int, until: int, most: int | None) -> list[Row]:
    """Returns the rows of a book with ids in (after, until], sorted by id, each with its leaves (digests of its
    content).

    `form`: the version of the leaf format. `most`: the maximum number of rows; None means no maximum.
    """
    query = JOURNALS[book].leaves if book in JOURNALS else LEAVES[form]
    with connection.cursor() as cursor:
        cursor.execute(query, [book, after, until, most])
        rows: list[Row] = cursor.fetchall()
    return rows


def seal_all(books: Sequence[int]) -> None:
    """Adds the new rows of these books and journals to their hash chains. Then publishes the newest head if this is
    due.

    A head is a signed link over all chains (accounting/ledger/heads.py). If sealing is stopped, logs the reason.
    """
    before = heads.last_head()
    told: set[str] = set()

    def unless_stopped(do: Callable[[], object]) -> None:
        try:
            do()
        except (SealingStopped, HeadsFileError) as stopped:
            if str(stopped) not in told:
                logger.error("sealing has stopped: %s", stopped)
            told.add(str(stopped))

    try:
        run_each(books, lambda book: unless_stopped(lambda: seal_book(book)))
    finally:  # a failure in one book must not keep the heads of other books from being made and published
        unless_stopped(lambda: _idle(before))
        unless_stopped(lambda: _publish(before))


def _publish(before: LedgerHead | None) -> None:
    now = now_from_database()
    head = heads.last_head()
    if head is not None and not heads.why_stopped(now) and heads.is_due(head, before, now):
        heads.publish(head)


@transaction.atomic(durable=True)
def _idle(before: LedgerHead | None) -> None:
    """Appends a head (signed link over all chains) without a seal, if the newest head is at least an hour old.

    The new head proves that Fairlot was running and had nothing to seal. `before`: the newest head before this run of
    the sealing task. If it is None, nothing is appended.
    """
    now = heads.hold()
    head = heads.last_head()
    if head is None or before is None or now - head.at < heads.IDLE:
        return
    if why := heads.why_stopped(now):
        raise SealingStopped(why)
    heads.append(heads.NO_BOOK, 0, b"", now)


def sealed_until(book: int) -> int:
    """Returns the id of the last transaction that the book's hash chain covers; 0 if the chain is empty.

    For a journal, returns the id of its last covered row. Ignores the links that archiving adds.
    """
    last = LedgerSeal.objects.filter(book=book, month=None).order_by("-number")
    return last.values_list("last_id", flat=True).first() or 0


def unsealed_remains(month: date, files: Mapping[date, Mapping[str, str]]) -> list[UnsealedPart]:
    """Returns the hash-chain links to add when a month is archived. They cover the rows that stay in the database.

    `month`: the month that is being archived. `files`: the digests of the archive files by name, for `month` and for
    months that were archived earlier. An earlier month gets only the links that it lacks. The chain must already
    contain all transactions of these months.
    """
    found: list[UnsealedPart] = []
    # Concurrent postings are allowed, because the transactions of these months no longer change.
    for one, digests in sorted(files.items()):
        for book in books_of(one):
            found += _unsealed_remains(book, one)
            # The rollups of an earlier month are sealed only once: a later change of them must not get a valid seal.
            if one == month or not LedgerSeal.objects.filter(book=book, month=one, of_sums=True).exists():
                leaves = leaves_of_sums(book, one) + leaf_of_files(digests)
                found.append(UnsealedPart(book, one, 0, 0, leaves, of_sums=True))
    return found


def books_of(month: date) -> list[int]:
    """Returns the numbers of the books (clusters' ledgers) with postings in the month, in ascending order."""
    booked = LedgerTransaction.objects.filter(month=month).order_by("book")
    return list(booked.values_list("book", flat=True).distinct())


def leaves_of_sums(book: int, month: date, form: int = NUMBERED) -> bytes:
    """Returns two concatenated digests for a month of a book (cluster's ledger).

    The first covers the rollups of usage. The second covers each node's GPU time by hour. `form`: decides which columns
    of the rollups the first digest covers.
    """
    held = HELD_NOW if form >= NUMBERED else HELD
    return _leaf_of(held, book, month) + _leaf_of(NODES, book, month)


def leaf_of_files(digests: Mapping[str, str]) -> bytes:
    """Returns one digest of all the files' names and digests. `digests` contains the files' digests by name."""
    return hashlib.sha256(
        "".join(f"{name} {digest}\n" for name, digest in sorted(digests.items())).encode()
    ).digest()


def sealed_files(book: int, month: date) -> bytes | None:
    """Returns the digest of the month's archive files from the hash chain; None if the chain does not contain this
    digest.

    If the month was archived several times, returns the last digest.
    """
    seals = LedgerSeal.objects.filter(book=book, month=month, of_sums=True, form__gte=APART).order_by(
        "-number"
    )
    leaves = seals.values_list("leaves", flat=True).first()
    return None if leaves is None else bytes(leaves)[2 * LEAF_BYTES :]


def _leaf_of(tables: Mapping[str, str], book: int, month: date) -> bytes:
    digest = hashlib.sha256()
    with connection.cursor() as cursor:
        for name, columns in tables.items():
            if name == "archivedhour":  # months that an earlier release archived have no such rows
                cursor.execute(
                    "SELECT FROM accounting_archivedhour WHERE book = %s AND month = %s LIMIT 1",
                    [book, month],
                )
                if not cursor.rowcount:
                    continue
            digest.update(f"{name}\n".encode())
            rows = cursor.mogrify(
                f"SELECT {columns} FROM accounting_{name} WHERE book = %s AND month = %s ORDER BY id",  # noqa: S608
                [book, month],
            ).decode()
            cursor.copy_expert(f"COPY ({rows}) TO STDOUT", _Digesting(digest))
    return digest.digest()


class _Digesting(io.RawIOBase):
    """Represents a write-only file that stores nothing: written data only updates a digest."""

    def __init__(self, digest: Any) -> None:
        super().__init__()
        self._digest = digest

    def write(self, data: Any) -> int:
        self._digest.update(data)
        return len(data)


def _unsealed_remains(book: int, month: date) -> Iterator[UnsealedPart]:
    before = LedgerSeal.objects.filter(book=book, month=month).aggregate(last=Max("last_id"))["last"] or 0
    with connection.cursor() as cursor:
        cursor.execute(REMAINS, [book, month, before + 1, sealed_until(book)])
        while rows := cursor.fetchmany(AT_ONCE):
            leaves = b"".join(bytes(leaf) for _, _, leaf in rows)
            yield UnsealedPart(book, month, rows[0][0], rows[-1][0], leaves)


def seal_remains(remains: Sequence[UnsealedPart]) -> None:
    """Appends links to the hash chains of their books (clusters' ledgers).

    Other postings to these books wait until the caller's transaction ends.
    """
    for book in sorted({one.book for one in remains}):
        _lock_book(book)
    for one in remains:
        _append(one)


def _lock_book(book: int) -> None:
    """Waits until no other transaction is posting to the book, and locks the book until the caller's transaction ends.

    All earlier postings are then visible to the caller, and all later postings get higher ids.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_lock(book)])


def _append(link: UnsealedPart) -> None:
    now = heads.hold()
    last = _last_seal(link.book)
    heads.require_end(link.book, last, now)
    number = last.number + 1 if last else 1
    digest = digest_of(link, bytes(last.digest) if last else b"", now)
    LedgerSeal.objects.create(**asdict(link), number=number, digest=digest, sealed_at=now)
    SealedBook.objects.update_or_create(book=link.book, defaults={"number": number, "digest": digest})
    heads.append(link.book, number, digest, now)


def digest_of(link: UnsealedPart | LedgerSeal, before: bytes, sealed_at: datetime) -> bytes:
    """Returns the digest of a hash-chain link. `before` is the digest of the previous link; empty for the first link.

    The digest covers `before`, the leaves, and the form of the link. In the oldest form, WHOLE, it does not cover the
    form.
    """
    told = f"sums of {link.month} in {link.book}\n" if link.of_sums else ""
    # Without this, somebody could change the stored form to one for which verification compares fewer rows.
    if link.form != WHOLE:
        told += f"form {link.form} of {link.month} in {link.book} from {link.first_id} to {link.last_id}\n"
    if link.form >= NUMBERED:
        told += f"at {sealed_at.astimezone(UTC).isoformat(timespec='microseconds')}\n"
    return hashlib.sha256(before + told.encode() + bytes(link.leaves)).digest()


def first_broken() -> Broken | None:
    """Returns the first seal (hash-chain link) that does not match its rows or the previous seal; None if all match."""
    before: LedgerSeal | None = None
    whole_until = FIRST_OF_ALL
    of_sums = LedgerSeal.objects.filter(of_sums=True).order_by().values_list("book", "month")
    stands = {(book, month): number for book, month, number in of_sums.annotate(Max("number"))}
    for seal in LedgerSeal.objects.order_by("book", "number").iterator(chunk_size=200):
        if before is None or before.book != seal.book:
            before, whole_until = None, FIRST_OF_ALL
        broken = _broken(seal, before, whole_until)
        if broken is None and seal.of_sums:
            broken = broken_sums(seal, stands=stands[seal.book, seal.month] == seal.number)
        if broken is not None:
            return Broken(seal.book, seal.number, broken)
        before = seal
        if seal.month is None:
            whole_until = seal.last_id
    return None


def first_lost_end() -> Broken | None:
    """Returns the first book whose hash chain lacks its last link; None if all chains are complete.

    Compares the last link of each chain with the book's SealedBook row, which records the last link that Fairlot made.
    """
    made = {one.book: (one.number, bytes(one.digest)) for one in SealedBook.objects.all()}
    last = {
        one.book: (one.number, bytes(one.digest))
        for one in LedgerSeal.objects.order_by("book", "-number").distinct("book")
    }
    for book in sorted(made.keys() | last.keys()):
        if made.get(book) != last.get(book):
            number, _ = made.get(book) or last[book]
            ends = last.get(book, (0, b""))[0] or "none"
            what = f"the last seal in the hash chain ({ends}) is not the last seal that Fairlot made"
            return Broken(book, number, what)
    return None


def _broken(seal: LedgerSeal, before: LedgerSeal | None, whole_until: int) -> str | None:
    follows = before.number + 1 if before else 1
    if seal.number != follows:
        return f"an earlier seal, number {follows}, is missing"
    if seal.form not in LEAVES or (before is not None and seal.form < before.form):
        return "this seal has an unknown format, or an older format than the previous seal"
    if digest_of(seal, bytes(before.digest) if before else b"", seal.sealed_at) != bytes(seal.digest):
        return "this seal or an earlier one was changed"
    if seal.of_sums:
        return None
    if seal.month is not None:
        return _broken_remains(seal, seal.month, _cut(bytes(seal.leaves), LEAF_BYTES))
    return _broken_transactions(seal, whole_until)


def _cut(leaves: bytes, size: int) -> list[bytes]:
    return [leaves[at : at + size] for at in range(0, len(leaves), size)]


def _broken_transactions(seal: LedgerSeal, whole_until: int) -> str | None:
    """Returns a description of how transactions differ from their seal (hash-chain link); None if they match.

    `whole_until`: the id of the last transaction in the previous seals; this seal covers higher ids. Of archived
    transactions, only the rows that stay in the database are compared.
    """
    if seal.book in JOURNALS:
        size = begins = ends = ID_BYTES + LEAF_BYTES
    else:
        size, begins, ends = SIZES[seal.form]
    rows = _rows(seal.book, seal.form, whole_until, seal.last_id, None)
    sealed = _cut(bytes(seal.leaves), size)
    archived = {place for place, row in enumerate(rows) if row[3]}
    now = [bytes(row[2]) for row in rows]
    for place in archived & set(range(len(sealed))):
        if now[place][begins:ends] == sealed[place][begins:ends]:
            now[place] = sealed[place]
    word = JOURNALS[seal.book].row if seal.book in JOURNALS else "transaction"
    what = _difference([row[1] for row in rows], now, sealed, word=word, is_numbered=seal.form == NUMBERED)
    return what and f"{what} after sealing"


def _broken_remains(seal: LedgerSeal, month: date, sealed: list[bytes]) -> str | None:
    with connection.cursor() as cursor:
        cursor.execute(REMAINS, [seal.book, month, seal.first_id, seal.last_id])
        rows = cursor.fetchall()
    what = _difference([key for _, key, _ in rows], [bytes(leaf) for _, _, leaf in rows], sealed)
    return what and f"{what} after {month:%Y-%m} was archived"


def _difference(
    keys: Sequence[str],
    now: Sequence[bytes],
    sealed: Sequence[bytes],
    *,
    word: str = "transaction",
    is_numbered: bool = False,
) -> str | None:
    """Returns a description of the first difference between rows and the leaves in their seal; None if all rows match.

    `keys` and `now`: the keys and leaves of the present rows. `sealed`: the leaves in the seal. `word`: the word for a
    row in the description. `is_numbered`: whether each leaf begins with the row's id, so that removed rows can be
    named.
    """
    place = next((at for at, (one, was) in enumerate(zip(now, sealed, strict=False)) if one != was), None)
    if place is None:
        if len(now) == len(sealed):
            return None
        place = min(len(now), len(sealed))
    rest, were = now[place:], sealed[place:]
    if is_numbered:
        ids, sealed_ids = ({one[:ID_BYTES] for one in rows} for rows in (rest, were))
        gone = [int.from_bytes(one[:ID_BYTES]) for one in were if one[:ID_BYTES] not in ids]
        if len(gone) == 1:
            return f"{word} {gone[0]} was removed"
        if gone:
            return f"{len(gone)} {word}s from {gone[0]} to {gone[-1]} were removed"
        added = (at for at, one in enumerate(rest, place) if one[:ID_BYTES] not in sealed_ids)
        if (at := next(added, None)) is not None:
            return f"row {keys[at]} was inserted"
        return f"row {keys[place]} was changed"
    if len(rest) < len(were):
        where = f"after {keys[place - 1]}" if place else f"before {keys[0]}" if keys else "of this seal"
        count = len(were) - len(rest)
        return f"{count} {word}s {where} were removed"
    was = "inserted" if len(rest) > len(were) else "changed"
    return f"row {keys[place]} was {was}"


def broken_sums(seal: LedgerSeal, *, stands: bool) -> str | None:
    """Returns a description of how a month's rows differ from a seal of its rollups; None if they match.

    `stands`: whether `seal` is the month's last seal of rollups.

    Each node's GPU time by hour is always compared. The usage rollups are compared only if `stands` is true and the
    month is archived now.
    """
    month, leaves = seal.month or date.min, bytes(seal.leaves)
    with connection.cursor() as cursor:
        cursor.execute("SELECT %s = ANY(accounting_months_with_vouchers())", [month])
        (is_back,) = cursor.fetchone()
    now = leaves_of_sums(seal.book, month, seal.form)
    # The GPU time of nodes never changes, not even in a restored month.
    if now[LEAF_BYTES:] != leaves[LEAF_BYTES : 2 * LEAF_BYTES]:
        return f"the GPU time of nodes in {month:%Y-%m} was changed after the archiving of {month:%Y-%m}"
    # Corrections may change the rollups of a restored month. When it is archived again, it gets a new seal.
    if not stands or is_back:
        return None
    if now[:LEAF_BYTES] != leaves[:LEAF_BYTES]:
        return f"hourly or daily rollups of {month:%Y-%m} were changed after the archiving of {month:%Y-%m}"
    if seal.form < NUMBERED and _has_classes(seal.book, month):
        return (
            f"idle, preemptible or borrowed GPU time was added to the bills of {month:%Y-%m} after the"
            f" archiving of {month:%Y-%m}"
        )
    return None


def _has_classes(book: int, month: date) -> bool:
    """Returns whether the archived bills of the month contain idle, preemptible or borrowed GPU time.

    Use it only for a month that an earlier release archived. That release stored 0 for these classes, so a sum above 0
    was changed later.
    """
    hours = ArchivedHour.objects.filter(book=book, month=month)
    return hours.exclude(idle=0, preemptible=0, borrowed=0).exists()


def _lock(book: int) -> int:
    """Returns the advisory lock key of the book: a hash, so that it does not collide with Fairlot's other lock keys."""
    digest = hashlib.sha256(f"fairlot ledger book {book}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)
