"""A document has the same figures in every format, and no text becomes a formula."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from pypdf import PdfReader

from portal.reports.formats import (
    Column,
    Document,
    Kind,
    Table,
    answer,
    answers,
    csv_of,
    csv_of_table,
    in_format,
    json_of,
    json_text_of,
)
from portal.reports.formats.pdf import pdf_of
from portal.reports.formats.workbook import xlsx_of
from tests.portal.reading import sheets, text_of

COLUMNS = [
    Column("name", "Name"),
    Column("hours", "GPU-hours", Kind.NUMBER, 3),
    Column("amount", "Amount", Kind.MONEY, 4),
    Column("day", "Day", Kind.DATE),
    Column("at", "At", Kind.MOMENT),
]
ROW = (
    "Alice",
    Decimal("1234.5"),
    Decimal("-98765.4321"),
    date(2026, 3, 1),
    datetime(2026, 3, 1, 12, tzinfo=UTC),
)


def document(*rows: tuple, title: str = "Lines", totals: tuple | None = None) -> Document:
    table = Table("lines", title, COLUMNS, rows, totals=[totals] if totals else ())
    return Document("Statement", [table], [("Team", "Astro")], ZoneInfo("Europe/Berlin"))


def test_a_csv_has_exact_figures_under_the_columns_keys():
    lines = list(csv.reader(io.StringIO("".join(csv_of_table(document(ROW).tables[0])))))
    assert lines == [
        ["name", "hours", "amount", "day", "at"],
        ["Alice", "1234.5", "-98765.4321", "2026-03-01", "2026-03-01T12:00:00+00:00"],
    ]


def test_a_csv_of_several_tables_names_each():
    one = document(ROW).tables[0]
    both = Document("Two", [one, Table("more", "More", COLUMNS[:1], [["x"]], totals=[["Total"]])])
    text = "".join(csv_of(both)).splitlines()
    assert text[0] == "lines"
    assert text[3:] == ["", "more", "name", "x", "Total"]


def test_sheets_have_real_numbers_and_dates():
    rows = sheets(
        xlsx_of(document(ROW, totals=("Total", Decimal("1234.5"), Decimal("-98765.4321"), None, None)))
    )
    assert list(rows) == ["Summary", "Lines"]
    kinds = [kind for kind, _ in rows["Lines"][1]]
    assert kinds == ["inlineStr", "n", "n", "n", "n"]
    assert [float(text) for kind, text in rows["Lines"][1] if kind == "n"] == [
        1234.5,
        -98765.4321,
        46082,
        pytest.approx(46082 + 13 / 24),
    ]
    assert rows["Lines"][2][0] == ("inlineStr", "Total")


FORMULAS = (
    "=1+1", "+1", "-1", "@SUM(A1)", "\t=1", '=HYPERLINK("http://x")', "{=1}", "＝1+1", "＋1", "－1", "＠SUM(A1)",
    "﹢1", "﹣1", "﹦1", "﹫1", "⁼1", "₌1", "⁺1", "⁻1", "−1", "  =1", "\u3000=1", "\xa0＝1", "\u200b=1", "\ufeff=1",
    "\u202e=1",
)  # fmt: skip


@pytest.mark.parametrize("name", FORMULAS)
def test_a_name_is_never_a_formula(name: str):
    of = document((name, Decimal(1), Decimal(1), None, None))
    assert sheets(xlsx_of(of))["Lines"][1][0] == ("inlineStr", name)  # `sheets` fails if a cell has a formula
    if name[0] != "{":
        assert list(csv.reader(io.StringIO("".join(csv_of(of)))))[2][0] == f"'{name}"


def test_sheets_with_equal_or_impossible_names_get_distinct_names():
    tables = [
        Table("a", name, COLUMNS[:1], [["x"]])
        for name in ("Team: [a/b]?", "By job" * 9, "by JOB" * 9, "History")
    ]
    names = list(sheets(xlsx_of(Document("Names", tables))))
    assert len({name.casefold() for name in names}) == 4
    assert all(len(name) <= 31 and not set(name) & set("[]:*?/\\'") for name in names)


def test_a_table_longer_than_a_sheet_goes_on_in_another(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("portal.reports.formats.workbook.MOST_ROWS", 4)
    rows = sheets(xlsx_of(document(*[ROW] * 7)))
    assert [len(some) for name, some in rows.items() if name != "Summary"] == [4, 4, 2]


def test_a_pdf_shows_figures_as_people_read_them():
    text = text_of(pdf_of(document(ROW))).replace("\N{NO-BREAK SPACE}", " ")
    for part in (
        "Statement",
        "Team",
        "Astro",
        "Alice",
        "1 234.500",
        "−98 765.4321",
        "2026-03-01 13:00",
        "Page 1 of 1",
    ):
        assert part in text


def test_people_see_moments_to_the_second_where_a_column_is_of_such():
    columns = [Column("at", "At", Kind.MOMENT), Column("to", "To", Kind.SECOND)]
    at = datetime(2026, 3, 1, 12, 0, 7, tzinfo=UTC)
    one = Document("Rounds", [Table("rounds", "Rounds", columns, [(at, at)])], zone=UTC)
    text = text_of(pdf_of(one))
    assert text.count("2026-03-01 12:00:07") == 1
    assert text.count("2026-03-01 12:00") == 2


def test_the_head_of_a_long_table_repeats_on_each_page():
    reader = PdfReader(io.BytesIO(pdf_of(document(*[ROW] * 200))))
    assert len(reader.pages) > 2
    for number, page in enumerate(reader.pages, start=1):
        assert "GPU-hours" in page.extract_text()
        assert f"Page {number} of {len(reader.pages)}" in page.extract_text()


def test_no_text_leaves_the_page_however_long_its_names_are():
    name = "Ünïcode-Ελληνικά-Кириллица-" + "x" * 200
    content = pdf_of(document((name, Decimal(10) ** 12, Decimal(10) ** 12, *ROW[3:]), title="A" * 300))
    page = PdfReader(io.BytesIO(content)).pages[0]
    places: list[float] = []

    def see(text: str, _cm: list, tm: list, _font: object, _size: float) -> None:
        if text.strip():
            places.append(tm[4])

    whole = page.extract_text(visitor_text=see)
    assert max(places) < float(page.mediabox.width) - 20
    assert "Ελληνικά" in re.sub(r"\s", "", whole)
    assert re.sub(r"\s", "", whole).count("x") >= 200


WIDE = [
    *(Column(name, name.capitalize()) for name in ("cluster", "node", "generation", "state", "reason")),
    *(Column(f"n{n}", f"Number {n}, s", Kind.NUMBER) for n in range(12)),
]


@pytest.mark.parametrize(
    "reason", ["r" * 200, "the fan is broken " * 12, "it burns " * 2300, "x" * 20_000, "\n" * 500]
)
@pytest.mark.parametrize("others", ["lab", "name-" * 40])
def test_a_wide_table_with_a_long_text_is_a_pdf_whose_numbers_are_whole(reason: str, others: str):
    numbers = [12_345_678 + n for n in range(12)]
    rows = [[others] * 4 + [reason] + numbers] * 3
    content = pdf_of(Document("Nodes", [Table("nodes", "Nodes", WIDE, rows, totals=rows[:1])]))
    pages = PdfReader(io.BytesIO(content)).pages
    assert pages[0].mediabox.width > pages[0].mediabox.height
    words = text_of(content).replace("\N{NO-BREAK SPACE}", " ")
    for number in numbers:
        assert words.count(f"{number:,}".replace(",", " ")) == 4
    if len(reason) <= 250 and others == "lab" and reason.strip():
        assert re.sub(r"\s", "", words).count(re.sub(r"\s", "", reason)) == 4
    assert "…" in words or len(reason) < 20_000


def test_programs_get_gpu_seconds_and_people_gpu_hours():
    columns = [Column("gpu_seconds", "GPU-hours", Kind.GPU_TIME, 2)]
    of = Document("Time", [Table("time", "Time", columns, [[Decimal("5400.000001")]])])
    assert "".join(csv_of(of)).split() == ["time", "gpu_seconds", "5400.000001"]
    assert sheets(xlsx_of(of))["Time"][1] == [("n", "1.500000000277778")]
    assert "1.50" in text_of(pdf_of(of))


def test_json_has_objects_of_exact_figures():
    told = json_of(document(ROW))
    assert told["tables"]["lines"]["rows"][0]["amount"] == "-98765.4321"
    assert json.loads(in_format(document(ROW), "json")) == told


@pytest.mark.parametrize("count", [0, 1, 3])
def test_json_that_is_written_row_by_row_says_the_same(count: int) -> None:
    of = document(*[ROW] * count, title='"Lines"', totals=ROW if count else None)
    two = Document(of.title, [*of.tables, Table("others", "Others", COLUMNS, iter([ROW]))], of.facts)
    assert json.loads("".join(json_text_of(of))) == json_of(of)
    assert list(json.loads("".join(json_text_of(two)))["tables"]) == ["lines", "others"]
    assert json.loads("".join(json_text_of(Document("Nothing", [])))) == json_of(Document("Nothing", []))


@pytest.mark.parametrize("form", ["csv", "json"])
def test_a_long_file_is_written_to_the_disk_and_says_the_same(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = document(*[ROW] * 100)
    small = answer(of, form, "lines")
    monkeypatch.setattr(answers, "IN_MEMORY", 1000)
    monkeypatch.setattr(answers, "BLOCK", 100)
    long = answer(of, form, "lines")
    assert (small.streaming, long.streaming, long.is_async) == (False, True, True)

    async def sent() -> list[bytes]:
        return [block async for block in long]

    blocks = asyncio.run(sent())
    assert (b"".join(blocks), max(map(len, blocks))) == (small.content, 100)
    assert int(long["Content-Length"]) == len(small.content)
    for header in ("Content-Type", "Content-Disposition"):
        assert long[header] == small[header]
    long.close()


def test_there_is_no_other_format():
    with pytest.raises(ValueError, match="docx"):
        in_format(document(ROW), "docx")


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Asia/Kolkata"])
def test_all_moments_of_a_file_for_programs_are_in_the_zone_of_its_days(zone: str):
    """CSV and JSON files write all times in the document's time zone, whichever time zone the given times have."""
    at = datetime(2026, 3, 1, 12, tzinfo=UTC)
    columns = [Column("from", "From", Kind.MOMENT), Column("to", "To", Kind.MOMENT)]
    table = Table("lines", "Lines", columns, [(at, at.astimezone(ZoneInfo("America/Lima")))])
    made = Document("Statement", [table], zone=ZoneInfo(zone))
    expected = at.astimezone(ZoneInfo(zone)).isoformat()
    assert "".join(csv_of(made)).splitlines()[2] == f"{expected},{expected}"
    assert json_of(made)["tables"]["lines"]["rows"] == [{"from": expected, "to": expected}]
    assert "".join(json_text_of(made)).count(expected) == 2
