"""Reports of a month show the same figures before and after the month's bills are archived."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import transaction

from accounting import actions
from accounting.closing.archive import archive_month, bring_back_month
from accounting.closing.class_prices import TimeByClass
from accounting.closing.hours import close_empty_days, open_book
from accounting.ledger import Payer, correct_usage
from accounting.ledger.hash_chain import seal_book
from accounting.models import ArchivedHour, Price, UsageSegment
from tests import make
from tests.accounting.booking import HOUR, NOON, book, close_hours, minutes, settle_hours
from tests.make import Cast

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("archives")]
MAY = date(2026, 5, 1)
FIRST, LAST = datetime(2026, 5, 1, tzinfo=UTC), datetime(2026, 6, 1, tzinfo=UTC)
PERIOD = "period=dates&from=2026-05-01&to=2026-05-31"
FEW_DAYS = "period=dates&from=2026-05-04&to=2026-05-04"


@pytest.fixture
def cast(transactional_db: None) -> Cast:
    return make.cast()


@pytest.fixture
def may(cast: Cast) -> Cast:
    """Books usage in May 2026: all classes of GPU time, two prices, two currencies.

    Also books corrections before and after the month is settled.
    """
    of_classes = {"idle": Decimal(7), "preemptible": Decimal(1), "borrowed": Decimal("0.5")}
    Price.objects.filter(generation=cast.a100).update(**of_classes)
    actions.set_price(
        actor=cast.ada,
        generation=cast.a100,
        per_gpu_hour=Decimal("4.000001"),
        since=NOON + minutes(150),
        **of_classes,
    )
    Price.objects.filter(generation=cast.a100, per_gpu_hour=Decimal("4.000001")).update(currency="USD")
    unused = {lease: [(NOON, NOON + minutes(17))] for lease in (0, 5)}
    for lease in range(6):
        begins = NOON + lease * minutes(35)
        who = (cast.bio, cast.charlie) if lease % 3 == 2 else (cast.astro, cast.bob)
        book(
            cast, lease_id=lease, job_id=lease, tenant=who[0], user=who[1], gpus=lease + 1, begins=begins,
            ends=begins + timedelta(minutes=91, microseconds=7), unused=unused.get(lease, []),
        )  # fmt: skip
    close(cast)
    take_back(cast, 1, "before it was settled")
    take_back(cast, 2, "another's, before it was settled", Payer(cast.astro, cast.bob))
    how = TimeByClass(
        {(cast.astro.pk, cast.a100.pk): Decimal(1000), (cast.bio.pk, cast.a100.pk): Decimal(777)},
        {lease: [(NOON + minutes(9), NOON + minutes(140))] for lease in (0, 2, 3)},
        unused,
    )
    settle_hours(how)
    take_back(cast, 3, "after it was settled")
    take_back(cast, 4, "another's", Payer(cast.bio, cast.charlie))
    take_back(cast, 4, "nobody's after all")
    seal_book(1)
    return cast


def close(cast: Cast) -> None:
    """Closes all hours of the month. Only one day of the month has usage."""
    busy = NOON.replace(hour=0)
    with transaction.atomic():
        open_book(book=1, since=FIRST)
        close_empty_days(book=1, until=busy)
    close_hours(cast, busy, busy + 24 * HOUR)
    with transaction.atomic():
        close_empty_days(book=1, until=LAST)


def take_back(cast: Cast, lease: int, reason: str, payer: Payer | None = None) -> None:
    stands = UsageSegment.objects.uncorrected().filter(lease_id=lease).select_related("generation")
    with transaction.atomic():
        correct_usage(actor=cast.ada, segments=list(stands.order_by("period")), reason=reason, payer=payer)


def told(cast: Cast, browser_of) -> dict[str, str]:
    """Returns {"reader URL": CSV text} for each report of the month, and for the same reports of its only busy day.

    Leaves out the section "head", because the head of the ledger's hash chain changes.
    """
    of_reader = {
        cast.olga: [
            "/usage/statement.csv?team=uni&",
            "/usage/capacity.csv?",
            "/usage/operations/chargeback.csv?",
            *(f"/usage.csv?by={by}&" for by in ("tenant", "user", "job", "generation", "day")),
        ],
        cast.alice: ["/usage/statement.csv?team=astro&"],
        cast.charlie: ["/usage/statement.csv?team=bio&", "/usage.csv?by=job&"],
    }
    found = {}
    for reader, addresses in of_reader.items():
        browser = browser_of(reader)
        for address in addresses:
            for period in (PERIOD, FEW_DAYS):
                answer = browser.get(address + period)
                assert answer.status_code == 200, address
                found[f"{reader} {address}{period}"] = answer.content.decode().partition("\r\nhead\r\n")[0]
    return found


def without_jobs_of_corrections(text: str) -> list[str]:
    """Returns the lines of a report without the table of corrections and without the signed ledger head.

    Archived corrections do not name the job, the payer and the transactions. The ledger head differs because archiving
    extends the hash chain.
    """
    head, found, rest = text.partition("corrections\r\ncorrection,")
    return without_heads(head + (rest.partition("\r\n\r\n")[2] if found else ""))


def without_heads(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("head:")]


def test_all_reports_say_the_same_before_it_is_archived_afterwards_and_when_it_is_back(
    may: Cast, browser_of, tmp_path: Path
) -> None:
    before = told(may, browser_of)
    statement = before[f"alice /usage/statement.csv?team=astro&{PERIOD}"]
    for said in ("A100,Owned", "before it was settled", "after it was settled", "EUR", "USD"):
        assert said in statement
    archive_month(actor=None, month=MAY, folder=tmp_path)
    afterwards = told(may, browser_of)
    for report, text in before.items():
        assert without_jobs_of_corrections(afterwards[report]) == without_jobs_of_corrections(text), report
    call_command("verify_ledger")
    bring_back_month(actor=None, month=MAY, folder=tmp_path)
    back = told(may, browser_of)
    for report, text in before.items():
        assert without_heads(back[report]) == without_heads(text), report
    assert not ArchivedHour.objects.exists()
    call_command("verify_ledger")


def test_an_archived_month_shows_other_users_nothing(may: Cast, browser_of, tmp_path: Path) -> None:
    archive_month(actor=None, month=MAY, folder=tmp_path)
    charlie = browser_of(may.charlie)
    assert charlie.get(f"/usage/statement.csv?team=astro&{PERIOD}").status_code == 404
    own = charlie.get(f"/usage/statement.csv?team=bio&{PERIOD}").content.decode()
    assert "another's" in own  # Charlie sees only the corrections of his own team
    assert "after it was settled" not in own
