"""Each statement contains the signed head of the ledger's hash chain, and admins see where the chain is broken or
stops."""

import io
from datetime import timedelta

import pytest
from django.db import transaction
from pypdf import PdfReader

from accounting.ledger import heads
from accounting.models import LedgerHead, ReportSubscription
from portal.subscriptions.report_mails import mail_of
from tests.portal.reports.test_statement import ASTRO, period, tables_of_csv
from tests.portal.scene import Scene

pytestmark = pytest.mark.django_db


@pytest.fixture
def head(scene: Scene) -> LedgerHead:
    with transaction.atomic():
        return heads.append(heads.NO_BOOK, 0, b"", heads.hold())


def test_every_statement_ends_with_the_head(scene: Scene, head: LedgerHead, browser_of) -> None:
    bob, line = browser_of(scene.people.bob), heads.printed(head)
    assert line in bob.get(f"/usage/statement/?{ASTRO}").content.decode()
    assert bob.get(f"/api/v1/statement?{ASTRO}").json()["tables"]["head"]["rows"][0]["head"] == line
    in_csv = tables_of_csv(bob.get(f"/usage/statement.csv?{ASTRO}").content.decode())
    assert list(in_csv)[-1] == "head"
    assert in_csv["head"][0]["head"] == line
    assert (
        bob.get(f"/usage/statement.csv?part=head&{ASTRO}").content.decode().startswith(f"head,at\r\n{line},")
    )
    pdf = PdfReader(io.BytesIO(bob.get(f"/usage/statement.pdf?{ASTRO}").content))
    assert line in "".join("".join(page.extract_text() for page in pdf.pages).split())


def test_the_mail_with_a_statement_has_the_head(scene: Scene, head: LedgerHead) -> None:
    subscription = ReportSubscription(
        user=scene.people.bob, tenant=scene.people.astro, report="statement", rhythm="monthly", form="pdf"
    )
    assert heads.printed(head) in mail_of(subscription, period()).lines


def test_admins_see_that_sealing_has_stopped(scene: Scene, head: LedgerHead, browser_of) -> None:
    page = "/admin/settings/"
    said = "Fairlot no longer extends the hash chain of the ledger."
    assert said not in browser_of(scene.people.ada).get(page).content.decode()
    LedgerHead.objects.create(
        number=head.number + 1, at=head.at - timedelta(days=2), book=0, seal=0, seal_digest=b"", digest=b""
    )
    html = browser_of(scene.people.ada).get(page).content.decode()
    assert said in html
    assert "Nothing has been sealed since" in html


def test_admins_see_which_book_is_not_sealed(scene: Scene, head: LedgerHead, browser_of) -> None:
    """The settings page names the book whose chain is broken: here the audit events.

    The test creates a ledger head that says that seal 1 is the last seal of the audit events. This seal does not exist.
    """
    with transaction.atomic():
        heads.append(-1, 1, b"gone", heads.hold())
    html = browser_of(scene.people.ada).get("/admin/settings/").content.decode()
    assert (
        f"audit events: ledger head {head.number + 1} says that seal 1 is the last seal, but the last seal"
        in html
    )
