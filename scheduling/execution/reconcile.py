"""Reconciles the observed state of a cluster with the desired state.

Any process may do this at any time and any number of times: each run compares whole states and needs no history.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from uuid import UUID

from django.db import transaction

from accounting.core.bulk import update_rows
from accounting.core.clock import now_from_database
from accounting.core.run_each import run_each
from scheduling.backends.base import Backend, BackendError, End, Observation, Phase
from scheduling.clusters.backend_factory import backend_for
from scheduling.core.locks import lock_schedule
from scheduling.core.run_apart import apart
from scheduling.execution.node_inventory import apply_offers
from scheduling.leases.actions import BEGIN, apply_observations, close_never_started, hand_over
from scheduling.leases.cluster_events import note_cluster_events
from scheduling.leases.gpu_use import note_gpu_use
from scheduling.metrics.recording import note_samples
from scheduling.models import Cluster, Lease, Operation
from scheduling.shares.intervals import ObservedLease, correct_rounds

logger = logging.getLogger(__name__)

# An order without visible effect is repeated after this time.
PATIENCE = timedelta(seconds=10)
MAX_STARTS = 5
HEARD_EVERY = timedelta(seconds=2)
ALIVE = (Phase.STARTING, Phase.RUNNING, Phase.FROZEN)
LEAVE = (Operation.Verb.STOP, Operation.Verb.FREEZE)


def observe(cluster: Cluster, backend: Backend | None = None) -> Sequence[Observation]:
    """Observes all gangs of the cluster once, stores the observations, and returns them.

    Also tells the backend to delete its records of gangs whose leases are closed and billed.
    """
    backend = backend or backend_for(cluster)
    observations = backend.observe()
    _write_down(cluster, backend, observations)
    return observations


def follow(cluster: Cluster, backend: Backend) -> None:
    """Stores what changed in the cluster since the last call. Then lets the backend continue orders that need several
    steps, such as starting a gang."""
    run_each(FOLLOWING, lambda step: step(cluster, backend))


def record_nodes(cluster: Cluster, backend: Backend) -> None:
    """Updates the cluster's nodes, if the backend reports nodes."""
    found = backend.node_gpus()
    if found is not None:
        apply_offers(cluster_id=cluster.pk, offers=found)


def record_changes(cluster: Cluster, backend: Backend) -> None:
    """Stores the changes of gangs since the last call. Also stores the time up to which the cluster's state is
    known."""
    heard = now_from_database() - timedelta(seconds=backend.staleness())
    _write_down(cluster, backend, backend.changed())
    _note_heard(cluster, heard)


def record_cluster_events(cluster: Cluster, backend: Backend) -> None:
    """Adds the events that the cluster reports about jobs to the histories of these jobs."""
    events = backend.cluster_events()
    if events:
        note_cluster_events(cluster_id=cluster.pk, events=events)


def advance(cluster: Cluster, backend: Backend) -> None:
    """Lets the backend continue orders that need several steps, such as starting a gang.

    If this fails, only logs the error: the next call finds the unfinished orders and tries again.
    """
    try:
        backend.advance()
    except BackendError as error:  # the next observation finds the unfinished operation again
        logger.warning("%s: %s", cluster.name, error)


# Each step runs even if another one fails.
FOLLOWING = (record_nodes, record_changes, record_cluster_events, advance)


def note_use(cluster: Cluster, backend: Backend) -> None:
    """Stores how busy the GPUs of each gang are, if the backend measures this."""
    uses = backend.use()
    if uses:
        note_gpu_use(cluster_id=cluster.pk, uses=uses, seen_at=now_from_database())


def note_metrics(cluster: Cluster, backend: Backend) -> None:
    """Stores the samples of the gangs' metrics that the backend has taken, in one transaction for all gangs."""
    samples = backend.samples()
    if samples:
        note_samples(cluster_id=cluster.pk, samples=samples, seen_at=now_from_database())


def _note_heard(cluster: Cluster, heard: datetime) -> None:
    """Stores `heard`, the time up to which a Kubernetes cluster's state is known. Writes at most once per
    HEARD_EVERY."""
    if cluster.backend == Cluster.Backend.LOCAL:
        return
    if cluster.last_observed_at is None or heard - cluster.last_observed_at >= HEARD_EVERY:
        cluster.last_observed_at = heard
        Cluster.objects.filter(pk=cluster.pk).update(last_observed_at=heard)


def _write_down(cluster: Cluster, backend: Backend, observations: Sequence[Observation]) -> None:
    if observations:
        for lease in apply_observations(cluster_id=cluster.pk, observations=observations):
            _forget(backend, lease.job_id, lease.epoch, lease.token)


def _forget(backend: Backend, job_id: int, epoch: int, token: UUID) -> None:
    try:
        backend.forget(job_id=job_id, epoch=epoch, token=token)
    except BackendError as error:
        logger.warning("the report on job %s, epoch %s, is kept for now: %s", job_id, epoch, error)


def reconcile(cluster: Cluster) -> None:
    """Observes a cluster and repairs what differs from the desired state.

    Repeats orders that had no effect, and closes leases whose gangs are lost. Stops gangs without an open lease, and
    starts gangs whose reserved GPUs are free.
    """
    backend = backend_for(cluster)
    looked_at = now_from_database() - timedelta(seconds=backend.staleness())
    seen = {item.token: item for item in observe(cluster, backend)}
    never_started, lost = _repeat_orders(cluster, seen, looked_at)
    close_never_started(cluster_id=cluster.pk, lease_ids=never_started)
    if lost:
        apply_observations(cluster_id=cluster.pk, observations=lost)
    mend: list[Callable[[], object]] = [
        partial(_stop_strays, cluster, backend, seen),
        partial(hand_over, cluster_id=cluster.pk),
    ]
    run_each(mend, lambda do: do())


def _repeat_orders(
    cluster: Cluster, seen: Mapping[UUID, Observation], looked_at: datetime
) -> tuple[list[int], list[Observation]]:
    """Repeats the start and stop orders of the cluster's leases that had no effect.

    `seen` has the observed gangs, by lease token. It was complete at the time `looked_at`, but may lack what happened
    later.

    Returns a pair:

    - The ids of stopping leases whose start was never tried.
    - For each lease whose gang no longer exists, an observation that ends the lease. Leaves out leases that were
      started or observed later than `looked_at` minus PATIENCE.
    """
    holding = Lease.objects.filter(cluster=cluster, state__in=Lease.HOLDING)
    ids = list(holding.order_by("pk").values_list("pk", flat=True))
    found = apart(cluster.pk, ids, lambda some: [_repeat_orders_of(cluster, some, seen, looked_at)])
    never_started = [pk for some, _ in found for pk in some]
    return never_started, [one for _, some in found for one in some]


@transaction.atomic(durable=True)
def _repeat_orders_of(
    cluster: Cluster, lease_ids: Sequence[int], seen: Mapping[UUID, Observation], looked_at: datetime
) -> tuple[list[int], list[Observation]]:
    lock_schedule(cluster.pk)
    now = now_from_database()
    never_started: list[int] = []
    lost: list[Observation] = []
    missed: list[ObservedLease] = []
    leases = Lease.objects.filter(pk__in=lease_ids, state__in=Lease.HOLDING)
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
        if lease.missing_since is None:
            missed.append(ObservedLease(lease, lease.last_seen_at))
            _miss(lease, heard=cluster.last_observed_at, now=now)
        known = max(filter(None, [begin.done_at, lease.last_seen_at]), default=None)
        if begin.done_at is None or known is None or looked_at - known < PATIENCE:
            continue
        if lease.state == Lease.State.STARTING and begin.attempts < MAX_STARTS:
            Operation.objects.filter(pk=begin.pk).update(done_at=None, not_before=now)
        else:
            lost.append(_lost(lease, now))
    update_rows([one.lease for one in missed], ["missing_since", "last_seen_at"])
    if missed:
        correct_rounds(Cluster.objects.get(pk=cluster.pk), missed)
    return never_started, lost


def _miss(lease: Lease, *, heard: datetime | None, now: datetime) -> None:
    """Marks a lease as missing since `now`, because its gang was not observed. Does not save the lease.

    The lease counts as observed until `heard`, the time up to which the cluster's state is known (None: unknown).
    """
    lease.missing_since = now
    # If the gang had ended before `heard`, the cluster would have reported it.
    if heard is not None and lease.last_seen_at is not None:
        lease.last_seen_at = max(heard, lease.last_seen_at)


def _repeat_stop(lease: Lease, operations: Mapping[str, Operation], now: datetime) -> None:
    grace = timedelta(seconds=lease.job.checkpoint_grace_seconds)
    for verb in LEAVE:
        operation = operations.get(verb)
        if operation and operation.done_at and now - operation.done_at > grace + PATIENCE:
            logger.warning("lease %s still runs after a %s; ordering it again", lease.pk, verb)
            if verb == Operation.Verb.FREEZE:  # a gang that could not be frozen is stopped
                operation, _ = Operation.objects.get_or_create(
                    cluster_id=lease.cluster_id, lease=lease, verb=Operation.Verb.STOP
                )
            Operation.objects.filter(pk=operation.pk).update(done_at=None, not_before=now)


def _lost(lease: Lease, now: datetime) -> Observation:
    """Returns an observation that ends a lost lease at the time when its gang was last observed."""
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
        message="The processes of the job no longer exist on the machine.",
    )


def _stop_strays(cluster: Cluster, backend: Backend, seen: Mapping[UUID, Observation]) -> None:
    """Stops gangs that run without an open lease, for example after an older database backup was restored."""
    leases = {
        lease.token: lease
        for lease in Lease.objects.filter(cluster=cluster, token__in=list(seen)).select_related("job")
    }
    strays = {token for token in seen if token not in leases}
    strays |= {
        token
        for token, lease in leases.items()
        if lease.state == Lease.State.CLOSED and seen[token].phase in ALIVE and not _is_kept(lease)
    }
    if not strays:
        return

    def end(item: Observation) -> None:
        if item.phase in ALIVE:
            logger.warning("stopping processes of job %s that hold no lease", item.job_id)
            lease = leases.get(item.token)
            grace = lease.job.checkpoint_grace_seconds if lease else 5.0
            backend.stop(job_id=item.job_id, epoch=item.epoch, token=item.token, grace_seconds=grace)
        elif item.token not in leases:
            _forget(backend, item.job_id, item.epoch, item.token)

    # Closed leases stay closed, but their gangs may have ended since the observation.
    run_each([item for item in backend.observe() if item.token in strays], end)


def _is_kept(lease: Lease) -> bool:
    """Returns whether the processes of a closed lease must be kept.

    They are kept while they are frozen (suspended in memory), and while they resume under a new lease of the job.
    """
    thaws = lease.job.leases.filter(state__in=Lease.HOLDING, operations__verb=Operation.Verb.THAW)
    return (lease.job.frozen and lease.end_reason == Lease.End.FROZEN) or thaws.exists()
