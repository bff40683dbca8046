"""`manage.py verify_round N`: draws a round again with the policy that decided it and says whether it matches."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from accounting.numbers import whole_argument
from scheduling.actions.rounds import decisions_equal, redraw
from scheduling.models import Round


class Command(BaseCommand):
    help = "Asks the policy of a round again with its stored snapshot, state and seed, and compares."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("number", type=whole_argument)
        parser.add_argument("--cluster", help="Name; needed when there are several.")

    def handle(self, *args: Any, number: int, cluster: str | None, **options: Any) -> None:
        rounds = Round.objects.filter(number=number).select_related("record", "cluster")
        if cluster:
            rounds = rounds.filter(cluster__name=cluster)
        found = list(rounds[:2])
        if not found:
            raise CommandError(f"There is no round {number}.")
        if len(found) > 1:
            raise CommandError(f"Several clusters have a round {number}; name one with --cluster.")
        (round_,) = found
        if not hasattr(round_, "record"):
            raise CommandError(f"The record of round {number} is no longer kept.")
        stored, again = redraw(round_)
        described = (
            f"Round {number} of {round_.cluster.name}: {round_.policy} {round_.policy_version}, {round_.draw}, "
            f"seed {round_.seed}, "
            f"{len(stored.run)} gangs on {round_.gpus_given} GPUs, {len(stored.trades)} trades"
        )
        if not decisions_equal(stored, again):
            raise CommandError(f"{described}: drawn again, it DIFFERS.")
        self.stdout.write(f"{described}: drawn again, it matches.")
