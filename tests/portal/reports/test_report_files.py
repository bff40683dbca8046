"""The page, CSV, XLSX, PDF and JSON of a report agree, and a file shows no more than the page."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from datetime import date, datetime, timedelta, tzinfo
from decimal import Decimal
from typing import Any

import pytest
from django.db import transaction
from django.test import Client
from django.utils import timezone

from accounting.core.calendar import HOUR, start_of_hour
from accounting.core.clock import now_from_database
from accounting.core.wording import duration
from accounting.ledger import TradedTime, Usage, book_trades, book_usage
from accounting.limits.periods import period_of
from portal.reports import capacity
from portal.reports.fairness_tables import COLUMNS
from portal.reports.formats import Cell, Column, Document, Kind, Table, answers, shown
from portal.reports.formats.document import NUMERIC, in_unit, told
from portal.templatetags.fairlot import money
from portal.templatetags.figures import gpu_hours, percent
from scheduling.models import FinishTime, JobSpeed, SharingAnalysis, SharingPart
from tests.accounting.booking import close_hours
from tests.portal.administration.test_budgets import shown as page_text
from tests.portal.jobs.test_idle import idle
from tests.portal.reading import sheets, tables_on, text_of
from tests.portal.scene import SECRETS, Scene
from tests.portal.share.test_anomalies import anomaly

NO_BREAK = "\N{NO-BREAK SPACE}"
WIDE = "period=dates&from=2020-01-01&to=2199-12-31"
# Each report: the URL of its page, the URL of its file without the extension, its API call, and the query for all
# three.
USAGE = [
    ("/usage/", "/usage", "usage", f"{WIDE}&by={by}") for by in ("user", "job", "generation", "day", "tenant")
]
REPORTS = [
    *USAGE,
    ("/usage/capacity/", "/usage/capacity", "capacity", WIDE),
    ("/usage/fairness/", "/usage/fairness", "fairness", WIDE),
    ("/usage/fairness/", "/usage/fairness", "fairness", f"{WIDE}&team=astro"),
    ("/usage/idle/", "/usage/idle", "idle", ""),
    ("/trades/", "/trades", "trades", ""),
    ("/share/anomalies/", "/share/anomalies", "share/anomalies", ""),
]
# Reports whose CSV file has a single table, by report.
ALONE = {"usage": "usage", "trades": "trades"}


@pytest.fixture
def full(scene: Scene) -> Scene:
    """Returns the scene with data for every report.

    Adds closed hours, a booked trade, speeds, an idle and an ended job, and anomalies of two teams.
    """
    people, book, hour = scene.people, scene.world.cluster.pk, start_of_hour(now_from_database())
    lasts = now_from_database() - period_of("month", None, now_from_database())[0]
    begins = now_from_database() - min(HOUR, lasts)
    with transaction.atomic():
        book_usage(
            [Usage(
                book=book, lease_id=9100, job_id=scene.job.pk, job_name="supernova", tenant=people.astro,
                user=people.bob, generation=people.v100, gpus=4, begins=begins, ends=now_from_database(),
                running_from=begins, unused=[(begins, begins + min(HOUR, lasts) / 2)],
            )]
        )  # fmt: skip
        book_trades(
            [TradedTime(
                book=book, key="trade:1", seller=people.astro, buyer=people.bio, slow=people.v100,
                fast=people.a100, fast_gpu_seconds=Decimal(60), slow_gpu_seconds=Decimal(150),
                begins=scene.trade.begins, ends=scene.trade.ends, description="a trade",
            )]
        )  # fmt: skip
    close_hours(people, hour - 6 * HOUR, hour + HOUR, book=book)
    idle(scene, scene.job)
    for generation, steps in ((people.v100, 100), (people.a100, 200)):
        JobSpeed.objects.update_or_create(
            job=scene.job, generation=generation, defaults={"steps": steps, "seconds": 100}
        )
    FinishTime.objects.create(
        job=scene.job, cluster=scene.world.cluster, tenant=people.astro, ended_at=hour, seconds=60, rho=1.5
    )
    analysis = SharingAnalysis.objects.create(
        cluster=scene.world.cluster, begins=hour - timedelta(days=7), ends=hour, finished_at=hour
    )
    for job, other, late in ((scene.job, scene.other, 7260.0), (scene.other, scene.job, 3660.0)):
        part = SharingPart.objects.create(
            analysis=analysis, tenant=job.tenant, done_at=hour, gpus={"V100": 2}, judged=2, too_large=1
        )
        anomaly(part, job, other, late)
    return scene


@pytest.fixture
def document_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[Client, str], Document]:
    """Returns a function that requests a file and returns the Document from which the view made it."""
    given: list[Document] = []
    made = answers.in_format

    def noted(document: Document, form: str, *, alone: str = "") -> bytes:
        given.append(read(document))
        return made(given[-1], form, alone=alone)

    def read(document: Document) -> Document:
        tables = [
            Table(one.key, one.title, one.columns, list(one.rows), one.totals, one.note)
            for one in document.tables
        ]
        return Document(document.title, tables, document.facts, document.zone, document.has_keys)

    monkeypatch.setattr(answers, "in_format", noted)

    def document(client: Client, url: str) -> Document:
        assert client.get(url).status_code == 200
        return given[-1]

    return document


def rows_of(table: Table) -> list[Any]:
    return [*table.rows, *table.totals]


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report[2])
def test_every_format_says_the_same(
    full: Scene, browser_of, document_of, report: tuple[str, str, str, str]
) -> None:
    page, file, api, query = report
    olga = browser_of(full.people.olga)
    document = document_of(olga, f"{file}.xlsx?{query}")
    of_json = olga.get(f"{file}.json?{query}").json()["tables"]
    of_xlsx = sheets(olga.get(f"{file}.xlsx?{query}").content)
    of_pdf = text_of(olga.get(f"{file}.pdf?{query}").content)
    of_csv = list(csv.reader(io.StringIO(olga.get(f"{file}.csv?{query}").content.decode())))
    assert list(of_json) == [table.key for table in document.tables]
    assert all(table.rows for table in document.tables)
    assert_in_sheets(document, of_xlsx)
    assert_in_pdf(document, of_pdf)
    for table in document.tables:
        totals = of_json[table.key]["totals"]
        keys = [column.key for column in table.columns]
        told_rows = [*of_json[table.key]["rows"], *totals]
        assert told_rows == [dict(zip(keys, map(told, row), strict=True)) for row in rows_of(table)]
    assert_in_csv(document, of_csv, ALONE.get(api))
    for form in ("csv", "xlsx", "pdf"):
        answer = olga.get(f"/api/v1/{api}?{query}&format={form}")
        assert (answer.status_code, answer["Content-Type"]) == (200, answers.TYPES[form])
    assert olga.get(f"/api/v1/{api}?{query}&format=csv").content == olga.get(f"{file}.csv?{query}").content
    assert olga.get(f"/api/v1/{api}?{query}&format=docx").status_code == 422
    for form in ("csv", "xlsx", "pdf"):
        assert f'href="{file}.{form}' in olga.get(f"{page}?{query}").content.decode()


def test_files_of_usage_begin_with_the_largest_and_name_the_label(
    full: Scene, browser_of, document_of
) -> None:
    olga = browser_of(full.people.olga)
    for by in ("user", "job", "generation"):
        rows = list(document_of(olga, f"/usage.pdf?by={by}&{WIDE}").tables[0].rows)
        held = [row[-3] for row in rows]
        assert held == sorted(held, reverse=True)
        assert len(set(held)) > 1
    document = document_of(olga, f"/usage.xlsx?by=label&label=project&{WIDE}")
    assert ("Label", "project") in document.facts
    assert document.tables[0].columns[0].heading == "project"


def test_the_trade_book_tells_rounds_apart_that_are_seconds_apart(full: Scene, browser_of) -> None:
    begins = full.trade.begins.replace(microsecond=0)
    told = f"{timezone.localtime(begins):%Y-%m-%d %H:%M:%S}"
    pdf = browser_of(full.people.olga).get("/trades.pdf").content
    assert told in text_of(pdf)


def test_each_page_says_what_it_calls_owed(full: Scene, browser_of) -> None:
    olga = browser_of(full.people.olga)
    share = olga.get("/share/?team=astro").content.decode()
    assert "“Balance now” is what the scheduler repays in the next rounds" in share
    assert 'href="/usage/fairness/"' in share
    fairness = olga.get(f"/usage/fairness/?{WIDE}").content.decode()
    assert "shows the balance: how much of it the next rounds repay" in fairness


def test_numbers_that_name_something_stand_as_they_are() -> None:
    assert shown(Column("job_id", "Job", Kind.ID), 1234567) == "1234567"


def assert_in_sheets(document: Document, of_xlsx: dict[str, list[list[tuple[str, str]]]]) -> None:
    """Checks that the XLSX file has the sheet "Summary", and then one sheet for each table, with the table's cells.

    `of_xlsx`: for each sheet title, the rows of (cell type, text).
    """
    assert list(of_xlsx) == ["Summary", *(table.title for table in document.tables)]
    for table in document.tables:
        head, *lines = of_xlsx[table.title]
        assert [text for _, text in head] == [column.heading for column in table.columns]
        rows = rows_of(table)
        for row, cells in zip(rows, lines[: len(rows)], strict=True):
            known = [pair for pair in zip(table.columns, row, strict=True) if pair[1] is not None]
            for (column, cell), (kind, text) in zip(known, cells, strict=True):
                assert_in_sheet(column, cell, kind, text, document.zone)


def assert_in_pdf(document: Document, text: str) -> None:
    """Checks that the PDF's text contains the cells of each table, row by row in order. Ignores white space."""
    text, at = "".join(text.split()), 0
    for table in document.tables:
        for row in rows_of(table):
            cells = [shown(*pair, document.zone) for pair in zip(table.columns, row, strict=True)]
            line = "".join("".join(cells).split())
            found = text.find(line, at)
            assert found >= 0, (table.key, cells)
            at = found + len(line)


def assert_in_sheet(column: Column, cell: Cell, kind: str, text: str, zone: tzinfo | None) -> None:
    if column.kind in {*NUMERIC, Kind.ID} and not isinstance(cell, str):
        assert kind == "n"
        assert float(text) == pytest.approx(float(in_unit(column, cell)), rel=1e-12)  # type: ignore[arg-type]
    elif isinstance(cell, date):  # a datetime is a date, too
        assert kind == "n"
        moment = (
            cell.astimezone(zone) if isinstance(cell, datetime) else datetime(cell.year, cell.month, cell.day)
        )
        days = (moment.replace(tzinfo=None) - datetime(1899, 12, 30)) / timedelta(days=1)
        assert float(text) == pytest.approx(days, abs=1 / 86400)
    else:
        assert (kind, text) == ("inlineStr", cell)


def assert_in_csv(document: Document, lines: list[list[str]], alone: str | None) -> None:
    """Checks that `lines`, the rows of the CSV file, are all tables of the document, one below another.

    If `alone` is the key of a table, the file must contain only this table, without its totals.
    """
    tables = [one for one in document.tables if alone in {None, one.key}]
    for table in tables:
        if alone is None and document.has_keys:
            assert lines.pop(0) == [table.key]
        head, rows = lines.pop(0), rows_of(table) if alone is None else list(table.rows)
        some, lines = lines[: len(rows)], lines[len(rows) + 1 :]
        for row, line in zip(rows, some, strict=True):
            named = dict(zip(head, line, strict=True))
            for column, cell in zip(table.columns, row, strict=True):
                if column.key != "day":  # programs get the time at which the day began in place of the day
                    assert named[column.key].removeprefix("'") == ("" if cell is None else str(told(cell)))
    assert lines == []


@pytest.mark.parametrize(
    ("url", "key", "figures"),
    [
        *(
            (f"{page}?{query}", "usage", {"gpu_seconds": gpu_hours, "cost": lambda cost: money(cost, "EUR")})
            for page, _, _, query in USAGE
        ),
        (f"/usage/capacity/?{WIDE}", "classes", {"busy_gpu_seconds": gpu_hours}),
        (
            f"/usage/fairness/?{WIDE}",
            "rows",
            {"received_gpu_seconds": gpu_hours, "entitled_gpu_seconds": gpu_hours},
        ),
        ("/usage/idle/", "now", {"idle_seconds": duration, "job": str}),
        ("/usage/idle/", "teams", {"held_gpu_seconds": gpu_hours}),
        ("/share/anomalies/", "anomalies", {"late_seconds": duration, "job": str}),
        ("/trades/", "booked", {"gave_gpu_seconds": gpu_hours}),
    ],
)
def test_the_page_has_the_figures_of_its_files(
    full: Scene, browser_of, url: str, key: str, figures: dict[str, Callable[[Any], str]]
) -> None:
    olga = browser_of(full.people.olga)
    on_page = page_text(olga.get(url)).replace(NO_BREAK, " ")
    page, _, query = url.partition("?")
    rows = olga.get(f"{page[:-1]}.json?{query}").json()["tables"][key]["rows"]
    assert rows
    for row in rows:
        for name, as_shown in figures.items():
            value = row[name] if as_shown is str else Decimal(str(row[name]))
            assert as_shown(value).replace(NO_BREAK, " ") in on_page


def hours(seconds: str | float | None) -> str:
    return gpu_hours(None if seconds is None else Decimal(str(seconds)))


def times(seconds: float) -> str:
    return duration(float(seconds))


# For each report: its page, the caption of the table on the page, the table's key in files, and, by heading of the
# page's table, a function that computes the cell's text from a row of the file.
Row = dict[str, Any]
PAGES: list[tuple[str, str, str, dict[str, Callable[[Row], str]]]] = [
    *(
        (
            f"/usage/?{WIDE}&by={by}",
            f"Usage by {heading}",
            "usage",
            {
                heading.capitalize() if heading != "GPU" else "GPU": name,
                "GPU-hours": lambda row: hours(row["gpu_seconds"]),
                "Cost": lambda row: money(Decimal(row["cost"]), row["currency"]),
            },
        )
        for by, heading, name in (
            ("user", "user", lambda row: row["user"]),
            ("job", "job", lambda row: f"{row['job']} {row['job_id']}"),
            ("generation", "GPU", lambda row: row["generation"]),
            ("day", "day", lambda row: f"{date.fromisoformat(row['day']):%a, %-d %b %Y}"),
            ("tenant", "team", lambda row: row["tenant"]),
        )
    ),
    (
        f"/usage/capacity/?{WIDE}",
        "GPU-hours of each GPU type by class of use",
        "classes",
        {"GPU": lambda row: row["generation"], "All": lambda row: hours(row["capacity_gpu_seconds"])}
        | {
            word: (lambda row, key=key: hours(row[f"{key}_gpu_seconds"]))
            for key, word in capacity.WORDS.items()
        },
    ),
    (
        "/usage/idle/",
        "Jobs whose GPUs are idle now, longest idle first",
        "now",
        {
            "Job": lambda row: row["job"],
            "Team": lambda row: row["team"],
            "User": lambda row: row["owner"],
            "GPUs": lambda row: f"{row['gpus']} × {row['generation']}",
            "Idle for": lambda row: times(row["idle_seconds"]),
        },
    ),
    (
        "/usage/idle/",
        "Idle GPU-hours by team, highest first",
        "teams",
        {
            "Team": lambda row: row["team"],
            "Idle, GPU-h": lambda row: hours(row["idle_gpu_seconds"]),
            "GPU-hours without a process": lambda row: hours(row["processless_gpu_seconds"]),
            "Held, GPU-h": lambda row: hours(row["held_gpu_seconds"]),
            "Idle ÷ held GPU time": lambda row: percent(row["part"]),
            "Cost of idle time": lambda row: money(Decimal(row["idle_cost"]), row["currency"]),
            "Cost": lambda row: money(Decimal(row["cost"]), row["currency"]),
        },
    ),
    (
        f"/usage/fairness/?{WIDE}",
        "GPU-hours of each team, weighted by GPU type",
        "compared",
        {
            "Team": lambda row: row["team"],
            "Received ÷ due": lambda row: percent(row["delivered"]),
            "Received ÷ entitled": lambda row: percent(row["of_entitled"]),
        }
        | {
            heading: (lambda row, key=key: hours(row[f"{key}_weighted_gpu_seconds"]))
            for key, heading in COLUMNS.items()
        },
    ),
    (
        f"/usage/fairness/?{WIDE}",
        "Finish-time fairness of training jobs that ended",
        "finished",
        {
            "Team": lambda row: row["team"],
            "Jobs ended": lambda row: str(row["jobs_ended"]),
            "Jobs with a value of ρ": lambda row: str(row["rho_known"]),
            "Median ρ": lambda row: f"{row['rho_median']:.2f}" if row["rho_median"] else "–",
            "Worst ρ": lambda row: f"{row['rho_worst']:.2f}" if row["rho_worst"] else "–",
            "Jobs slower than on a private cluster": lambda row: str(row["worse_off_than_alone"]),
            "Jobs without a value of ρ": lambda row: str(row["left_out"]),
        },
    ),
]


@pytest.mark.parametrize("page_table", PAGES, ids=lambda one: f"{one[0]} {one[2]}")
def test_a_table_of_a_page_is_that_of_its_files_cell_by_cell(
    full: Scene, browser_of, page_table: tuple[str, str, str, dict[str, Callable[[Row], str]]]
) -> None:
    url, caption, key, cells = page_table
    olga = browser_of(full.people.olga)
    page, _, query = url.partition("?")
    rows = olga.get(f"{page[:-1]}.json?{query}").json()["tables"][key]["rows"]
    head, *lines = {
        title.lower(): table for title, table in tables_on(olga.get(url).content.decode()).items()
    }[caption.lower()]
    assert rows
    assert cells.keys() <= set(head)
    on_page = [dict(zip(head, line, strict=True)) for line in lines[: len(rows)]]
    assert len(on_page) == len(rows)
    expected = [{heading: " ".join(cell(row).split()) for heading, cell in cells.items()} for row in rows]
    assert [{heading: line[heading] for heading in cells} for line in on_page] == expected


@pytest.mark.parametrize(
    ("file", "api", "query"),
    [one[1:] for one in REPORTS if one[2] != "capacity" and "team=" not in one[3]],
)
def test_no_reader_sees_another_team(full: Scene, browser_of, file: str, api: str, query: str) -> None:
    charlie = browser_of(full.people.charlie)
    for form, read in READ.items():
        text = read(charlie.get(f"{file}.{form}?{query}").content)
        assert text
        assert not any(secret in text for secret in SECRETS)
        assert charlie.get(f"{file}.{form}?{query}&team=astro").status_code == 404
        assert charlie.get(f"/api/v1/{api}?{query}&team=astro&format={form}").status_code == 404


READ: dict[str, Callable[[bytes], str]] = {
    "csv": bytes.decode,
    "json": bytes.decode,
    "xlsx": lambda content: str(sheets(content)),
    "pdf": text_of,
}


def test_costs_borne_by_teams_are_for_operators(full: Scene, browser_of) -> None:
    for form in ("csv", "xlsx", "pdf", "json"):
        assert browser_of(full.people.alice).get(f"/usage/capacity.{form}").status_code == 404


def test_a_pdf_lists_so_many_rows_and_says_that_there_are_more(full: Scene) -> None:
    column = Column("n", "Number")
    some = Table(
        "some", "Some", [column], ([f"{n}."] for n in range(1500)), totals=[["Total"]], note="A note."
    )
    text = text_of(answers.in_format(Document("Numbers", [some]), "pdf"))
    assert " 999. " in text
    assert "1000." not in text
    assert (
        "This table shows 1000 of 1500 rows. The CSV, XLSX and JSON files contain all rows. A note." in text
    )
    assert "Total" in text
