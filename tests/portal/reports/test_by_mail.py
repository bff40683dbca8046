"""Reports are mailed once per period, in the chosen file format, to users who may still see the team."""

from __future__ import annotations

import io
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.conf import settings
from django.core import mail as outgoing
from django.db import IntegrityError, connection, transaction
from django.test import Client
from django.utils.http import urlencode
from pypdf import PdfReader

from accounting import actions
from accounting import tasks as accounting_tasks
from accounting.core.clock import now_from_database
from accounting.core.errors import NotAllowed, Refused
from accounting.ledger import Usage, book_usage
from accounting.models import (
    AuditEvent,
    Mail,
    MailAttachment,
    Membership,
    ReportDelivery,
    ReportSubscription,
    User,
)
from accounting.notifications.subscriptions import due_subscriptions, period_to_send
from portal import tasks
from portal.reports.periods import GIVEN, ReportPeriod
from portal.reports.statement.figures import statement_of
from portal.reports.unsettled import PROVISIONAL
from portal.subscriptions import posting
from scheduling.core.locks import Lock
from scheduling.models import SharingAnalysis, SharingPart
from tests.accounting.ledger.test_at_once import at_once
from tests.make import LONG_AGO
from tests.portal.reading import sheets
from tests.portal.scene import SECRETS, Scene, share
from tests.portal.scene import scene as new_scene
from tests.portal.share.test_anomalies import anomaly
from tests.upgrading import ALIAS, database_as_of, rows_of

SPRING = datetime(2031, 3, 3, 7, tzinfo=UTC)  # a Monday


@pytest.fixture(autouse=True)
def _server(settings) -> None:
    settings.EMAIL_HOST = "mail.example.org"


@pytest.fixture
def alice(scene: Scene) -> User:
    User.objects.filter(username__in=["alice", "bob"]).update(email="alice@example.org")
    return User.objects.get(username="alice")


def subscribed(scene: Scene, user: User, rhythm: str = "monthly", form: str = "pdf") -> ReportSubscription:
    return actions.subscribe_to_report(actor=user, tenant=scene.people.astro, rhythm=rhythm, form=form)


def send(subscription: ReportSubscription, now: datetime = SPRING) -> bool:
    return posting.send_report(subscription_id=subscription.pk, now=now)


def test_one_subscribes_on_the_page_and_ends_it_there(scene: Scene, alice: User, browser_of) -> None:
    browser = browser_of(alice)
    post = {"team": "astro", "rhythm": "weekly", "form": "xlsx"}
    assert browser.post("/usage/by-mail/subscribe/", post).status_code == 302
    subscription = ReportSubscription.objects.get()
    assert (subscription.user, subscription.rhythm, subscription.form) == (alice, "weekly", "xlsx")
    html = browser.get("/usage/statement/?team=astro").content.decode()
    assert f"/usage/by-mail/unsubscribe/{subscription.pk}/" in html
    assert browser.post("/usage/by-mail/subscribe/", post | {"form": "pdf"}).status_code == 302
    assert ReportSubscription.objects.get().form == "pdf"
    stranger = browser_of(scene.people.bob)
    assert stranger.post(f"/usage/by-mail/unsubscribe/{subscription.pk}/").status_code == 404
    assert browser.post(f"/usage/by-mail/unsubscribe/{subscription.pk}/").status_code == 302
    assert not ReportSubscription.objects.exists()
    verbs = AuditEvent.objects.order_by("-pk").values_list("verb", flat=True)[:3]
    assert list(verbs) == ["statement.unsubscribe", "statement.subscribe", "statement.subscribe"]


def test_the_api_does_the_same(scene: Scene, alice: User, browser_of) -> None:
    url, own = "/api/v1/subscriptions", browser_of(alice)
    wanted = {"team": "astro", "rhythm": "weekly", "form": "xlsx"}

    def put(browser: Client, wanted: dict[str, str]) -> Any:
        return browser.put(url, wanted, content_type="application/json")

    made = put(own, wanted).json()
    rest = {"report": "statement", "by": "", "label": "", "id": ReportSubscription.objects.get().pk}
    assert made == wanted | rest
    assert put(own, wanted | {"form": "link"}).json() == made | {"form": "link"}
    assert own.get(url).json() == [made | {"form": "link"}]
    assert put(own, wanted | {"rhythm": "hourly"}).status_code == 422
    stranger = browser_of(scene.people.charlie)
    assert stranger.get(url).json() == []
    assert put(stranger, wanted).status_code == 404
    assert stranger.delete(f"{url}/{made['id']}").status_code == 404
    assert own.delete(f"{url}/{made['id']}").status_code == 204
    assert own.delete(f"{url}/{made['id']}").status_code == 404
    assert not ReportSubscription.objects.exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"rhythm": "hourly"}, "weekly, monthly"), ({"form": "docx"}, "pdf, xlsx, csv, link")],
)
def test_an_invalid_subscription_is_refused(
    scene: Scene, alice: User, browser_of, changes: dict[str, str], said: str
) -> None:
    post = {"team": "astro", "rhythm": "weekly", "form": "pdf"} | changes
    html = browser_of(alice).post("/usage/by-mail/subscribe/", post, follow=True).content.decode()
    assert said in html
    assert not ReportSubscription.objects.exists()


def test_without_an_address_or_a_server_the_page_says_so(
    scene: Scene, alice: User, browser_of, settings
) -> None:
    post = {"team": "astro", "rhythm": "weekly", "form": "pdf"}
    olga = browser_of(scene.people.olga)
    assert "no e-mail address" in olga.post("/usage/by-mail/subscribe/", post, follow=True).content.decode()
    settings.EMAIL_HOST = ""
    html = browser_of(alice).post("/usage/by-mail/subscribe/", post, follow=True).content.decode()
    assert "cannot send mail" in html
    assert not ReportSubscription.objects.exists()


def test_strangers_subscribe_to_nothing(scene: Scene, browser_of) -> None:
    post = {"team": "astro", "rhythm": "weekly", "form": "pdf"}
    assert browser_of(scene.people.charlie).post("/usage/by-mail/subscribe/", post).status_code == 404


def test_the_statement_of_a_month_comes_once_with_its_file(scene: Scene, alice: User) -> None:
    subscription = subscribed(scene, alice)
    assert due_subscriptions(SPRING) == [subscription.pk]
    assert send(subscription) is True
    assert send(subscription) is False
    assert send(subscription, SPRING + timedelta(days=27)) is False
    assert due_subscriptions(SPRING) == []
    for _ in range(2):
        accounting_tasks.send_mails()
    [the_mail] = outgoing.outbox
    assert the_mail.subject == "[Fairlot] Statement of Astro, 2031-02-01 to 2031-02-28"
    assert "/usage/statement/?team=astro&period=dates&from=2031-02-01&to=2031-02-28" in the_mail.body
    [(name, content, kind)] = the_mail.attachments
    assert (name, kind) == ("fairlot-statement-astro-2031-02.pdf", "application/pdf")
    assert "ASTRO-2031-02" in PdfReader(io.BytesIO(content)).pages[0].extract_text()
    assert send(subscription, SPRING + timedelta(days=31)) is True
    assert ReportDelivery.objects.count() == 2


def test_the_mail_has_the_figures_of_the_period(scene: Scene, alice: User) -> None:
    """The cost in the weekly mail and in its XLSX file is the cost in the team's statement of the same week."""
    subscription = subscribed(scene, alice, "weekly", "xlsx")
    now = now_from_database() + timedelta(days=7, hours=6)
    assert send(subscription, now) is True
    the_mail = Mail.objects.get()
    statement = statement_of(alice, scene.people.astro, period_of(subscription))
    (total,) = statement.totals
    assert f"{total.cost:.2f} EUR" in the_mail.text
    rows = sheets(bytes(the_mail.attachments.get().content))["GPU time"]
    [last] = [row for row in rows if row[0][1] == "Total"]
    assert float(last[-2][1]) == float(total.cost)


def test_the_mail_says_whether_more_will_be_booked(scene: Scene, alice: User) -> None:
    """Only the mail about a week that is not settled yet says "provisional".

    The first mail is about last week, which is settled. The second is sent seven days later and is about the present
    week.
    """
    subscription = subscribed(scene, alice, "weekly", "pdf")
    ReportSubscription.objects.update(created_at=LONG_AGO)
    for now, is_said in (
        (now_from_database(), False),
        (now_from_database() + timedelta(days=7, hours=6), True),
    ):
        assert send(subscription, now) is True
        the_mail = Mail.objects.latest("pk")
        attached = PdfReader(io.BytesIO(bytes(the_mail.attachments.get().content))).pages[0].extract_text()
        assert (PROVISIONAL in the_mail.text) is is_said
        assert ("Provisional" in attached) is is_said


def period_of(subscription: ReportSubscription):
    first = subscription.deliveries.get().first
    return ReportPeriod(GIVEN, first, first + timedelta(days=6), ZoneInfo("UTC"), {})


def test_a_link_brings_no_file_and_neither_does_what_is_too_large(
    scene: Scene, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert send(subscribed(scene, alice, form="link"))
    monkeypatch.setattr(posting, "MOST_ATTACHED", 10)
    assert send(subscribed(scene, alice, "weekly"))
    assert Mail.objects.count() == 2
    assert not MailAttachment.objects.exists()


def test_a_killed_worker_leaves_nothing_and_the_next_one_sends_the_mail(
    scene: Scene, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscription = subscribed(scene, alice)
    with monkeypatch.context() as patched:
        patched.setattr(posting.mail, "write", die)
        with pytest.raises(KeyboardInterrupt):
            send(subscription)
    assert not ReportDelivery.objects.exists()
    assert send(subscription) is True
    assert Mail.objects.count() == 1


def die(*_args: object, **_rest: object) -> None:
    raise KeyboardInterrupt


def test_the_database_lets_no_period_in_twice(scene: Scene, alice: User) -> None:
    subscription = subscribed(scene, alice)
    send(subscription)
    first = subscription.deliveries.get().first
    with pytest.raises(IntegrityError, match="one_report_a_period"), transaction.atomic():
        ReportDelivery.objects.create(subscription=subscription, first=first)


def test_none_is_sent_of_what_was_over_before_one_asked(scene: Scene, alice: User) -> None:
    for rhythm in ("weekly", "monthly"):
        subscribed(scene, alice, rhythm)
    tasks.send_reports()
    assert not Mail.objects.exists()


def test_beats_task_sends_what_is_due(scene: Scene, alice: User) -> None:
    subscribed(scene, alice)
    long_ago = now_from_database() - timedelta(days=100)
    ReportSubscription.objects.update(created_at=long_ago)
    for _ in range(2):
        tasks.send_reports()
    assert Mail.objects.count() == 1


def test_an_unknown_time_zone_delays_no_other_mail(scene: Scene, alice: User) -> None:
    bob = User.objects.get(username="bob")
    User.objects.filter(pk=bob.pk).update(time_zone="Mars/Olympus")
    subscriptions = [subscribed(scene, User.objects.get(pk=bob.pk)), subscribed(scene, alice)]
    assert sorted(due_subscriptions(SPRING)) == [one.pk for one in subscriptions]
    for one in subscriptions:
        assert send(one) is True
    assert "(UTC)" in Mail.objects.earliest("pk").text


def test_one_that_always_fails_does_not_starve_those_behind_it(
    scene: Scene, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = subscribed(scene, alice)
    sound = subscribed(scene, User.objects.get(username="bob"))
    ReportSubscription.objects.update(created_at=now_from_database() - timedelta(days=100))
    write = posting.send_report

    def fail(*, subscription_id: int) -> bool:
        if subscription_id == broken.pk:
            raise RuntimeError("no such font")
        return write(subscription_id=subscription_id)

    monkeypatch.setattr(tasks, "send_report", fail)
    monkeypatch.setattr(tasks, "LASTS", -1.0)  # each call sends one report
    for _ in range(
        60
    ):  # the order is random; in 60 calls, the sound report almost certainly comes first once
        with suppress(RuntimeError):
            tasks.send_reports()
    assert list(ReportDelivery.objects.values_list("subscription", flat=True)) == [sound.pk]


@pytest.mark.parametrize("left", ["team", "company"])
def test_a_user_who_no_longer_sees_the_team_gets_no_more_mail(scene: Scene, alice: User, left: str) -> None:
    bob = User.objects.get(username="bob")
    subscription = subscribed(scene, bob)
    if left == "team":
        Membership.objects.filter(user=bob).delete()
    else:
        User.objects.filter(pk=bob.pk).update(is_active=False)
    assert send(subscription) is False
    assert not ReportSubscription.objects.exists()
    assert not Mail.objects.exists()
    event = AuditEvent.objects.latest("pk")
    assert (event.verb, event.actor_name) == ("statement.unsubscribe", "Fairlot")


# --- reports for operators --------------------------------------------------------------------------

OF_TEAMS = [one.value for one in ReportSubscription.OF_TEAMS]
OF_OPERATORS = [one for one in ReportSubscription.Report.values if one not in {"statement", *OF_TEAMS}]


@pytest.fixture
def olga(scene: Scene) -> User:
    User.objects.filter(username="olga").update(email="olga@example.org")
    return User.objects.get(username="olga")


def page_of_report(report: str) -> str:
    return f"/usage/{'' if report == 'capacity' else 'operations/'}{report}"


@pytest.mark.parametrize("report", OF_OPERATORS)
def test_operators_get_their_reports_with_the_file_that_the_page_gives(
    scene: Scene, olga: User, browser_of, report: str
) -> None:
    browser, page = browser_of(olga), page_of_report(report)
    post = {"report": report, "rhythm": "monthly", "form": "csv"}
    answer = browser.post("/usage/by-mail/subscribe/", post)
    assert (answer.status_code, answer["Location"]) == (302, f"{page}/")
    subscription = ReportSubscription.objects.get()
    assert f"/usage/by-mail/unsubscribe/{subscription.pk}/" in browser.get(f"{page}/").content.decode()
    assert AuditEvent.objects.latest("pk").after == {"rhythm": "monthly", "form": "csv", "report": report}
    assert send(subscription) is True
    assert send(subscription) is False
    the_mail = Mail.objects.get()
    [file] = the_mail.attachments.all()
    asked = "period=dates&from=2031-02-01&to=2031-02-28"
    assert bytes(file.content) == browser.get(f"{page}.csv?{asked}").content
    assert file.name == f"fairlot-{report}-2031-02-01-2031-02-28.csv"
    assert the_mail.subject.endswith(", 2031-02-01 to 2031-02-28")
    assert f"{page}/?{asked}" in the_mail.text
    assert browser.post(f"/usage/by-mail/unsubscribe/{subscription.pk}/")["Location"] == f"{page}/"
    assert not ReportSubscription.objects.exists()


@pytest.mark.parametrize("report", OF_OPERATORS)
def test_only_operators_get_reports_for_operators(scene: Scene, alice: User, browser_of, report: str) -> None:
    browser = browser_of(alice)
    post = {"report": report, "rhythm": "monthly", "form": "pdf"}
    assert browser.post("/usage/by-mail/subscribe/", post).status_code == 404
    assert browser.put("/api/v1/subscriptions", post, content_type="application/json").status_code == 404
    with pytest.raises(NotAllowed):
        actions.subscribe_to_report(actor=alice, report=report, rhythm="monthly")
    with pytest.raises(Refused, match="This report is not about one team"):
        actions.subscribe_to_report(actor=alice, report=report, tenant=scene.people.astro, rhythm="monthly")
    with pytest.raises(IntegrityError, match="a_statement_is_of_a_team"), transaction.atomic():
        ReportSubscription.objects.create(
            user=alice, report=report, tenant=scene.people.astro, rhythm="monthly"
        )


def test_the_api_subscribes_operators_to_their_reports(scene: Scene, olga: User, browser_of) -> None:
    own, wanted = browser_of(olga), {"report": "waste", "rhythm": "weekly", "form": "xlsx"}
    for _ in range(2):
        made = own.put("/api/v1/subscriptions", wanted, content_type="application/json").json()
    assert own.get("/api/v1/subscriptions").json() == [made]
    rest = {"team": "", "by": "", "label": "", "id": ReportSubscription.objects.get().pk}
    assert made == wanted | rest


def test_a_report_that_is_sent_before_the_books_are_closed_says_so(scene: Scene, olga: User) -> None:
    subscription = actions.subscribe_to_report(actor=olga, report="chargeback", rhythm="weekly", form="pdf")
    now = now_from_database() + timedelta(days=7, hours=6)
    assert send(subscription, now) is True
    the_mail = Mail.objects.get()
    assert "Closed until: nothing yet" in the_mail.text
    assert PROVISIONAL in the_mail.text
    attached = PdfReader(io.BytesIO(bytes(the_mail.attachments.get().content))).pages[0].extract_text()
    assert PROVISIONAL in attached


def test_a_former_operator_ends_the_subscription_and_is_led_to_a_visible_page(
    scene: Scene, olga: User, browser_of
) -> None:
    subscription = actions.subscribe_to_report(actor=olga, report="capacity", rhythm="weekly", form="pdf")
    User.objects.filter(pk=olga.pk).update(portal_role=User.PortalRole.USER)
    Membership.objects.create(tenant=scene.people.astro, user=olga)
    olga.refresh_from_db()
    answer = browser_of(olga).post(f"/usage/by-mail/unsubscribe/{subscription.pk}/", follow=True)
    assert (answer.status_code, answer.request["PATH_INFO"]) == (200, "/usage/statement/")
    assert not ReportSubscription.objects.exists()


def test_reports_are_made_by_one_worker_at_a_time(scene: Scene, alice: User) -> None:
    subscription = subscribed(scene, alice)
    ReportSubscription.objects.update(created_at=LONG_AGO)
    other = connection.copy()
    try:
        with other.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock(%s, 0)", [Lock.REPORTS])
            tasks.send_reports()
            assert not subscription.deliveries.exists()
            # Unlocked explicitly, because the server releases a closed connection's lock only a moment later.
            cursor.execute("SELECT pg_advisory_unlock(%s, 0)", [Lock.REPORTS])
    finally:
        other.close()
    tasks.send_reports()
    assert subscription.deliveries.exists()


def test_a_former_operator_gets_no_more_mail(scene: Scene, olga: User) -> None:
    subscription = actions.subscribe_to_report(actor=olga, report="chargeback", rhythm="monthly")
    User.objects.filter(pk=olga.pk).update(portal_role="")
    assert send(subscription) is False
    assert not ReportSubscription.objects.exists()
    assert not Mail.objects.exists()
    event = AuditEvent.objects.latest("pk")
    assert (event.verb, event.actor_name, event.before["report"]) == (
        "report.unsubscribe", "Fairlot", "chargeback",
    )  # fmt: skip


# --- reports of teams -------------------------------------------------------------------------------

# The page, the path of the files, and the query, by report.
PAGES = {
    "usage": ("/usage/", "/usage", {"by": "job"}),
    "fairness": ("/usage/fairness/", "/usage/fairness", {}),
    "idle": ("/usage/idle/", "/usage/idle", {}),
    "trades": ("/trades/", "/trades", {}),
    "anomalies": ("/share/anomalies/", "/share/anomalies", {}),
}
FEBRUARY = "period=dates&from=2031-02-01&to=2031-02-28"


@pytest.fixture
def future(scene: Scene) -> Scene:
    """Adds data for each report to the scene, and returns the scene.

    The data is in one hour, which is in February 2031 in Tokyo, but still in January in UTC. Bob's and Charlie's time
    zone is Tokyo.
    """
    people, begins = scene.people, datetime(2031, 1, 31, 16, tzinfo=UTC)
    User.objects.filter(username__in=["bob", "charlie"]).update(
        email="bob@example.org", time_zone="Asia/Tokyo"
    )
    people.bob.refresh_from_db()
    people.charlie.refresh_from_db()
    with transaction.atomic():
        for number, (job, user) in enumerate([(scene.job, people.bob), (scene.other, people.charlie)]):
            book_usage(
                [Usage(
                    book=scene.world.cluster.pk, lease_id=9500 + number, job_id=job.pk, job_name=job.name,
                    tenant=job.tenant, user=user, generation=people.v100, gpus=4, begins=begins,
                    ends=begins + timedelta(hours=1), running_from=begins,
                    unused=[(begins, begins + timedelta(minutes=30))],
                )]
            )  # fmt: skip
    scene.trade.begins, scene.trade.ends = begins, begins + timedelta(minutes=1)
    scene.trade.save()
    for tenant in (people.astro, people.bio):
        share(
            scene.trade.round,
            tenant,
            people.v100,
            ends=begins + timedelta(hours=1),
            entitled=7200,
            received=3600,
        )
    analysis = SharingAnalysis.objects.create(
        cluster=scene.world.cluster, begins=begins - timedelta(days=7), ends=begins, finished_at=begins
    )
    for job, other in ((scene.job, scene.other), (scene.other, scene.job)):
        part = SharingPart.objects.create(
            analysis=analysis, tenant=job.tenant, done_at=begins, gpus={"V100": 2}, judged=2
        )
        anomaly(part, job, other, 7260.0)
    return scene


def lines_of(subscription: ReportSubscription) -> str:
    [file] = Mail.objects.latest("pk").attachments.all()
    return bytes(file.content).decode()


@pytest.mark.parametrize("team", ["astro", ""])
@pytest.mark.parametrize("report", OF_TEAMS)
def test_every_report_of_teams_is_sent_once_with_the_file_that_its_page_gives(
    future: Scene, browser_of, report: str, team: str
) -> None:
    bob, (page, file, by) = browser_of(future.people.bob), PAGES[report]
    post = {"report": report, "team": team, "rhythm": "monthly", "form": "csv"} | by
    answer = bob.post("/usage/by-mail/subscribe/", post)
    of_team = {"team": team} if team else {}
    query = urlencode(of_team | by)
    assert (answer.status_code, answer["Location"]) == (302, f"{page}{'?' * bool(query)}{query}")
    subscription = ReportSubscription.objects.get()
    assert f"/usage/by-mail/unsubscribe/{subscription.pk}/" in bob.get(f"{page}?{query}").content.decode()
    assert AuditEvent.objects.latest("pk").verb == "report.subscribe"
    # In Tokyo it is 1 March, 5:00, and an hour later 6:00, when the report of February is due.
    due = period_to_send(subscription, datetime(2031, 2, 28, 20, tzinfo=UTC), sent=None)
    assert due == (date(2031, 1, 1), date(2031, 1, 31))
    now = datetime(2031, 2, 28, 21, tzinfo=UTC)
    assert due_subscriptions(now) == [subscription.pk]
    assert [send(subscription, now), send(subscription, now), send(subscription, SPRING)] == [
        True,
        False,
        False,
    ]
    asked = f"analysis={SharingAnalysis.objects.get().pk}" if report == "anomalies" else FEBRUARY
    assert lines_of(subscription) == bob.get(f"{file}.csv?{asked}&{query}").content.decode()
    assert "supernova" in lines_of(subscription) or "Astro" in lines_of(subscription)
    text = Mail.objects.get().text
    [address] = [line for line in text.splitlines() if line.startswith("Full report: ")]
    path = address.removeprefix(f"Full report: {settings.PUBLIC_URL}")
    shown = bob.get(path)
    assert shown.status_code == 200
    assert report == "anomalies" or "February" in shown.content.decode() or "2031-02-01" in path
    assert bob.post(f"/usage/by-mail/unsubscribe/{subscription.pk}/")["Location"] == answer["Location"]
    assert not ReportSubscription.objects.exists()


@pytest.mark.parametrize("report", OF_TEAMS)
def test_no_user_gets_reports_of_another_team(future: Scene, browser_of, report: str) -> None:
    charlie, url = browser_of(future.people.charlie), "/api/v1/subscriptions"
    wanted = {"report": report, "rhythm": "monthly", "form": "csv"} | PAGES[report][2]
    post = wanted | {"team": "astro"}
    assert charlie.post("/usage/by-mail/subscribe/", post).status_code == 404
    assert charlie.put(url, post, content_type="application/json").status_code == 404
    with pytest.raises(NotAllowed):
        actions.subscribe_to_report(
            actor=future.people.charlie, report=report, tenant=future.people.astro, rhythm="monthly"
        )
    made = charlie.put(url, wanted, content_type="application/json").json()
    assert made == wanted | {"team": "", "by": wanted.get("by", ""), "label": "", "id": made["id"]}
    subscription = ReportSubscription.objects.get()
    assert send(subscription) is True
    text = lines_of(subscription) + Mail.objects.get().text
    assert not any(secret in text for secret in SECRETS)
    Membership.objects.filter(user=future.people.charlie).delete()
    assert send(subscription, SPRING + timedelta(days=31)) is False
    assert not ReportSubscription.objects.exists()
    assert charlie.put(url, wanted, content_type="application/json").status_code == 404


def test_usage_by_each_group_is_a_report_of_its_own(future: Scene, browser_of) -> None:
    bob, url = browser_of(future.people.bob), "/api/v1/subscriptions"
    wanted = {"report": "usage", "rhythm": "monthly", "form": "csv"}
    groups = [("", ""), ("user", ""), ("day", ""), ("label", "project"), ("label", "owner")]
    for by, label in groups:
        answer = bob.put(url, wanted | {"by": by, "label": label}, content_type="application/json")
        assert answer.json()["by"] == (by or "user")
    assert ReportSubscription.objects.count() == len(groups) - 1  # an empty `by` is the same as "user"
    for nonsense in ({"by": "label"}, {"by": "day", "label": "x"}, {"by": "label", "label": "x" * 401}):
        assert bob.put(url, wanted | nonsense, content_type="application/json").status_code == 409
    assert bob.put(url, wanted | {"by": "hour"}, content_type="application/json").status_code == 422
    other = wanted | {"report": "idle", "by": "user"}
    assert bob.put(url, other, content_type="application/json").status_code == 409
    told = [one.name for one in ReportSubscription.objects.all()]
    assert told == ["Usage by day", "Usage by label “owner”", "Usage by label “project”", "Usage by user"]
    for one in ReportSubscription.objects.all():
        assert send(one) is True
        query = urlencode({"by": one.by, "label": one.label})
        assert lines_of(one) == bob.get(f"/usage.csv?{FEBRUARY}&{query}").content.decode()


def test_a_mail_of_usage_says_what_is_not_booked_yet_as_its_page_does(scene: Scene, alice: User) -> None:
    subscription = actions.subscribe_to_report(
        actor=alice, report="usage", tenant=scene.people.astro, rhythm="monthly", form="xlsx"
    )
    assert send(subscription) is True  # the report of February 2031, which has no bookings
    the_mail = Mail.objects.get()
    assert f"State: {PROVISIONAL}" in the_mail.text
    [file] = the_mail.attachments.all()
    cells = [text for rows in sheets(bytes(file.content)).values() for row in rows for _, text in row]
    assert PROVISIONAL in cells


def test_where_nothing_was_analysed_the_mail_says_so(scene: Scene, alice: User) -> None:
    subscription = actions.subscribe_to_report(
        actor=alice, report="anomalies", tenant=scene.people.astro, rhythm="monthly"
    )
    assert send(subscription) is True
    assert "No analysis has finished for a time range that ends in this period." in Mail.objects.get().text


def test_a_mail_of_anomalies_says_which_days_of_its_period_were_analysed(future: Scene) -> None:
    subscription = actions.subscribe_to_report(actor=future.people.bob, report="anomalies", rhythm="monthly")
    assert send(subscription) is True
    text = Mail.objects.get().text
    assert "Sharing anomalies, 2031-02-01 to 2031-02-28 (Asia/Tokyo)" in text
    assert "Analysed: 25 January 2031, 01:00 JST to 1 February 2031, 01:00 JST" in text


@pytest.mark.parametrize("form", ["pdf", "xlsx", "csv", "link"])
def test_an_empty_report_is_sent_too(scene: Scene, olga: User, form: str) -> None:
    for report in ("statement", *OF_TEAMS, *OF_OPERATORS):
        tenant = scene.people.astro if report == "statement" else None
        subscription = actions.subscribe_to_report(
            actor=olga, report=report, tenant=tenant, rhythm="weekly", form=form
        )
        assert send(subscription, SPRING) is True, report
    files = 0 if form == "link" else 1 + len(OF_TEAMS) + len(OF_OPERATORS)
    assert MailAttachment.objects.count() == files


def test_a_user_in_no_team_sees_that_there_is_nothing_to_send(scene: Scene, alice: User, browser_of) -> None:
    Membership.objects.filter(user=alice).delete()
    post = {"report": "usage", "rhythm": "monthly", "form": "pdf"}
    answer = browser_of(alice).post("/usage/by-mail/subscribe/", post, follow=True)
    assert answer.status_code == 200
    assert "Only members of a team and operators may receive this report." in answer.content.decode()
    assert not ReportSubscription.objects.exists()


BEFORE, AFTER = ("accounting", "0017_past_budgets"), ("accounting", "0018_reports_by_mail")


@pytest.mark.django_db(transaction=True)
def test_an_upgrade_keeps_what_is_sent_and_the_way_back_ends_what_it_cannot_send() -> None:
    with database_as_of([BEFORE]) as executor:
        make = rows_of(executor, BEFORE)
        tenant = make("accounting", "Tenant", name="Astro", slug="astro", path="1/")
        user = make("accounting", "User", username="olga")
        old = make("accounting", "StatementSubscription", user=user, tenant=tenant, rhythm="weekly")
        make("accounting", "StatementDelivery", subscription=old, first=date(2026, 5, 4))
        executor.loader.build_graph()
        executor.migrate([AFTER])
        subscriptions, deliveries = (
            executor.loader.project_state([AFTER]).apps.get_model("accounting", name).objects.using(ALIAS)
            for name in ("ReportSubscription", "ReportDelivery")
        )
        kept = ("report", "tenant", "rhythm", "form", "deliveries__first")
        assert list(subscriptions.values_list(*kept)) == [
            ("statement", tenant.pk, "weekly", "pdf", date(2026, 5, 4))
        ]
        new = subscriptions.create(user_id=user.pk, report="waste", rhythm="weekly", form="csv")
        deliveries.create(subscription_id=new.pk, first=date(2026, 5, 4))
        subscriptions.create(
            user_id=user.pk, report="statement", tenant_id=tenant.pk, rhythm="monthly", form="csv"
        )
        executor.loader.build_graph()
        executor.migrate([BEFORE])
        apps = executor.loader.project_state([BEFORE]).apps
        left = apps.get_model("accounting", "StatementSubscription").objects.using(ALIAS).order_by("pk")
        assert list(left.values_list("rhythm", "form")) == [("weekly", "pdf"), ("monthly", "link")]
        assert apps.get_model("accounting", "StatementDelivery").objects.using(ALIAS).count() == 1


@pytest.mark.django_db(transaction=True)
def test_many_workers_send_one(settings) -> None:
    made = new_scene()
    User.objects.filter(username="alice").update(email="alice@example.org")
    subscription = subscribed(made, User.objects.get(username="alice"))
    assert at_once(*[lambda: send(subscription)] * 4) == [None] * 4
    assert (Mail.objects.count(), ReportDelivery.objects.count()) == (1, 1)
