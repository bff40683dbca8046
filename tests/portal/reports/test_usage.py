"""The file of the usage report agrees with the page, and unbooked usage is shown separately."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from django.db import transaction
from django.http import QueryDict

from accounting.access.visibility import tenants_seen
from accounting.core.clock import now_from_database
from accounting.ledger import Usage, book_usage
from portal.reports import usage
from portal.reports.periods import read_report_period
from portal.reports.unbooked import unbooked
from portal.reports.unsettled import PROVISIONAL
from portal.templatetags.fairlot import money
from portal.templatetags.figures import gpu_hours
from scheduling.models import Lease
from tests.accounting.ledger.test_at_once import at_once
from tests.portal.scene import Scene, book
from tests.portal.scene import scene as new_scene

# The period is long, because a past day may be in last month on the day when the test runs.
WIDE = "period=dates&from=2020-01-01&to=2199-12-31"


def rows_of(browser, query: str) -> list[dict[str, str]]:
    response = browser.get(f"/usage.csv?{query}")
    assert response["Content-Type"].startswith("text/csv")
    assert "attachment" in response["Content-Disposition"]
    return list(csv.DictReader(io.StringIO(response.content.decode())))


@pytest.mark.parametrize("by", ["user", "job", "generation", "day", "tenant"])
def test_the_file_says_the_same_as_the_page(scene: Scene, browser_of, by: str) -> None:
    browser = browser_of(scene.people.ada)
    rows = rows_of(browser, f"{WIDE}&by={by}")
    html = browser.get(f"/usage/?{WIDE}&by={by}").content.decode()
    assert rows
    for row in rows:
        assert f">{gpu_hours(Decimal(row['gpu_seconds']))}</td>" in html
        assert f">{money(Decimal(row['cost']), row['currency'])}</td>" in html
    seconds, cost = (sum(Decimal(row[name]) for row in rows) for name in ("gpu_seconds", "cost"))
    assert seconds == 4 * 2700 + 2 * 1800 + 4 * 900
    assert cost == Decimal("9.00") + Decimal("1.20") + Decimal("1.20")
    foot = html.partition("<tfoot>")[2]
    assert gpu_hours(seconds) in foot
    assert money(cost, "EUR") in foot
    api = browser.get(f"/api/v1/usage?{WIDE}&by={by}").json()
    assert sum(Decimal(row["cost"]) for row in api["rows"]) == cost
    assert (
        browser.get(f"/api/v1/usage?{WIDE}&by={by}&format=csv").content.decode().count("\n") == len(rows) + 1
    )


def test_users_see_only_their_own_teams(scene: Scene, browser_of) -> None:
    assert [row["user"] for row in rows_of(browser_of(scene.people.charlie), WIDE)] == ["charlie"]
    assert {row["user"] for row in rows_of(browser_of(scene.people.bob), WIDE)} == {"alice", "bob"}


def test_a_team_narrows_the_report(scene: Scene, browser_of) -> None:
    rows = rows_of(browser_of(scene.people.ada), f"{WIDE}&team=bio")
    assert [row["user"] for row in rows] == ["charlie"]


def test_held_but_unbooked_usage_is_shown_separately(scene: Scene, browser_of) -> None:
    scene.world.age(scene.world.lease(scene.job), 600)
    now = now_from_database()
    bounds = (now - timedelta(hours=1), now + timedelta(hours=1))
    held = unbooked(tenants_seen(scene.people.bob), *bounds)
    assert held.jobs == 1
    assert held.gpu_seconds == pytest.approx(4 * 600, rel=0.1)
    assert unbooked(tenants_seen(scene.people.charlie), *bounds).jobs == 1  # Charlie's own job
    assert (
        unbooked(tenants_seen(scene.people.bob), now - timedelta(hours=9), now - timedelta(hours=8)).jobs == 0
    )
    html = browser_of(scene.people.bob).get("/usage/").content.decode()
    assert "held by 1 job" in html


@pytest.mark.django_db(transaction=True)
def test_usage_booked_while_the_page_is_read_is_in_exactly_one_figure(
    browser_of, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Usage counts once, as booked or as not booked yet, although it is booked between the page's two reads.

    Ten minutes of Bob's job are booked after the page has read the ledger and before it reads the leases.
    """
    made = new_scene()
    lease = made.world.age(made.world.lease(made.job), 600)
    bob = browser_of(made.people.bob)
    read = usage.unbooked

    def book_it() -> None:
        book(made.job, made.people.bob, made.people.v100, gpus=4, minutes=10, lease=lease.pk)
        Lease.objects.filter(pk=lease.pk).update(billed_until=now_from_database())

    def book_first(*asked: object) -> object:
        assert at_once(book_it) == [None]
        return read(*asked)

    def figures() -> tuple[Decimal, float]:
        shown = bob.get("/usage/").context
        return sum(total.gpu_seconds for total in shown["totals"]), shown["unbooked"].gpu_seconds

    monkeypatch.setattr(usage, "unbooked", book_first)
    booked, unbooked = figures()
    monkeypatch.undo()
    assert unbooked == pytest.approx(2400, rel=0.1)
    assert figures()[0] == booked + 2400
    assert figures()[1] == pytest.approx(0, abs=240)


def period(query: str, now: datetime, zone: str = "UTC"):
    return read_report_period(QueryDict(query), now=now, zone=ZoneInfo(zone))


def test_months_are_those_of_the_readers_clock() -> None:
    newyear = datetime(2026, 12, 31, 23, 30, tzinfo=UTC)
    assert period("", newyear).begins == datetime(2026, 12, 1, tzinfo=UTC)
    tokyo = period("period=last-month", newyear, "Asia/Tokyo")  # in Tokyo it is January already
    assert (str(tokyo.first), str(tokyo.last)) == ("2026-12-01", "2026-12-31")
    assert tokyo.ends == datetime(2026, 12, 31, 15, tzinfo=UTC)


@pytest.mark.parametrize(
    ("query", "field"),
    [("from=soon", "from"), ("to=2026-02-30", "to"), ("from=2026-05-02&to=2026-05-01", "to"),
     ("from=0001-01-01", "from"), ("to=9999-12-31", "to")],
)  # fmt: skip
def test_wrong_dates_are_named(scene: Scene, browser_of, query: str, field: str) -> None:
    html = browser_of(scene.people.bob).get(f"/usage/?period=dates&{query}").content.decode()
    assert f'id="{field}-problem"' in html


FILES = [
    "usage", "usage/statement", "usage/fairness", "usage/idle", "trades", "usage/capacity", "usage/operations/use",
    "usage/chargeback",
]  # fmt: skip
APIS = [
    "usage", "statement", "fairness", "idle/teams", "trades", "trades/booked", "capacity", "operations/waits",
    "chargeback", "exports/jobs.csv",
]  # fmt: skip
WRONG = [
    ("period=dates&from=soon", "from"),
    ("period=dates&to=2026-02-30", "to"),
    ("from=2026-05-02&to=2026-05-01", "to"),
    ("from=0001-01-01", "from"),
    ("period=last-week", "period"),
    ("zone=Mars/Olympus", "zone"),
    ("zone=../../etc/passwd&period=dates", "zone"),
    # The time zone of the machine; neither the database nor the reader knows which one it is.
    ("zone=localtime", "zone"),
]


@pytest.mark.parametrize("api", APIS)
def test_the_api_refuses_what_is_no_period_and_names_it(scene: Scene, browser_of, api: str) -> None:
    olga = browser_of(scene.people.olga)
    for query, field in WRONG:
        for form in ("", "&format=csv"):
            answer = olga.get(f"/api/v1/{api}?{query}{form}")
            assert (answer.status_code, answer["Content-Type"]) == (422, "application/problem+json"), query
            assert list(answer.json()["problems"]) == [field]


@pytest.mark.parametrize("file", FILES)
def test_a_file_of_what_is_no_period_is_a_bad_request(scene: Scene, browser_of, file: str) -> None:
    olga = browser_of(scene.people.olga)
    for query, _ in WRONG:
        for form in ("csv", "json", "xlsx", "pdf"):
            answer = olga.get(f"/{file}.{form}?{query}")
            assert answer.status_code == 400, query
    assert "is not a time zone" in olga.get(f"/{file}.csv?zone=Mars").content.decode()
    assert olga.get(f"/{file}.csv?period=last-month").status_code == 200


def test_files_are_grouped_by_what_there_is_only(scene: Scene, browser_of) -> None:
    bob = browser_of(scene.people.bob)
    assert bob.get("/usage.csv?by=hour").status_code == 400
    assert bob.get("/api/v1/usage?by=hour").status_code == 422
    assert bob.get("/usage/?by=hour").status_code == 200


def test_days_of_the_api_are_those_of_the_zone(scene: Scene, browser_of) -> None:
    """The API's days are those of the requested time zone: 22:00 in UTC is already the next day in Tokyo."""
    people, begins = scene.people, datetime(2026, 5, 4, 22, tzinfo=UTC)
    with transaction.atomic():
        book_usage(
            [Usage(
                book=scene.world.cluster.pk, lease_id=9100, job_id=scene.job.pk, job_name="supernova",
                tenant=people.astro, user=people.bob, generation=people.a100, gpus=1, begins=begins,
                ends=begins + timedelta(hours=1), running_from=begins,
            )]
        )  # fmt: skip
    bob = browser_of(people.bob)

    def told(query: str) -> list[str]:
        rows = bob.get(f"/api/v1/usage?by=day&{query}").json()["rows"]
        return [row["begins"][:10] for row in rows]

    assert told("from=2026-05-04&to=2026-05-04") == ["2026-05-04"]
    assert told("from=2026-05-05&to=2026-05-05") == []
    assert told("from=2026-05-04&to=2026-05-04&zone=Asia/Tokyo") == []
    [row] = bob.get("/api/v1/usage?by=day&from=2026-05-05&to=2026-05-05&zone=Asia/Tokyo").json()["rows"]
    assert datetime.fromisoformat(row["begins"]) == datetime(2026, 5, 4, 15, tzinfo=UTC)
    statement = bob.get("/api/v1/statement?team=astro&from=2026-05-05&to=2026-05-05&zone=Asia/Tokyo").json()
    assert [day["day"] for day in statement["tables"]["days"]["rows"]] == ["2026-05-05"]
    assert statement["begins"] == "2026-05-05T00:00:00+09:00"


def test_days_without_a_period_are_the_days_that_were_asked_for() -> None:
    asked = period("from=2026-05-02&to=2026-05-03", datetime(2026, 6, 1, tzinfo=UTC))
    assert (str(asked.first), str(asked.last)) == ("2026-05-02", "2026-05-03")
    of_month = period("period=this-month&from=2026-05-02&to=2026-05-03", datetime(2026, 6, 1, tzinfo=UTC))
    assert (str(of_month.first), str(of_month.last)) == ("2026-06-01", "2026-06-01")


def test_a_file_tells_what_is_not_booked_yet(scene: Scene, browser_of) -> None:
    browser = browser_of(scene.people.alice)
    told = browser.get("/usage.json?by=user").json()
    facts = {fact["label"]: fact["text"] for fact in told["facts"]}
    assert facts["State"] == PROVISIONAL
    assert "are not in these figures. All usage until" in facts["Usage not booked yet"]
    statement = browser.get("/usage/statement.json?team=astro").json()
    assert {"State", "Usage not booked yet"} <= {fact["label"] for fact in statement["facts"]}
    long_ago = "period=dates&from=2020-01-01&to=2020-01-31"
    old = browser.get(f"/usage.json?by=user&{long_ago}").json()
    assert not {"State", "Usage not booked yet"} & {fact["label"] for fact in old["facts"]}


def test_the_api_tells_as_much_as_the_file_of_what_is_not_booked_yet(scene: Scene, browser_of) -> None:
    browser = browser_of(scene.people.alice)

    def facts(url: str) -> dict[str, str]:
        return {fact["label"]: fact["text"] for fact in browser.get(url).json()["facts"]}

    told = facts("/api/v1/usage?by=user&team=astro")
    assert (told["Teams"], told["State"]) == ("Astro", PROVISIONAL)
    assert "are not in these figures. All usage until" in told["Usage not booked yet"]
    for query in ("by=user&team=astro", "by=label&label=project", "by=day"):
        of_file = facts(f"/usage.json?{query}&zone=UTC")
        assert facts(f"/api/v1/usage?{query}").keys() == of_file.keys()
    long_ago = "period=dates&from=2020-01-01&to=2020-01-31"
    assert not {"State", "Usage not booked yet"} & facts(f"/api/v1/usage?{long_ago}").keys()


def test_a_report_of_capacity_says_that_hours_are_left(scene: Scene, browser_of) -> None:
    browser = browser_of(scene.people.olga)
    facts = {fact["label"]: fact["text"] for fact in browser.get("/usage/capacity.json").json()["facts"]}
    assert facts["State"] == PROVISIONAL
    assert {"label": "State", "text": PROVISIONAL} in browser.get("/api/v1/capacity").json()["facts"]
    assert PROVISIONAL in browser.get("/usage/capacity/").content.decode()


def test_each_row_leads_to_what_is_behind_it(scene: Scene, browser_of) -> None:
    olga = browser_of(scene.people.olga)
    pages = {
        "tenant": "/usage/?", "day": "/usage/?", "user": "/jobs/?", "generation": "/jobs/?", "job": "/jobs/",
    }  # fmt: skip
    for by, leads in pages.items():
        shown = olga.get(f"/usage/?{WIDE}&by={by}")
        rows = shown.context["rows"]
        assert rows
        for name, row, address in rows:
            assert address.startswith(leads), (by, name)
            behind = olga.get(address)
            assert behind.status_code == 200
            if leads == "/usage/?":
                [total] = behind.context["totals"]
                assert total.gpu_seconds == row.gpu_seconds, (by, name)
            elif by == "user":
                assert f"owner={row.user}" in address
                assert {job.owner for job in behind.context["page"]} <= {row.user}
    without_jobs = browser_of(scene.people.charlie).get(f"/usage/?{WIDE}&by=label").context["rows"]
    assert all(address == "" for _, _, address in without_jobs)
