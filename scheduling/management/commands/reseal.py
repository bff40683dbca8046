"""`manage.py reseal`: encrypts every secret in the database again with the newest key in FAIRLOT_SEALING_KEYS."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from scheduling.jobs.reencryption import reseal_all


class Command(BaseCommand):
    help = "Seals every secret anew with the newest key; afterwards the older keys are needed no more."

    def handle(self, *args: Any, **options: Any) -> None:
        done, lost = reseal_all()
        self.stdout.write(f"{done} sealed with the newest key.")
        if lost:
            names = ", ".join(one.name for one in lost)
            raise CommandError(f"Not opened, and left as they are: {names}. {lost[0].why}")
