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
        "Writes what leases held, minute by minute, of months that ended long ago to files in FOLDER/YYYY-MM and"
        " drops it from the database; the ledger and all sums stay. Verifies the ledger before."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("folder", type=Path)
        what = parser.add_mutually_exclusive_group(required=True)
        what.add_argument(
            "--keep-months", type=whole_argument, metavar="N", help="whole months that stay besides this one"
        )
        what.add_argument(
            "--bring-back", type=_month, metavar="YYYY-MM", help="the last month that was archived"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            if month := options["bring_back"]:
                rows = bring_back_month(actor=None, month=month, folder=_folder(options["folder"], month))
                self.stdout.write(f"{month:%Y-%m}: {rows} rows are back")
            else:
                self._archive(options["folder"], options["keep_months"])
        except (Refused, OSError) as error:
            raise CommandError(str(error)) from error

    def _archive(self, folder: Path, keep_months: int) -> None:
        if keep_months < FEWEST:
            raise Refused(f"Keep at least {FEWEST} whole months.")
        months = archivable_before(now_from_database(), keep_months=keep_months)
        if months:
            call_command("verify_ledger", stdout=self.stdout)
        for month in months:
            done = archive_month(actor=None, month=month, folder=_folder(folder, month))
            self.stdout.write(f"{month:%Y-%m}: {done.rows} rows in {done.folder}")


def _folder(folder: Path, month: date) -> Path:
    return folder / f"{month:%Y-%m}"


def _month(text: str) -> date:
    return datetime.strptime(text, "%Y-%m").date()
