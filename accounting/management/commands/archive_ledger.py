"""`manage.py archive_ledger`: moves the vouchers (detailed usage rows) of old months to files, or restores them."""

from __future__ import annotations

from datetime import date, datetime
from pathlib import Path
from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser

from accounting.closing.archive import archivable_before, archive_month, bring_back_month
from accounting.core.clock import now_from_database
from accounting.core.errors import Refused
from accounting.core.numbers import whole_argument

# A quarter and the month before: limits over past periods need the usage segments, not only rollups.
FEWEST = 4


class Command(BaseCommand):
    help = (
        "Archives old months: moves their vouchers (usage segments and charges) from the database to files in"
        " FOLDER/YYYY-MM. Transactions and rollups stay in the database. Verifies the ledger first."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("folder", type=Path)
        what = parser.add_mutually_exclusive_group(required=True)
        what.add_argument(
            "--keep-months",
            type=whole_argument,
            metavar="N",
            help=(
                "keep the vouchers (detailed usage rows) of the N whole months before the current month in the"
                " database, and archive all older months"
            ),
        )
        what.add_argument(
            "--bring-back",
            type=_month,
            metavar="YYYY-MM",
            help=(
                "month whose vouchers (detailed usage rows) are moved back to the database; it must be the last"
                " month that was archived"
            ),
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            if month := options["bring_back"]:
                rows = bring_back_month(actor=None, month=month, folder=_folder(options["folder"], month))
                self.stdout.write(f"{month:%Y-%m}: {rows} rows brought back into the database")
            else:
                self._archive(options["folder"], options["keep_months"])
        except (Refused, OSError) as error:
            raise CommandError(str(error)) from error

    def _archive(self, folder: Path, keep_months: int) -> None:
        if keep_months < FEWEST:
            raise Refused(f"--keep-months must be {FEWEST} or more.")
        months = archivable_before(now_from_database(), keep_months=keep_months)
        if months:
            call_command("verify_ledger", stdout=self.stdout)
        for month in months:
            done = archive_month(actor=None, month=month, folder=_folder(folder, month))
            self.stdout.write(f"{month:%Y-%m}: {done.rows} rows archived in {done.folder}")


def _folder(folder: Path, month: date) -> Path:
    return folder / f"{month:%Y-%m}"


def _month(text: str) -> date:
    return datetime.strptime(text, "%Y-%m").date()
