"""`manage.py resume_sealing`: resumes the sealing of the ledger after it stopped.

The reason for the resumption is stored in the chain of heads (signed digests of the ledger).
"""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from accounting.actions.ledger import resume_sealing
from accounting.core.errors import Refused


class Command(BaseCommand):
    help = (
        "Resumes the sealing of the ledger after it has stopped, for example after a pause of more than a day, a"
        " restored backup or a lost key."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "reason",
            help="why sealing had stopped; Fairlot records this reason in the hash chain and in the audit trail",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            head = resume_sealing(actor=None, reason=options["reason"])
        except Refused as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"Sealing continues with head {head.number}")
