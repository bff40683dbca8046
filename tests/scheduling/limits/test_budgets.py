"""Each threshold of a budget warns once, by mail and by a signed webhook. Webhooks cannot reach private networks."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer

import pytest
from django.db import DataError, IntegrityError, connection, transaction
from hypothesis import given
from hypothesis import strategies as st

from accounting import tasks as accounting_tasks
from accounting.actions import create_tenant, delete_tenant, remove_budget, set_budget
from accounting.actions.budgets import Outlook, warn_of_budget
from accounting.core.clock import now_from_database
from accounting.core.errors import Refused
from accounting.limits.forecast import forecast
from accounting.limits.periods import period_of
from accounting.limits.spending import UnbookedUsage
from accounting.models import (
    AuditEvent,
    Budget,
    BudgetChange,
    BudgetWarning,
    LedgerEntry,
    Mail,
    NotificationEvent,
    User,
    WebhookCall,
)
from accounting.notifications import safe_http, webhooks
from accounting.notifications.outbox import MOST_ATTEMPTS
from accounting.notifications.safe_http import NotReachable, post
from scheduling import tasks
from scheduling.leases.actions import bill_running
from scheduling.limits import budget_status as reading
from scheduling.limits.budget_status import outlooks
from scheduling.models import Lease
from tests import make
from tests.accounting.ledger.test_at_once import at_once
from tests.notified import mails
from tests.scheduling.world import World, start, world

PRIVATE = (
    "localhost", "127.0.0.1", "[::1]", "10.0.0.1", "169.254.169.254", "0.0.0.0", "[::ffff:7f00:1]",  # noqa: S104
    "[fd00::1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::1]",
)  # fmt: skip
URL = "https://hooks.example.org/x"


@pytest.fixture
def lab(db: None, settings) -> World:
    return told(settings)


def told(settings) -> World:
    """Returns a world in which Bob runs a job on four V100, at 1.20 per GPU-hour, and Alice has a mail address."""
    settings.EMAIL_HOST = "mail.example.org"
    lab = world(v100=4)
    User.objects.filter(username="alice").update(email="alice@example.org")
    start(lab, gpus=4)
    return lab


def spend(lab: World, money: str) -> None:
    """Backdates the lease of the running job so that it has cost `money` so far."""
    lease = lab.holding(Lease.State.RUNNING)[0]
    seconds = float(Decimal(money) / Decimal("4.8")) * 3600
    held = (now_from_database() - lease.held_from).total_seconds()
    lab.age(lease, seconds - held)


def budget(lab: World, amount: str = "100", **changes: object) -> Budget:
    usual = {"actor": None, "tenant": lab.people.uni, "amount": Decimal(amount), "period": "quarter",
             "by_forecast": False}  # fmt: skip
    return set_budget(**(usual | changes))


@pytest.fixture(autouse=True)
def _long_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes every budget period begin in 2020, and end so late that a quarter of it is over today.

    So tests can backdate leases within the period, and a forecast is four times the money spent.
    """
    from accounting.actions import budgets  # noqa: PLC0415 - models

    def period(kind: str, days: int | None, now: datetime) -> tuple[datetime, datetime]:
        begins = datetime(2020, 1, 1, tzinfo=UTC)
        return begins, begins + 4 * (now.replace(hour=0, minute=0, second=0, microsecond=0) - begins)

    monkeypatch.setattr(budgets, "period_of", period)


def test_managers_are_warned_once_at_each_percentage(lab: World) -> None:
    budget(lab, percentages=[100, 50, 80])
    spend(lab, "40")
    tasks.watch_budgets()
    assert not BudgetWarning.objects.exists()
    spend(lab, "85")
    for _ in range(2):
        tasks.watch_budgets()
    assert set(BudgetWarning.objects.values_list("threshold", flat=True)) == {"50", "80"}
    # Alice manages Astro but not Uni, whose budget it is
    assert list(mails().values_list("address", flat=True)) == []
    make.membership(lab.people.alice, lab.people.uni, role="manager")
    spend(lab, "101")
    tasks.watch_budgets()
    [the_mail] = mails().all()
    assert the_mail.subject == "[Fairlot] Budget of Uni: spending reached 100 % of the budget"
    assert the_mail.text.startswith("Uni has spent 101.0")


@pytest.mark.parametrize(
    ("spent", "said"),
    [
        ("85", "spending is forecast to exceed the budget"),
        ("101", "spending reached 100 % of the budget"),
        ("130", "spending reached 120 % of the budget"),
    ],
)
def test_of_several_thresholds_reached_at_once_the_one_that_says_most_is_announced(
    lab: World, spent: str, said: str
) -> None:
    budget(lab, percentages=[50, 80, 100, 120], by_forecast=True)
    spend(lab, spent)
    for _ in range(2):
        tasks.watch_budgets()
    assert BudgetWarning.objects.count() >= 3
    assert NotificationEvent.objects.get().title == f"Budget of Uni: {said}"


@pytest.mark.parametrize("by_forecast", [False, True])
def test_a_new_amount_warns_again_if_the_last_warning_is_below_its_threshold(
    lab: World, by_forecast: bool
) -> None:
    """A budget whose amount was raised warns a second time, unless the amount spent at the first warning already
    exceeded the new threshold.

    With `by_forecast`, the budget warns by the forecast, which is four times the money spent.
    """

    def told_of(amount: str, spent: str) -> int:
        budget(lab, amount, percentages=[999 if by_forecast else 20], by_forecast=by_forecast)
        spend(lab, spent)
        for _ in range(2):
            tasks.watch_budgets()
        return BudgetWarning.objects.count()

    assert told_of("100", "26") == 1
    for same in ("100.01", "103", "50"):
        assert told_of(same, "26") == 1
    for flip in ("200", "100", "200"):
        assert told_of(flip, "26") == 1
    assert told_of("200", "52") == 2
    assert told_of("100", "52") == 2
    assert set(BudgetWarning.objects.filter(lifted_at=None).values_list("amount", flat=True)) == {200}


def test_a_budget_that_falls_below_its_threshold_does_not_warn_again(lab: World) -> None:
    made = budget(lab, percentages=[80])
    begins = outlooks(pk=made.pk)[0].begins
    fields = {"begins": begins, "threshold": "80", "amount": 100, "spent": 90}
    BudgetWarning.objects.create(budget=made, **fields)
    budget(lab, "100.01", percentages=[80])
    tasks.watch_budgets()  # nothing is spent, as after a correction
    spend(lab, "90")
    tasks.watch_budgets()
    assert BudgetWarning.objects.get().lifted_at is None


def test_a_budget_that_is_removed_and_set_again_warns_once_and_sends_what_waits(
    lab: World, monkeypatch
) -> None:
    taken: list[str] = []
    monkeypatch.setattr(safe_http, "post", lambda url, *_: taken.append(url))
    made = budget(lab, tenant=lab.people.astro, percentages=[80], webhook_url=URL)
    stands = outlooks(pk=made.pk)[0]
    spend(lab, "90")
    tasks.watch_budgets()
    remove_budget(actor=None, budget=made)
    with pytest.raises(Refused, match="no longer exists"):
        remove_budget(actor=None, budget=made)
    assert (outlooks(tenant=lab.people.astro), warn_of_budget(stands=stands)) == ([], [])
    accounting_tasks.call_webhooks()
    assert taken == [URL]
    again = budget(lab, tenant=lab.people.astro, percentages=[80], webhook_url=URL)
    tasks.watch_budgets()
    assert (BudgetWarning.objects.count(), mails().count(), WebhookCall.objects.count()) == (1, 1, 1)
    assert again.signing_key() != made.signing_key()
    assert AuditEvent.objects.filter(verb="budget.set").first().before == {}


@pytest.mark.parametrize("url", ["", "https://another.example.org/hook"])
def test_a_call_that_waits_goes_where_it_was_to_go_and_is_signed_as_then(
    lab: World, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    taken: list[tuple[str, dict[str, str], bytes]] = []
    monkeypatch.setattr(safe_http, "post", lambda url, body, headers: taken.append((url, headers, body)))
    made = budget(lab, percentages=[80], webhook_url=URL)
    key = made.signing_key()
    spend(lab, "90")
    tasks.watch_budgets()
    remove_budget(actor=None, budget=made)
    budget(lab, percentages=[80], webhook_url=url)
    accounting_tasks.call_webhooks()
    [(called, headers, body)] = taken
    timestamp, signed = (part.partition("=")[2] for part in headers["X-Fairlot-Signature"].split(","))
    assert (called, signed) == (URL, webhooks.signature(key, int(timestamp), body.decode()))


def test_a_team_whose_budget_was_removed_can_be_deleted(lab: World) -> None:
    new = create_tenant(actor=None, name="Newby", parent=None)
    made = budget(lab, tenant=new, webhook_url=URL)
    BudgetWarning.objects.create(budget=made, begins=now_from_database(), threshold="80", amount=1, spent=1)
    WebhookCall.objects.create(budget=made, url=URL, nonce=made.nonce, body="{}")
    with pytest.raises(Refused, match="1 budget"):
        delete_tenant(actor=None, tenant=new)
    remove_budget(actor=None, budget=made)
    delete_tenant(actor=None, tenant=new)
    assert [kind.objects.count() for kind in (Budget, BudgetWarning, WebhookCall)] == [0, 0, 0]


@pytest.mark.parametrize("is_removed", [False, True])
def test_spending_before_the_first_look_is_warned_of(lab: World, is_removed: bool) -> None:
    """When the amount of a budget is raised, money that was spent before counts too.

    The budget has warned at 80 % of 100. After 850 were spent, its amount becomes 1000, and it warns at 80 % of 1000.
    If `is_removed`, the budget was removed before and is set again.
    """
    made = budget(lab, percentages=[80])
    spend(lab, "81")
    tasks.watch_budgets()
    if is_removed:
        remove_budget(actor=None, budget=made)
    spend(lab, "850")
    budget(lab, "1000", percentages=[80])
    for _ in range(2):
        tasks.watch_budgets()
    assert list(made.warnings.values_list("amount", flat=True)) == [1000, 100]


def test_a_removed_budget_does_not_warn(lab: World) -> None:
    remove_budget(actor=None, budget=budget(lab, percentages=[80]))
    spend(lab, "90")
    tasks.watch_budgets()
    assert not BudgetWarning.objects.exists()


def test_it_is_warned_of_by_forecast(lab: World) -> None:
    """A budget with warnings by forecast warns when the forecast exceeds its amount. A quarter of the period is over,
    so the forecast is four times the money spent."""
    made = budget(lab, percentages=[80], by_forecast=True, tenant=lab.people.astro)
    spend(lab, "20")
    tasks.watch_budgets()
    assert not BudgetWarning.objects.exists()
    spend(lab, "26")
    tasks.watch_budgets()
    warning = made.warnings.get()
    assert (warning.threshold, 100 < warning.forecast < 106) == ("forecast", True)
    assert "the team will have spent 10" in mails().get().text


class TestJustEnded:
    """Warnings about a budget period that ended ten minutes ago.

    In this period a lease cost 4.80 per hour for about two hours.
    """

    @pytest.fixture(autouse=True)
    def ends(self, lab: World, monkeypatch: pytest.MonkeyPatch) -> datetime:
        from accounting.actions import budgets  # noqa: PLC0415 - models

        lab.age(lab.holding(Lease.State.RUNNING)[0], 2 * 3600)
        ends = now_from_database().replace(microsecond=1000) - timedelta(minutes=10)

        def period(kind: str, days: int | None, now: datetime) -> tuple[datetime, datetime]:
            begins = ends if now >= ends else ends - timedelta(days=90)
            return begins, begins + timedelta(days=90)

        monkeypatch.setattr(budgets, "period_of", period)
        return ends

    def long_set(self, lab: World, amount: str, ends: datetime, **changes: object) -> Budget:
        made = budget(lab, amount, tenant=lab.people.astro, **changes)
        at = ends - timedelta(days=9)
        BudgetChange.objects.create(tenant_id=made.tenant_id, period=made.period, amount=amount, at=at)
        return made

    def test_spending_in_a_periods_last_minutes_is_warned_of_once(self, lab: World, ends: datetime) -> None:
        made = self.long_set(lab, "9.00", ends, percentages=[90, 120], webhook_url=URL)
        for _ in range(2):
            tasks.watch_budgets()
        warning = made.warnings.get()
        assert (warning.threshold, warning.begins) == ("90", ends - timedelta(days=90))
        assert float(warning.spent) == pytest.approx(8.8, rel=0.01)
        the_mail = mails().get()
        assert the_mail.subject == "[Fairlot] Budget of Astro: spending reached 90 % of the budget"
        assert "Budget period: " in the_mail.text
        assert json.loads(WebhookCall.objects.get().body)["ends"] == ends.isoformat()[:23] + "Z"

    def test_spending_warned_of_before_a_periods_end_is_not_warned_of_again(
        self, lab: World, ends: datetime
    ) -> None:
        made = self.long_set(lab, "9.00", ends, percentages=[90])
        begins = ends - timedelta(days=90)
        BudgetWarning.objects.create(
            budget=made, begins=begins, threshold="90", amount=9, spent=Decimal("8.5")
        )
        tasks.watch_budgets()
        assert made.warnings.count() == 1

    def test_a_budget_set_for_the_next_period_does_not_change_the_last_one(
        self, lab: World, ends: datetime
    ) -> None:
        made = self.long_set(lab, "9.00", ends, percentages=[90])
        budget(lab, "1000", tenant=lab.people.astro, percentages=[90])
        for _ in range(2):
            tasks.watch_budgets()
        assert [warning.amount for warning in made.warnings.all()] == [9]

    def test_that_it_did_not_last_is_said_of_one_that_warns_by_forecast(
        self, lab: World, ends: datetime
    ) -> None:
        made = self.long_set(lab, "8.00", ends, percentages=[999], by_forecast=True)
        tasks.watch_budgets()
        assert made.warnings.get().threshold == "forecast"
        assert mails().get().subject == "[Fairlot] Budget of Astro: spending exceeded the budget"
        assert " of 8.00 EUR. The budget period has ended." in mails().get().text

    def test_a_budget_created_after_a_period_does_not_warn_about_it(self, lab: World) -> None:
        budget(lab, "5", tenant=lab.people.astro)
        tasks.watch_budgets()
        assert not BudgetWarning.objects.exists()

    def test_a_lease_over_a_periods_end_counts_only_up_to_it(self, lab: World, monkeypatch) -> None:
        from accounting.actions import budgets  # noqa: PLC0415 - models

        monkeypatch.setattr(budgets, "period_of", period_of)
        made = self.long_set(lab, "9.00", datetime(2026, 3, 31, tzinfo=UTC))
        cast, since = lab.people, datetime(2026, 3, 31, 22, 30, tzinfo=UTC)
        held = [UnbookedUsage(cast.astro.pk, cast.bob.pk, cast.v100.pk, 4, since)]
        stood = budgets.outlook_back(made, now=datetime(2026, 4, 1, 0, 4, tzinfo=UTC), held=held)
        assert stood is not None
        assert (stood.begins, stood.ends) == period_of("quarter", None, since)
        assert (stood.spent, stood.amount, stood.reached) == (Decimal("7.20"), Decimal(9), ["80"])

    def test_periods_that_ended_over_a_day_ago_do_not_warn(
        self, lab: World, ends: datetime, monkeypatch
    ) -> None:
        from accounting.actions import budgets  # noqa: PLC0415 - models

        self.long_set(lab, "5.00", ends)
        monkeypatch.setattr(budgets, "LOOKED_BACK", timedelta(minutes=9))
        tasks.watch_budgets()
        assert not BudgetWarning.objects.exists()


def test_the_database_lets_no_warning_in_twice(lab: World) -> None:
    made = budget(lab)
    fields = {"budget": made, "begins": now_from_database(), "threshold": "80", "amount": 100, "spent": 90}
    BudgetWarning.objects.create(**fields)
    with pytest.raises(IntegrityError), transaction.atomic():
        BudgetWarning.objects.create(**fields)


@pytest.mark.django_db(transaction=True)
def test_workers_at_once_warn_once(settings) -> None:
    lab = told(settings)
    made = budget(lab, tenant=lab.people.astro, webhook_url=URL)
    spend(lab, "90")
    assert at_once(*[lambda: warn_of_budget(stands=outlooks(pk=made.pk)[0])] * 3) == [None] * 3
    assert (BudgetWarning.objects.count(), mails().count(), WebhookCall.objects.count()) == (1, 1, 1)


@pytest.mark.django_db(transaction=True)
def test_usage_booked_while_a_budget_is_read_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = world(v100=4)
    lab.age(lab.lease(start(lab, gpus=4)), 3 * 3600)
    budget(lab, tenant=lab.people.astro)
    [before] = outlooks()
    read = reading.unbooked

    def then_it_is_booked() -> list[UnbookedUsage]:
        held = read()
        assert at_once(lambda: bill_running(cluster_id=lab.cluster.pk)) == [None]
        return held

    monkeypatch.setattr(reading, "unbooked", then_it_is_booked)
    [stands] = outlooks()
    assert LedgerEntry.objects.exists()
    assert float(stands.spent) == pytest.approx(float(before.spent), rel=0.01)


@pytest.mark.parametrize("trouble", ["SELECT 1 / 0", ""])
def test_trouble_with_reading_one_budget_keeps_no_other_waiting(
    lab: World, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    """If a budget cannot be read, because of a database error or an error in Python code, other budgets still warn."""
    budget(lab, tenant=lab.people.astro, percentages=[80])
    budget(lab, percentages=[80])
    spend(lab, "90")
    read = reading.outlook

    def of_others(one: Budget, **asked: object) -> Outlook:
        if one.tenant == lab.people.astro:
            with connection.cursor() as cursor:
                cursor.execute(trouble or "SELECT 1")
            raise ArithmeticError
        return read(one, **asked)

    monkeypatch.setattr(reading, "outlook", of_others)
    with pytest.raises((DataError, ArithmeticError)):
        tasks.watch_budgets()
    assert BudgetWarning.objects.get().budget.tenant == lab.people.uni


@given(st.decimals(0, 10**6, places=2), st.integers(48, 24 * 31 - 1))
def test_a_forecast_is_the_rate_until_now_for_the_whole_period(spent: Decimal, hours: int) -> None:
    begins, ends = period_of("month", None, datetime(2026, 5, 9, tzinfo=UTC))
    said = forecast(spent, begins=begins, now=begins + timedelta(hours=hours), ends=ends)
    assert said is not None
    assert said >= spent
    assert abs(said - spent * 24 * 31 / hours) < Decimal("0.01")
    assert forecast(spent, begins=begins, now=begins + timedelta(hours=47), ends=ends) is None


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"amount": Decimal(0)}, "amount"),
        ({"period": "rolling"}, "period"),
        ({"percentages": []}, "percentages"),
        ({"percentages": [0]}, "percentages"),
        ({"webhook_url": "ftp://example.org"}, "webhook_url"),
        ({"webhook_url": "http://example.org"}, "webhook_url"),
        ({"webhook_url": "https://user:word@example.org"}, "webhook_url"),
    ],
)
def test_a_budget_that_makes_no_sense_is_refused(lab: World, wrong: dict, field: str) -> None:
    with pytest.raises(Refused) as refusal:
        budget(lab, **wrong)
    assert refusal.value.field == field


class Killed(BaseException):
    """Raised where the test kills a worker. As a BaseException it is not caught by `except Exception`."""


class TestWebhooks:
    @pytest.fixture
    def calls(self) -> Iterator[tuple[str, list[tuple[dict[str, str], bytes]], list[int]]]:
        """Runs a local web server, and yields (its URL, the requests that it has received, the HTTP statuses of its
        next responses).

        A request is (headers, body). Tests add to the list of statuses; while the list is empty, the server answers
        with 204.
        """
        seen: list[tuple[dict[str, str], bytes]] = []
        answers: list[int] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                seen.append((dict(self.headers), body))
                self.send_response(answers.pop(0) if answers else 204)
                self.send_header("Location", "/elsewhere")
                self.end_headers()

            def log_message(self, *args: object) -> None:
                """Discards the request log, which would clutter the test's output."""

        server = HTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://localhost:{server.server_port}/hook?a=1", seen, answers
        server.shutdown()
        thread.join()
        server.server_close()

    @pytest.fixture
    def drips(self) -> Iterator[Callable[[str], str]]:
        """Runs a local web server whose response comes byte by byte, so slowly that it would take longer than the
        client should wait.

        Yields a function that returns a URL of this server. Its argument is the part of the response that is slow:
        "status", "header" or "body".
        """
        enough = threading.Event()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                parts = {
                    "/status": b"HTTP/1.1 200 " + b"x" * 4000,
                    "/header": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 4000,
                }
                head = b"HTTP/1.1 200 OK\r\nContent-Length: 4000\r\n\r\n"
                if self.path == "/body":
                    self.wfile.write(head)
                with suppress(OSError):  # the client has closed the connection
                    for byte in parts.get(self.path, b"x" * 4000):
                        if enough.wait(0.01):
                            break
                        self.wfile.write(bytes([byte]))
                self.close_connection = True

            do_POST = do_GET  # noqa: N815 - as http.server wants it

            def log_message(self, *args: object) -> None:
                """Discards the request log, which would clutter the test's output."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield lambda part: f"http://localhost:{server.server_port}/{part}"
        enough.set()
        server.shutdown()
        thread.join()
        server.server_close()

    def test_a_call_is_signed_and_made_again_until_it_is_taken(self, lab: World, settings, calls) -> None:
        settings.FAIRLOT_WEBHOOKS_TO_PRIVATE = True
        url, seen, answers = calls
        answers.extend([500, 302])
        made = budget(lab, webhook_url=url, percentages=[80])
        spend(lab, "90")
        tasks.watch_budgets()
        for error in (
            "The server answered with HTTP status 500.",
            "The server answered with HTTP status 302, a redirect, which Fairlot does not follow.",
            "",
        ):
            accounting_tasks.call_webhooks()
            assert WebhookCall.objects.get().error == error
            accounting_tasks.call_webhooks()  # the next attempt is not due yet
            WebhookCall.objects.update(not_before=now_from_database())
        accounting_tasks.call_webhooks()
        assert len(seen) == 3
        assert len({headers["X-Fairlot-Delivery"] for headers, _ in seen}) == 1
        headers, body = seen[-1]
        timestamp, signed = (part.partition("=")[2] for part in headers["X-Fairlot-Signature"].split(","))
        assert signed == webhooks.signature(made.signing_key(), int(timestamp), body.decode())
        assert headers["Host"] == url.split("/")[2]
        told = json.loads(body)
        assert (told["event"], told["team"], told["threshold"]) == ("budget.warning", "uni", "80")

    @pytest.mark.parametrize("part", ["status", "header", "body"])
    def test_a_slow_webhook_answer_counts_towards_the_total_timeout(
        self, drips, monkeypatch, part: str
    ) -> None:
        monkeypatch.setattr(safe_http, "SECONDS", 0.3)
        with pytest.raises(NotReachable, match=r"did not answer within 0\.3 seconds"):
            safe_http.get(drips(part), to_private=True, most=10**6)

    def test_the_body_after_a_success_status_is_not_waited_for(self, drips, settings) -> None:
        settings.FAIRLOT_WEBHOOKS_TO_PRIVATE = True
        post(drips("body"), b"{}", {})

    def test_a_slow_name_lookup_counts_towards_the_total_timeout(self, monkeypatch) -> None:
        over = threading.Event()
        monkeypatch.setattr(safe_http, "SECONDS", 0.1)
        monkeypatch.setattr(safe_http.socket, "getaddrinfo", lambda *_, **__: over.wait(60) and [])
        with pytest.raises(NotReachable, match="did not answer"):
            post(URL, b"{}", {})
        over.set()

    def test_a_worker_that_dies_in_a_call_has_it_counted(self, lab: World, monkeypatch) -> None:
        made = budget(lab, webhook_url=URL)
        call = WebhookCall.objects.create(budget=made, url=URL, nonce=made.nonce, body="{}")
        counted: list[int] = []

        def die(*_: object) -> None:
            call.refresh_from_db()
            counted.append(call.attempts)
            raise Killed

        monkeypatch.setattr(safe_http, "post", die)
        for _ in range(MOST_ATTEMPTS):
            with pytest.raises(Killed):
                accounting_tasks.call_webhooks()
            accounting_tasks.call_webhooks()  # the next attempt is not due yet
            WebhookCall.objects.update(not_before=now_from_database())
        accounting_tasks.call_webhooks()
        assert counted == list(range(1, MOST_ATTEMPTS + 1))

    def test_new_calls_are_made_before_those_that_have_failed(self, lab: World, monkeypatch) -> None:
        made = budget(lab, webhook_url=URL)
        bodies: list[bytes] = []
        for body, attempts in (("old", 3), ("new", 0), ("older", 4)):
            WebhookCall.objects.create(budget=made, url=URL, nonce=made.nonce, body=body, attempts=attempts)
        monkeypatch.setattr(safe_http, "post", lambda url, body, headers: bodies.append(body))
        accounting_tasks.call_webhooks()
        assert bodies == [b"new", b"old", b"older"]

    @pytest.mark.django_db(transaction=True)
    def test_a_silent_webhook_delays_one_worker_and_not_all(
        self, settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = budget(told(settings), webhook_url=URL)
        for _ in range(2):
            WebhookCall.objects.create(budget=made, url=URL, nonce=made.nonce, body="{}")
        seen: list[object] = []

        def slow(*_: object) -> None:
            before = len(seen)
            seen.append(at_once(accounting_tasks.call_webhooks))
            assert len(seen) == before + 1  # the other worker has called no webhook

        monkeypatch.setattr(safe_http, "post", slow)
        accounting_tasks.call_webhooks()
        assert seen == [[None], [None]]

    def test_private_networks_are_not_called(self, settings, calls) -> None:
        url, seen, _ = calls
        port = url.split(":")[2].partition("/")[0]
        for host in PRIVATE:
            with pytest.raises(NotReachable, match=r"private network|never calls"):
                post(f"https://{host}:{port}/hook", b"{}", {})
        assert seen == []

    def test_a_name_with_one_private_address_is_not_called(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = [(2, 1, 6, "", (address, 443)) for address in ("93.184.216.34", "192.168.0.1")]
        monkeypatch.setattr(safe_http.socket, "getaddrinfo", lambda *_, **__: found)
        with pytest.raises(NotReachable, match="private network"):
            post(URL, b"{}", {})

    def test_outboxes_delete_old_messages(self, lab: World) -> None:
        made = budget(lab, webhook_url=URL)
        for age in (29, 31):
            at = now_from_database() - timedelta(days=age)
            WebhookCall.objects.create(budget=made, url=URL, nonce=made.nonce, body="{}", written_at=at)
            Mail.objects.create(address="alice@example.org", subject=str(age), text="", written_at=at)
        accounting_tasks.empty_outboxes()
        assert (mails().get().subject, WebhookCall.objects.count()) == ("29", 1)

    def test_a_webhook_that_never_succeeds_is_given_up(self, lab: World, monkeypatch) -> None:
        made = budget(lab, webhook_url=URL)
        call = WebhookCall.objects.create(budget=made, url=URL, nonce=made.nonce, body="{}")

        def refuse(*_: object) -> None:
            raise NotReachable("gone")

        monkeypatch.setattr(safe_http, "post", refuse)
        for _ in range(MOST_ATTEMPTS + 2):
            WebhookCall.objects.update(not_before=now_from_database())
            accounting_tasks.call_webhooks()
        call.refresh_from_db()
        assert (call.attempts, call.sent_at) == (MOST_ATTEMPTS, None)
