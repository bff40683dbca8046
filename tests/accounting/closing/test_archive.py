"""Tests of the archive: usage records of old months move from the database to files, and reports of whole hours stay
the same."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from threading import Event
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.core.management import CommandError, call_command
from django.db import IntegrityError, connection, transaction
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

from accounting import actions
from accounting.closing.archive import (
    VOUCHERS,
    Archived,
    archive_month,
    bring_back_month,
    files_of,
    months_with_vouchers,
)
from accounting.closing.class_prices import TimeByClass, next_hour_to_price, price_hour
from accounting.closing.hours import close_empty_days, open_book
from accounting.core.calendar import first_of_month
from accounting.core.clock import now_from_database
from accounting.core.errors import BookedOtherwise, Refused
from accounting.ledger import correct_usage, hash_chain, heads
from accounting.ledger.hash_chain import (
    LAST_OF_ALL,
    LEAVES,
    WHOLE,
    UnsealedPart,
    digest_of,
    leaf_of_files,
    leaves_of_sums,
    seal_book,
    seal_remains,
)
from accounting.models import (
    ArchivedHour,
    ArchiveRecord,
    AuditEvent,
    LedgerSeal,
    LedgerTransaction,
    Price,
    UsageSegment,
    User,
)
from accounting.reports.capacity import capacity_report
from accounting.reports.invoice import lines_of
from accounting.reports.team_usage import TeamUsage, largest_jobs_of, usage_of_team
from accounting.reports.usage import By, usage_report
from accounting.usage.reader import UsageReader
from tests import make
from tests.accounting.booking import HOUR, NOON, book, close_hours, minutes, settle_hours
from tests.kept_rows import kept
from tests.ledger_guard import without_guards
from tests.make import Cast
from tests.waiting import PATIENCE, wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("archives")]
MAY, JUNE = date(2026, 5, 1), date(2026, 6, 1)
FIRST, LAST = datetime(2026, 5, 1, tzinfo=UTC), datetime(2026, 6, 1, tzinfo=UTC)


@pytest.fixture
def cast(transactional_db: None) -> Cast:
    return make.cast()


@pytest.fixture
def past(transactional_db: None) -> Cast:
    return kept(make_past)


def make_past() -> Cast:
    """Books usage in May, closes May, and books usage in June.

    May also has a correction, and class charges: differences in price because some of the time was preemptible.
    """
    cast = make.cast()
    Price.objects.filter(generation=cast.a100).update(preemptible=1)
    actions.set_price(
        actor=cast.ada,
        generation=cast.a100,
        per_gpu_hour=Decimal(4),
        preemptible=Decimal(1),
        since=NOON + 8 * HOUR,
    )
    for lease in range(3):
        begins = NOON + lease * 7 * HOUR
        book(cast, lease_id=lease, job_id=lease, begins=begins, ends=begins + minutes(90))
    book(cast, lease_id=7, job_id=7, tenant=cast.bio, user=cast.charlie)
    close_may(cast)
    everything = {lease: [(FIRST, LAST)] for lease in range(2)}
    settle_hours(TimeByClass({}, everything, {}))
    with transaction.atomic():
        wrong = UsageSegment.objects.filter(lease_id=2).select_related("generation")
        correct_usage(actor=cast.ada, segments=list(wrong), reason="a test")
    book(cast, lease_id=9, begins=LAST, ends=LAST + HOUR)
    seal_book(1)
    return cast


def close_may(cast: Cast, *, since: datetime = FIRST) -> None:
    """Closes all hours of May from `since` on. Only two days of the month have usage."""
    busy = datetime(2026, 5, 4, tzinfo=UTC)
    with transaction.atomic():
        open_book(book=1, since=since)
        if since < busy:
            close_empty_days(book=1, until=busy)
    close_hours(cast, max(since, busy), busy + 48 * HOUR)
    with transaction.atomic():
        close_empty_days(book=1, until=LAST)


def told(cast: Cast) -> list[object]:
    """Returns usage reports of whole days as seen by three users, and the capacity report of May, for comparison."""
    reports = [
        usage_report(viewer, begins, ends, by=by)
        for viewer in (cast.olga, cast.bob, cast.charlie)
        for by in ([By.JOB], [By.USER, By.DAY], [By.GENERATION, By.TENANT])
        for begins, ends in ((None, None), (FIRST, LAST), (FIRST + 72 * HOUR, LAST))
    ]
    assert not any(report.lacks_before for report in reports)
    identities = capacity_report(FIRST, LAST).identities
    assert all(one.closes for one in identities)
    return [[(report.rows, report.totals) for report in reports], identities]


def test_reports_of_whole_days_say_the_same_afterwards_and_after_it_is_back(
    past: Cast, tmp_path: Path
) -> None:
    before = told(past)
    months = months_with_vouchers()
    archived = archive_month(actor=past.ada, month=MAY, folder=tmp_path)
    assert (archived.rows, MAY in months, MAY in months_with_vouchers()) == (13, True, False)
    assert UsageSegment.objects.count() == 1
    assert told(past) == before
    call_command("verify_ledger")
    bring_back_month(actor=past.ada, month=MAY, folder=tmp_path)
    assert (told(past), months_with_vouchers()) == (before, months)
    call_command("verify_ledger")
    assert set(AuditEvent.objects.values_list("verb", flat=True)) >= {"ledger.archive", "ledger.bring_back"}


FORGERIES = {
    "all entries of a bill": """
        UPDATE accounting_ledgerentry SET amount = amount * 2
         WHERE transaction_id = (
            SELECT min(id) FROM accounting_ledgertransaction WHERE month = '2026-05-01' AND kind = 'usage')""",
    "what bills are for": """
        UPDATE accounting_ledgertransaction SET description = 'nothing'
         WHERE month = '2026-05-01' AND kind = 'usage'""",
    "why and by whom was corrected": """
        UPDATE accounting_ledgertransaction SET description = 'another reason', actor_id = NULL
         WHERE month = '2026-05-01' AND kind = 'correction'""",
    "when classes were settled": """
        UPDATE accounting_ledgertransaction SET recorded_at = recorded_at - interval '1 s'
         WHERE month = '2026-05-01' AND kind = 'pricing'""",
    "who pays": """
        UPDATE accounting_ledgerentry SET account_id = (
            SELECT other.id FROM accounting_ledgeraccount account JOIN accounting_ledgeraccount other
                ON other.kind = account.kind AND other.unit = account.unit AND other.tenant_id <> account.tenant_id
             WHERE account.id = account_id LIMIT 1)
         WHERE account_id IN (SELECT id FROM accounting_ledgeraccount WHERE kind IN ('usage', 'cost'))
           AND transaction_id = (
            SELECT min(id) FROM accounting_ledgertransaction WHERE month = '2026-05-01' AND kind = 'usage')""",
    "another kind": """
        UPDATE accounting_ledgertransaction SET kind = 'usage'
         WHERE id = (
            SELECT min(id) FROM accounting_ledgertransaction WHERE month = '2026-05-01' AND kind = 'closing')""",
    "who has an account": """
        UPDATE accounting_ledgeraccount account SET user_id = (
            SELECT min(id) FROM accounting_user other WHERE other.id <> account.user_id
                AND NOT EXISTS (SELECT FROM accounting_ledgeraccount had WHERE had.user_id = other.id))
         WHERE kind = 'cost'""",
}


def sql(command: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(command)
        return cursor.rowcount


def forge(forgery: str) -> None:
    with without_guards():
        assert sql(forgery) > 0


@pytest.mark.parametrize("forgery", FORGERIES.values(), ids=FORGERIES.keys())
def test_what_stays_of_an_archived_month_is_sealed(past: Cast, tmp_path: Path, forgery: str) -> None:
    """Proves that verify_ledger finds changes of rows that stay in the database when their month is archived.

    The original seals have the oldest form, which cannot be checked without the archived vouchers. So archiving adds
    seals of the rows that stay.
    """
    seal_formerly()
    archive_month(actor=past.ada, month=MAY, folder=tmp_path)
    call_command("verify_ledger")
    forge(forgery)
    with pytest.raises(CommandError, match=r"book 1, seal \d: .* after 2026-05 was archived"):
        call_command("verify_ledger")


@pytest.mark.parametrize("what", ["all entries of a bill", "who has an account"])
def test_what_stays_of_an_archived_month_has_a_leaf_of_its_own(past: Cast, tmp_path: Path, what: str) -> None:
    archive_month(actor=None, month=MAY, folder=tmp_path)
    forge(FORGERIES[what])
    with pytest.raises(
        CommandError, match=r"book 1, seal 1: .* (was|were) (changed|removed|inserted) after sealing"
    ):
        call_command("verify_ledger")


def test_the_chain_goes_on_after_what_stays_was_sealed(
    past: Cast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proves that the hash chain stays valid if a month is archived, restored, corrected and archived again.

    Each archiving adds several seals to the chain.
    """
    monkeypatch.setattr("accounting.ledger.hash_chain.AT_ONCE", 2)
    before = LedgerSeal.objects.count()
    archive_month(actor=None, month=MAY, folder=tmp_path)
    made = list(LedgerSeal.objects.filter(month=MAY))
    assert [seal.number for seal in made] == list(range(before + 1, before + len(made) + 1))
    assert [seal.of_sums for seal in made] == [False] * (len(made) - 1) + [True]
    assert len(made) > 2
    book(past, lease_id=10, begins=LAST + HOUR, ends=LAST + 2 * HOUR)
    assert seal_book(1) == 1
    call_command("verify_ledger")
    bring_back_month(actor=None, month=MAY, folder=tmp_path)
    with transaction.atomic():
        wrong = UsageSegment.objects.filter(lease_id=7).select_related("generation")
        correct_usage(actor=past.ada, segments=list(wrong), reason="a test")
    seal_book(1)
    call_command("verify_ledger")
    archive_month(actor=None, month=MAY, folder=tmp_path)
    assert [seal.of_sums for seal in LedgerSeal.objects.filter(month=MAY)[len(made) :]] == [False, True]
    call_command("verify_ledger")
    forge(
        "UPDATE accounting_ledgertransaction SET description = 'none'"
        " WHERE id = (SELECT max(id) FROM accounting_ledgertransaction WHERE kind = 'correction')"
    )
    with pytest.raises(CommandError, match=r"correction:usage:.* was changed"):
        call_command("verify_ledger")


def test_what_stays_is_not_forged_along_with_its_seal(past: Cast, tmp_path: Path) -> None:
    """Proves that verify_ledger finds a changed or deleted archive seal.

    An archive seal is a seal that archiving adds to the hash chain for the rows that stay in the database.
    """
    seal_formerly()
    archive_month(actor=None, month=MAY, folder=tmp_path)
    seal = LedgerSeal.objects.get(month=MAY, of_sums=False)
    for change in (
        "leaves = sha256(leaves)",
        "month = NULL, first_id = first_id + 1",
        "month = '2026-06-01'",
        "first_id = first_id + 1",
        "last_id = last_id - 1",
        "of_sums = true",
        "of_sums = true, month = '2026-06-01'",
    ):
        with transaction.atomic():
            forge(f"UPDATE accounting_ledgerseal SET {change} WHERE id = {seal.pk}")  # noqa: S608
            with pytest.raises(CommandError, match=f"book 1, seal {seal.number}: "):
                call_command("verify_ledger")
            transaction.set_rollback(True)
    # Somebody who rebuilds the chain from this seal on changes its last digest, which others may have noted.
    forge("UPDATE accounting_ledgertransaction SET description = 'nothing' WHERE kind = 'correction'")
    forge(f"DELETE FROM accounting_ledgerseal WHERE number >= {seal.number}")  # noqa: S608
    with pytest.raises(CommandError, match=f"seal {seal.number + 1}: the last seal in the hash chain"):
        call_command("verify_ledger")
    end_chains_where_they_end()
    with pytest.raises(
        CommandError, match=f"seal {seal.number + 1}, which was made when 2026-05 was archived"
    ):
        call_command("verify_ledger")
    with pytest.raises(CommandError, match="the hash chain was rebuilt"):
        call_command("verify_ledger", noted=[f"1:{seal.number}:{bytes(seal.digest).hex()}"])


def test_nothing_is_smuggled_into_an_archived_month(past: Cast, tmp_path: Path) -> None:
    """Proves that verify_ledger finds a transaction that was moved into an archived month from a month that is not
    archived."""
    seal_formerly()
    archive_month(actor=None, month=MAY, folder=tmp_path)
    late = LedgerTransaction.objects.get(month=JUNE, kind="usage")
    forge(f"UPDATE accounting_ledgerentry SET month = '2026-05-01' WHERE transaction_id = {late.pk}")  # noqa: S608
    forge(
        "UPDATE accounting_ledgertransaction SET month = '2026-05-01', period = '[2026-05-04, 2026-05-05)'"  # noqa: S608
        f" WHERE id = {late.pk}"
    )
    forge("DELETE FROM accounting_usagesegment")
    with pytest.raises(
        CommandError,
        match="not covered by the seals that Fairlot made when it archived the month: usage:9:2026-06-01",
    ):
        call_command("verify_ledger")


@pytest.fixture
def archived_earlier(past: Cast, tmp_path: Path) -> Cast:
    """Archives a month and makes it look as if an earlier release had archived it.

    Such a month has no archive seals and no rows of ArchivedHour.
    """
    seal_formerly()
    archive_month(actor=None, month=MAY, folder=tmp_path)
    take_seals_of_may_away()
    ArchivedHour.objects.all().delete()
    return past


def seal_formerly() -> None:
    """Replaces the seals of the first book by seals of the oldest form: one leaf per transaction, which includes its
    vouchers."""
    for table in ("ledgerseal", "sealedbook", "ledgerhead"):
        forge(f"DELETE FROM accounting_{table}")  # noqa: S608
    with connection.cursor() as cursor:
        cursor.execute(LEAVES[WHOLE], [1, 0, LAST_OF_ALL, None])
        rows = cursor.fetchall()
    leaves = b"".join(bytes(leaf) for _, _, leaf, *_ in rows)
    with transaction.atomic():
        seal_remains([UnsealedPart(1, None, rows[0][0], rows[-1][0], leaves, form=WHOLE)])


def end_chains_where_they_end() -> None:
    """Sets the recorded last seal of each chain to the last existing one, as an attacker who deletes seals would have
    to do."""
    forge(
        "UPDATE accounting_sealedbook made SET (number, digest) = (SELECT number, digest FROM accounting_ledgerseal"
        " WHERE book = made.book ORDER BY number DESC LIMIT 1)"
    )
    heads_anew()


def heads_anew() -> None:
    """Replaces all signed heads by new ones, as an attacker with the signing key could do."""
    forge("DELETE FROM accounting_ledgerhead")
    with transaction.atomic():
        for seal in LedgerSeal.objects.order_by("book", "-number").distinct("book"):
            heads.append(seal.book, seal.number, bytes(seal.digest), heads.hold())


def take_seals_of_may_away() -> None:
    """Deletes the seals that were made when May was archived, and all references to them."""
    forge("DELETE FROM accounting_ledgerseal WHERE month IS NOT NULL")
    end_chains_where_they_end()
    forge("UPDATE accounting_archiverecord SET seals = '{}'")


def archive_june(cast: Cast, folder: Path) -> None:
    with transaction.atomic():
        close_hours(cast, LAST, LAST + 24 * HOUR)
        close_empty_days(book=1, until=LAST + 30 * 24 * HOUR)
    settle_hours()
    seal_book(1)
    archive_month(actor=None, month=JUNE, folder=folder / "june")


def test_a_month_that_an_earlier_release_archived_is_compared_with_its_sums(
    archived_earlier: Cast, capsys: pytest.CaptureFixture[str]
) -> None:
    call_command("verify_ledger")
    assert (
        "An earlier release of Fairlot archived these months: 2026-05. Some of their rows have no seal yet"
        in capsys.readouterr().out
    )
    forge(FORGERIES["all entries of a bill"])
    with pytest.raises(
        CommandError,
        match="the entries and the hourly rollups of an archived month have different sums: 1, 2026-05-01",
    ):
        call_command("verify_ledger")


FORGERIES_THAT_FIT = {
    "what the cluster earned": (
        [
            """
            UPDATE accounting_ledgerentry entry SET account_id = waived.id
              FROM accounting_ledgeraccount account, accounting_ledgeraccount waived,
                   accounting_ledgertransaction booked
             WHERE account.id = account_id AND account.kind = 'revenue' AND waived.kind = 'waived'
               AND waived.unit = account.unit AND booked.id = transaction_id AND booked.kind = 'usage'
               AND booked.month = '2026-05-01'
            """
        ],
        "the ledger entries of an archived month do not match the closed hours of the month: 1, 2026-05-01, revenue",
    ),
    "how much was credited": (
        [
            f"UPDATE accounting_{name} SET {amount} = {amount} * 3 WHERE transaction_id IN"  # noqa: S608
            " (SELECT id FROM accounting_ledgertransaction WHERE kind = 'pricing')"
            for name, amount in (
                ("ledgerentry", "amount"),
                ("usagehour", "cost"),
                ("usageday", "cost"),
                ("jobday", "cost"),
            )
        ],
        "the cost in the rollups of an archived hour is lower or higher than the hour's prices allow: 1, 2026-05-04 12",
    ),
}


@pytest.mark.parametrize(("changes", "found"), FORGERIES_THAT_FIT.values(), ids=FORGERIES_THAT_FIT.keys())
def test_what_no_seal_tells_of_must_fit_closings_and_prices(
    archived_earlier: Cast, changes: list[str], found: str
) -> None:
    for change in changes:
        forge(change)
    with pytest.raises(CommandError, match=found):
        call_command("verify_ledger")


def test_what_stays_of_it_is_sealed_with_the_next_month(
    archived_earlier: Cast, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive_june(archived_earlier, tmp_path)
    call_command("verify_ledger")
    assert "An earlier release of Fairlot" not in capsys.readouterr().out
    forge(FORGERIES["what bills are for"])
    with pytest.raises(CommandError, match="after 2026-05 was archived"):
        call_command("verify_ledger")


def in_each_table_of_sums(change: str) -> list[str]:
    return [f"UPDATE accounting_{name} SET {change}" for name in ("usagehour", "usageday", "jobday")]  # noqa: S608


# Comparing rollups with the ledger by month, and hourly with daily rollups, does not find these changes.
FORGERIES_OF_SUMS = {
    "the hour in which was held": [
        "UPDATE accounting_usagehour SET hour = hour + interval '1 h'"
        " WHERE id = (SELECT min(id) FROM accounting_usagehour)"
    ],
    "the day": in_each_table_of_sums("hour = hour + interval '10 days' WHERE month = '2026-05-01'"),
    "how much of it was idle": in_each_table_of_sums("idle = gpu_seconds"),
    "what it cost": in_each_table_of_sums("cost = cost + CASE WHEN hour < '2026-05-05' THEN 1 ELSE -1 END"),
    "the job": ["UPDATE accounting_jobday SET job_id = 77 WHERE job_id = 7"],
    "its name": ["UPDATE accounting_jobday SET job_name = 'another' WHERE job_id = 7"],
    "its price": ["UPDATE accounting_archivedhour SET price_per_gpu_hour = 1 WHERE price_per_gpu_hour = 4"],
    "by what it was corrected": ["UPDATE accounting_archivedhour SET correction_id = correction_id + 1"],
    "what stays of bills": ["DELETE FROM accounting_archivedhour"],
    "the node": ["UPDATE accounting_nodehour SET node_name = 'another'"],
}


@pytest.mark.parametrize("forgery", FORGERIES_OF_SUMS.values(), ids=FORGERIES_OF_SUMS.keys())
def test_sums_of_an_archived_month_are_sealed(past: Cast, tmp_path: Path, forgery: list[str]) -> None:
    """Proves that verify_ledger finds changes of an archived month's rollups and of the hourly GPU time of its nodes.

    A seal that archiving adds covers them.
    """
    seal_formerly()
    archive_month(actor=None, month=MAY, folder=tmp_path)
    for change in forgery:
        forge(change)
    with pytest.raises(
        CommandError,
        match=r"book 1, seal \d: (hourly or daily rollups of|the GPU time of nodes in) 2026-05 (were|was) changed",
    ):
        call_command("verify_ledger")


def test_classes_of_hours_that_a_former_release_archived_are_none(past: Cast, tmp_path: Path) -> None:
    """Proves that borrowed time that somebody adds to the bills of an archived month is found.

    The month's seal has an older form. Bills under such a seal contain no idle, preemptible or borrowed time.
    """
    archive_month(actor=None, month=MAY, folder=tmp_path)
    seal = LedgerSeal.objects.get(book=1, of_sums=True)
    forge("UPDATE accounting_archivedhour SET idle = 0, preemptible = 0, borrowed = 0")
    seal.form, seal.leaves = hash_chain.APART, hash_chain.leaves_of_sums(1, MAY, hash_chain.APART)
    assert hash_chain.broken_sums(seal, stands=True) is None
    forge(
        "UPDATE accounting_archivedhour SET borrowed = 1 WHERE id = (SELECT min(id) FROM accounting_archivedhour)"
    )
    assert (
        hash_chain.broken_sums(seal, stands=True)
        == "idle, preemptible or borrowed GPU time was added to the bills of 2026-05 after the archiving of 2026-05"
    )


@pytest.mark.parametrize(
    ("what", "words"), [("the job", "daily rollups of a job .*"), ("its name", "name that the job never had")]
)
def test_sums_by_job_are_compared_with_what_the_job_held_while_that_is_there(
    past: Cast, what: str, words: str
) -> None:
    call_command("verify_ledger")
    for change in FORGERIES_OF_SUMS[what]:
        forge(change)
    with pytest.raises(CommandError, match=rf"{words}: 1, 2026-05-04 .*, 7"):
        call_command("verify_ledger")


def test_what_became_of_nodes_is_compared_also_while_a_month_is_back(past: Cast, tmp_path: Path) -> None:
    seal_formerly()
    archive_month(actor=None, month=MAY, folder=tmp_path)
    bring_back_month(actor=None, month=MAY, folder=tmp_path)
    call_command("verify_ledger")
    for change in FORGERIES_OF_SUMS["the node"]:
        forge(change)
    with pytest.raises(
        CommandError, match="the GPU time of nodes in 2026-05 was changed after the archiving of 2026-05"
    ):
        call_command("verify_ledger")


def test_sums_that_are_changed_between_two_months_of_archiving_are_not_sealed_anew(
    past: Cast, tmp_path: Path
) -> None:
    archive_month(actor=None, month=MAY, folder=tmp_path)
    forge("UPDATE accounting_jobday SET job_name = 'another' WHERE job_id = 7")
    archive_june(past, tmp_path)
    with pytest.raises(CommandError, match="hourly or daily rollups of 2026-05 were changed"):
        call_command("verify_ledger")


def test_sums_that_were_forged_together_with_their_seal_do_not_fit_the_ledger(
    past: Cast, tmp_path: Path
) -> None:
    archive_month(actor=None, month=MAY, folder=tmp_path)
    for change in in_each_table_of_sums(
        "cost = cost + 1 WHERE user_id = (SELECT min(user_id) FROM accounting_jobday)"
    ):
        forge(change)
    last, before = LedgerSeal.objects.order_by("-number")[:2]
    last.leaves = leaves_of_sums(1, MAY) + leaf_of_files(files_of(MAY))
    digest = digest_of(last, bytes(before.digest), last.sealed_at)
    forge(
        f"UPDATE accounting_ledgerseal SET leaves = '\\x{last.leaves.hex()}', digest = '\\x{digest.hex()}'"  # noqa: S608
        f" WHERE id = {last.pk}"
    )
    end_chains_where_they_end()
    with pytest.raises(
        CommandError, match="the entries and the hourly rollups of an archived month have different sums"
    ):
        call_command("verify_ledger")


def test_a_report_that_needs_single_minutes_says_that_they_are_archived(past: Cast, tmp_path: Path) -> None:
    archive_month(actor=None, month=MAY, folder=tmp_path)
    for begins, by, zone, lacks in (
        (NOON, [By.USER], "UTC", False),
        (NOON + minutes(1), [By.USER], "UTC", True),
        (LAST + minutes(1), [By.USER], "UTC", False),
        (NOON, [By.JOB], "UTC", True),
        (FIRST, [By.JOB], "UTC", False),
        (FIRST, [By.USER, By.DAY], "Europe/Berlin", False),
        (FIRST, [By.USER, By.DAY], "Asia/Kolkata", True),
        (FIRST, [By.JOB, By.DAY], "Europe/Berlin", True),
        (FIRST, [By.JOB, By.HOUR], "UTC", True),
        (None, [], "UTC", False),
    ):
        report = usage_report(past.olga, begins, None, by=by, time_zone=zone)
        assert (report.lacks_before == LAST) == lacks, (begins, by, zone)
        assert report.totals == usage_report(past.olga, begins, None, time_zone=zone).totals, (
            begins,
            by,
            zone,
        )


def test_of_an_archived_month_a_team_is_told_all_but_parts_of_days_of_other_clocks(
    cast: Cast, tmp_path: Path
) -> None:
    """Proves that a report by days of an archived month is complete in time zones whose days consist of whole UTC
    hours.

    Archived time is stored only as sums over UTC hours. In Kolkata (UTC+5:30), a day begins in the middle of a UTC
    hour. There the days of the report lack the archived usage, as `lacks_before` says, but the totals are complete.
    """
    book(cast, begins=NOON + minutes(370), ends=NOON + minutes(410))
    book(cast, lease_id=2, job_id=2, tenant=cast.bio, user=cast.charlie)
    close_may(cast)
    settle_hours()
    seal_book(1)
    whose = cast.olga, FIRST, LAST, cast.uni

    def of_team(zone: str) -> TeamUsage:
        return usage_of_team(UsageReader(*whose), zone=ZoneInfo(zone), days=True, most=9)

    zones = ("UTC", "Europe/Berlin", "Asia/Kolkata")
    before = {zone: of_team(zone) for zone in zones}
    jobs = largest_jobs_of(UsageReader(*whose), most=9)
    assert jobs.lacks_before is None
    archive_month(actor=None, month=MAY, folder=tmp_path)
    for zone in zones:
        after = of_team(zone)
        lacks = zone == "Asia/Kolkata"
        assert after.lacks_before == (LAST if lacks else None)
        for name in ("totals", "generations", "held", "users"):
            assert getattr(after, name) == getattr(before["UTC"], name)
        assert (list(after.days) == list(before[zone].days)) == (not lacks)
    assert largest_jobs_of(UsageReader(*whose), most=9) == jobs
    assert largest_jobs_of(UsageReader(cast.olga, FIRST + HOUR, LAST, cast.uni), most=9).lacks_before == LAST


def test_lines_of_a_statement_sum_to_the_ledger_still_and_have_their_prices(
    past: Cast, tmp_path: Path
) -> None:
    def lines() -> list[tuple[str, Decimal | None, Decimal, Decimal]]:
        return [
            (line.kind, line.price, line.gpu_seconds, line.cost)
            for line in lines_of(UsageReader(past.alice, FIRST, LAST, past.astro))
        ]

    known = [("preemptible", 1, 4 * 9000, 10), ("preemptible", 1, 4 * 1800, 2)]
    assert lines() == known
    archive_month(actor=None, month=MAY, folder=tmp_path)
    assert lines() == known
    # As earlier releases left the month: first with class charges but no class times, then with rollups alone.
    ArchivedHour.objects.update(idle=0, preemptible=0, borrowed=0)
    assert lines() == [
        ("owned", 3, 4 * 9000, 30),
        ("by class", None, 0, -20),
        ("owned", 4, 4 * 1800, 8),
        ("by class", None, 0, -6),
    ]
    ArchivedHour.objects.all().delete()
    assert lines() == [
        ("owned", 3, 4 * 9000, 30),
        ("by class", None, 0, -20),
        ("owned", 4, 4 * 1800, 8),
        ("by class", None, 0, -6),
    ]
    # the second period is a day in another time zone
    for period in ((FIRST, LAST), (NOON - 6 * HOUR, NOON + 12 * HOUR)):
        (total,) = usage_report(past.alice, *period, tenant=past.astro).totals
        assert (
            sum(line.cost for line in lines_of(UsageReader(past.alice, *period, past.astro)))
            == total.cost
            > 0
        )


def test_no_line_is_missing_or_twice_where_a_price_changed_within_an_archived_hour(
    past: Cast, tmp_path: Path
) -> None:
    """Proves that a bill has each line once if a price changed within an archived hour.

    The billed period also contains an hour that is not archived and has a class charge.
    """
    Price.objects.filter(generation=past.a100, valid__endswith=NOON + 8 * HOUR).update(
        valid=DateTimeTZRange(make.LONG_AGO, NOON + 7.5 * HOUR)
    )
    Price.objects.filter(generation=past.a100, valid__startswith=NOON + 8 * HOUR).update(
        valid=DateTimeTZRange(NOON + 7.5 * HOUR, None)
    )
    close_hours(past, LAST, LAST + HOUR)
    with transaction.atomic():
        price_hour(book=1, hour=LAST, how=TimeByClass({}, {9: [(LAST, LAST + HOUR)]}, {}))
    seal_book(1)
    period = FIRST, LAST + HOUR
    (total,) = usage_report(past.alice, *period, tenant=past.astro).totals
    before = lines_of(UsageReader(past.alice, *period, past.astro))
    archive_month(actor=None, month=MAY, folder=tmp_path)
    assert lines_of(UsageReader(past.alice, *period, past.astro)) == before
    ArchivedHour.objects.all().delete()  # as an earlier release left the month
    lines = lines_of(UsageReader(past.alice, *period, past.astro))
    assert sum(line.cost for line in lines) == total.cost
    assert sum(line.gpu_seconds for line in lines) == total.gpu_seconds
    # The price changed within this hour, in which one lease ran.
    assert [line.gpu_seconds for line in lines if line.kind == "at several prices"] == [4 * 3600]


def test_only_what_is_closed_sealed_over_and_the_oldest_is_archived(cast: Cast, tmp_path: Path) -> None:
    book(cast)

    def refused(month: date, why: str) -> None:
        with pytest.raises(Refused, match=why):
            archive_month(actor=None, month=month, folder=tmp_path)

    refused(date(2001, 1, 1), "no vouchers")
    refused(max(months_with_vouchers()), "Archive 2026-05 first")
    refused(MAY, "not yet closed")
    close_may(cast, since=NOON)
    with transaction.atomic():
        assert next_hour_to_price(book=1) is None
    refused(MAY, "some bills of 2026-05 are for earlier usage")
    assert not list(tmp_path.iterdir())


def test_nothing_new_is_booked_in_an_archived_month(past: Cast, tmp_path: Path) -> None:
    archive_month(actor=None, month=MAY, folder=tmp_path)
    with pytest.raises((BookedOtherwise, IntegrityError)):
        book(past, book=2, lease_id=70)
    assert MAY not in months_with_vouchers()
    call_command("verify_ledger")


def test_months_without_bills_between_keep_none_from_coming_back(past: Cast, tmp_path: Path) -> None:
    """Proves that several archived months can be restored one after another, last month first."""
    july = LAST + 30 * 24 * HOUR
    book(past, lease_id=11, begins=july, ends=july + HOUR)
    august = datetime(2026, 8, 1, tzinfo=UTC)
    with transaction.atomic():
        close_hours(past, LAST, LAST + 24 * HOUR)
        close_empty_days(book=1, until=july)
        close_hours(past, july, july + 24 * HOUR)
        close_empty_days(book=1, until=august)
    settle_hours()
    seal_book(1)
    months = [MAY, JUNE, july.date()]
    for month in months:
        archive_month(actor=None, month=month, folder=tmp_path / str(month))
    call_command("verify_ledger")
    for month in reversed(months):
        bring_back_month(actor=None, month=month, folder=tmp_path / str(month))
    call_command("verify_ledger")


def test_vouchers_that_nobody_archived_are_missed(past: Cast) -> None:
    with connection.cursor() as cursor:
        for name in VOUCHERS:
            cursor.execute(f"DROP TABLE accounting_{name}_2026_05")
    with pytest.raises(CommandError, match="2026-05 are missing, and no record shows"):
        call_command("verify_ledger")


def test_who_reads_meanwhile_is_waited_for(past: Cast, tmp_path: Path) -> None:
    """Proves that archiving waits for a transaction that is reading, and that neither transaction fails.

    While archiving waits, it releases its locks, so that the reader can continue.
    """
    reads, may_end = Event(), Event()

    def read() -> int:
        with transaction.atomic():
            count = UsageSegment.objects.count()
            reads.set()
            assert may_end.wait(PATIENCE)
            again = User.objects.count()
        connection.close()
        return count + again

    with ThreadPoolExecutor() as pool:
        reading = pool.submit(read)
        assert reads.wait(PATIENCE)
        archiving = pool.submit(closing_connection(archive_month), actor=None, month=MAY, folder=tmp_path)
        wait_for((tmp_path / "SHA256SUMS").exists)
        may_end.set()
        assert reading.result() > 0
        assert archiving.result().rows == 13


def closing_connection(do: Callable[..., Archived]) -> Callable[..., Archived]:
    def done(**told: Any) -> Archived:
        try:
            return do(**told)
        finally:
            connection.close()

    return done


def test_what_is_not_sealed_stays(cast: Cast, tmp_path: Path) -> None:
    book(cast)
    close_may(cast)
    with transaction.atomic():
        assert next_hour_to_price(book=1) is None
    with pytest.raises(Refused, match="not sealed"):
        archive_month(actor=None, month=MAY, folder=tmp_path)


def tell_of_another_file(digest: str) -> None:
    path = "{usagesegment.csv.gz}"
    forge(f"UPDATE accounting_archiverecord SET digests = jsonb_set(digests, '{path}', '\"{digest}\"')")  # noqa: S608


def test_files_that_somebody_changed_are_refused_or_found_out(past: Cast, tmp_path: Path) -> None:
    archive_month(actor=None, month=MAY, folder=tmp_path)
    file = tmp_path / "usagesegment.csv.gz"
    kept = file.read_bytes()
    file.write_bytes(kept[:-1] + b"x")
    with pytest.raises(Refused, match="is not the file that Fairlot wrote"):
        bring_back_month(actor=None, month=MAY, folder=tmp_path)
    with pytest.raises(Refused, match="not the last"):
        bring_back_month(actor=None, month=JUNE, folder=tmp_path)
    # Fairlot also refuses a file with a matching SHA256SUMS, and a file with the digest in a changed archive record.
    forged = gzip.compress(gzip.decompress(kept).replace(b"bob", b"eve"))
    file.write_bytes(forged)
    digest = hashlib.sha256(forged).hexdigest()
    (tmp_path / "SHA256SUMS").write_text(f"{digest}  {file.name}\n")
    with pytest.raises(Refused, match="is not the file that Fairlot wrote"):
        bring_back_month(actor=None, month=MAY, folder=tmp_path)
    tell_of_another_file(digest)
    with pytest.raises(Refused, match="contain different digests"):
        bring_back_month(actor=None, month=MAY, folder=tmp_path)
    with pytest.raises(
        CommandError, match="the seal and the archive record of 2026-05 contain different file digests"
    ):
        call_command("verify_ledger")


def test_files_that_a_former_release_wrote_are_found_out_by_the_seals_of_what_they_say(
    archived_earlier: Cast, tmp_path: Path
) -> None:
    """Proves that verify_ledger finds a forged archive file of an earlier release, after the month was restored from
    it.

    The seals of the restored rows reveal the change, even if the digest in the archive record was forged, too.
    """
    file = tmp_path / "usagesegment.csv.gz"
    forged = gzip.compress(gzip.decompress(file.read_bytes()).replace(b"bob", b"eve"))
    file.write_bytes(forged)
    digest = hashlib.sha256(forged).hexdigest()
    tell_of_another_file(digest)
    bring_back_month(actor=None, month=MAY, folder=tmp_path)
    with pytest.raises(CommandError, match="was changed"):
        call_command("verify_ledger")


def test_of_a_month_that_was_archived_twice_only_the_last_files_come_back(past: Cast, tmp_path: Path) -> None:
    archive_month(actor=None, month=MAY, folder=tmp_path / "first")
    bring_back_month(actor=None, month=MAY, folder=tmp_path / "first")
    with transaction.atomic():
        wrong = UsageSegment.objects.filter(lease_id=7).select_related("generation")
        correct_usage(actor=past.ada, segments=list(wrong), reason="a test")
    seal_book(1)
    archive_month(actor=None, month=MAY, folder=tmp_path / "second")
    with pytest.raises(Refused, match="is not the file that Fairlot wrote"):
        bring_back_month(actor=None, month=MAY, folder=tmp_path / "first")
    assert MAY not in months_with_vouchers()
    bring_back_month(actor=None, month=MAY, folder=tmp_path / "second")
    call_command("verify_ledger")


def drop_vouchers_of_may() -> None:
    with connection.cursor() as cursor:
        for name in VOUCHERS:
            cursor.execute(f"DROP TABLE accounting_{name}_2026_05")
        cursor.execute("UPDATE accounting_closedbook SET details_since = %s", [LAST])


@pytest.mark.parametrize("tells_of_seals", [False, True])
def test_a_month_that_was_not_archived_does_not_pass_for_one_that_was(
    past: Cast, tells_of_seals: bool
) -> None:
    """Proves that verify_ledger rejects an archive record of a month for which the hash chain has no archive seal.

    With `tells_of_seals`, the forged record names a seal that does not belong to an archiving; otherwise it names none.
    """
    drop_vouchers_of_may()
    seals = {"1": 1} if tells_of_seals else {}
    ArchiveRecord.objects.create(month=MAY, is_archived=True, rows=13, seals=seals)
    with pytest.raises(
        CommandError,
        match="seal 1, which was made when 2026-05 was archived, is missing"
        if tells_of_seals
        else r"book 1: the vouchers \(detailed usage rows\) of 2026-05 are missing, and no seal of the hash chain",
    ):
        call_command("verify_ledger")


def test_a_month_that_is_said_to_be_archived_is_compared_as_far_as_it_stays(past: Cast) -> None:
    """Proves that verify_ledger finds changed ledger entries of a month whose vouchers were deleted from the database.

    The seals have separate leaves for ledger entries, which can be checked without the vouchers.
    """
    drop_vouchers_of_may()
    forge(FORGERIES["all entries of a bill"])
    with pytest.raises(
        CommandError,
        match=r"book 1, seal 1: row usage:.* (was|were) (changed|removed|inserted) after sealing",
    ):
        call_command("verify_ledger")


def test_an_archived_month_without_its_seals_is_found(past: Cast, tmp_path: Path) -> None:
    """Proves that verify_ledger notices if the archive seals of a month, and all references to them, were deleted."""
    archive_month(actor=None, month=MAY, folder=tmp_path)
    take_seals_of_may_away()
    # The archive record is newer than the first seal of a release that seals every archived month.
    with pytest.raises(
        CommandError, match="of 2026-05 are missing, and no seal of the hash chain shows that"
    ):
        call_command("verify_ledger")


def test_an_archived_month_of_a_former_release_is_sealed_when_a_later_one_is(
    archived_earlier: Cast, tmp_path: Path
) -> None:
    archive_june(archived_earlier, tmp_path)
    call_command("verify_ledger")
    june = LedgerSeal.objects.filter(month=JUNE).order_by("number")
    forge("DELETE FROM accounting_ledgerseal WHERE month = '2026-05-01'")
    before = bytes(
        LedgerSeal.objects.filter(month=None).order_by("-number").values_list("digest", flat=True)[0]
    )
    left = LedgerSeal.objects.filter(month=None).count()
    for number, seal in enumerate(june, start=left + 1):  # rebuilds the chain without May's seals
        before = digest_of(seal, before, seal.sealed_at)
        new = f"number = {number}, digest = '\\x{before.hex()}'"
        forge(f"UPDATE accounting_ledgerseal SET {new} WHERE id = {seal.pk}")  # noqa: S608
    end_chains_where_they_end()
    with pytest.raises(
        CommandError, match="of 2026-05 are missing, and no seal of the hash chain shows that"
    ):
        call_command("verify_ledger")


@pytest.mark.parametrize("until", ["NULL", "'2026-07-01+0'"])
def test_books_that_tell_of_another_last_archived_month_are_found(
    past: Cast, tmp_path: Path, until: str
) -> None:
    archive_month(actor=None, month=MAY, folder=tmp_path)
    sql(f"UPDATE accounting_closedbook SET details_since = {until}")  # noqa: S608
    with pytest.raises(
        CommandError,
        match="the books and the archive records disagree about which month was archived last",
    ):
        call_command("verify_ledger")


def test_from_the_shell_months_are_archived_and_brought_back(
    past: Cast, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call_command("archive_ledger", str(tmp_path), "--keep-months", "1200")
    assert capsys.readouterr().out == ""
    now = first_of_month(now_from_database())
    since_june = (now.year - JUNE.year) * 12 + now.month - JUNE.month
    call_command("archive_ledger", str(tmp_path), "--keep-months", str(since_june))
    assert "2026-05: 13 rows" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "2026-05").iterdir()) == [
        "SHA256SUMS", "classcharge.csv.gz", "correctedsegment.csv.gz", "usagesegment.csv.gz",
    ]  # fmt: skip
    call_command("archive_ledger", str(tmp_path), "--bring-back", "2026-05")
    assert "13 rows brought back" in capsys.readouterr().out
    with pytest.raises(CommandError, match="4 or more"):
        call_command("archive_ledger", str(tmp_path), "--keep-months", "0")
