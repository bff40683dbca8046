"""`manage.py park`: prepares a shutdown. Stops the gangs of local clusters with their grace period, and bills them."""

from __future__ import annotations

import time
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser
from django.db import transaction

from accounting.core.clock import now_from_database
from scheduling.backends.base import Phase
from scheduling.clusters.backend_factory import backend_for
from scheduling.core.locks import lock_schedule
from scheduling.execution.operations import perform_operations
from scheduling.execution.reconcile import observe
from scheduling.leases.actions import StopOrder, ask_to_stop
from scheduling.leases.history import History
from scheduling.leases.lifecycle import Event
from scheduling.leases.reservations import withdraw
from scheduling.models import Cluster, Lease, Operation
from scheduling.models.event_codes import Cause, EventCode, Message

LOOK_EVERY = 0.1


class Command(BaseCommand):
    help = "Stops all gangs of local clusters so that they resume from their checkpoints after a restart."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--patience",
            type=float,
            default=75.0,
            help="Seconds after which the remaining gangs are killed, even within their grace periods.",
        )

    def handle(self, *args: Any, patience: float, **options: Any) -> None:
        for cluster in Cluster.objects.filter(backend=Cluster.Backend.LOCAL):
            _order_stop(cluster)
            left = _wait_until_gone(cluster, patience)
            self.stdout.write(
                f"{cluster.name}: {'nothing runs' if not left else f'{left} gangs had to be killed'}"
            )


@transaction.atomic(durable=True)
def _order_stop(cluster: Cluster) -> None:
    lock_schedule(cluster.pk)
    now = now_from_database()
    history = History()
    leases = list(Lease.objects.filter(cluster=cluster, state__in=Lease.OPEN).select_related("job"))
    withdraw([lease for lease in leases if lease.state == Lease.State.RESERVED], why=Lease.End.SHUTDOWN)
    orders = [
        StopOrder(lease, Message.of(EventCode.PORTAL_STOPPED), Cause.PORTAL_STOPPED) for lease in leases
    ]
    ask_to_stop(orders, event=Event.PREEMPTED, now=now, history=history)
    history.save()
    # A stopped Celery worker may have claimed operations; they must not wait until its claims expire.
    Operation.objects.filter(cluster=cluster, done_at=None).update(not_before=now)


def _wait_until_gone(cluster: Cluster, patience: float) -> int:
    """Executes the stop orders and observes the gangs until all have ended.

    Kills gangs that still run after `patience` seconds. Returns the number of killed gangs.
    """
    backend = backend_for(cluster)
    deadline = time.monotonic() + patience
    killed: set[int] = set()
    while True:
        perform_operations(cluster=cluster, log_limit_bytes=settings.FAIRLOT_LOG_LIMIT_BYTES)
        alive = [item for item in observe(cluster, backend) if item.phase is not Phase.ENDED]
        if not alive:
            return len(killed)
        late = time.monotonic() > deadline
        for item in alive:
            # Frozen processes have no open lease and so no stop order; they are stopped here.
            if late or item.phase is Phase.FROZEN:
                grace = 0.0 if late else 5.0
                backend.stop(job_id=item.job_id, epoch=item.epoch, token=item.token, grace_seconds=grace)
            if late:
                killed.add(item.job_id)
        for _ in backend.changes(timeout=LOOK_EVERY):
            break
