"""Keeps what should be and what is together: level-triggered, from any process, as often as one likes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from django.db import transaction

from accounting.clock import now_from_database
from scheduling.actions.leases import apply_observations, close_never_started, hand_over
from scheduling.backends import backend_for
from scheduling.backends.base import Backend, End, Observation, Phase
from scheduling.locks import lock_schedule
from scheduling.models import Cluster, Lease, Operation
from scheduling.spec import JobSpec

logger = logging.getLogger(__name__)

# How long an order may go without visible effect before it is given again.
PATIENCE = timedelta(seconds=10)
MAX_STARTS = 5
ALIVE = (Phase.STARTING, Phase.RUNNING, Phase.FROZEN)
BEGIN = (Operation.Verb.START, Operation.Verb.THAW)
LEAVE = (Operation.Verb.STOP, Operation.Verb.FREEZE)


def observe(cluster: Cluster, backend: Backend | None = None) -> Sequence[Observation]:
    """Looks once and writes down what was seen; ended leases that are booked are forgotten there."""
    backend = backend or backend_for(cluster)
    observations = backend.observe()
    if observations:
        for lease in apply_observations(cluster_id=cluster.pk, observations=observations):
            backend.forget(job_id=lease.job_id, epoch=lease.epoch, token=lease.token)
    return observations


def reconcile(cluster: Cluster) -> None:
    """Looks, then mends: orders without effect are given again, the lost is closed, strays are stopped."""
    backend = backend_for(cluster)
    seen = {item.token: item for item in observe(cluster, backend)}
    never_started, lost = _repeat_orders(cluster, seen)
    close_never_started(cluster_id=cluster.pk, lease_ids=never_started)
    if lost:
        apply_observations(cluster_id=cluster.pk, observations=lost)
    _stop_strays(backend, seen)
    hand_over(cluster_id=cluster.pk)


@transaction.atomic(durable=True)
def _repeat_orders(cluster: Cluster, seen: Mapping[UUID, Observation]) -> tuple[list[int], list[Observation]]:
    """Gives orders without effect again; returns leases that never began, and what must count as lost."""
    lock_schedule(cluster.pk)
    now = now_from_database()
    never_started: list[int] = []
    lost: list[Observation] = []
    leases = Lease.objects.filter(cluster=cluster, state__in=Lease.HOLDING)
    for lease in leases.select_related("job").prefetch_related("operations"):
        operations = {operation.verb: operation for operation in lease.operations.all()}
        begin = next((operations[verb] for verb in BEGIN if verb in operations), None)
        observation = seen.get(lease.token)
        if observation is not None:
            if lease.state == Lease.State.STOPPING and observation.phase in ALIVE:
                _repeat_stop(lease, operations, now)
            continue
        if begin is None or begin.attempts == 0:
            if lease.state == Lease.State.STOPPING:
                never_started.append(lease.pk)
            continue
        if begin.done_at is None or now - begin.done_at < PATIENCE:
            continue
        if lease.state == Lease.State.STARTING and begin.attempts < MAX_STARTS:
            Operation.objects.filter(pk=begin.pk).update(done_at=None, not_before=now)
        else:
            lost.append(_lost(lease, now))
    return never_started, lost


def _repeat_stop(lease: Lease, operations: Mapping[str, Operation], now: datetime) -> None:
    grace = timedelta(seconds=JobSpec.parse(lease.job.spec).checkpoint_grace_seconds)
    for verb in LEAVE:
        operation = operations.get(verb)
        if operation and operation.done_at and now - operation.done_at > grace + PATIENCE:
            logger.warning("lease %s still runs after a %s; ordering it again", lease.pk, verb)
            Operation.objects.filter(pk=operation.pk).update(done_at=None, not_before=now)


def _lost(lease: Lease, now: datetime) -> Observation:
    """Nobody knows of these processes any more: they ended when they were last seen."""
    last = lease.last_seen_at or lease.held_from or now
    age = (now - last).total_seconds()
    return Observation(
        job_id=lease.job_id,
        epoch=lease.epoch,
        token=lease.token,
        phase=Phase.ENDED,
        seen_age=age,
        ended_age=age,
        end=End.LOST,
        message="The machine no longer knows of them.",
    )


def _stop_strays(backend: Backend, seen: Mapping[UUID, Observation]) -> None:
    """What runs without an open lease must not: a database put back to an earlier state, for example."""
    alive = [item for item in seen.values() if item.phase in ALIVE]
    leases = {
        lease.token: lease
        for lease in Lease.objects.filter(token__in=[item.token for item in alive]).select_related("job")
    }
    for item in alive:
        lease = leases.get(item.token)
        if lease is not None and lease.state in Lease.HOLDING:
            continue
        waits_frozen = lease is not None and lease.job.frozen and item.phase is Phase.FROZEN
        # A thaw that was ordered but not yet done shows the frozen processes under their old lease.
        thawing = lease is not None and lease.job.leases.filter(
            state__in=[Lease.State.STARTING], operations__verb=Operation.Verb.THAW
        )
        if waits_frozen or (thawing and thawing.exists()):
            continue
        logger.warning("stopping processes of job %s that hold no lease", item.job_id)
        backend.stop(job_id=item.job_id, epoch=item.epoch, token=item.token, grace_seconds=5.0)
