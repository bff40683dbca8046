"""Doing what the outbox holds: claim, call the backend outside any transaction, write the outcome."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Case, When

from accounting.clock import now_from_database
from scheduling.actions.leases import BEGIN, apply_observations, close_never_started
from scheduling.actions.secrets import secrets_of
from scheduling.actions.volumes import volumes_of
from scheduling.backends import backend_for
from scheduling.backends.base import (
    USUAL,
    Backend,
    BackendError,
    Container,
    End,
    Endpoint,
    Gang,
    Observation,
    Phase,
    Unanswered,
    Worker,
)
from scheduling.containers import machines, room_for
from scheduling.models import Cluster, Job, Lease, Node, Operation
from scheduling.spec import JobSpec

logger = logging.getLogger(__name__)

# A worker that died while doing an operation leaves it to others after this.
CLAIM = timedelta(seconds=10)
RETRY_SECONDS = (1, 2, 5, 10, 30)
MOST_ATTEMPTS = 5  # to begin; after that the GPUs are of more use to others
CANCEL_GRACE_SECONDS = 10.0


def perform_operations(*, cluster: Cluster, log_limit_bytes: int) -> int:
    """Does all operations of `cluster` that are due; returns how many were tried.

    Any number of workers may do this at once: each operation is claimed by one, and doing one twice
    has the effect of once.
    """
    backend = backend_for(cluster)
    done = 0
    while operation := _claim(cluster):
        done += 1
        try:
            _perform(backend, operation, log_limit_bytes)
        except Unanswered as error:
            logger.warning("%s of lease %s: %s", operation.verb, operation.lease_id, error)
            _put_off(operation, str(error))
        except (BackendError, OSError) as error:
            logger.warning("%s of lease %s failed: %s", operation.verb, operation.lease_id, error)
            _put_back(backend, operation, str(error))
        except Exception as error:
            # Whatever is wrong with one order, the others are carried out.
            logger.exception("%s of lease %s failed", operation.verb, operation.lease_id)
            _put_back(backend, operation, repr(error))
        else:
            Operation.objects.filter(pk=operation.pk).update(done_at=now_from_database(), error="")
    return done


@transaction.atomic(durable=True)
def _claim(cluster: Cluster) -> Operation | None:
    """The next due operation, hidden from others for a while. Stops come first: they free GPUs."""
    now = now_from_database()
    operation = (
        Operation.objects.filter(cluster=cluster, done_at=None, not_before__lte=now)
        .select_for_update(skip_locked=True, of=("self",))
        .select_related("lease__job", "lease__generation")
        .order_by(Case(When(verb__in=BEGIN, then=1), default=0), "id")
        .first()
    )
    if operation:
        operation.attempts += 1
        operation.not_before = now + CLAIM
        operation.save(update_fields=["attempts", "not_before"])
    return operation


def _put_off(operation: Operation, error: str) -> None:
    """Has it tried again as often as it takes: that a cluster does not answer is not the gang's fault."""
    now = now_from_database()
    Cluster.objects.filter(pk=operation.cluster_id).update(unanswered_at=now)
    _try_again(operation, now, error, attempts=1)


def _put_back(backend: Backend, operation: Operation, error: str) -> None:
    """Has it tried again later; what could not be begun again and again has failed to start."""
    if operation.verb in BEGIN and operation.attempts >= MOST_ATTEMPTS:
        _fail_to_start(backend, operation, error)
        return
    _try_again(operation, now_from_database(), error)


def _try_again(operation: Operation, now: datetime, error: str, **changes: int) -> None:
    """Later the more often it was tried."""
    wait = RETRY_SECONDS[min(operation.attempts, len(RETRY_SECONDS)) - 1]
    Operation.objects.filter(pk=operation.pk).update(
        not_before=now + timedelta(seconds=wait), error=error, **changes
    )


def _fail_to_start(backend: Backend, operation: Operation, error: str) -> None:
    lease = operation.lease
    try:
        # So that nothing of it comes up later.
        backend.stop(job_id=lease.job_id, epoch=lease.epoch, token=lease.token, grace_seconds=0.0)
    except Unanswered as trouble:  # whether something of it runs is unknown: its GPUs are not free yet
        _put_off(operation, str(trouble))
        return
    except (BackendError, OSError) as trouble:
        logger.warning("lease %s could be neither started nor stopped: %s", lease.pk, trouble)
    failed = Observation(
        job_id=lease.job_id,
        epoch=lease.epoch,
        token=lease.token,
        phase=Phase.ENDED,
        ended_age=0.0,
        end=End.START_FAILED,
        message=error,
    )
    apply_observations(cluster_id=operation.cluster_id, observations=[failed])
    Operation.objects.filter(pk=operation.pk).update(done_at=now_from_database(), error=error)


def _perform(backend: Backend, operation: Operation, log_limit_bytes: int) -> None:
    lease = operation.lease
    job = lease.job
    spec = JobSpec.parse(job.spec)
    match operation.verb:
        case Operation.Verb.START | Operation.Verb.THAW:
            # Told to stop meanwhile: what was never started need not be.
            if lease.state == Lease.State.STARTING:
                gang = describe_gang(lease, spec, log_limit_bytes)
                (backend.thaw if operation.verb == Operation.Verb.THAW else backend.start)(gang)
        case Operation.Verb.STOP:
            if close_never_started(cluster_id=operation.cluster_id, lease_ids=[lease.pk]):
                return
            grace = spec.checkpoint_grace_seconds
            # A replica that makes room may have callers to whom it owes an answer.
            if job.state == job.State.CANCELLING and job.kind != job.Kind.REPLICA:
                grace = min(grace, CANCEL_GRACE_SECONDS)
            backend.stop(job_id=job.pk, epoch=lease.epoch, token=lease.token, grace_seconds=grace)
        case Operation.Verb.FREEZE:
            backend.freeze(job_id=job.pk, epoch=lease.epoch, token=lease.token)
        case Operation.Verb.KILL:
            backend.stop(job_id=job.pk, epoch=lease.epoch, token=lease.token, grace_seconds=0.0)


def describe_gang(lease: Lease, spec: JobSpec, log_limit_bytes: int) -> Gang:
    """All that a backend needs to start a lease."""
    workers: dict[int, list[tuple[int, str, str, float | None]]] = {}
    resource = ""
    for gpu in lease.held_gpus.select_related("node").order_by("rank", "gpu_index"):
        node = gpu.node
        resource = node.resource
        gpu_uuid = node.gpu_uuids[gpu.gpu_index] if gpu.gpu_index < len(node.gpu_uuids) else ""
        workers.setdefault(gpu.rank, []).append(
            (gpu.gpu_index, node.host or node.name, gpu_uuid, node.virtual_speed)
        )
    return Gang(
        job_id=lease.job_id,
        epoch=lease.epoch,
        token=lease.token,
        generation=lease.generation.name,
        command=spec.argv,
        environment_name=spec.environment,
        environment=spec.variables,
        progress_pattern=spec.progress_pattern,
        grace_seconds=spec.checkpoint_grace_seconds,
        log_limit_bytes=log_limit_bytes,
        gpu_resource=resource,
        endpoint=_endpoint(spec, lease.job.service_id),
        secrets=secrets_of(lease.job, spec),
        mounts=volumes_of(lease.job, spec),
        container=_container(lease.job, spec),
        workers=[
            Worker(
                rank=rank,
                node=gpus[0][1],
                gpu_indices=tuple(index for index, *_ in gpus),
                gpu_uuids=tuple(gpu_uuid for _, _, gpu_uuid, _ in gpus if gpu_uuid),
                virtual_speed=gpus[0][3],
            )
            for rank, gpus in sorted(workers.items())
        ],
    )


def _container(job: Job, spec: JobSpec) -> Container:
    """The same for every turn, on whichever nodes: by all that have enough GPUs that it accepts."""
    if job.cluster.backend == Cluster.Backend.LOCAL:
        return USUAL
    nodes = Node.objects.filter(cluster=job.cluster)
    if job.generation_ids:
        nodes = nodes.filter(generation__in=job.generation_ids)
    room = room_for(job.cluster, spec, machines(nodes, spec))
    return Container(
        cpus=room.cpus,
        memory=room.memory,
        shared_memory=room.shared_memory,
        working_directory=spec.working_directory,
        user_id=spec.user_id,
        group_id=spec.group_id,
        image_pull_policy=spec.image_pull_policy,
    )


def _endpoint(spec: JobSpec, service_id: int | None) -> Endpoint | None:
    if spec.port is None:
        return None
    how = spec.readiness_path, spec.readiness_period_seconds, spec.readiness_failures
    return Endpoint(spec.port, *how, service=service_id)
