"""Jobs and leases of a time that is over, stored as if they had been observed."""

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
    """As if all that is known of nodes and of tickets had been so since then."""
    backdated(TicketChange.objects.all(), moment)
    with without_triggers("scheduling_nodechange"):
        NodeChange.objects.update(at=moment)


def backdated(changes: QuerySet[Any], at: datetime) -> None:
    """As if these changes of limits or of tickets had been made then."""
    with without_triggers(changes.model._meta.db_table):
        changes.update(at=at)


def newest(changes: type[models.Model]) -> QuerySet[Any]:
    """The one that was made last."""
    return changes._default_manager.filter(pk=changes._default_manager.latest("pk").pk)


def changed(node: Node, at: datetime, **values: object) -> None:
    """As if the node had changed then."""
    NodeChange.objects.create(
        cluster=node.cluster, node_id=node.pk, name=node.name, at=at,
        **{"generation": node.generation, "gpus": node.gpus, "state": "ready", "failed_gpus": 0, "others_gpus": 0}
        | values,
    )  # fmt: skip


def waited(
    lab: World, owner: User, tenant: Tenant, at: datetime, *, gpus: int = 4, workers: int = 1, **fields: Any
) -> Job:
    """A job that came then, and has no turn yet."""
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
    """The job's next turn, each worker on a node of `on`; with `why` it ended, the job too if it succeeded."""
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
    """What a job says of its turns, beside their leases."""
    job.first_started_at = job.first_started_at or begins
    job.first_generation = job.first_generation or generation
    job.held_for += ends - begins


def _free(node: Node, begins: datetime, ends: datetime) -> int:
    """The first GPU of the node after all that are held then."""
    held = HeldGpu.objects.filter(node=node, during__overlap=DateTimeTZRange(begins, ends, "[)"))
    return max((index + 1 for index in held.values_list("gpu_index", flat=True)), default=0)


def hours(count: float) -> timedelta:
    return timedelta(hours=count)
