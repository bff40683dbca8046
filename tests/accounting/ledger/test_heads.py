"""Tests that verify_ledger finds changes by an attacker who has all rights in the database but not the signing key."""

import io
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from django.core.management import CommandError, call_command
from django.db import connection, transaction

from accounting import actions
from accounting.core.calendar import first_of_month, months_after
from accounting.core.errors import NotAllowed, Refused
from accounting.ledger import correct_usage, heads, signing
from accounting.ledger.hash_chain import seal_all, seal_book, why_stopped
from accounting.ledger.heads import SealingStopped
from accounting.ledger.journals import JOURNALS
from accounting.models import ArchiveRecord, AuditEvent, LedgerHead, LedgerSeal, Price, UsageSegment
from accounting.verification import CHECKS, first_found
from accounting.verification.guards import a_guard_is_off
from tests import make
from tests.accounting.booking import HOUR, NOON, book, close_hours, minutes, settle_hours, trade
from tests.kept_rows import kept
from tests.ledger_guard import APPEND_ONLY, CHANGES, with_partitions, without_guards, without_triggers
from tests.make import Cast

pytestmark = pytest.mark.django_db(transaction=True)

BOOKS = [1, 2, *sorted(JOURNALS)]


@pytest.fixture
def sealed(transactional_db: None) -> Cast:
    return kept(make_sealed)


def make_sealed() -> Cast:
    """Creates two sealed books. In the first book a day is closed; corrections and changes of limits are sealed,
    too."""
    cast = make.cast()
    Price.objects.filter(generation=cast.a100).update(idle=1)
    book(cast, ends=NOON + minutes(90), unused=[(NOON + minutes(10), NOON + minutes(25))])
    trade(cast)
    day = NOON - 12 * HOUR
    close_hours(cast, day, day + 24 * HOUR)
    settle_hours()
    with transaction.atomic():
        segments = UsageSegment.objects.select_related("generation").order_by("pk")[:1]
        correct_usage(actor=cast.ada, segments=list(segments), reason="a mistake")
    book(cast, book=2, lease_id=2)
    actions.set_tickets(actor=cast.ada, tenant=cast.astro, tickets=7)
    actions.set_quota(actor=cast.ada, tenant=cast.astro, kind="gpus", generation=cast.a100, limit=4)
    actions.set_budget(actor=cast.ada, tenant=cast.astro, amount=Decimal(100), percentages=[80])
    before = months_after(first_of_month(NOON), -2)
    ArchiveRecord.objects.create(month=before, is_archived=True, rows=1, digests={"a.csv.gz": "12"})
    seal_all(BOOKS)
    assert first_found() is None
    return cast


def forge(*changes: str) -> None:
    """Executes SQL changes as the owner of the database, with the guards (triggers) disabled."""
    with without_guards(), without_triggers(*CHANGES), connection.cursor() as cursor:
        for change in changes:
            cursor.execute(change)
            assert cursor.rowcount > 0, change


def run(command: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(command)


def told() -> str:
    found = first_found()
    return str(found) if found else heads.not_published() or "OK"


ALTERED = (
    "UPDATE accounting_usagesegment SET user_name = 'nobody' WHERE book = 2",
    "DELETE FROM accounting_ledgerseal WHERE book = 2",
)
FORGERIES: dict[str, tuple[tuple[str, ...], str]] = {
    "a book's seals removed for beat to make others": (ALTERED, "book 2, seal 1: the last seal in the hash chain"),
    "and what tells of the last one": (
        (*ALTERED, "DELETE FROM accounting_sealedbook WHERE book = 2"),
        r"book 2, seal 1: this seal is missing, although head \d+ refers to it",
    ),
    "and the heads": (
        (
            *ALTERED,
            "DELETE FROM accounting_sealedbook WHERE book = 2",
            "DELETE FROM accounting_ledgerhead WHERE book = 2",
        ),
        "head 3: an earlier head, number 2, is missing",
    ),
    "all rows of a book": (
        (
            "DELETE FROM accounting_ledgerentry WHERE transaction_id IN"
            " (SELECT id FROM accounting_ledgertransaction WHERE book = 2)",
            "DELETE FROM accounting_usagesegment WHERE book = 2",
            "DELETE FROM accounting_ledgertransaction WHERE book = 2",
            "DELETE FROM accounting_ledgerseal WHERE book = 2",
            "DELETE FROM accounting_sealedbook WHERE book = 2",
        ),
        r"book 2, seal 1: this seal is missing, although head \d+ refers to it",
    ),
    "all seals": (
        ("DELETE FROM accounting_ledgerseal", "DELETE FROM accounting_sealedbook"),
        r"\w+ \w+, seal 1: this seal is missing, although head \d+ refers to it",
    ),
    "a transaction removed": (
        (
            "DELETE FROM accounting_ledgerentry WHERE transaction_id IN"
            " (SELECT id FROM accounting_ledgertransaction WHERE kind = 'trade')",
            "DELETE FROM accounting_ledgertransaction WHERE kind = 'trade'",
        ),
        r"book 1, seal 1: transaction \d+ was removed after sealing",
    ),
    "an audit event changed": (
        ("UPDATE accounting_auditevent SET actor_name = 'nobody' WHERE verb = 'tenant.set_tickets'",),
        r"audit events, seal 1: row audit event \d+ was changed",
    ),
    "an audit event removed": (
        ("DELETE FROM accounting_auditevent WHERE verb = 'tenant.set_tickets'",),
        r"audit events, seal 1: audit event \d+ was removed",
    ),
    "tickets of the past": (
        ("UPDATE accounting_ticketchange SET tickets = 8 WHERE tickets = 7",),
        r"ticket changes, seal 1: row ticket change \d+ was changed",
    ),
    "an empty sum put in": (
        (
            "INSERT INTO accounting_usagehour (id, transaction_id, book, month, hour, tenant_id, user_id, "
            " generation_id, gpu_seconds, assembling, idle, cost, currency, segments)"
            " SELECT 0, transaction_id, book, month, hour,"
            " tenant_id, user_id, generation_id, 0, 0, 0, 0, 'USD', 0 FROM accounting_usagehour LIMIT 1",
        ),
        r"usage hours, seal 1: row usage hour 0 was inserted",
    ),
    "a head changed": (
        ("UPDATE accounting_ledgerhead SET at = at + interval '1 s' WHERE number = 1",),
        "head 1: this head was changed",
    ),
    "a signature changed": (
        ("UPDATE accounting_ledgerhead SET signature = sha512(''::bytea) WHERE number = 1",),
        "head 2: this head or head 1 was changed",
    ),
    "the last signature changed": (
        ("UPDATE accounting_ledgerhead SET signature = sha512(''::bytea)"
         " WHERE number = (SELECT max(number) FROM accounting_ledgerhead)",),
        r"The signature of head \d+ is not valid for the public key in this head",
    ),
}  # fmt: skip


def test_whatever_was_forged_is_told(sealed: Cast) -> None:
    for name, (changes, found) in FORGERIES.items():
        with transaction.atomic():
            forge(*changes)
            assert re.search(found, told()), f"{name}: {told()}"
            transaction.set_rollback(True)
    assert told() == "OK"


def test_beat_makes_no_seal_again(sealed: Cast, caplog: pytest.LogCaptureFixture) -> None:
    """Proves that sealing stops in all books after somebody deletes a book's seals and the record of its last seal.

    Otherwise the periodic task would seal the changed rows again.
    """
    seals = LedgerSeal.objects.exclude(book=2).count()
    forge(*ALTERED, "DELETE FROM accounting_sealedbook WHERE book = 2")
    seal_all(BOOKS)
    assert LedgerSeal.objects.count() == seals
    assert (
        "book 2: ledger head 2 says that seal 1 is the last seal, but the last seal is a different one"
        in caplog.text
    )
    with pytest.raises(
        CommandError, match="book 2, seal 1: this seal is missing, although head 2 refers to it"
    ):
        call_command("verify_ledger")


def test_what_beat_seals_again_is_told_by_the_heads(sealed: Cast) -> None:
    """Proves that verify_ledger finds a change even if the attacker deletes all seals and heads of the changed book.

    The periodic task (Celery beat) then seals the changed rows again, but the numbers of the deleted heads are missing.
    """
    forge(
        *ALTERED,
        "DELETE FROM accounting_sealedbook WHERE book = 2",
        "DELETE FROM accounting_ledgerhead WHERE book = 2",
    )
    seal_all(BOOKS)
    assert LedgerSeal.objects.filter(book=2).exists()
    assert told() == "head 3: an earlier head, number 2, is missing"


# By type: an expression for a different value, and the value that replaces NULL.
OTHERWISE = {
    "bigint": ("{0} + 1000003", "7"),
    "integer": ("{0} + 3", "7"),
    "smallint": ("{0} + 1", "1"),
    "numeric": ("{0} + 1", "7"),
    "boolean": ("NOT {0}", "true"),
    "text": ("left({0}, 2) || 'x'", "'x'"),
    "date": ("date '2026-04-01'", "date '2026-04-01'"),
    "timestamp with time zone": ("{0} + interval '1 s'", "now()"),
    "tstzrange": ("tstzrange(lower({0}), upper({0}) + interval '1 s')", "tstzrange(now(), NULL)"),
    "bytea": ("sha512({0})", "sha512(''::bytea)"),
    "jsonb": ("'{{\"x\": 1}}'::jsonb", "'{{}}'::jsonb"),
}
# Nothing refers to the id of a seal, and booked_in matters only until its database transaction ends.
NOT_COVERED = {("accounting_ledgerseal", "id"), ("accounting_ledgertransaction", "booked_in")}
TABLES = [table for table in (*APPEND_ONLY, *CHANGES) if table != "scheduling_nodechange"]


def columns_of(table: str) -> list[tuple[str, str]]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT attname, CASE atttypid WHEN 'varchar'::regtype THEN 'text' ELSE atttypid::regtype::text END"
            " FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            [table],
        )
        return [(name, kind) for name, kind in cursor.fetchall() if (table, name) not in NOT_COVERED]


@contextmanager
def all_guards_off(*tables: str) -> Iterator[None]:
    """Lets the block change rows of these tables without any guard: disables triggers and foreign keys, and drops all
    other constraints except primary keys. A rollback at the end of the block restores everything."""
    with transaction.atomic(), connection.cursor() as cursor:
        for table in with_partitions(tables):
            cursor.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        cursor.execute(
            "SELECT conrelid::regclass, quote_ident(conname) FROM pg_constraint WHERE conrelid = ANY(%s::regclass[])"
            " AND contype IN ('c', 'u', 'x')",
            [list(tables)],
        )
        for table, name in cursor.fetchall():
            cursor.execute(f"ALTER TABLE {table} DROP CONSTRAINT {name}")
        cursor.execute(
            "SELECT indexrelid::regclass FROM pg_index"
            " WHERE indrelid = ANY(%s::regclass[]) AND indisunique AND NOT indisprimary",
            [list(tables)],
        )
        for (name,) in cursor.fetchall():
            cursor.execute(f"DROP INDEX {name}")
        cursor.execute("SET LOCAL session_replication_role = replica")
        yield
        transaction.set_rollback(True)


def row_of(place: str, part: str) -> str:
    return f"ctid = '{place}' AND tableoid = '{part}'::regclass"


def told_of_rows() -> str:
    """Returns the first problem that the checks of verify_ledger find, or "OK".

    Skips the check that all guards (triggers) are enabled, because the tests disable them.
    """
    checks = (check for check in CHECKS if check is not a_guard_is_off)
    return next((str(found) for check in checks if (found := check()) is not None), "OK")


def names_of(table: str, where: str) -> list[str]:
    """Returns texts that identify a row. An error message about the row must contain at least one of them.

    The texts are IDs, keys and numbers of the row and of its transaction. `where`: the SQL condition that selects the
    row.
    """
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT to_jsonb(told) FROM {table} told WHERE {where}")  # noqa: S608
        row = json.loads(cursor.fetchone()[0])
        cursor.execute(
            "SELECT id, key FROM accounting_ledgertransaction WHERE id = %s OR (kind = 'closing' AND book = %s"
            " AND lower(period) = %s)",
            [row.get("transaction_id"), row.get("book"), row.get("hour")],
        )
        booked = [str(name) for found in cursor.fetchall() for name in found]
    own = [row.get(name) for name in ("id", "key", "number")]
    return [
        *booked,
        # Nothing refers to the last head: only the seal that it named shows that it was removed.
        *([f"seal {row['seal']}"] if table == "accounting_ledgerhead" else []),
        *(str(name) for name in own if name is not None),
        str(-1000003 - (own[0] or own[2] or 0)),
    ]


def changed_rows(table: str, random: Random) -> Iterator[tuple[str, list[str], str]]:
    """Yields changes of random rows of the table: one update for each column, a deletion and an insertion.

    Each change is (description, texts that identify the row, SQL statement). See `names_of` for the texts.
    """
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT ctid, tableoid::regclass::text FROM {table} ORDER BY 2, 1")  # noqa: S608
        rows = cursor.fetchall()
    columns = columns_of(table)
    for name, kind in columns:
        where = row_of(*random.choice(rows))
        new, instead = (one.format(f'"{name}"') for one in OTHERWISE[kind])
        yield (
            f"{name} changed",
            [*names_of(table, where), "x "] if name == "key" else names_of(table, where),
            f'UPDATE {table} SET "{name}" = coalesce({new}, {instead}) WHERE {where}',  # noqa: S608
        )
    where = row_of(*random.choice(rows))
    names = names_of(table, where)
    yield "removed", names, f"DELETE FROM {table} WHERE {where}"  # noqa: S608
    key = next(name for name in ("id", "number", "segment_id", "book") if name in dict(columns))
    key = "book" if table == "accounting_sealedbook" else "id" if table == "accounting_ledgerseal" else key
    others = [f'"{name}"' for name, _ in columns if name != key]
    yield (
        "put in",
        names,
        f'INSERT INTO {table} ("{key}", {", ".join(others)})'  # noqa: S608
        f' SELECT -1000003 - "{key}", {", ".join(others)} FROM {table} WHERE {where}',
    )


def test_any_row_that_is_changed_removed_or_put_in_is_told(sealed: Cast) -> None:
    """Proves that verify_ledger finds and names changed, deleted and inserted rows of every guarded table.

    The test changes each column once, in a random row.
    """
    seed = SystemRandom().getrandbits(32)
    random, unseen = Random(seed), []
    with all_guards_off(*TABLES):
        for table in TABLES:
            for what, names, change in changed_rows(table, random):
                with transaction.atomic(), connection.cursor() as cursor:
                    cursor.execute(change)
                    assert cursor.rowcount == 1, change
                    said = told_of_rows()
                    if not any(re.search(rf"(?<!\d){re.escape(name)}(?!\d)", said) for name in names):
                        unseen.append(f"{table}: {what}: {said} {names}")
                    transaction.set_rollback(True)
    assert unseen == [], seed


def aged(hours: int) -> None:
    """Moves the times of all heads into the past by `hours`, and signs the heads again with the signing key."""
    before = None
    for head in LedgerHead.objects.order_by("number"):
        head.at -= timedelta(hours=hours)
        head.digest = heads.digest_of(head, before)
        head.signer, head.signature = signing.sign(heads.message_of(head).encode())
        with without_guards():
            head.save()
        before = head


def head_line() -> str:
    out = io.StringIO()
    call_command("verify_ledger", stdout=out)
    return next(line for line in out.getvalue().splitlines() if line.startswith("head:"))


def test_nothing_is_sealed_silently_after_a_pause_of_a_day(sealed: Cast) -> None:
    aged(25)
    book(sealed, book=2, lease_id=3)
    count = LedgerSeal.objects.count()
    seal_all(BOOKS)
    assert LedgerSeal.objects.count() == count
    with pytest.raises(NotAllowed):
        actions.resume_sealing(actor=sealed.alice, reason="we were away")
    with pytest.raises(Refused, match="Enter a reason"):
        actions.resume_sealing(actor=sealed.ada, reason=" ")
    head = actions.resume_sealing(actor=sealed.ada, reason="we were away")
    event = AuditEvent.objects.get(verb="ledger.resume_sealing")
    assert (event.actor, event.target_id, event.after) == (
        sealed.ada,
        str(head.pk),
        {"reason": "we were away"},
    )
    seal_all(BOOKS)
    assert LedgerSeal.objects.count() > count
    out = io.StringIO()
    call_command("verify_ledger", stdout=out)
    assert f"(head {head.number}): we were away" in out.getvalue()
    with pytest.raises(CommandError, match="nothing to resume"):
        call_command("resume_sealing", "once more")


def test_a_row_of_long_ago_without_a_seal_gets_none(sealed: Cast, settings: Any, tmp_path: Path) -> None:
    book(sealed, book=3, lease_id=3)
    forge(
        "UPDATE accounting_ledgertransaction SET recorded_at = recorded_at - interval '25 h' WHERE book = 3"
    )
    with pytest.raises(
        SealingStopped, match=r"book 3: row usage:3:.* was written more than a day ago and has no seal"
    ):
        seal_book(3)
    assert any("book 3: row usage:3:" in why for why in why_stopped(datetime.now(UTC)))
    # The other books still get heads, and these are published.
    settings.FAIRLOT_HEADS_FILE = str(tmp_path / "heads")
    book(sealed, book=2, lease_id=4)
    seal_all([3, *BOOKS])
    last = heads.last_head()
    assert last is not None
    assert LedgerHead.objects.filter(book=2).count() == 2
    assert (tmp_path / "heads").read_text() == f"{heads.printed(last)}\n"


def test_what_was_resumed_is_sealed_however_long_it_takes(sealed: Cast, settings: Any) -> None:
    book(sealed, book=3, lease_id=3)
    forge(
        "UPDATE accounting_ledgertransaction SET recorded_at = recorded_at - interval '75 h' WHERE book = 3"
    )
    own, settings.FAIRLOT_SIGNING_KEYS = settings.FAIRLOT_SIGNING_KEYS, []
    with transaction.atomic():
        heads.append(heads.NO_BOOK, 0, b"", datetime.now(UTC), reason="forged")
        settings.FAIRLOT_SIGNING_KEYS = own
        assert heads.resumed_at() is None
        transaction.set_rollback(True)
    settings.FAIRLOT_SIGNING_KEYS = own
    actions.resume_sealing(actor=sealed.ada, reason="beat did not run")
    aged(20)
    assert seal_book(3) > 0
    with pytest.raises(Refused, match="nothing to resume"):
        actions.resume_sealing(actor=sealed.ada, reason="once more")


def test_the_trouble_of_one_book_keeps_no_head_from_being_made(
    sealed: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    aged(2)
    count = LedgerHead.objects.count()

    def trouble(book: int) -> int:
        raise ValueError(book)

    monkeypatch.setattr("accounting.ledger.hash_chain.seal_book", trouble)
    with pytest.raises(ValueError, match="2"):
        seal_all([2])
    assert LedgerHead.objects.count() == count + 1


def test_nothing_begins_anew_where_all_is_gone(sealed: Cast) -> None:
    """Proves that sealing does not start a new chain if all seals and heads were deleted and some rows are older than a
    day."""
    forge(
        "UPDATE accounting_ledgertransaction SET recorded_at = recorded_at - interval '25 h'",
        "DELETE FROM accounting_ledgerseal",
        "DELETE FROM accounting_sealedbook",
        "DELETE FROM accounting_ledgerhead",
    )
    seal_all(BOOKS)
    assert not LedgerSeal.objects.exists()
    assert "but neither seals nor heads" in heads.why_stopped(datetime.now(UTC))


class TestFile:
    @pytest.fixture
    def file(self, sealed: Cast, settings: Any, tmp_path: Path) -> Path:
        settings.FAIRLOT_HEADS_FILE = str(tmp_path / "heads")
        return tmp_path / "heads"

    @pytest.fixture
    def last(self, sealed: Cast) -> LedgerHead:
        head = heads.last_head()
        assert head is not None
        return head

    def test_a_line_that_is_not_whole_counts_as_none(self, file: Path, last: LedgerHead) -> None:
        heads.publish(last)
        whole = file.read_text()
        for torn in (whole[:-1], whole[:-30], "head:99999:20261125T192000Z:" + "0" * 64 + "\n"):
            file.write_text(whole + torn)
            assert told() == "OK"
        file.write_text(whole + whole[:50])
        heads.publish(last)
        assert file.read_text() == f"{whole}{whole[:50]}\n{whole}"

    @pytest.mark.parametrize("text", ["\n", "hello\n", "head:1:20261125T192000Z:" + "0" * 64 + "\n"])
    def test_one_without_a_head_of_ours_stops_sealing(
        self, file: Path, last: LedgerHead, sealed: Cast, text: str
    ) -> None:
        file.write_text(text)
        assert "contains no complete head" in told()
        with pytest.raises(CommandError, match="contains no complete head"):
            call_command("verify_ledger")
        seal_all(BOOKS)
        assert file.read_text() == text
        actions.resume_sealing(actor=sealed.ada, reason="it was lost")
        assert told() == "OK"

    def test_one_that_cannot_be_read_is_told_and_no_crash(
        self, file: Path, last: LedgerHead, caplog: pytest.LogCaptureFixture
    ) -> None:
        file.mkdir()
        assert "cannot be read: Is a directory" in heads.why_stopped(last.at)
        seal_all(BOOKS)
        with pytest.raises(CommandError, match="cannot be read"):
            call_command("verify_ledger")

    def test_a_clock_that_was_set_back_keeps_none_from_being_published(
        self, file: Path, sealed: Cast
    ) -> None:
        aged(-2)
        seal_all(BOOKS)
        book(sealed, book=2, lease_id=3)
        seal_all(BOOKS)
        book(sealed, book=2, lease_id=4)
        seal_all(BOOKS)
        last = heads.last_head()
        assert last is not None
        assert file.read_text().splitlines()[-1] == heads.printed(last)


def test_a_noted_head_tells_whether_todays_books_descend_from_it(sealed: Cast) -> None:
    noted = head_line()
    book(sealed, book=2, lease_id=3)
    seal_all(BOOKS)
    out = io.StringIO()
    call_command("verify_ledger", noted=[noted], stdout=out)
    assert f"The hash chain still contains the head or seal that you noted: {noted}" in out.getvalue()
    assert head_line() != noted
    # Somebody with access to the database rebuilds the chain, for example by running the periodic task: a consistent
    # chain with other heads.
    forge(
        "UPDATE accounting_usagesegment SET user_name = 'nobody'",
        "DELETE FROM accounting_ledgerseal",
        "DELETE FROM accounting_sealedbook",
        "DELETE FROM accounting_ledgerhead",
    )
    seal_all(BOOKS)
    with pytest.raises(CommandError, match=r"Head \d+ differs from the head with this number that you noted"):
        call_command("verify_ledger", noted=[noted])
    forged = noted.replace(noted.split(":")[3], "0" * 64)
    with pytest.raises(CommandError, match="is not signed with a trusted key"):
        call_command("verify_ledger", noted=[forged])


def test_whose_heads_are_cut_off_is_told_by_those_that_were_published(
    sealed: Cast, settings: Any, tmp_path: Path
) -> None:
    """Proves that the published heads reveal a deletion of all seals and heads, even if the ledger is less than a day
    old."""
    settings.FAIRLOT_HEADS_FILE = str(tmp_path / "heads")
    head = heads.last_head()
    assert head is not None
    heads.publish(head)
    assert first_found() is None
    forge(
        "DELETE FROM accounting_ledgerseal",
        "DELETE FROM accounting_sealedbook",
        "DELETE FROM accounting_ledgerhead",
    )
    seal_all(BOOKS)
    assert LedgerSeal.objects.count() == 0
    assert told() == (
        f"Head {head.number}, which you noted or Fairlot published earlier, no longer exists."
        " The ledger has no heads now."
    )
    # As after restoring a backup that lacks the last heads, somebody resumes sealing with a reason.
    head = actions.resume_sealing(actor=sealed.ada, reason="restored")
    assert (tmp_path / "heads").read_text().splitlines()[-1] == heads.printed(head)
    assert heads.why_stopped(head.at) == ""


def test_what_is_published_during_a_verification_is_no_alarm(
    sealed: Cast, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proves that verify_ledger reports no problem if a head is published while it runs.

    Such a head is newer than the database snapshot that the checks read.
    """
    settings.FAIRLOT_HEADS_FILE = str(tmp_path / "heads")
    last = heads.last_head()
    assert last is not None
    heads.publish(last)

    def meanwhile() -> None:
        message = re.sub(r"^head:\d+", f"head:{last.number + 1}", heads.message_of(last))
        with (tmp_path / "heads").open("a") as file:
            file.write(f"{message}:{signing.sign(message.encode())[1].hex()}\n")

    monkeypatch.setattr("accounting.management.commands.verify_ledger.first_found", meanwhile)
    call_command("verify_ledger")
    with pytest.raises(CommandError, match=f"Head {last.number + 1}, which .* no longer exists"):
        call_command("verify_ledger")


def test_the_first_head_of_ten_minutes_is_published(sealed: Cast, settings: Any, tmp_path: Path) -> None:
    settings.FAIRLOT_HEADS_FILE = str(tmp_path / "heads")
    aged(1)
    book(sealed, book=2, lease_id=3)
    seal_all(BOOKS)
    last = heads.last_head()
    assert last is not None
    assert (tmp_path / "heads").read_text() == heads.printed(last) + "\n"
    book(sealed, book=2, lease_id=4)
    seal_all(BOOKS)
    assert (tmp_path / "heads").read_text() == heads.printed(last) + "\n"


def test_where_there_is_nothing_to_seal_a_head_says_so_each_hour(sealed: Cast) -> None:
    aged(2)
    count = LedgerHead.objects.count()
    seal_all(BOOKS)
    seal_all(BOOKS)
    assert LedgerHead.objects.count() == count + 1
    assert told() == "OK"


class TestKeys:
    def test_the_key_is_exchanged_without_a_pause(self, sealed: Cast, settings: Any) -> None:
        old = settings.FAIRLOT_SIGNING_KEYS
        settings.FAIRLOT_SIGNING_KEYS = ["new-" * 10, *old]
        book(sealed, book=2, lease_id=3)
        seal_all(BOOKS)
        settings.FAIRLOT_SIGNING_KEYS = ["new-" * 10]
        assert told() == "OK"
        settings.FAIRLOT_SIGNING_KEYS = old
        assert re.search(r"Head \d+ is signed with a key that is not among", told())

    def test_who_has_another_key_makes_no_heads(self, sealed: Cast, settings: Any) -> None:
        """Proves that sealing stops if existing heads are signed with a key that is not in FAIRLOT_SIGNING_KEYS."""
        own = settings.FAIRLOT_SIGNING_KEYS
        settings.FAIRLOT_SIGNING_KEYS = ["forged-" * 10]
        aged(0)
        settings.FAIRLOT_SIGNING_KEYS = own
        assert "signed with a key that is not among FAIRLOT_SIGNING_KEYS" in told()
        book(sealed, book=2, lease_id=3)
        with pytest.raises(SealingStopped, match="signed with a key that is not"):
            seal_book(2)

    def test_without_a_key_there_is_no_way_to_go_on(self, sealed: Cast, settings: Any) -> None:
        settings.FAIRLOT_SIGNING_KEYS = []
        book(sealed, book=2, lease_id=3)
        with pytest.raises(SealingStopped, match="signed with a key that is not"):
            seal_book(2)

    def test_heads_of_before_there_was_a_key_keep_verifying(self, sealed: Cast, settings: Any) -> None:
        own, settings.FAIRLOT_SIGNING_KEYS = settings.FAIRLOT_SIGNING_KEYS, []
        aged(0)
        out = io.StringIO()
        call_command("verify_ledger", stdout=out)
        assert "Ledger heads are not signed" in out.getvalue()
        settings.FAIRLOT_SIGNING_KEYS = own
        # Somebody without the key may have made the unsigned heads.
        book(sealed, book=2, lease_id=3)
        with pytest.raises(SealingStopped, match="is not signed, although FAIRLOT_SIGNING_KEYS has a key"):
            seal_book(2)
        assert "is not signed, although FAIRLOT_SIGNING_KEYS has a key" in told()
        actions.resume_sealing(actor=sealed.ada, reason="there is a key now")
        seal_all(BOOKS)
        assert told() == "OK"

    def test_who_has_the_public_key_alone_verifies_a_printed_head(self, sealed: Cast) -> None:
        """Proves that the public key is enough to verify a printed head. Readers of a statement can do the same with
        OpenSSL."""
        out = io.StringIO()
        call_command("signing_key", stdout=out)
        key, pem = out.getvalue().split("\n", 1)
        message, _, signature = head_line().rpartition(":")
        public = load_pem_public_key(pem.encode())
        assert isinstance(public, Ed25519PublicKey)
        public.verify(bytes.fromhex(signature), message.encode())
        assert signing.public_keys() == [bytes.fromhex(key)]
        with pytest.raises(InvalidSignature):
            public.verify(bytes.fromhex(signature), message.replace("head:", "head:1").encode())

    def test_who_verifies_a_copy_names_the_keys_to_trust(self, sealed: Cast, settings: Any) -> None:
        (key,) = signing.public_keys()
        settings.FAIRLOT_SIGNING_KEYS, settings.FAIRLOT_TRUSTED_HEAD_KEYS = [], [key.hex()]
        assert told() == "OK"
        settings.FAIRLOT_TRUSTED_HEAD_KEYS = ["0" * 64]
        assert "signed with a key that is not among" in told()


def test_an_emptied_guard_is_told(sealed: Cast) -> None:
    """Proves that verify_ledger reports a trigger that exists and is enabled but whose function does nothing."""
    with transaction.atomic():
        run("CREATE OR REPLACE FUNCTION accounting_refuse_change() RETURNS trigger LANGUAGE plpgsql AS"
            " 'BEGIN RETURN NULL; END'")  # fmt: skip
        assert (
            told() == "a guard (a trigger or function that protects the ledger) was changed: "
            "function accounting_refuse_change()"
        )
        transaction.set_rollback(True)
    with transaction.atomic():
        run("DROP TRIGGER append_only ON accounting_auditevent")
        run("CREATE TRIGGER append_only BEFORE TRUNCATE ON accounting_auditevent"
            " FOR EACH STATEMENT EXECUTE FUNCTION accounting_refuse_change()")  # fmt: skip
        run("ALTER TABLE accounting_auditevent ENABLE ALWAYS TRIGGER append_only")
        assert (
            told() == "a guard (a trigger or function that protects the ledger) was changed: "
            "accounting_auditevent, append_only"
        )
        transaction.set_rollback(True)
    with transaction.atomic():
        run("CREATE TRIGGER another AFTER INSERT ON accounting_ledgerentry FOR EACH STATEMENT"
            " EXECUTE FUNCTION accounting_refuse_change()")  # fmt: skip
        assert told().startswith(
            "the database has a trigger or function that Fairlot did not create: accounting_ledgerentry"
        )
        transaction.set_rollback(True)


@pytest.mark.parametrize(
    "how", ["ALTER TABLE accounting_ledgertransaction DETACH PARTITION {}", "DROP TABLE {}"]
)
def test_a_month_that_is_gone_is_named(sealed: Cast, how: str) -> None:
    with transaction.atomic():
        run(how.format("accounting_ledgertransaction_2026_05"))
        assert (
            told() == "a ledger table has no partition for a month, although other ledger tables have one: "
            "accounting_ledgertransaction, 2026-05"
        )
        transaction.set_rollback(True)
