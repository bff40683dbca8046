"""Stores measurements of GPU use: the periods in which a lease's GPUs were idle, and since when each job's GPUs are
idle.

Measurements may arrive twice, late or never. Periods that touch each other are merged. Periods in billed time are not
changed, so that bills and closed hours always agree.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Generic, TypeVar

from django.db import transaction
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

from accounting.core.bulk import insert_rows, update_rows
from accounting.core.clock import now_from_database
from scheduling.backends.base import Use
from scheduling.core import pubsub
from scheduling.core.locks import lock_schedule
from scheduling.core.run_apart import apart
from scheduling.models import GpuUse, IdleStretch, Lease, ProcesslessStretch

NOTHING = timedelta(0)
MEASURED = (
    "lease", "measured_until", "measure", "percent", "used_at", "idle_since", "processless_since", "idle_for",
    "idle_warned",
)  # fmt: skip
Stretch = tuple[datetime, datetime]
Kept = TypeVar("Kept", IdleStretch, ProcesslessStretch)


def note_gpu_use(*, cluster_id: int, uses: Sequence[Use], seen_at: datetime) -> None:
    """Stores measurements of GPU use that were read at `seen_at` by the database's clock.

    Ignores measurements of gangs that hold no GPUs, and of gangs whose workers have not all started to run yet.
    """
    apart(cluster_id, uses, lambda some: [_note(cluster_id, some, seen_at)])


@transaction.atomic(durable=True)
def _note(cluster_id: int, uses: Sequence[Use], seen_at: datetime) -> None:
    lock_schedule(cluster_id)
    now = now_from_database()
    leases = {
        lease.token: lease
        for lease in Lease.objects.filter(
            cluster=cluster_id,
            token__in=[use.token for use in uses],
            state__in=Lease.HOLDING,
            running_from__isnull=False,
        ).select_related("job")
    }
    known = {
        use.job_id: use for use in GpuUse.objects.filter(job__in=[one.job_id for one in leases.values()])
    }
    before = {pk: use.idle_since is None for pk, use in known.items()}
    told = [
        (leases[seen.token], seen, until - timedelta(seconds=seen.unused_for), until)
        for seen in uses
        if seen.token in leases
        for until in [min(seen_at - timedelta(seconds=seen.age), now)]
    ]
    if not told:
        return
    earliest = min(since for _, _, since, _ in told)
    book = _MergedStretches(IdleStretch, leases.values(), since=earliest)
    empty = _MergedStretches(ProcesslessStretch, leases.values(), since=earliest)
    for lease, seen, since, until in told:
        book.add(lease, since, until)
        empty.add(lease, until - timedelta(seconds=seen.processless_for), until)
        known[lease.job_id] = _noted(known.get(lease.job_id), lease, seen, since, until)
    book.save()
    empty.save()
    _write(known, new=known.keys() - before.keys())
    for lease in leases.values():
        is_used = known[lease.job_id].idle_since is None
        if before.get(lease.job_id) is not is_used:
            pubsub.publish(f"job:{lease.job_id}", f"jobs:{lease.job.tenant_id}")


class _MergedStretches(Generic[Kept]):
    """The stretches of some leases: measured periods in which the GPUs were not used, or had no process.

    Stretches that touch or overlap are merged. The constructor reads the stored stretches that end at `since` or later.
    """

    def __init__(self, model: type[Kept], leases: Iterable[Lease], *, since: datetime) -> None:
        self._model: type[Kept] = model
        self._known: dict[int, list[Kept]] = defaultdict(list)
        for one in model.objects.filter(lease__in=leases, during__endswith__gte=since):
            self._known[one.lease_id].append(one)
        self._changed: dict[int, Kept] = {}
        self._gone: list[int] = []

    def add(self, lease: Lease, since: datetime, until: datetime) -> None:
        """Adds a stretch of a lease. Leaves out time before all workers ran, and time that is billed already."""
        begins = max(filter(None, [since, lease.running_from, lease.billed_until]))
        if begins >= until:
            return
        known = self._known[lease.pk]
        touched = [one for one in known if one.during.lower <= until and one.during.upper >= begins]
        if not touched:
            known.append(self._model(lease=lease, during=DateTimeTZRange(begins, until)))
            return
        first = min(touched, key=lambda one: one.during.lower)
        whole = DateTimeTZRange(
            min(begins, first.during.lower), max(until, *(one.during.upper for one in touched))
        )
        if whole != first.during:
            first.during = whole
            if first.pk is not None:
                self._changed[first.pk] = first
        for one in touched:
            if one is not first:
                known.remove(one)
                self._gone += [one.pk] if one.pk is not None else []

    def save(self) -> None:
        """Writes the changes. Deletes rows first, because the database does not allow stretches of a lease to
        overlap."""
        if self._gone:
            self._model.objects.filter(pk__in=self._gone).delete()
        update_rows([one for pk, one in self._changed.items() if pk not in self._gone], ["during"])
        insert_rows([one for some in self._known.values() for one in some if one.pk is None])


def _noted(use: GpuUse | None, lease: Lease, seen: Use, since: datetime, until: datetime) -> GpuUse:
    """Returns the job's GpuUse row with the measurement `seen` applied, unsaved.

    - `use`: the job's present row; None if it has none. A row that is newer than the measurement is returned unchanged.
    - `since`, `until`: the period in which the GPUs were idle. If both are equal, the GPUs are in use.
    """
    if use is None:
        use = GpuUse(job_id=lease.job_id, lease=lease, measured_until=until, percent=seen.percent)
    elif until < use.measured_until:
        return use
    use.lease, use.measured_until, use.percent = lease, until, seen.percent
    use.measure = GpuUse.Measure.GPU if seen.by_gpus else GpuUse.Measure.CPU
    processless = timedelta(seconds=seen.processless_for)
    use.processless_since = (use.processless_since or until - processless) if processless else None
    if since >= until:
        use.used_at, use.idle_since = until, None
    elif use.idle_since is None:
        assert lease.running_from is not None  # noqa: S101 - others are not asked for
        use.idle_since = max(filter(None, [since, use.used_at, lease.running_from]))
    return use


def _write(known: Mapping[int, GpuUse], *, new: Collection[int]) -> None:
    """Computes two figures of each GpuUse row, and saves the rows.

    - `idle_for`: how long the job has held idle GPUs since it last used them.
    - `idle_warned`: how much of this idle time came after the idle warning.

    `known` has the rows by job id; `new` are the job ids of rows that are not in the database yet.
    """
    idle = {pk: use.idle_since for pk, use in known.items() if use.idle_since is not None}
    held: dict[int, timedelta] = defaultdict(timedelta)
    warned: dict[int, timedelta] = defaultdict(timedelta)
    if idle:
        stretches = IdleStretch.objects.filter(
            lease__job__in=idle, during__endswith__gt=min(idle.values())
        ).values_list("lease__job_id", "during")
        for job_id, during in stretches:
            begins = max(during.lower, idle[job_id])
            held[job_id] += max(NOTHING, during.upper - begins)
            if warned_at := known[job_id].warned_at:
                warned[job_id] += max(NOTHING, during.upper - max(begins, warned_at))
    for pk, use in known.items():
        use.idle_for, use.idle_warned = held[pk], warned[pk]
    insert_rows([use for pk, use in known.items() if pk in new])
    # Other code writes the other columns: warnings and snoozes.
    update_rows([use for pk, use in known.items() if pk not in new], MEASURED)


def unused_of(leases: Iterable[int], begins: datetime, ends: datetime) -> dict[int, list[Stretch]]:
    """Returns, by lease id, the idle periods that overlap the time from `begins` to `ends`, in order.

    The periods are not cut to this time.
    """
    found: dict[int, list[Stretch]] = defaultdict(list)
    stretches = IdleStretch.objects.filter(
        lease__in=list(leases), during__startswith__lt=ends, during__endswith__gt=begins
    )
    for lease, during in stretches.order_by("during").values_list("lease_id", "during"):
        found[lease].append((during.lower, during.upper))
    return found


def end_with(leases: Iterable[Lease]) -> None:
    """Shortens the idle periods of closed leases that extend beyond the end of the lease.

    A measurement can extend beyond the end of a lease if the end was not known yet. Runs within the caller's
    transaction.
    """
    ends = {lease.pk: lease.held_until for lease in leases if lease.held_until is not None}
    if not ends:
        return
    for model in (IdleStretch, ProcesslessStretch):
        for stretch in model.objects.filter(lease__in=ends, during__endswith__gt=min(ends.values())):
            end = ends[stretch.lease_id]
            if stretch.during.lower >= end:
                stretch.delete()
            elif stretch.during.upper > end:
                stretch.during = DateTimeTZRange(stretch.during.lower, end)
                stretch.save(update_fields=["during"])
