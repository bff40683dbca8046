"""Moves old months' vouchers (the detailed usage rows of leases) from the database to files.

Whole months are archived, oldest first. These rows of an archived month stay in the database:

- transactions, their entries, and capacity segments
- rollups by hour, day and job
- the total cost of each hour, by tenant, price and correction

So archiving does not change balances, the totals of closed books (clusters' ledgers), or statements. Reports stay the
same for periods of whole hours. Reports by job stay the same only for periods of whole days (UTC).

The seals (links of the hash chain) cover the vouchers. Separate seals cover the rows that stay, and the digests of the
files. So nobody can delete a month's vouchers and pretend that they were archived.
"""

from __future__ import annotations

import gzip
import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import BinaryIO

from django.db import OperationalError, connection, transaction
from django.db.models import Max

from accounting.access import audit
from accounting.core.calendar import (
    DAY,
    MICROSECOND,
    first_of_month,
    months_after,
    start_of_day,
    start_of_month,
)
from accounting.core.clock import now_from_database
from accounting.core.errors import Refused
from accounting.ledger.hash_chain import (
    UnsealedPart,
    books_of,
    leaf_of_files,
    seal_remains,
    sealed_files,
    unsealed_remains,
)
from accounting.models import (
    ArchivedHour,
    ArchiveRecord,
    ClosedBook,
    LedgerSeal,
    LedgerTransaction,
    UsageSegment,
    User,
)

VOUCHERS = ("usagesegment", "correctedsegment", "classcharge")
SUMS_FILE = "SHA256SUMS"
# Tables that vouchers refer to. Dropping vouchers locks these tables, in the order in which all code locks them.
REFERENCED = ("accounting_tenant", "accounting_user", "accounting_generation")
IN_THE_WAY = ("55P03", "40P01")  # PostgreSQL error codes: lock not available, deadlock
MOST_TRIES = 120
SUMS_OF_BILLS = """
    INSERT INTO accounting_archivedhour (
        book, month, hour, tenant_id, generation_id, currency, price_per_gpu_hour, correction_id, anew_by_id,
        gpu_seconds, cost, charged, brought, idle, preemptible, borrowed)
    SELECT segment.book, segment.month, date_trunc('hour', lower(segment.period), 'UTC'), segment.tenant_id,
           segment.generation_id, segment.currency, segment.price_per_gpu_hour, corrected.transaction_id,
           (SELECT earlier_one.transaction_id
              FROM accounting_usagesegment earlier
              JOIN accounting_correctedsegment earlier_one
                ON earlier_one.segment_id = earlier.id AND earlier_one.month = earlier.month
             WHERE segment.version > 0 AND earlier.month = segment.month AND earlier.lease_id = segment.lease_id
               AND earlier.period = segment.period AND earlier.version = segment.version - 1),
           sum(segment.gpu_seconds), sum(segment.cost), coalesce(sum(charge.amount), 0),
           coalesce(sum(charge.amount) FILTER (WHERE charge.transaction_id = segment.transaction_id), 0),
           coalesce(sum(charge.idle), 0), coalesce(sum(charge.preemptible), 0), coalesce(sum(charge.borrowed), 0)
      FROM accounting_usagesegment segment
      LEFT JOIN accounting_classcharge charge ON charge.segment_id = segment.id AND charge.month = segment.month
      LEFT JOIN accounting_correctedsegment corrected
        ON corrected.segment_id = segment.id AND corrected.month = segment.month
     WHERE segment.month = %s
     GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9 ORDER BY 1, 2, 3, 4, 5, 6, 7, 8, 9
"""


@dataclass(frozen=True, slots=True)
class Archived:
    month: date
    folder: Path
    rows: int
    digests: dict[str, str]  # SHA-256 digests by file name


def archived_until() -> datetime | None:
    """Returns the end of the last archived month; None if no month is archived.

    Before that time the database has only rollups of usage.
    """
    until: datetime | None = ClosedBook.objects.aggregate(until=Max("details_since"))["until"]
    return until


def archive_record(month: date) -> ArchiveRecord | None:
    """Returns the record of the last archiving of the month.

    Returns None if the month was never archived, or was restored after its last archiving.
    """
    last = ArchiveRecord.objects.filter(month=month).order_by("-pk").first()
    return last if last is not None and last.is_archived else None


def files_of(month: date) -> dict[str, str]:
    """Returns the SHA-256 digests of the month's archive files, by file name; empty if the month is not archived."""
    record = archive_record(month)
    return record.digests if record else {}


def months_with_vouchers() -> list[date]:
    """Returns the months whose vouchers (detailed usage rows) are in the database, oldest first."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT accounting_months_with_vouchers()")
        (months,) = cursor.fetchone()
    return sorted(months)


def archived_months() -> list[date]:
    """Returns the archived months, oldest first.

    An archived month has transactions in the database, but no vouchers (detailed usage rows).
    """
    archived = LedgerTransaction.objects.exclude(month__in=months_with_vouchers()).order_by("month")
    return list(archived.values_list("month", flat=True).distinct())


@transaction.atomic(durable=True)
def archive_month(*, actor: User | None, month: date, folder: Path) -> Archived:
    """Moves the vouchers (detailed usage rows) of a month to files in `folder`. Returns a summary with the files'
    digests.

    Also adds the rows that stay in the database to the hash chain. Raises Refused unless all these conditions are met:

    - The month has ended. It has vouchers in the database, and no older month has any.
    - For each cluster with transactions in the month, all hours of the month are closed, and their class prices (prices
      for idle, preemptible and borrowed time) are applied.
    - The hash chain contains all transactions of the month.
    - The rollups cover all usage of the month.
    """
    books = list(ClosedBook.objects.select_for_update().order_by("book"))
    _require_archivable(month, books)
    with connection.cursor() as cursor:
        for name in VOUCHERS:  # readers continue, writers wait
            cursor.execute(f"LOCK TABLE {_part(name, month)} IN SHARE MODE")
        cursor.execute(SUMS_OF_BILLS, [month])
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    _sync(folder.parent)
    rows, digests = 0, {}
    for name in VOUCHERS:
        file = folder / f"{name}.csv.gz"
        rows += _write(name, month, file)
        digests[file.name] = _digest(file)
    sums = "".join(f"{digest}  {name}\n" for name, digest in digests.items())
    with _whole(folder / SUMS_FILE) as opened:
        opened.write(sums.encode())
    # The files are complete and synced to disk before the rows are dropped.
    _drop(
        month, unsealed_remains(month, {one: files_of(one) for one in archived_months()} | {month: digests})
    )
    ClosedBook.objects.update(details_since=start_of_month(months_after(month, 1)))
    seals = LedgerSeal.objects.filter(month=month).order_by().values_list("book").annotate(Max("number"))
    stored = {"month": month, "rows": rows, "digests": digests, "seals": dict(seals)}
    ArchiveRecord.objects.create(is_archived=True, **stored)
    audit.record(actor=actor, verb="ledger.archive", target=books[0], after=stored)
    return Archived(month, folder, rows, digests)


@transaction.atomic(durable=True)
def bring_back_month(*, actor: User | None, month: date, folder: Path) -> int:
    """Restores the vouchers (detailed usage rows) of an archived month from its newest files. Returns the number of
    restored rows.

    Raises Refused unless the month is the last archived month and the digests of the files match the archive record.
    Run `manage.py verify_ledger` afterwards to check the restored rows against the hash chain.
    """
    books = list(ClosedBook.objects.select_for_update().order_by("book"))
    since = archived_until()
    if since is None or first_of_month(since) != months_after(month, 1):
        raise Refused(
            f"{month:%Y-%m} cannot be brought back into the database, because it is not the last archived month.",
            "month",
        )
    rows = 0
    for name, file in _checked(folder, _sealed_files_of(month)):
        rows += _load(name, month, file)
    ArchivedHour.objects.filter(month=month).delete()
    ClosedBook.objects.update(details_since=_archived_until_before(month))
    ArchiveRecord.objects.create(month=month, is_archived=False, rows=rows)
    audit.record(actor=actor, verb="ledger.bring_back", target=books[0], after={"month": month, "rows": rows})
    return rows


def archivable_before(now: datetime, *, keep_months: int) -> list[date]:
    """Returns the months with usage in the database that may be archived, oldest first.

    Leaves out the present month and the `keep_months` months before it.
    """
    bound = months_after(first_of_month(now), -keep_months)
    return [month for month in _months_with_bills() if month < bound]


def _months_with_bills() -> Iterator[date]:
    return (month for month in months_with_vouchers() if UsageSegment.objects.filter(month=month).exists())


def _require_archivable(month: date, books: list[ClosedBook]) -> None:
    begins, ends = start_of_month(month), start_of_month(months_after(month, 1))
    oldest = next(_months_with_bills(), None)
    if oldest is None or month < oldest or month not in months_with_vouchers():
        raise Refused(
            f"The database has no vouchers (usage segments and charges) of {month:%Y-%m} to archive.", "month"
        )
    if month != oldest:
        raise Refused(
            f"Archive {oldest:%Y-%m} first, because older months must be archived before newer ones.", "month"
        )
    if ends > now_from_database():
        raise Refused(f"{month:%Y-%m} cannot be archived, because it is not over yet.", "month")
    closed = {one.book: one for one in books}
    of_month = LedgerTransaction.objects.filter(month=month).order_by()
    for book, last in of_month.values_list("book").annotate(Max("pk")):
        one = closed.get(book)
        if one is None or min(one.until, one.priced_until) < ends:
            raise Refused(
                f"Fairlot has not yet closed and priced all hours of {month:%Y-%m} in the ledger of cluster {book}.",
                "month",
            )
        first_day = start_of_day(one.since - MICROSECOND) + DAY
        early = UsageSegment.objects.filter(
            month=month, book=book, period__startswith__lt=max(first_day, begins)
        )
        if early.exists():
            raise Refused(
                f"{month:%Y-%m} cannot be archived. In the ledger of cluster {book}, Fairlot has closed whole days only"
                f" since {first_day:%Y-%m-%d}, and some bills of {month:%Y-%m} are for earlier usage. The rollups do"
                " not contain these bills.",
                "month",
            )
        sealed = LedgerSeal.objects.filter(book=book).aggregate(last=Max("last_id"))["last"]
        if sealed is None or sealed < last:
            raise Refused(
                f"The last transactions of {month:%Y-%m} in the ledger of cluster {book} are not sealed yet.",
                "month",
            )


def _part(name: str, month: date) -> str:
    return f"accounting_{name}_{month:%Y_%m}"


def _archived_until_before(month: date) -> datetime | None:
    older = LedgerTransaction.objects.filter(month__lt=month).exclude(month__in=months_with_vouchers())
    last: date | None = older.aggregate(last=Max("month"))["last"]
    return None if last is None else start_of_month(months_after(last, 1))


def _drop(month: date, remains: list[UnsealedPart]) -> None:
    """Drops the vouchers (detailed usage rows) of the month, and adds the rows that stay to the hash chain.

    `remains`: the hash-chain links to add. Raises OperationalError if the locks are not available in MOST_TRIES tries.
    """
    # Each try waits only briefly for locks, so that other transactions do not have to wait long for this one.
    for _ in range(MOST_TRIES - 1):
        try:
            _try_to_drop(month, remains)
        except OperationalError as error:
            if getattr(error.__cause__, "pgcode", None) not in IN_THE_WAY:
                raise
        else:
            return
    _try_to_drop(month, remains)


@transaction.atomic
def _try_to_drop(month: date, remains: list[UnsealedPart]) -> None:
    parents = [f"accounting_{name}" for name in VOUCHERS]
    with connection.cursor() as cursor:
        # Shorter than PostgreSQL's deadlock timeout, so that no transaction that waits for this one is aborted.
        cursor.execute("SET LOCAL lock_timeout = '500ms'")
        seal_remains(remains)  # before the tables, in the order of postings, which also lock the book first
        cursor.execute(f"LOCK TABLE {', '.join([*REFERENCED, *parents])} IN ACCESS EXCLUSIVE MODE")
        for name in VOUCHERS:
            cursor.execute(f"ALTER TABLE accounting_{name} DETACH PARTITION {_part(name, month)}")
            cursor.execute(f"DROP TABLE {_part(name, month)}")
        cursor.execute("SET LOCAL lock_timeout = DEFAULT")


def _write(name: str, month: date, file: Path) -> int:
    """Writes the month's partition of the table `name` to `file`, as gzip-compressed CSV with a header.

    Returns the number of rows.
    """
    with connection.cursor() as cursor:
        with _whole(file) as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0) as packed:
            in_order = f"SELECT * FROM {_part(name, month)} ORDER BY 1"  # noqa: S608 - own names
            cursor.copy_expert(f"COPY ({in_order}) TO STDOUT (FORMAT csv, HEADER)", packed)
        rows: int = cursor.rowcount
    return rows


@contextmanager
def _whole(file: Path) -> Iterator[BinaryIO]:
    """Context manager that opens a `.part` file for writing.

    At the end of the block it syncs the content to disk and renames the `.part` file to `file`, so that `file` is never
    incomplete.
    """
    part = file.with_suffix(".part")
    with open(part, "wb", opener=_private) as opened:
        yield opened
    _sync(part)
    part.replace(file)
    _sync(file.parent)


def _private(path: str, flags: int) -> int:
    """Opens a file with mode 0600 and returns the file descriptor. This is an opener for Python's `open`."""
    # The file contains the usage and prices of all teams.
    return os.open(path, flags, mode=0o600)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _sealed_files_of(month: date) -> dict[str, str]:
    """Returns the digests of the month's archive files.

    Raises Refused if they differ from the digests that the hash chain of a book (cluster's ledger) contains.
    """
    digests = files_of(month)
    for book in books_of(month):
        if sealed_files(book, month) not in (None, leaf_of_files(digests)):
            raise Refused(
                f"The archive record of {month:%Y-%m} and the hash chain contain different digests of the"
                " archive files."
            )
    return digests


def _checked(folder: Path, digests: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """Yields (table name, file) for each archived table.

    Raises Refused if the SHA-256 digest of a file differs from its digest in `digests`.
    """
    for name in VOUCHERS:
        file = folder / f"{name}.csv.gz"
        if _digest(file) != digests.get(file.name):
            raise Refused(
                f"{file} is not the file that Fairlot wrote when it last archived this file's month.",
                "folder",
            )
        yield name, file


def _load(name: str, month: date, file: Path) -> int:
    """Loads the archived file of the table `name` as the month's partition. Returns the number of rows."""
    part, parent = _part(name, month), f"accounting_{name}"
    with connection.cursor() as cursor:
        # The new table gets its triggers last, because they reject rows of transactions that were posted earlier.
        cursor.execute(f"CREATE TABLE {part} (LIKE {parent} INCLUDING DEFAULTS INCLUDING CONSTRAINTS)")
        with gzip.open(file) as packed:
            columns = packed.readline().decode().strip()
            cursor.copy_expert(f"COPY {part} ({columns}) FROM STDIN (FORMAT csv)", packed)
        rows: int = cursor.rowcount
        cursor.execute(f"ALTER TABLE {parent} ATTACH PARTITION {part} FOR VALUES IN (%s)", [month])
        cursor.execute("SELECT accounting_guard_ledger_table(%s::regclass, %s)", [part, parent])
    return rows
