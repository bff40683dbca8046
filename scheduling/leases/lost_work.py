"""Work that was done and had to be done again, as the progress that programs print tells it.

A turn that goes on from a checkpoint is first seen at some step. What earlier turns of the job had done beyond
that step was lost: a turn's GPUs since it had reached it, or all that it held where it only began beyond it. Between
what was seen first and last of a turn its steps count as made evenly. As the new turn may have made steps before
it was first seen, no more is called lost than was. A turn of which not all workers ever ran did nothing that lasts.

Programs that print no progress say nothing about it, and nothing of theirs is called lost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from accounting.core.bulk import update_rows
from scheduling.models import Lease


def write_lost_work(resumed: Mapping[Lease, float]) -> None:
    """Of turns whose progress was seen for the first time, at which step: what earlier turns of their jobs lost.

    The caller holds the cluster's lock; all leases are stored as they are.
    """
    later = {lease.job_id: (lease.epoch, steps) for lease, steps in resumed.items() if lease.epoch > 1}
    if not later:
        return
    earlier: dict[int, list[Lease]] = defaultdict(list)
    for lease in Lease.objects.filter(
        job__in=later, state=Lease.State.CLOSED, progress_steps__isnull=False
    ).order_by("-epoch"):
        if lease.epoch < later[lease.job_id][0]:
            earlier[lease.job_id].append(lease)
    update_rows(
        [one for job, leases in earlier.items() for one in lost_turns(leases, later[job][1])], ["lost_from"]
    )


def lost_turns(leases: Iterable[Lease], steps: float) -> Iterator[Lease]:
    """Those of a job's earlier leases, the latest first, that lost more than was known; sets their `lost_from`."""
    for lease in leases:
        since = lost_since(lease, steps)
        if since is None:
            return
        if lease.lost_from is None or since < lease.lost_from:
            lease.lost_from = since
            yield lease
        if lease.first_steps is None or lease.first_steps <= steps:
            return


def lost_since(lease: Lease, steps: float) -> datetime | None:
    """When the lease had first made what a later turn, first seen at `steps`, had to make again; None: nothing."""
    last, at = lease.progress_steps, lease.progress_at
    first, first_at = lease.first_steps, lease.first_steps_at
    if last is None or first is None or at is None or first_at is None or steps >= last:
        return None
    if lease.held_from is None or lease.held_until is None:
        return None
    # What began beyond that step is lost as a whole, with all that it took to begin.
    since = (
        lease.held_from if steps < first else first_at + (at - first_at) * ((steps - first) / (last - first))
    )
    return since if lease.held_from <= since < lease.held_until else None
