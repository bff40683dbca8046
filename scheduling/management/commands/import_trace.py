"""`manage.py import_trace`: imports a published trace as the history of a new, detached cluster."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from accounting.core.clock import now_from_database
from accounting.core.errors import Refused
from accounting.core.numbers import whole_argument
from scheduling.books.closing import close_hours
from scheduling.imports.actions import PastCluster, hours_to_close, import_history, imported_before
from scheduling.imports.traces import BadTrace, PastJob, TraceJob, decoded, fingerprint_of, read_trace, replay
from scheduling.models import Cluster

HOUR = 3600


class Command(BaseCommand):
    help = (
        "Imports the trace of a past cluster as jobs, leases and bills, and closes the hours of that cluster."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "path", type=Path, help="CSV with the columns job_id, user, num_gpu, submit_time and duration."
        )
        parser.add_argument(
            "--name", default="", help="Name of the cluster and the team; by default the name of the file."
        )
        parser.add_argument("--nodes", type=whole_argument, default=64)
        parser.add_argument("--gpus-per-node", type=whole_argument, default=8)
        parser.add_argument(
            "--generation", default="P100", help="GPU type of the nodes; created if it does not exist."
        )
        parser.add_argument(
            "--begins",
            help="Full hour at which the trace begins, such as 2026-05-01T00:00Z; by default, the trace ends now.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        options["name"] = options["name"] or options["path"].stem
        try:
            self._import(**options)
        except (BadTrace, Refused, OSError) as error:
            raise CommandError(str(error)) from None

    def _import(
        self,
        *,
        path: Path,
        name: str,
        nodes: int,
        gpus_per_node: int,
        generation: str,
        begins: str | None,
        **_: Any,
    ) -> None:
        if min(nodes, gpus_per_node) < 1:
            raise BadTrace("a cluster must have at least one node with at least one GPU")
        with path.open("rb") as lines:
            traced = read_trace(decoded(lines))
        fingerprint = fingerprint_of(traced)
        before = imported_before(fingerprint)
        if before is not None and before.name == name and hours_to_close(before):
            self.stdout.write(f"{name} has already been imported; its remaining hours are being closed")
            self._close(before)
            return
        jobs = replay(traced, nodes=nodes, gpus_per_node=gpus_per_node)
        if not jobs:
            raise BadTrace("no job of the trace requests GPUs")
        self._tell(traced, jobs)
        hours = math.ceil(max(job.held.ends for job in jobs) / HOUR)
        since = _full_hour(begins) if begins else _hours_ago(hours)
        past = PastCluster(
            name=name,
            generation=generation,
            nodes=nodes,
            gpus_per_node=gpus_per_node,
            begins=since,
            ends=since + timedelta(hours=hours),
        )
        cluster = import_history(actor=None, past=past, jobs=jobs, fingerprint=fingerprint)
        teams = len({job.traced.tenant for job in jobs})
        self.stdout.write(
            f"{len(jobs)} jobs of {teams} teams on {name}, {past.begins:%Y-%m-%d %H:%M} to "
            f"{past.ends:%Y-%m-%d %H:%M} UTC"
        )
        self._close(cluster)

    def _close(self, cluster: Cluster) -> None:
        """Closes all hours of the cluster.

        If the command is killed, a second run closes the remaining hours, and so does the Celery task that closes
        hours.
        """
        closed, to_close = 0, hours_to_close(cluster)
        while some := close_hours(cluster_id=cluster.pk, at_most=min(24, to_close - closed)):
            closed += some
            self.stdout.write(f"closed {closed} of {to_close} hours")

    def _tell(self, traced: list[TraceJob], jobs: list[PastJob]) -> None:
        left_out = len(traced) - len(jobs)
        if left_out:
            self.stdout.write(f"left out: {left_out} jobs that request no GPU or last less than a second")


def _full_hour(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise CommandError(str(error)) from None
    moment = moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC)
    if moment != moment.replace(minute=0, second=0, microsecond=0):
        raise CommandError(f"--begins {text} is not a full hour")
    return moment


def _hours_ago(hours: int) -> datetime:
    now = now_from_database().replace(minute=0, second=0, microsecond=0)
    return now - timedelta(hours=hours)
