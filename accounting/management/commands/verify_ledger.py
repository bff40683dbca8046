"""Recounts the whole ledger, independently of the triggers that guard it, and follows its seals."""

from __future__ import annotations

from datetime import date
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection

from accounting.archive import archived_months
from accounting.models import LedgerSeal
from accounting.one_moment import one_moment
from accounting.verification import first_found

COUNTS = """
    SELECT (SELECT count(*) FROM accounting_ledgertransaction), (SELECT count(*) FROM accounting_ledgerentry),
           (SELECT count(*) FROM accounting_usagesegment)
"""


class Command(BaseCommand):
    help = "Recounts the ledger and follows its seals. Says OK, or the first bad row and ends with 1."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--noted",
            action="append",
            default=[],
            metavar="BOOK:NUMBER:DIGEST",
            help="a seal that was noted earlier, as this command prints the last of each book",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        # All checks see one state of the ledger, whatever is booked meanwhile.
        with one_moment(), connection.cursor() as cursor:
            for noted in options["noted"]:
                _compare(noted)
            found = first_found()
            if found is not None:
                raise CommandError(str(found))
            cursor.execute(COUNTS)
            transactions, entries, segments = cursor.fetchone()
            last = LedgerSeal.objects.order_by("book", "-number").distinct("book")
            for seal in last:
                self.stdout.write(f"{seal.book}:{seal.number}:{bytes(seal.digest).hex()}")
            months = archived_months()
            with_seals = set(
                LedgerSeal.objects.filter(of_sums=True).order_by().values_list("month", flat=True)
            )
        if months:
            self.stdout.write(f"Not compared with their vouchers, which are archived: {_named(months)}")
        if unsealed := [month for month in months if month not in with_seals]:
            self.stdout.write(
                "Archived by an earlier release, so not all that stays of them is sealed until the next month is"
                f" archived: {_named(unsealed)}"
            )
        self.stdout.write(f"OK: {transactions} transactions, {entries} entries, {segments} segments")


def _named(months: list[date]) -> str:
    return ", ".join(f"{month:%Y-%m}" for month in months)


def _compare(noted: str) -> None:
    book, number, digest = noted.split(":") if noted.count(":") == 2 else ("", "", "")
    if not (book.isdigit() and number.isdigit()):
        raise CommandError(f"“{noted}” is no seal; the last ones are printed as BOOK:NUMBER:DIGEST")
    seal = LedgerSeal.objects.filter(book=book, number=number).first()
    if seal is None or bytes(seal.digest).hex() != digest:
        raise CommandError(f"book {book}, seal {number} is not the one that was noted: all was made anew")
