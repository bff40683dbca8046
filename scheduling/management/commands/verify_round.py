"""`manage.py verify_round N`: repeats a round with the policy version that decided it, and compares the decisions.

If the decisions differ, the exit code says what this means:

- 1: an error. The policy version is released, or its source text has not changed since the round.
- 3: no proof of an error. The policy version is unreleased, and its source text has changed since the round.
"""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from accounting.core.numbers import whole_argument
from scheduling.models import Round
from scheduling.rounds.actions import decisions_equal, redraw
from scheduling.rounds.builds import FROZEN, build_of

OTHER_BUILD = 3


class Command(BaseCommand):
    help = (
        "Repeats the decision of a round from its stored snapshot, state and seed, and compares the result with the"
        " stored decision."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("number", type=whole_argument)
        parser.add_argument(
            "--cluster", help="Name of the cluster; needed if several clusters have a round of this number."
        )
        parser.add_argument(
            "--json", action="store_true", dest="as_json", help="Prints the result as one line of JSON."
        )

    def handle(self, *args: Any, number: int, cluster: str | None, as_json: bool, **options: Any) -> None:
        rounds = Round.objects.filter(number=number).select_related("record", "cluster")
        if cluster:
            rounds = rounds.filter(cluster__name=cluster)
        found = list(rounds[:2])
        if not found:
            raise CommandError(f"There is no round {number}.")
        if len(found) > 1:
            raise CommandError(f"Several clusters have a round {number}; choose one with --cluster.")
        (round_,) = found
        if not hasattr(round_, "record"):
            raise CommandError(f"The record of round {number} is no longer kept.")
        self._tell(round_, as_json=as_json)

    def _tell(self, round_: Round, *, as_json: bool) -> None:
        stored, again = redraw(round_)
        matches, version = decisions_equal(stored, again), (round_.policy, round_.policy_version)
        build, before = build_of(*version), round_.policy_build
        is_other = before != build and version not in FROZEN
        described = (
            f"Round {round_.number} of {round_.cluster.name}: {round_.policy} {round_.policy_version}, "
            f"{round_.ordering}, seed {round_.seed}, "
            f"{len(stored.run)} gangs on {round_.gpus_given} GPUs, {len(stored.trades)} trades: "
        )
        if is_other:
            described += (
                f"decided by another build of the policy (then {before or 'not stored'}, now {build}): "
            )
        if as_json:
            told = {"round": round_.number, "cluster": round_.cluster.name, "policy": round_.policy}
            told |= {"version": round_.policy_version, "build": before, "build_now": build}
            self.stdout.write(json.dumps(told | {"is_other_build": is_other, "matches": matches}))
        elif matches:
            self.stdout.write(f"{described}the repeated decision matches.")
        if not matches and is_other:
            raise CommandError(
                f"{described}the repeated decision differs from the stored one. The change of the build may be the"
                " cause, so this does not prove an error.",
                returncode=OTHER_BUILD,
            )
        if not matches:
            raise CommandError(f"{described}the repeated decision DIFFERS.")
