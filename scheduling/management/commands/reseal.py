"""`manage.py reseal`: encrypts every secret in the database again with the newest key in FAIRLOT_SEALING_KEYS."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from scheduling.jobs.reencryption import reseal_all


class Command(BaseCommand):
    help = "Encrypts all secrets again with the newest key. The older keys are no longer needed afterwards."

    def handle(self, *args: Any, **options: Any) -> None:
        done, lost = reseal_all()
        self.stdout.write(f"Secrets encrypted with the newest key: {done}.")
        if lost:
            names = ", ".join(one.name for one in lost)
            raise CommandError(
                f"These secrets could not be decrypted and stay unchanged: {names}. {lost[0].why}"
            )
