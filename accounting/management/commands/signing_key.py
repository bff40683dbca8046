"""`manage.py signing_key`: prints the public keys, with which anybody can verify the signatures of ledger heads."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from accounting.ledger import signing


class Command(BaseCommand):
    help = (
        "Prints the public keys of FAIRLOT_SIGNING_KEYS, the newest first, in hexadecimal digits and as PEM."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        keys = signing.public_keys()
        if not keys:
            raise CommandError("There is no signing key. Set FAIRLOT_SIGNING_KEYS and restart Fairlot.")
        for key in keys:
            self.stdout.write(key.hex())
            self.stdout.write(signing.as_pem(key))
