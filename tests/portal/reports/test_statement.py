"""A team's statement has the same figures in every format, and these are the figures of the ledger."""

from __future__ import annotations

import csv
import io
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import connection
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange
from django.db.models import F
from django.test import Client
from django.test.utils import CaptureQueriesContext

from accounting import actions
from accounting.closing.class_prices import TimeByClass
from accounting.core.numbers import MICRO
from accounting.limits.spending import UnbookedUsage
from accounting.models import Budget, BudgetChange, ClosedBook, Generation, Price, UsageSegment, User
from accounting.reports.usage import UsageRow, usage_report
from portal.reports.formats.document import Kind, in_unit, shown
from portal.reports.periods import GIVEN, ReportPeriod
from portal.reports.statement import figures
from portal.reports.statement.chart import draw_days
from portal.reports.statement.figures import period_name, statement_of
from portal.reports.statement.tables import document_of
from portal.reports.unsettled import PROVISIONAL
from scheduling.models import Cluster
from tests.accounting.booking import book as book_usage_of
from tests.accounting.booking import close_hours, settle_hours
from tests.accounting.ledger.test_at_once import at_once
from tests.clock import set_clock
from tests.make import LONG_AGO
from tests.portal.administration.test_budgets import shown as page_text
from tests.portal.reading import sheets, tables_on, text_of
from tests.portal.scene import SECRETS, Scene, book
from tests.portal.scene import scene as new_scene
from tests.query_counts import check

# The scene books usage in the last hours.
FIRST, LAST = (str(date.today() + timedelta(days=days)) for days in (-30, 2))
WIDE = f"period=dates&from={FIRST}&to={LAST}"
ASTRO = f"team=astro&{WIDE}"


@pytest.fixture
def rich(scene: Scene) -> Scene:
    """Returns the scene with labels, a budget, a correction, and a name that a spreadsheet would run as a formula."""
    cast = scene.people
    job = scene.world.submit(
        cast.bob, cast.astro, name="=HYPERLINK(1)", labels={"project": "apollo", "bare": ""}
    )
    book(job, cast.bob, cast.v100, gpus=3, minutes=20, lease=9201)
    book(job, cast.bob, cast.a100, gpus=1, minutes=10, lease=9202)
    wrong = UsageSegment.objects.filter(lease_id=9202).select_related("generation")
    actions.take_back_usage(actor=cast.ada, segments=list(wrong), reason="a broken node")
    actions.set_budget(actor=cast.ada, tenant=cast.astro, amount=Decimal(500), percentages=[80])
    return scene


def period(first: str = FIRST, last: str = LAST, zone: str = "UTC") -> ReportPeriod:
    return ReportPeriod(GIVEN, date.fromisoformat(first), date.fromisoformat(last), ZoneInfo(zone), {})


def tables_of_csv(text: str) -> dict[str, list[dict[str, str]]]:
    """Returns {table key: rows} of a CSV file. The totals are the last row of a table."""
    found: dict[str, list[dict[str, str]]] = {}
    for block in text.replace("\r\n", "\n").split("\n\n"):
        key, rest = block.split("\n", 1)
        found[key] = list(csv.DictReader(io.StringIO(rest)))
    return found


def test_every_format_says_the_same_figures(rich: Scene, browser_of) -> None:
    alice = browser_of(rich.people.alice)
    told = alice.get(f"/api/v1/statement?{ASTRO}").json()
    in_csv = tables_of_csv(alice.get(f"/usage/statement.csv?{ASTRO}").content.decode())
    in_xlsx = sheets(alice.get(f"/usage/statement.xlsx?{ASTRO}").content)
    in_pdf = text_of(alice.get(f"/usage/statement.pdf?{ASTRO}").content)
    on_page = page_text(alice.get(f"/usage/statement/?{ASTRO}"))
    document = document_of(statement_of(rich.people.alice, rich.people.astro, period()))
    assert set(told["tables"]) == set(in_csv) == {table.key for table in document.tables}
    assert set(in_xlsx) == {table.title for table in document.tables} | {"Summary"}
    compared = 0
    for table in document.tables:
        rows = [*table.rows, *table.totals]
        of_json = [*told["tables"][table.key]["rows"], *told["tables"][table.key]["totals"]]
        for at, row in enumerate(rows):
            cells = [cell for cell in in_xlsx[table.title][at + 1] if cell != ("n", "")]
            known = [pair for pair in zip(table.columns, row, strict=True) if pair[1] is not None]
            for (column, cell), (_, text) in zip(known, cells, strict=True):
                if column.kind not in {Kind.NUMBER, Kind.MONEY, Kind.GPU_TIME, Kind.MINUTES}:
                    continue
                if isinstance(cell, str):
                    continue
                # These figures grow between two requests, with the cost of running jobs.
                moving = table.key in {"budgets", "forecast"}
                if not moving:
                    assert Decimal(str(of_json[at][column.key])) == Decimal(str(cell))
                    assert Decimal(in_csv[table.key][at][column.key]) == Decimal(str(cell))
                    assert float(text) == pytest.approx(float(in_unit(column, cell)), rel=1e-12)
                    assert shown(column, cell) in in_pdf
                    assert shown(column, cell).replace("\N{NO-BREAK SPACE}", " ") in on_page
                compared += 1
    assert compared > 60


def test_the_page_has_each_table_as_the_files_have_it_cell_by_cell(rich: Scene, browser_of) -> None:
    response = browser_of(rich.people.alice).get(f"/usage/statement/?{ASTRO}")
    document, on_page = response.context["document"], tables_on(response.content.decode())
    assert {
        "lines",
        "corrections",
        "held",
        "budgets",
        "users",
        "jobs",
        "labels",
        "days",
        "shares",
        "waste",
    } <= {table.key for table in document.tables}
    for table in document.tables:
        rows = [*table.rows, *table.totals]
        if not table.rows:
            assert table.title not in on_page
            continue
        head, *lines = on_page[table.title]
        assert head == [column.heading for column in table.columns]
        for row, line in zip(rows, lines, strict=True):
            texts = [shown(*pair, document.zone) for pair in zip(table.columns, row, strict=True)]
            texts[0] = texts[0] or "Total"
            assert line == [" ".join(text.split()) for text in texts]


def test_heads_have_units_and_the_currency_in_every_format(rich: Scene, browser_of) -> None:
    alice = browser_of(rich.people.alice)
    in_xlsx = sheets(alice.get(f"/usage/statement.xlsx?{ASTRO}").content)
    heads = {title: [text for _, text in rows[0]] for title, rows in in_xlsx.items()}
    assert heads["GPU time"][:4] == ["GPU", "Class", "From", "Before"]
    assert heads["GPU time"][4:] == ["GPU-hours", "Price per GPU-hour, EUR", "Amount, EUR", "Currency"]
    assert heads["Budgets"][-5:] == ["Budget, EUR", "Spent, EUR", "Left, EUR", "Forecast, EUR", "Currency"]
    assert heads["Entitled and received GPU time"][1:3] == ["Entitled, GPU-h", "Lent, GPU-h"]
    assert heads["Waits for GPUs"][2:] == ["Median, min", "90 %, min", "95 %, min", "Longest, min"]
    in_pdf = text_of(alice.get(f"/usage/statement.pdf?{ASTRO}").content)
    assert "Amount, EUR" in in_pdf
    assert "Spent, EUR" in in_pdf
    in_csv = tables_of_csv(alice.get(f"/usage/statement.csv?{ASTRO}").content.decode())
    assert {"gpu_seconds", "price_per_gpu_hour", "amount", "currency"} <= in_csv["lines"][0].keys()
    [budget] = in_csv["budgets"]
    assert budget["currency"] == "EUR"
    # Figures that are not sums of the ledger have a fixed number of decimals in every format.
    for name in ("spent", "left"):
        assert Decimal(budget[name]).as_tuple().exponent == -2
    assert all(Decimal(row["part"]).as_tuple().exponent == -1 for row in in_csv["waste"])


def test_files_have_all_rows_and_the_page_and_the_pdf_say_how_many_more_there_are(
    rich: Scene, browser_of, monkeypatch: pytest.MonkeyPatch
) -> None:
    cast = rich.people
    for number in range(3):
        labels = {"project": f"p{number}", f"key{number}": "a"}
        job = rich.world.submit(cast.bob, cast.astro, labels=labels)
        book(job, cast.bob, cast.v100, gpus=1, minutes=5 + number, lease=9300 + number)
    for name, most in {
        "MOST_USERS": 1,
        "MOST_JOBS": 2,
        "MOST_LABELS": 1,
        "MOST_KEYS": 2,
        "MOST_DAYS": 1,
    }.items():
        monkeypatch.setattr(f"portal.reports.statement.figures.{name}", most)
    alice = browser_of(cast.alice)
    tables = alice.get(f"/api/v1/statement?{ASTRO}").json()["tables"]
    assert {name: len(tables[name]["rows"]) for name in ("users", "jobs")} == {"users": 2, "jobs": 6}
    assert {row["label"] for row in tables["labels"]["rows"]} == {"bare", "project", "key0", "key1", "key2"}
    assert "(all others)" not in {row["value"] for row in tables["labels"]["rows"]}
    assert tables["days"]["rows"]
    in_csv = tables_of_csv(alice.get(f"/usage/statement.csv?{ASTRO}").content.decode())
    in_xlsx = sheets(alice.get(f"/usage/statement.xlsx?{ASTRO}").content)
    for key, title in {
        "users": "By user",
        "jobs": "Largest jobs",
        "labels": "By label",
        "days": "By day",
    }.items():
        told = len(tables[key]["rows"]) + len(tables[key]["totals"])
        assert len(in_csv[key]) == told
        assert len(in_xlsx[title]) >= 1 + told
    for text in (
        page_text(alice.get(f"/usage/statement/?{ASTRO}")),
        text_of(alice.get(f"/usage/statement.pdf?{ASTRO}").content),
    ):
        assert (
            "This table shows 1 of 2 rows. The CSV, XLSX and JSON files contain all rows. "
            "The table lists only the users with the most GPU time." in text
        )
        assert "This table shows 2 of 6 rows. The CSV, XLSX and JSON files contain all rows." in text
        assert "The CSV, XLSX and JSON files contain 3 more labels." in text
        assert "This period is long. Only its CSV, XLSX and JSON files list the days." in text


def test_the_total_is_the_ledgers_and_the_sum_of_the_lines(rich: Scene) -> None:
    cast = rich.people
    for viewer, tenant in ((cast.alice, cast.astro), (cast.bob, cast.astro), (cast.olga, cast.uni)):
        statement = statement_of(viewer, tenant, period())
        (total,) = usage_report(viewer, None, None, tenant=tenant).totals
        assert sum(line.cost for line in statement.lines) == total.cost == statement.totals[0].cost > 0
        assert sum(line.gpu_seconds for line in statement.lines) == total.gpu_seconds == statement.gpu_seconds
        for rows in (statement.users.rows, statement.jobs.rows, statement.days, statement.generations):
            assert sum(row.cost for row in rows) == total.cost
        for label in statement.labels:
            assert sum(row.cost for row in (*label.rows, *label.rest)) == total.cost
        assert sum(one.held for one in statement.held) == total.gpu_seconds == statement.waste.held


def test_many_values_of_a_label_are_shown_together(rich: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    cast = rich.people
    for number in range(3):
        job = rich.world.submit(cast.bob, cast.astro, labels={"project": f"p{number}"})
        book(job, cast.bob, cast.v100, gpus=1, minutes=5 + number, lease=9300 + number)
    monkeypatch.setattr("portal.reports.statement.figures.MOST_LABELS", 2)
    statement = statement_of(cast.alice, cast.astro, period())
    project = next(one for one in statement.labels if one.key == "project")
    assert [row.label for row in project.rows] == [None, "apollo"]
    assert sum(row.gpu_seconds for row in project.rest) == 60 * (5 + 6 + 7)


def test_an_invoice_names_issuer_number_prices_and_corrections(rich: Scene, browser_of, settings) -> None:
    settings.FAIRLOT_ISSUER = "Centre for <GPUs>, 1 Main Street"
    html = page_text(browser_of(rich.people.alice).get(f"/usage/statement/?{ASTRO}"))
    for part in (
        "Centre for <GPUs>, 1 Main Street",
        f"ASTRO-{FIRST}-{LAST}",
        "Provisional",
        "3.000000",
        "1.200000",
        "a broken node",
        "−0.500000",
        "of 500.00",
        "(none)",
        "Wasted",
    ):
        assert part in html, part


@pytest.mark.parametrize(
    ("first", "last", "name"),
    [("2026-02-01", "2026-02-28", "2026-02"), ("2026-02-01", "2026-02-27", "2026-02-01-2026-02-27"),
     ("2026-01-01", "2026-02-28", "2026-01-01-2026-02-28"), ("2026-12-01", "2026-12-31", "2026-12")],
)  # fmt: skip
def test_a_statement_of_a_month_is_named_by_it(first: str, last: str, name: str) -> None:
    assert period_name(period(first, last)) == name


def test_statements_of_days_of_different_clocks_have_numbers_of_their_own(rich: Scene) -> None:
    numbers = [
        statement_of(rich.people.alice, rich.people.astro, period("2026-02-01", "2026-02-28", zone)).number
        for zone in ("UTC", "Europe/Berlin", "Asia/Tokyo")
    ]
    assert numbers == ["ASTRO-2026-02", "ASTRO-2026-02-Europe/Berlin", "ASTRO-2026-02-Asia/Tokyo"]


def test_one_table_comes_as_a_plain_csv(rich: Scene, browser_of) -> None:
    alice = browser_of(rich.people.alice)
    response = alice.get(f"/usage/statement.csv?{ASTRO}&part=users")
    assert f"fairlot-statement-astro-{FIRST}-{LAST}-users.csv" in response["Content-Disposition"]
    rows = list(csv.DictReader(io.StringIO(response.content.decode())))
    assert {row["user"] for row in rows} == {"alice", "bob"}
    assert alice.get(f"/usage/statement.csv?{ASTRO}&part=nonsense").status_code == 404
    by_api = alice.get(f"/api/v1/statement?{ASTRO}&format=csv&part=users")
    assert by_api.content == response.content


def test_strangers_see_nothing_of_a_team(rich: Scene, browser_of) -> None:
    charlie = browser_of(rich.people.charlie)
    for url in ("/usage/statement/", "/usage/statement.csv", "/usage/statement.pdf", "/api/v1/statement"):
        assert charlie.get(f"{url}?{ASTRO}").status_code == 404
        own = charlie.get(f"{url}?{WIDE}&team=bio").content
        text = text_of(own) if url.endswith(".pdf") else own.decode()
        assert "genome" in text
        assert not any(name in text for name in SECRETS)
        assert charlie.get(f"{url}?team=uni").status_code == 404
    assert Client().get(f"/api/v1/statement?{ASTRO}").status_code == 401


def test_a_day_of_two_currencies_has_the_gpu_hours_of_both() -> None:
    day = datetime(2026, 5, 4, tzinfo=UTC)
    rows = [
        UsageRow(Decimal(3600 * hours), Decimal(1), currency, 1, begins=day)
        for currency, hours in (("EUR", 3), ("USD", 2))
    ]
    chart = draw_days(rows, day.date(), day.date(), jobs_of=str)
    assert [bar.label for bar in chart.bars] == ["Mon, 4 May 2026: 5.0 GPU-h"]


@pytest.fixture
def dollars(rich: Scene) -> Scene:
    """Returns the scene with more usage of Astro, in May 2020 and in two currencies:

    - 4 A100 for half an hour, priced in euros;
    - 2 H100 for one hour, at 5 dollars per GPU-hour;
    - 3 H100 for one hour, whose booking is reversed and must not count.
    """
    cast = rich.people
    h100 = Generation.objects.create(name="H100")
    Price.objects.create(
        generation=h100, per_gpu_hour=5, currency="USD", valid=DateTimeTZRange(LONG_AGO, None)
    )
    at = datetime(2020, 5, 4, 12, tzinfo=UTC)
    book_usage_of(cast, lease_id=1, begins=at, ends=at + timedelta(minutes=30))
    wrong = book_usage_of(cast, lease_id=2, begins=at, ends=at + timedelta(hours=1), generation=h100, gpus=3)
    actions.take_back_usage(actor=cast.ada, segments=wrong, reason="a broken node")
    book_usage_of(cast, lease_id=3, begins=at, ends=at + timedelta(hours=1), generation=h100, gpus=2)
    return rich


IN_MAY = "period=dates&from=2020-05-01&to=2020-05-31"


def test_there_is_a_total_in_each_currency_in_every_format(dollars: Scene, browser_of) -> None:
    alice = browser_of(dollars.people.alice)
    totals = [("EUR", Decimal(6)), ("USD", Decimal(10))]

    def amounts(rows: list[dict[str, str]], key: str = "amount") -> list[tuple[str, Decimal]]:
        return [(row["currency"], Decimal(row[key])) for row in rows]

    told = alice.get(f"/api/v1/statement?team=astro&{IN_MAY}").json()["tables"]
    in_csv = tables_of_csv(alice.get(f"/usage/statement.csv?team=astro&{IN_MAY}").content.decode())
    in_xlsx = sheets(alice.get(f"/usage/statement.xlsx?team=astro&{IN_MAY}").content)
    on_page = tables_on(alice.get(f"/usage/statement/?team=astro&{IN_MAY}").content.decode())
    in_pdf = " ".join(text_of(alice.get(f"/usage/statement.pdf?team=astro&{IN_MAY}").content).split())
    titles = {"lines": "GPU time", "generations": "By generation", "users": "By user", "days": "By day"}
    for key, title in titles.items():
        assert amounts(told[key]["totals"]) == amounts(in_csv[key][-2:]) == totals
        sums = [row for row in in_xlsx[title] if row[-1][1] in ("EUR", "USD")][-2:]
        assert [(row[-1][1], Decimal(row[-2][1])) for row in sums] == totals
        if title in on_page:
            assert [(row[-1], Decimal(row[-2])) for row in on_page[title][-2:]] == totals
    assert "GPU time" in on_page
    assert amounts(told["corrections"]["totals"]) == [("USD", -15)]
    assert in_pdf.count("6.000000 EUR") >= 4
    assert in_pdf.count("10.000000 USD") >= 4
    usage = alice.get(f"/api/v1/usage?team=astro&{IN_MAY}").json()
    of_file = alice.get(f"/usage.json?team=astro&{IN_MAY}").json()["tables"]["usage"]
    assert amounts(usage["totals"], "cost") == amounts(of_file["totals"], "cost") == totals


def test_the_forecast_has_a_line_for_each_currency(dollars: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    set_clock(monkeypatch, datetime(2020, 5, 11, tzinfo=UTC))
    monkeypatch.setattr(figures, "not_booked", lambda tenants: [])
    BudgetChange.objects.create(tenant_id=dollars.people.astro.pk, period="month", amount=70)
    may = statement_of(dollars.people.alice, dollars.people.astro, period("2020-05-01", "2020-05-31"))
    assert [(one.spent, round(one.forecast or 0, 2), one.currency) for one in may.ahead] == [
        (6, Decimal("18.60"), "EUR"),
        (10, Decimal("31.00"), "USD"),
    ]
    [budgets] = [one for one in document_of(may).tables if one.key == "budgets"]
    assert "Budgets are in EUR. They do not include costs in USD." in budgets.note


def test_only_the_clusters_on_which_a_team_held_time_keep_its_statement_provisional(dollars: Scene) -> None:
    cast = dollars.people
    at = datetime(2020, 5, 4, 12, tzinfo=UTC)
    for name in ("lyra", "vega"):
        pk = Cluster.objects.create(name=name, backend="local").pk
        who = {"tenant": cast.bio, "user": cast.charlie} if name == "vega" else {}
        book_usage_of(cast, book=pk, lease_id=100 + pk, begins=at, ends=at + timedelta(minutes=30), **who)
        ClosedBook.objects.create(book=pk, since=at, until=at + timedelta(hours=1), priced_until=at)
    Price.objects.filter(generation=cast.a100).update(borrowed=1)
    for viewer, team, cluster in ((cast.alice, cast.astro, "lyra"), (cast.charlie, cast.bio, "vega")):
        facts = dict(document_of(statement_of(viewer, team, period("2020-05-01", "2020-05-31"))).facts)
        assert facts["State"] == PROVISIONAL
        assert facts["Costs not final yet"].endswith(f" the cluster {cluster} from 4 May 2020, 12:00 UTC on.")
        ClosedBook.objects.filter(book=Cluster.objects.get(name=cluster).pk).update(priced_until=F("until"))
        settled = statement_of(viewer, team, period("2020-05-01", "2020-05-31"))
        assert not settled.is_provisional
        assert "Costs not final yet" not in dict(document_of(settled).facts)


def test_a_statement_is_recomputed_from_its_file_alone(rich: Scene, browser_of) -> None:
    """A reader who has only the file can recompute each line and the total, and sees from when to when each price
    applied."""
    cast = rich.people
    first = datetime(2020, 5, 4, 12, tzinfo=UTC)
    Price.objects.filter(generation=cast.a100).delete()
    for at, until, price, borrowed in ((0, 90, "0.1717", "0.05"), (90, None, "1.23", "0.061")):
        valid = DateTimeTZRange(
            LONG_AGO if at == 0 else first + timedelta(minutes=at), until and first + timedelta(minutes=until)
        )
        Price.objects.create(
            generation=cast.a100, per_gpu_hour=Decimal(price), borrowed=Decimal(borrowed), valid=valid
        )
    for lease in range(12):
        begins = first + timedelta(minutes=7 * lease, seconds=lease)
        book_usage_of(
            cast, lease_id=lease, gpus=1 + lease % 3, begins=begins, ends=begins + timedelta(minutes=61)
        )
    close_hours(cast, first, first + timedelta(hours=3))
    settle_hours(TimeByClass({(cast.astro.pk, cast.a100.pk): Decimal("3456.789")}, {}, {}))
    told = browser_of(cast.alice).get(f"/usage/statement.csv?team=astro&{IN_MAY}").content.decode()
    *lines, total = tables_of_csv(told)["lines"]
    [rounding] = [line for line in lines if line["class"] == "Rounding"]
    priced = [line for line in lines if line is not rounding]
    assert {line["class"] for line in priced} == {"Owned", "Borrowed"}
    for line in priced:
        worth = Decimal(line["gpu_seconds"]) * Decimal(line["price_per_gpu_hour"]) / 3600
        assert Decimal(line["amount"]) == worth.quantize(MICRO)
    changed = first + timedelta(minutes=90)
    assert {(line["begins"], line["ends"], line["price_per_gpu_hour"]) for line in priced} == {
        (begins.isoformat(), ends.isoformat(), price)
        for begins, ends, prices in (
            (datetime(2020, 5, 1, tzinfo=UTC), changed, ("0.171700", "0.050000")),
            (changed, datetime(2020, 6, 1, tzinfo=UTC), ("1.230000", "0.061000")),
        )
        for price in prices
    }
    assert sum(Decimal(line["amount"]) for line in lines) == Decimal(total["amount"])
    assert sum(Decimal(line["gpu_seconds"]) for line in priced) == Decimal(total["gpu_seconds"])
    count = UsageSegment.objects.filter(period__startswith__lt=first + timedelta(days=1)).count()
    assert abs(Decimal(rounding["amount"])) <= (count + len(priced)) * MICRO / 2


def test_members_see_no_budget(rich: Scene, browser_of) -> None:
    assert Budget.objects.exists()
    for who, seen in ((rich.people.bob, False), (rich.people.alice, True), (rich.people.olga, True)):
        tables = browser_of(who).get(f"/api/v1/statement?{ASTRO}").json()["tables"]
        assert ("budgets" in tables) == seen


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "America/Los_Angeles"])
def test_mays_statement_has_mays_budget_whenever_it_is_read(
    rich: Scene, monkeypatch: pytest.MonkeyPatch, zone: str
) -> None:
    cast = rich.people
    BudgetChange.objects.create(tenant_id=cast.astro.pk, period="month", amount=70)
    for now in (datetime(2026, 6, 1, 16, tzinfo=UTC), datetime(2026, 8, 9, tzinfo=UTC)):
        set_clock(monkeypatch, now)
        may = statement_of(cast.alice, cast.astro, period("2026-05-01", "2026-05-31", zone))
        [budget] = may.budgets
        assert (budget.amount, budget.begins.month, budget.is_over, budget.forecast) == (70, 5, True, None)
        assert may.ahead == []


def test_users_who_see_a_team_see_the_months_forecast_cost(
    rich: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The statement has a forecast although the team has no budget: after ten of June's thirty days, three times the
    cost so far."""
    cast = rich.people
    begins = datetime(2026, 6, 5, 12, tzinfo=UTC)
    for lease, gpus in ((1, 1), (2, 4)):
        at = begins - timedelta(days=10) * (lease - 1)
        book_usage_of(cast, begins=at, ends=at + timedelta(hours=10), gpus=gpus, lease_id=lease)
    held = UnbookedUsage(cast.astro.pk, cast.bob.pk, cast.a100.pk, 1, datetime(2026, 6, 10, 14, tzinfo=UTC))
    monkeypatch.setattr(figures, "not_booked", lambda tenants: [held])
    set_clock(monkeypatch, datetime(2026, 6, 11, tzinfo=UTC))
    for first in ("2026-06-01", "2026-05-20", "2026-06-10"):
        june = statement_of(cast.bob, cast.astro, period(first, "2026-06-11"))
        assert june.budgets == []
        [ahead] = june.ahead
        assert (ahead.spent, ahead.forecast, ahead.currency) == (60, 180, "EUR")  # at 3.00 per GPU-hour
        [table] = [one for one in document_of(june).tables if one.key == "forecast"]
        assert next(iter(table.rows))[2:4] == (60, 180)
    set_clock(monkeypatch, datetime(2026, 6, 2, 23, tzinfo=UTC))
    early = statement_of(cast.bob, cast.astro, period("2026-06-01", "2026-06-02"))
    assert [one.forecast for one in early.ahead] == [None]


def test_a_user_in_no_team_sees_that_in_the_statement(rich: Scene, browser_of) -> None:
    stranger = browser_of(User.objects.create_user(username="stranger"))
    assert "No team yet" in page_text(stranger.get("/usage/statement/"))
    assert stranger.get("/usage/statement.csv").status_code == 404


def test_wrong_dates_are_named(rich: Scene, browser_of) -> None:
    html = browser_of(rich.people.bob).get("/usage/statement/?period=dates&from=soon").content.decode()
    assert 'id="from-problem"' in html


@pytest.mark.django_db(transaction=True)
def test_a_statement_takes_as_many_queries_for_many_labels_as_for_one() -> None:
    """The number of queries does not depend on the number of labels.

    The expected number is a range: on the first day of a month the forecast needs fewer queries, because no day has
    ended.
    """
    made = new_scene()
    cast = made.people
    counts = []
    for keys in (1, 4):
        job = made.world.submit(cast.bob, cast.astro, labels={f"key{one}": "a" for one in range(keys)})
        book(job, cast.bob, cast.v100, gpus=1, minutes=20, lease=9500 + keys)
        with CaptureQueriesContext(connection) as asked:
            statement = statement_of(cast.alice, cast.astro, period())
        assert len(statement.labels) == keys
        check("a statement with its labels", asked)
        counts.append(len(asked))
    assert counts[0] == counts[1]


@pytest.mark.django_db(transaction=True)
def test_usage_booked_meanwhile_is_in_all_figures_or_in_none(monkeypatch: pytest.MonkeyPatch) -> None:
    made = new_scene()
    cast = made.people
    read = figures.largest_jobs_of

    def book_first(*args: Any, **told: Any) -> object:
        assert at_once(lambda: book(made.job, cast.bob, cast.v100, gpus=4, minutes=9, lease=9400)) == [None]
        return read(*args, **told)

    monkeypatch.setattr(figures, "largest_jobs_of", book_first)
    statement = statement_of(cast.alice, cast.astro, period())
    assert UsageSegment.objects.filter(lease_id=9400).exists()
    assert sum(row.gpu_seconds for row in statement.jobs.rows) == statement.gpu_seconds
    monkeypatch.setattr(figures, "largest_jobs_of", read)
    assert statement_of(cast.alice, cast.astro, period()).gpu_seconds == statement.gpu_seconds + 4 * 540
