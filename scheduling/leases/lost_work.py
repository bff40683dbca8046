"""Computes the work that jobs lost and had to repeat, from the progress (in steps) that their programs print.

The first step that a resumed attempt prints is its resume step. Work that earlier attempts did beyond this step is
lost. For each earlier attempt, the lost GPU time is:

- Zero, if the attempt did not get beyond the resume step.
- All its time, if its first observed step is already beyond the resume step.
- Otherwise the time from the resume step to the attempt's end, as if all steps took the same time. For example, an
  attempt printed step 100 at 10:00 and step 200 at 11:00, and the next one resumes at step 150. Then the time from
  10:30 to the end of the first attempt is lost.

The actual loss is higher if a resumed attempt makes steps before its first observation. In two cases all time of an
attempt counts as lost (`ObservationBatch` in scheduling/leases/actions.py): some of its workers never ran, or its
program failed without having printed steps, and the job is retried.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from accounting.core.bulk import update_rows
from scheduling.models import Lease


def write_lost_work(resumed: Mapping[Lease, float]) -> set[int]:
    """Stores, in the field `lost_from` of earlier attempts, the time at which their lost work begins.

    `resumed` has the first observed step of each resumed attempt, by lease. The caller holds the cluster's scheduling
    lock and has saved all leases. Returns the ids of the jobs of which more work is lost now.
    """
    later = {lease.job_id: (lease.epoch, steps) for lease, steps in resumed.items() if lease.epoch > 1}
    if not later:
        return set()
    earlier: dict[int, list[Lease]] = defaultdict(list)
    for lease in Lease.objects.filter(
        job__in=later, state=Lease.State.CLOSED, progress_steps__isnull=False
    ).order_by("-epoch"):
        if lease.epoch < later[lease.job_id][0]:
            earlier[lease.job_id].append(lease)
    lost = [one for job, leases in earlier.items() for one in lost_attempts(leases, later[job][1])]
    update_rows(lost, ["lost_from"])
    return {one.job_id for one in lost}


def lost_attempts(leases: Iterable[Lease], steps: float) -> Iterator[Lease]:
    """Sets `lost_from` of a job's earlier leases, for a later attempt that resumes at the step `steps`.

    `leases` must be sorted, latest first. Yields each lease whose `lost_from` is set for the first time or becomes
    earlier.
    """
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
    """Returns the time at which the lost work of a lease begins: the work that a later attempt repeats from the step
    `steps`.

    Returns None if the later attempt repeats none of the lease's work.
    """
    last, at = lease.progress_steps, lease.progress_at
    first, first_at = lease.first_steps, lease.first_steps_at
    if last is None or first is None or at is None or first_at is None or steps >= last:
        return None
    if lease.held_from is None or lease.held_until is None:
        return None
    # If the attempt started beyond that step, all its time is lost, including its start.
    since = (
        lease.held_from if steps < first else first_at + (at - first_at) * ((steps - first) / (last - first))
    )
    return since if lease.held_from <= since < lease.held_until else None
