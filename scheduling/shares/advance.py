"""Reads advance reservations as arrays for a round."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import numpy as np

from fairshare import model as fs
from scheduling.models import AdvanceWindow, Cluster, Job, Session

# Services and sessions that have no end before a window do not start on its GPUs in this time before it.
AHEAD = timedelta(hours=24)
# In addition to a quantum: what stopping gangs have, so that GPUs are free when the window begins.
STOPPING = timedelta(minutes=2)


def read_advance(
    cluster: Cluster, nodes: Sequence[int], accounts: Sequence[tuple[int, int | None]], *, now: datetime
) -> fs.Advance | None:
    """Returns the reservations whose windows are open or begin within AHEAD; None if there are none.

    `nodes`: the ids of the snapshot's nodes. `accounts`: the (tenant, user) pairs of its accounts.
    """
    found = AdvanceWindow.objects.filter(
        reservation__cluster=cluster, ends__gt=now, begins__lt=now + AHEAD, reservation__nodes__isnull=False
    )
    rows = found.order_by("begins", "pk", "reservation__nodes").values_list(
        "reservation__nodes__node", "reservation__nodes__gpus", "reservation__tenant", "begins", "ends",
        "reservation__lends",
    )  # fmt: skip
    index = {node: n for n, node in enumerate(nodes)}
    present = [row for row in rows if row[0] in index]
    if not present:
        return None
    account = {tenant: t for t, (tenant, user) in enumerate(accounts) if user is None}
    opens = np.array([begins.timestamp() for _, _, _, begins, _, _ in present])
    return fs.Advance(
        node=np.array([index[row[0]] for row in present], dtype=np.int64),
        gpus=np.array([row[1] for row in present], dtype=np.int64),
        account=np.array([account.get(row[2], fs.NOWHERE) for row in present], dtype=np.int64),
        opens=opens,
        closes=np.array([row[4].timestamp() for row in present]),
        held=opens - lead_of(cluster).total_seconds(),
        lends=np.array([row[5] for row in present], dtype=bool),
    )


def windows_near(cluster: Cluster, now: datetime) -> list[AdvanceWindow]:
    """Returns the windows of the cluster that are open or begin within AHEAD, with their reservations, earliest
    first."""
    found = AdvanceWindow.objects.filter(
        reservation__cluster=cluster, ends__gt=now, begins__lt=now + AHEAD
    ).select_related("reservation__tenant", "reservation__generation")
    return list(found.prefetch_related("reservation__nodes").order_by("begins", "pk"))


def lead_of(cluster: Cluster) -> timedelta:
    """Returns how long before a window its GPUs are held free: a quantum, and the time that gangs have to stop."""
    return timedelta(seconds=cluster.effective_quantum) + STOPPING


def seconds_to_next_edge(view: fs.Snapshot) -> float | None:
    """Returns the seconds until a window of the view next begins, ends or gets its GPUs; None if there is none."""
    if view.advance is None:
        return None
    edges = np.concatenate([view.advance.held, view.advance.opens, view.advance.closes]) - view.now
    return float(edges[edges > 0].min()) if (edges > 0).any() else None


def latest_ends_of_sessions(cluster: Cluster, jobs: Sequence[int], *, now: datetime) -> fs.Floats:
    """Returns when each job (J,) ends at the latest if it starts now, as a POSIX time; infinite except for sessions."""
    until = np.full(len(jobs), np.inf)
    row = {job: i for i, job in enumerate(jobs)}
    sessions = Session.objects.filter(job__cluster=cluster, job__state__in=Job.UNFINISHED)
    for job, hours, started in sessions.values_list("pk", "longest_hours", "job__first_started_at"):
        if job in row:
            until[row[job]] = ((started or now) + timedelta(hours=hours)).timestamp()
    return until
