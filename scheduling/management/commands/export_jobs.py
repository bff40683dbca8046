"""`manage.py export_jobs FORM`: writes jobs to standard output in a format for other tools."""

from __future__ import annotations

from argparse import BooleanOptionalAction
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from accounting.models import Tenant
from scheduling.reports.exports import FORMS, Selection, export_lines


class Command(BaseCommand):
    help = "Exports job records in the format of sacct, XDMoD's shredder, CSV or JSON. Days are in UTC."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("form", choices=FORMS)
        parser.add_argument(
            "--from",
            dest="first",
            required=True,
            type=date.fromisoformat,
            help="First day of the period, such as 2026-05-01.",
        )
        parser.add_argument(
            "--to",
            dest="last",
            required=True,
            type=date.fromisoformat,
            help="Last day of the period, such as 2026-05-31.",
        )
        parser.add_argument("--team", help="Slug of a team; includes all teams below it.")
        parser.add_argument(
            "--whole",
            action=BooleanOptionalAction,
            help="Includes the whole run of each job, also the parts before and after the period.",
        )
        parser.add_argument(
            "--anonymous", action=BooleanOptionalAction, help="Writes pseudonyms instead of names."
        )

    def handle(
        self,
        *args: Any,
        form: str,
        first: date,
        last: date,
        team: str | None,
        whole: bool,
        anonymous: bool,
        **options: Any,
    ) -> None:
        tenant = Tenant.objects.filter(slug=team).first() if team else None
        if team and tenant is None:
            raise CommandError(f"There is no team {team}.")
        begins, ends = (datetime.combine(day, time(), UTC) for day in (first, last + timedelta(days=1)))
        selection = Selection.of(
            None, begins, ends, tenant=tenant, anonymous=bool(anonymous), whole=bool(whole)
        )
        for piece in export_lines(form, selection):
            self.stdout.write(piece, ending="")
