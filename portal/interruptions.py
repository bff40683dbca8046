"""Prepares the interruptions of services and sessions for pages and the API. An interruption is a period in which the
program did not answer.

Also determines the time from which a lease may be suspended, so that pages can show a notice in advance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from accounting.core.clock import now_from_database
from accounting.core.wording import counted, duration
from scheduling.advance.ahead import WindowAhead
from scheduling.leases.interruptions import Interruption
from scheduling.models import Lease
from scheduling.models.event_codes import Cause

MOST_SHOWN = 20
SUMMED = timedelta(days=7)
LABELS: Mapping[Cause, str] = {
    Cause.CLAIMED: "suspended for other jobs",
    Cause.OWN_JOBS: "suspended for the owner's other jobs",
    Cause.LIMIT: "limit reached",
    Cause.MOVED: "moved",
    Cause.RESIZED: "resized",
    Cause.DRAINED: "node drained",
    Cause.LOST: "node or processes lost",
    Cause.ARCHIVED: "team archived",
    Cause.NO_RIGHT: "owner may no longer run jobs",
    Cause.PORTAL_STOPPED: "portal stopped",
    Cause.PERSON: "stopped by a person",
    Cause.REPLACED: "rollout",
    Cause.ENDED: "program ended",
    Cause.UNREADY: "not ready",
}


@dataclass(frozen=True, slots=True)
class Shown:
    """An interruption of a service or session with the label and duration that pages show."""

    it: Interruption
    label: str
    seconds: float  # from the beginning to the end, or until now


@dataclass(frozen=True, slots=True)
class Interruptions:
    """The latest interruptions, with a sentence that summarises those of the last 7 days."""

    latest: Sequence[Shown]
    sentence: str

    @property
    def present(self) -> Interruption | None:
        """Returns the latest interruption that has not ended; None if all have ended."""
        return next((one.it for one in self.latest if one.it.ended is None), None)


def shown(found: Sequence[Interruption]) -> Interruptions:
    """Converts interruptions for pages. `found` must be sorted latest first, as scheduling.leases.interruptions returns
    it."""
    now = now_from_database()
    latest = [
        Shown(one, LABELS[one.cause], ((one.ended or now) - one.began).total_seconds()) for one in found
    ]
    recent = [one.seconds for one in latest if one.it.began > now - SUMMED]
    count = counted(len(recent), "interruption") if recent else "No interruptions"
    lasted = f", {duration(sum(recent))} in all" if recent else ""
    return Interruptions(latest[:MOST_SHOWN], f"{count} in the last {SUMMED.days} days{lasted}.")


def as_json(found: Interruptions) -> list[dict[str, Any]]:
    """Returns the latest interruptions as dictionaries for the API."""
    return [
        {
            "job_id": one.it.job_id,
            "name": one.it.name,
            "cause": str(one.it.cause),
            "text": one.it.text,
            "began_at": one.it.began,
            "ended_at": one.it.ended,
            "seconds": one.seconds,
        }
        for one in found.latest
    ]


def ahead_as_json(found: Sequence[WindowAhead]) -> list[dict[str, Any]]:
    """Returns coming windows of reservations as dictionaries for the API."""
    return [
        {
            "begins_at": one.window.begins,
            "ends_at": one.window.ends,
            "stops_at": one.stops_at,
            "gpus": one.gpus,
            "nodes": one.nodes,
            "jobs": one.jobs,
            "team": one.tenant,
        }
        for one in found
    ]


def claimable_from(lease: Lease | None) -> datetime | None:
    """Returns the time from which the lease may be suspended for other jobs. Queries `lease.cluster` unless it is
    already loaded.

    Returns None in three cases:

    - `lease` is None.
    - The lease is within the team's guaranteed share, which protects it.
    - The lease is already stopping.
    """
    if lease is None or lease.notice_since is None or lease.state == Lease.State.STOPPING:
        return None
    return lease.notice_since + timedelta(seconds=lease.cluster.notice_seconds)
