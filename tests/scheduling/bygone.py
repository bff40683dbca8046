"""Creates jobs and leases of the past, with the rows that observations would have left."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.db import models
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange
from django.db.models import QuerySet

from accounting.models import Generation, Tenant, TicketChange, User
from scheduling.models import HeldGpu, Job, Lease, Node, NodeChange
from tests.ledger_guard import without_triggers
from tests.scheduling.world import World


def there_since(moment: datetime) -> None:
    """Backdates all changes of nodes and tickets to `moment`."""
    backdated(TicketChange.objects.all(), moment)
    with without_triggers("scheduling_nodechange"):
        NodeChange.objects.update(at=moment)


def backdated(changes: QuerySet[Any], at: datetime) -> None:
    """Backdates these changes of limits or tickets to the moment `at`."""
    with without_triggers(changes.model._meta.db_table):
        changes.update(at=at)


def newest(changes: type[models.Model]) -> QuerySet[Any]:
    """Returns a queryset with one row of the model `changes`: the row that was written last."""
    return changes._default_manager.filter(pk=changes._default_manager.latest("pk").pk)


def changed(node: Node, at: datetime, **values: object) -> None:
    """Records a change of the node at the moment `at`. `values` replaces fields; without it, the node is ready and no
    GPU has failed."""
    NodeChange.objects.create(
        cluster=node.cluster, node_id=node.pk, name=node.name, at=at,
        **{"generation": node.generation, "gpus": node.gpus, "state": "ready", "failed_gpus": 0, "others_gpus": 0}
        | values,
    )  # fmt: skip


def waited(
    lab: World, owner: User, tenant: Tenant, at: datetime, *, gpus: int = 4, workers: int = 1, **fields: Any
) -> Job:
    """Creates a job that was submitted at the moment `at` and has had no attempt yet."""
    given = {"name": f"{owner.username}-{gpus}x{workers}", "spec": {}} | fields
    return Job.objects.create(
        cluster=lab.cluster,
        tenant=tenant,
        owner=owner,
        gpus_per_worker=gpus,
        workers=workers,
        created_at=at,
        **given,
    )


def ran(
    job: Job, begins: datetime, ends: datetime, *on: Node, why: str = "succeeded", **fields: Any
) -> Lease:
    """Creates the job's next attempt, which has ended, and returns its lease.

    `on`: the node of each worker, in the order of their ranks. `why`: the reason for the end; after "succeeded", the
    job has succeeded too. `fields` replaces fields of the lease.
    """
    job.epoch += 1
    had(job, begins, ends, on[0].generation)
    lease = Lease.objects.create(
        job=job, cluster=job.cluster, epoch=job.epoch, generation=on[0].generation, gpus=job.gpus,
        state=Lease.State.CLOSED, held_from=begins, held_until=ends, end_reason=why,
        **{"decided_at": begins, "running_from": begins, "last_seen_at": ends, "billed_until": ends} | fields,
    )  # fmt: skip
    first: dict[int, int] = {}
    for rank, node in enumerate(on):
        for _ in range(job.gpus_per_worker):
            index = first.setdefault(node.pk, _free(node, begins, ends))
            first[node.pk] += 1
            HeldGpu.objects.create(
                lease=lease, node=node, rank=rank, gpu_index=index, during=DateTimeTZRange(begins, ends, "[)")
            )
    if why == "succeeded":
        job.state, job.ended_at, job.exit_code = Job.State.SUCCEEDED, ends, 0
    job.save()
    return lease


def had(job: Job, begins: datetime, ends: datetime, generation: Generation) -> None:
    """Updates the job's columns about its attempts: first start, first generation and the time that it held GPUs."""
    job.first_started_at = job.first_started_at or begins
    job.first_generation = job.first_generation or generation
    job.held_for += ends - begins


def _free(node: Node, begins: datetime, ends: datetime) -> int:
    """Returns the index from which on all GPUs of the node are free from `begins` to `ends`."""
    held = HeldGpu.objects.filter(node=node, during__overlap=DateTimeTZRange(begins, ends, "[)"))
    return max((index + 1 for index in held.values_list("gpu_index", flat=True)), default=0)


def hours(count: float) -> timedelta:
    return timedelta(hours=count)
