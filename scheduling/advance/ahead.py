"""Finds the windows of advance reservations that take the GPUs of running sessions and replicas."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from accounting.core.clock import now_from_database
from accounting.models import User
from scheduling.models import AdvanceReservation, AdvanceWindow, Job, Lease
from scheduling.shares.advance import AHEAD, lead_of

MOST_SHOWN = 3


@dataclass(frozen=True, slots=True)
class WindowAhead:
    """A window that is open or begins within a day, in which another team has GPUs of nodes on which given jobs run.

    `tenant` is the team; "" if the reader may not know it. `stops_at` is from when on jobs may be stopped for it.
    """

    window: AdvanceWindow
    nodes: list[str]
    gpus: int
    jobs: list[str]  # the names of those that run there
    tenant: str
    stops_at: datetime


def windows_over(
    leases: Iterable[Lease | None], reader: User, *, ends: datetime | None = None
) -> list[WindowAhead]:
    """Returns the windows of other teams' reservations that may take GPUs of gangs with these leases, earliest first.

    Reservations of a job's own team, or of a team above it, take nothing from it. `ends`: when the jobs end by
    themselves; windows after that do not matter.
    """
    running = [one.pk for one in leases if one and one.state in (Lease.State.STARTING, Lease.State.RUNNING)]
    if not running:
        return []
    now = now_from_database()
    held: dict[int, dict[int, Job]] = {}
    rows = Lease.objects.filter(pk__in=running).select_related("job__tenant").defer("job__spec")
    for lease in rows.prefetch_related("held_gpus"):
        for gpu in lease.held_gpus.all():
            held.setdefault(gpu.node_id, {})[lease.job_id] = lease.job
    windows = AdvanceWindow.objects.filter(
        reservation__nodes__node__in=held,
        reservation__cancelled_at=None,
        ends__gt=now,
        begins__lt=now + AHEAD,
    ).distinct()
    related = windows.select_related("reservation__tenant", "reservation__generation", "reservation__cluster")
    coming = list(related.prefetch_related("reservation__nodes__node").order_by("begins", "pk"))
    known = set(
        AdvanceReservation.objects.filter(pk__in={one.reservation_id for one in coming})
        .visible_to(reader)
        .values_list("pk", flat=True)
    )
    found = []
    for window in coming:
        reservation = window.reservation
        there = [one for one in reservation.nodes.all() if one.node_id in held]
        jobs = {
            job.pk: job.name
            for one in there
            for job in held[one.node_id].values()
            if not job.tenant.path.startswith(reservation.tenant.path)
        }
        stops_at = window.begins - (timedelta(0) if reservation.lends else lead_of(reservation.cluster))
        if not jobs or (ends is not None and ends <= stops_at):
            continue
        found.append(
            WindowAhead(
                window,
                [one.node.name for one in there],
                sum(one.gpus for one in there),
                [jobs[pk] for pk in sorted(jobs)],
                reservation.tenant.name if reservation.pk in known else "",
                stops_at,
            )
        )
    return found[:MOST_SHOWN]
