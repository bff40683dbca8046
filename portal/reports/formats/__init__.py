"""File formats of reports: CSV, XLSX, PDF and JSON. Each is made from the same `Document`, which contains `Table`s."""

from portal.reports.formats.answers import TYPES, answer, csv_answer, in_format
from portal.reports.formats.document import (
    PERIOD,
    STATE,
    Cell,
    Column,
    Document,
    Kind,
    Table,
    cut_note,
    shown,
)
from portal.reports.formats.text import csv_of, csv_of_table, json_of, json_of_facts, json_text_of

__all__ = [
    "PERIOD",
    "STATE",
    "TYPES",
    "Cell",
    "Column",
    "Document",
    "Kind",
    "Table",
    "answer",
    "csv_answer",
    "csv_of",
    "csv_of_table",
    "cut_note",
    "in_format",
    "json_of",
    "json_of_facts",
    "json_text_of",
    "shown",
]
