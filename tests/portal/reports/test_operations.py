"""The pages, files and API under Usage → Operations agree and are for operators only, and the chargeback adds up."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from html import unescape
from types import SimpleNamespace
from zoneinfo import ZoneInfo

import pytest
from django.db import transaction

from accounting.actions import take_back_usage
from accounting.core.calendar import HOUR, start_of_hour
from accounting.core.clock import now_from_database
from accounting.core.wording import duration
from accounting.ledger import Usage, book_usage
from accounting.models import ClosedBook, Price, UsageSegment
from accounting.reports.capacity import capacity_report
from accounting.reports.utilisation import use_by_hour
from portal.reports.formats import Kind, shown
from portal.reports.formats.document import told
from portal.reports.operations.pictures import draw_week
from portal.reports.operations.tables import SUBJECTS, ReportRequest
from portal.reports.periods import GIVEN, ReportPeriod
from portal.reports.unsettled import PROVISIONAL
from portal.templatetags.figures import gpu_hours
from scheduling.models import Cluster, HeldGpu, Node
from tests.accounting.booking import book as book_usage_of
from tests.accounting.booking import close_hours
from tests.clock import set_clock
from tests.make import LONG_AGO
from tests.portal.reading import sheets, text_of
from tests.portal.reports.test_report_files import assert_in_csv, assert_in_pdf, assert_in_sheets
from tests.portal.scene import Scene
from tests.query_counts import queries_of

# The period is long, because a past hour may be in last month on the day when the test runs.
LATE = datetime(2200, 1, 1, tzinfo=UTC)
WIDE = "period=dates&from=2020-01-01&to=2199-12-31"


@pytest.fixture
def closed(scene: Scene) -> Scene:
    hour = start_of_hour(now_from_database())
    close_hours(scene.people, hour - 6 * HOUR, hour + HOUR, book=scene.world.cluster.pk)
    return scene


@pytest.mark.parametrize("subject", SUBJECTS)
def test_page_files_and_api_tell_the_same(
    closed: Scene, browser_of, subject: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = now_from_database()
    set_clock(monkeypatch, now)  # all requests get the same time
    browser = browser_of(closed.people.olga)
    response = browser.get(f"/usage/operations/{subject}/?{WIDE}")
    html = unescape(response.content.decode())
    document = response.context["document"]
    of_json = browser.get(f"/api/v1/operations/{subject}?{WIDE}").json()["tables"]
    of_xlsx, of_pdf, of_csv = (
        browser.get(f"/usage/operations/{subject}.{form}?{WIDE}").content for form in ("xlsx", "pdf", "csv")
    )
    assert list(of_json) == [table.key for table in document.tables]
    assert_in_sheets(document, sheets(of_xlsx))
    assert_in_pdf(document, text_of(of_pdf))
    alone = document.tables[0].key if len(document.tables) == 1 else None
    assert_in_csv(document, list(csv.reader(io.StringIO(of_csv.decode()))), alone)
    for table in document.tables:
        keys = [column.key for column in table.columns]
        assert of_json[table.key]["rows"] == [
            dict(zip(keys, map(told, row), strict=True)) for row in table.rows
        ]
        for row in table.rows:
            for column, cell in zip(table.columns, row, strict=True):
                text = shown(column, cell, document.zone)
                if column.kind == Kind.GPU_TIME:
                    text = gpu_hours(cell)
                elif column.heading.endswith(", s") and cell is not None:
                    text = duration(cell)
                assert cell is None or f">{text}<" in html
    assert any(table.rows for table in document.tables)


def test_the_picture_of_nodes_has_its_numbers_in_a_table(closed: Scene, browser_of) -> None:
    """The page's table has a row for each GPU of the 25 nodes in the chart; the API has the GPUs of all nodes."""
    people, cluster = closed.people, closed.world.cluster
    for number in range(30):
        Node.objects.create(cluster=cluster, name=f"more-{number:02}", generation=people.v100, gpus=2)
    browser = browser_of(people.olga)
    page = browser.get(f"/usage/operations/nodes/?{WIDE}")
    [table] = [one for one in page.context["document"].tables if one.key == "gpus"]
    pictured = [(node.node, cell.title) for node, cells, _ in page.context["nodes"] for cell in cells]
    as_told = [(row[1], f"GPU {row[2]}: held {row[-1] * 100:.0f}\xa0% of the time") for row in table.rows]
    assert as_told == pictured
    assert len({row[1] for row in table.rows}) == 25
    told = browser.get(f"/api/v1/operations/nodes?{WIDE}").json()["tables"]
    rows = told["gpus"]["rows"]
    assert len(rows) == 4 + 4 + 30 * 2
    held = HeldGpu.objects.exclude(during=None).values_list("node__name", "gpu_index")
    told_held = {(row["node"], int(row["gpu_index"])) for row in rows if row["held_gpu_seconds"]}
    assert told_held == set(held) != set()
    for row in rows:
        assert row["held_part"] == row["held_gpu_seconds"] / row["known_gpu_seconds"]
    # The period begins years before these nodes were created. That time must not count as free GPUs.
    there = {row["node"]: row["seconds_up"] + row["seconds_down"] for row in told["nodes"]["rows"]}
    for row in rows:
        if row["node"].startswith("more-"):
            assert there[row["node"]] < 600
            assert row["known_gpu_seconds"] == pytest.approx(there[row["node"]], abs=60)


def test_an_hour_that_another_cluster_has_not_closed_is_not_shown_yet(closed: Scene) -> None:
    hour, people = start_of_hour(now_from_database()) - 4 * HOUR, closed.people
    second = Cluster.objects.create(name="second")
    close_hours(people, hour - 3 * HOUR, hour, book=second.pk)
    day = timedelta(days=1)
    period = ReportPeriod(GIVEN, (hour - day).date(), (hour + day).date(), ZoneInfo("UTC"), {})

    def told(cluster: Cluster | None = None) -> set[datetime]:
        asked = ReportRequest(period, cluster)
        assert sum(one.capacity for one in asked.week.values()) == sum(
            one.capacity for one in use_by_hour(*asked.closed, book=asked.book).values()
        )
        return {one.begins for one in asked.demand if one.usable is not None}

    both = told()
    assert hour - HOUR in both
    assert hour not in both
    assert hour in told(closed.world.cluster)
    Cluster.objects.filter(pk=second.pk).update(detached_at=hour)
    assert hour in told()


def facts_of_the_chargeback(scene: Scene, browser_of, query: str) -> dict[str, str]:
    page = browser_of(scene.people.olga).get(f"/usage/operations/chargeback/?{query}")
    return dict(page.context["document"].facts)


def test_an_unsettled_cluster_keeps_no_other_clusters_chargeback_provisional(
    closed: Scene, browser_of
) -> None:
    """A cluster's chargeback is final although another cluster is not settled yet.

    A detached cluster, or one whose GPUs no job held, does not make the chargeback provisional either.
    """
    book = closed.world.cluster.pk
    ClosedBook.objects.filter(book=book).update(until=LATE, priced_until=LATE)
    held = {"book": book + 1, "lease_id": 9600, "begins": LATE - HOUR, "ends": LATE}
    wrong = book_usage_of(closed.people, **held)
    ClosedBook.objects.create(book=book + 1, since=LATE - HOUR, until=LATE, priced_until=LATE - HOUR)
    other = Cluster.objects.create(pk=book + 1, name="other", backend="local")
    Price.objects.update(preemptible=1)
    past = "period=dates&from=2026-01-01&to=2199-12-31"
    facts = facts_of_the_chargeback(closed, browser_of, past)
    assert (facts["State"], "other from" in facts["Costs not final yet"]) == (PROVISIONAL, True)
    own = facts_of_the_chargeback(closed, browser_of, f"{past}&cluster={closed.world.cluster.name}")
    assert "State" not in own
    take_back_usage(actor=closed.people.ada, segments=wrong, reason="a test")
    assert "State" not in facts_of_the_chargeback(closed, browser_of, past)
    other.delete()
    ClosedBook.objects.filter(book=book + 1).delete()
    Cluster.objects.update(detached_at=now_from_database())
    assert facts_of_the_chargeback(closed, browser_of, past) == {
        name: text for name, text in own.items() if name != "Cluster"
    }


@pytest.mark.parametrize("subject", SUBJECTS)
def test_for_all_other_users_the_page_does_not_exist(closed: Scene, browser_of, subject: str) -> None:
    for reader in (closed.people.alice, closed.people.bob, closed.people.charlie):
        browser = browser_of(reader)
        for address in (
            f"/usage/operations/{subject}/",
            f"/usage/operations/{subject}.csv",
            f"/api/v1/operations/{subject}",
        ):
            assert browser.get(address).status_code == 404
        assert "/usage/operations/" not in browser.get("/usage/").content.decode()
    assert browser_of(closed.people.olga).get("/usage/operations/rubbish/").status_code == 404


def test_the_chargeback_is_the_capacity_identitys_tenants_line_to_the_last_digit(
    closed: Scene, browser_of
) -> None:
    now = now_from_database()
    browser = browser_of(closed.people.ada)
    for corrected in (False, True):
        if corrected:
            wrong = UsageSegment.objects.filter(lease_id=9001).select_related("generation")
            take_back_usage(actor=closed.people.ada, segments=list(wrong[:1]), reason="a test")
        rows = list(
            csv.DictReader(io.StringIO(browser.get(f"/usage/chargeback.csv?{WIDE}").content.decode()))
        )
        (identity,) = capacity_report(LONG_AGO, now + HOUR).identities
        by_team: dict[str, Decimal] = {}
        for row in rows:
            by_team[row["team"]] = by_team.get(row["team"], Decimal(0)) + Decimal(row["cost"])
            parts = [Decimal(row[f"{name}_gpu_seconds"]) for name in ("busy", "idle", "assembling")]
            assert sum(parts) == Decimal(row["gpu_seconds"])
        assert {team: cost for team, cost in by_team.items() if cost} == {
            one.tenant: one.cost for one in identity.tenants
        }
        assert sum(Decimal(row["corrections"]) for row in rows) == -identity.written_off
        assert (identity.written_off > 0) is corrected
    assert {row["path"] for row in rows} == {"Uni / Astro", "Uni / Bio"}
    told = browser.get(f"/api/v1/chargeback?{WIDE}").json()["tables"]["chargeback"]["rows"]
    assert told == [dict(row.items()) for row in rows]


def test_the_chargeback_comes_as_a_workbook(closed: Scene, browser_of) -> None:
    response = browser_of(closed.people.ada).get(f"/usage/chargeback.xlsx?{WIDE}")
    assert response.content[:2] == b"PK"


def test_pages_take_few_queries(closed: Scene, browser_of) -> None:
    browser = browser_of(closed.people.olga)
    browser.get("/usage/operations/")
    for subject in ("use", "nodes", "waits", "waste", "prices", "chargeback"):
        with queries_of(f"the operations report {subject}"):
            browser.get(f"/usage/operations/{subject}/?{WIDE}")


def test_files_have_all_rows_and_pages_say_how_many_more_there_are(
    scene: Scene, browser_of, monkeypatch: pytest.MonkeyPatch
) -> None:
    olga = browser_of(scene.people.olga)
    monkeypatch.setattr("portal.reports.operations.tables.MOST_EVENTS", 1)
    told = olga.get(f"/api/v1/operations/nodes?{WIDE}").json()["tables"]["changes"]["rows"]
    assert len(told) > 1
    page = olga.get(f"/usage/operations/nodes/?{WIDE}").content.decode()
    assert f"This table shows 1 of {len(told)} rows. The CSV, XLSX and JSON files contain all rows." in page
    for number, job in enumerate((scene.job, scene.other)):
        begins = now_from_database() - timedelta(minutes=10)
        with transaction.atomic():
            book_usage(
                [Usage(
                    book=scene.world.cluster.pk, lease_id=9700 + number, job_id=job.pk, job_name=job.name,
                    tenant=job.tenant, user=job.owner, generation=scene.people.v100, gpus=1, begins=begins,
                    ends=begins + timedelta(minutes=5), running_from=begins,
                    unused=[(begins, begins + timedelta(minutes=2))],
                )]
            )  # fmt: skip
    for module in ("tables", "views"):
        monkeypatch.setattr(f"portal.reports.operations.{module}.TOP", 1)
    tables = olga.get(f"/api/v1/operations/waste?{WIDE}").json()["tables"]
    page = olga.get(f"/usage/operations/waste/?{WIDE}").content.decode()
    for name in ("waste_users", "waste_teams", "waste_jobs"):
        assert len(tables[name]["rows"]) >= 2
        assert (
            f"This table shows 1 of {len(tables[name]['rows'])} rows. The CSV, XLSX and JSON files contain all rows."
            in page
        )


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ([], "No hour has been closed yet"),
        ([0.5], "The only hour: Monday 00:00: 50 % of GPUs held, 50 % busy"),
        ([0.5, 0.5], "The same use in each hour: Monday 00:00: 50 % of GPUs held, 50 % busy"),
        (
            [0.25, 0.5],
            "Highest use: Monday 01:00: 50 % of GPUs held, 50 % busy. "
            "Lowest use: Monday 00:00: 25 % of GPUs held, 25 % busy",
        ),
    ],
)
def test_the_summary_of_the_week_names_each_hour_once(parts: list[float], said: str) -> None:
    week = {(1, hour): SimpleNamespace(part_held=part, part_busy=part) for hour, part in enumerate(parts)}
    assert draw_week(week).summary.replace("\N{NO-BREAK SPACE}", " ") == said
