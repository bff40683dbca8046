"""`manage.py verify_ledger`: recomputes the ledger and checks its hash chain.

The checks do not rely on the database triggers that guard the ledger.
"""

from __future__ import annotations

from datetime import date
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection

from accounting.closing.archive import archived_months
from accounting.core.consistent_read import consistent_read
from accounting.ledger import signing
from accounting.ledger.heads import (
    HeadsFileError,
    Printed,
    differs,
    last_head,
    last_published,
    printed,
    resumed,
)
from accounting.models import LedgerSeal
from accounting.verification import first_found

COUNTS = """
    SELECT (SELECT count(*) FROM accounting_ledgertransaction), (SELECT count(*) FROM accounting_ledgerentry),
           (SELECT count(*) FROM accounting_usagesegment)
"""


class Command(BaseCommand):
    help = (
        "Verifies the ledger: recounts its entries and checks its hash chain. Prints OK, or prints the first bad row"
        " and exits with status 1."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--noted",
            action="append",
            default=[],
            metavar="HEAD",
            help=(
                "ledger head that you noted from a statement or from an earlier run of this command, or a seal as"
                " BOOK:NUMBER:DIGEST; may be repeated"
            ),
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            published = last_published()
        except HeadsFileError as error:
            raise CommandError(str(error)) from error
        # All checks see the same state of the ledger, even if postings and publications happen meanwhile.
        with consistent_read(), connection.cursor() as cursor:
            for noted in options["noted"]:
                _compare(noted)
                self.stdout.write(f"The hash chain still contains the head or seal that you noted: {noted}")
            found = first_found()
            if found is not None:
                raise CommandError(str(found))
            if published and (why := differs(published)):
                raise CommandError(why)
            cursor.execute(COUNTS)
            transactions, entries, segments = cursor.fetchone()
            self._tell_heads()
            months = archived_months()
            with_seals = set(
                LedgerSeal.objects.filter(of_sums=True).order_by().values_list("month", flat=True)
            )
        if months:
            self.stdout.write(
                "The vouchers (detailed usage rows) of these months are archived and were not checked:"
                f" {_named(months)}"
            )
        if unsealed := [month for month in months if month not in with_seals]:
            self.stdout.write(
                f"An earlier release of Fairlot archived these months: {_named(unsealed)}. Some of their rows have"
                " no seal yet. These rows are sealed when the next month is archived."
            )
        self.stdout.write(f"OK: {transactions} transactions, {entries} entries, {segments} segments")

    def _tell_heads(self) -> None:
        for head in resumed():
            self.stdout.write(
                f"Sealing was resumed at {head.at:%Y-%m-%d %H:%M} UTC (head {head.number}): {head.reason}"
            )
        last = last_head()
        if last is None:
            return
        if not last.signer:
            self.stdout.write("Ledger heads are not signed: FAIRLOT_SIGNING_KEYS is not set")
        elif not signing.trusted_keys():
            self.stdout.write(
                "Signatures were not compared with a trusted key: set FAIRLOT_TRUSTED_HEAD_KEYS"
            )
        self.stdout.write(printed(last))


def _named(months: list[date]) -> str:
    return ", ".join(f"{month:%Y-%m}" for month in months)


def _compare(noted: str) -> None:
    head = Printed.read(noted)
    if head is None:
        _compare_seal(noted)
    elif head.signature and not any(head.is_signed_by(key) for key in signing.trusted_keys()):
        raise CommandError(
            f"head {head.number} is not signed with a trusted key: it may come from another installation"
        )
    elif why := differs(head):
        raise CommandError(why)


def _compare_seal(noted: str) -> None:
    book, number, digest = noted.split(":") if noted.count(":") == 2 else ("", "", "")
    if not (book.isdigit() and number.isdigit()):
        raise CommandError(f"“{noted}” is neither a head (head:NUMBER:…) nor a seal (BOOK:NUMBER:DIGEST)")
    seal = LedgerSeal.objects.filter(book=book, number=number).first()
    if seal is None or bytes(seal.digest).hex() != digest:
        raise CommandError(
            f"seal {number} of book {book} differs from the seal that you noted earlier: the hash chain was rebuilt"
        )
