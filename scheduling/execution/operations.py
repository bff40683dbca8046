"""Executes the operations in the outbox: claims them, calls the backend outside any transaction, and stores the
outcome."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import TypeAlias, TypedDict
from uuid import UUID

from django.db import transaction
from django.db.models import Case, F, When
from django.utils.crypto import salted_hmac

from accounting.core.clock import now_from_database
from scheduling.backends.base import (
    DEFAULT_CONTAINER,
    Backend,
    BackendError,
    Bounds,
    Container,
    End,
    Endpoint,
    Gang,
    GangRole,
    Observation,
    Phase,
    Secrets,
    Unanswered,
    Worker,
)
from scheduling.clusters.backend_factory import backend_for, gives_users
from scheduling.clusters.isolation import is_trusted
from scheduling.jobs.code import code_of
from scheduling.jobs.resources import machines, room_for, room_without_gpus
from scheduling.jobs.secrets import secrets_of
from scheduling.jobs.team_uids import uid_of
from scheduling.jobs.volumes import volumes_of
from scheduling.leases.actions import BEGIN, apply_observations, close_never_started
from scheduling.models import Cluster, Job, Lease, Node, Operation
from scheduling.pipelines.inputs import inputs_of
from scheduling.sessions.actions import base_url, token_of
from scheduling.sessions.files import files_to_copy
from scheduling.spec.job_spec import JobSpec
from scheduling.spec.members import SWEEP_VARIABLE
from scheduling.spec.roles import Role, leader_of, roles_by_rank

logger = logging.getLogger(__name__)

Order: TypeAlias = Callable[[], None]

# After this time, another worker may claim an operation whose worker died.
CLAIM = timedelta(seconds=10)
RETRY_SECONDS = (1, 2, 5, 10, 30)
MOST_ATTEMPTS = 5  # attempts to start a gang; then other gangs make better use of the GPUs
CANCEL_GRACE_SECONDS = 10.0
# What a worker does where mpirun starts the processes without logging in to it.
WAIT_FOR_MPIRUN = ("/bin/sh", "-c", "exec sleep infinity")


def perform_operations(*, cluster: Cluster, log_limit_bytes: int) -> int:
    """Executes all due operations of `cluster`. Returns the number of operations that were tried.

    `log_limit_bytes` is the maximum size of each worker's log. Any number of workers may call this simultaneously,
    because each operation is claimed by one worker. Executing an operation twice has the same effect as executing it
    once.
    """
    backend = backend_for(cluster)
    done = 0
    while operations := _claim(cluster, backend.orders_at_once):
        done += len(operations)
        orders = {operation: _order(backend, operation, log_limit_bytes) for operation in operations}
        outcomes = _call_concurrently(orders)
        carried_out = [
            operation.pk for operation, trouble in outcomes if not _is_put_back(backend, operation, trouble)
        ]
        Operation.objects.filter(pk__in=carried_out).update(done_at=now_from_database(), error="")
    return done


@transaction.atomic(durable=True)
def _claim(cluster: Cluster, most: int) -> list[Operation]:
    """Claims and returns at most `most` due operations; other workers skip these for 10 seconds.

    Operations that end gangs come first, because they free GPUs.
    """
    now = now_from_database()
    operations = list(
        Operation.objects.filter(cluster=cluster, done_at=None, not_before__lte=now)
        .select_for_update(skip_locked=True, of=("self",))
        .select_related("lease__job", "lease__generation")
        .order_by(Case(When(verb__in=BEGIN, then=1), default=0), "id")[:most]
    )
    claimed = Operation.objects.filter(pk__in=[operation.pk for operation in operations])
    claimed.update(not_before=now + CLAIM)
    # A start does not count as tried if its lease was ordered to stop before.
    tried = [one for one in operations if one.verb not in BEGIN or one.lease.state == Lease.State.STARTING]
    claimed.filter(pk__in=[operation.pk for operation in tried]).update(attempts=F("attempts") + 1)
    for operation in tried:
        operation.attempts += 1
    return operations


def _call_concurrently(orders: Mapping[Operation, Order]) -> list[tuple[Operation, Exception | None]]:
    """Calls the backend for all operations in concurrent threads. Returns (operation, raised error or None) for
    each."""
    if len(orders) == 1:
        return [(operation, _trouble_of(order)) for operation, order in orders.items()]
    with ThreadPoolExecutor(len(orders), thread_name_prefix="orders") as pool:
        return list(zip(orders, pool.map(_trouble_of, orders.values()), strict=True))


def _trouble_of(order: Order) -> Exception | None:
    try:
        order()
    except Exception as error:
        return error
    return None


def _is_put_back(backend: Backend, operation: Operation, trouble: Exception | None) -> bool:
    """Returns whether the operation failed. If it failed, schedules a retry or gives up.

    `trouble` is the error that the backend raised; None if the operation succeeded.
    """
    what = f"{operation.verb} of lease {operation.lease_id}"
    match trouble:
        case None:
            return False
        case Unanswered():
            logger.warning("%s: %s", what, trouble)
            _put_off(operation, str(trouble))
        case BackendError() | OSError():
            logger.warning("%s failed: %s", what, trouble)
            _put_back(backend, operation, str(trouble))
        case _:
            # An unexpected error in one operation must not stop the others.
            logger.error("%s failed", what, exc_info=trouble)
            _put_back(backend, operation, repr(trouble))
    return True


def _put_off(operation: Operation, error: str) -> None:
    """Schedules a retry because the cluster did not answer.

    The number of tries to start a gang is limited. A try without an answer must not count towards this limit, so the
    operation's count of tries is set back to 1.
    """
    now = now_from_database()
    Cluster.objects.filter(pk=operation.cluster_id).update(unanswered_at=now)
    _try_again(operation, now, error, attempts=1)


def _put_back(backend: Backend, operation: Operation, error: str) -> None:
    """Schedules a retry of the operation. After MOST_ATTEMPTS tries to start a gang, records instead that the start has
    failed."""
    if operation.verb in BEGIN and operation.attempts >= MOST_ATTEMPTS:
        _fail_to_start(backend, operation, error)
        return
    _try_again(operation, now_from_database(), error)


def _try_again(operation: Operation, now: datetime, error: str, **changes: int) -> None:
    """Schedules a retry of the operation after a delay that grows with the number of tries.

    `error` is stored with the operation. `changes` are new values for other fields of the operation, by field name.
    """
    wait = RETRY_SECONDS[min(operation.attempts, len(RETRY_SECONDS)) - 1]
    Operation.objects.filter(pk=operation.pk).update(
        not_before=now + timedelta(seconds=wait), error=error, **changes
    )


def _fail_to_start(backend: Backend, operation: Operation, error: str) -> None:
    lease = operation.lease
    try:
        # Prevents parts of the gang from starting later.
        backend.stop(job_id=lease.job_id, epoch=lease.epoch, token=lease.token, grace_seconds=0.0)
    except Unanswered as trouble:  # workers of the gang may run, so its GPUs are not free yet
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


def _order(backend: Backend, operation: Operation, log_limit_bytes: int) -> Order:
    """Returns the backend call for an operation, as a function without arguments.

    The function does not read the database, so another thread can run it. If the call cannot be prepared, the function
    raises the error.
    """
    try:
        backend.preload(operation.lease.job_id)
        return _order_of(backend, operation, log_limit_bytes)
    except Exception as error:
        return partial(_raise, error)


def _raise(error: Exception) -> None:
    raise error


def _order_of(backend: Backend, operation: Operation, log_limit_bytes: int) -> Order:
    lease = operation.lease
    job = lease.job
    which: _LeaseKey = {"job_id": job.pk, "epoch": lease.epoch, "token": lease.token}
    match operation.verb:
        case Operation.Verb.START | Operation.Verb.THAW if lease.state == Lease.State.STARTING:
            gang = describe_gang(lease, JobSpec.stored(job.spec), log_limit_bytes)
            gang = replace(gang, may_have_begun=operation.attempts > 1)
            return partial(backend.thaw if operation.verb == Operation.Verb.THAW else backend.start, gang)
        case Operation.Verb.STOP if not close_never_started(
            cluster_id=operation.cluster_id, lease_ids=[lease.pk]
        ):
            grace = job.checkpoint_grace_seconds
            if job.state == job.State.CANCELLING:
                grace = min(grace, CANCEL_GRACE_SECONDS)
            return partial(backend.stop, **which, grace_seconds=grace)
        case Operation.Verb.FREEZE:
            return partial(backend.freeze, **which)
        case Operation.Verb.KILL:
            return partial(backend.stop, **which, grace_seconds=0.0)
    return _nothing  # the lease was stopped meanwhile, so there is nothing to start


def _nothing() -> None:
    pass


class _LeaseKey(TypedDict):
    """The arguments that identify a lease in calls of a backend."""

    job_id: int
    epoch: int
    token: UUID


def describe_gang(lease: Lease, spec: JobSpec, log_limit_bytes: int) -> Gang:
    """Returns the description of a gang that a backend needs to start it on the GPUs of `lease`.

    `log_limit_bytes` is the maximum size of each worker's log. Raises BackendError if a secret, a volume,
    the code of the job or a file of an earlier job is unavailable.
    """
    workers: dict[int, list[tuple[int, str, str, float | None]]] = {}
    resource = ""
    for gpu in lease.held_gpus.select_related("node").order_by("rank", "gpu_index"):
        node = gpu.node
        resource = node.resource
        gpu_uuid = node.gpu_uuids[gpu.gpu_index] if gpu.gpu_index < len(node.gpu_uuids) else ""
        workers.setdefault(gpu.rank, []).append(
            (gpu.gpu_index, node.host or node.name, gpu_uuid, node.virtual_speed)
        )
    held = [
        Worker(
            rank=rank,
            node=gpus[0][1],
            gpu_indices=tuple(index for index, *_ in gpus),
            gpu_uuids=tuple(gpu_uuid for _, _, gpu_uuid, _ in gpus if gpu_uuid),
            virtual_speed=gpus[0][3],
        )
        for rank, gpus in sorted(workers.items())
    ]
    bounds = Bounds(spec.workers, most) if (most := spec.elastic_workers) else None
    if bounds:  # each attempt has another number of workers
        spec = spec.model_copy(update={"workers": len(held)})
    roles = roles_by_rank(spec)
    return Gang(
        job_id=lease.job_id,
        epoch=lease.epoch,
        token=lease.token,
        generation=lease.generation.name,
        command=spec.argv,
        environment_name=spec.environment,
        environment=_variables(lease.job, spec),
        progress_pattern=spec.progress_pattern,
        checkpoint=spec.checkpoint,
        grace_seconds=lease.job.checkpoint_grace_seconds,
        log_limit_bytes=log_limit_bytes,
        gpu_resource=resource,
        endpoint=_endpoint(spec, lease.job),
        secrets=_secrets(lease, spec),
        mounts=volumes_of(lease.job, spec),
        inputs=inputs_of(lease.job),
        copies=files_to_copy(lease.job),
        code=code_of(lease.job, spec),
        requirements=spec.requirements,
        container=_container(lease.job, spec),
        uid=uid_of(actor=None, tenant=lease.job.tenant) if gives_users(lease.job.cluster) else None,
        team=lease.job.tenant.slug,
        is_trusted=is_trusted(lease.job.owner),
        workers=[*held, *_beside(held, sum(role.workers for role in roles if not role.holds_gpus))],
        roles=[_role(role, lease.job, spec) for role in roles],
        leader=leader_of(roles),
        bounds=bounds,
        is_mpi=bool(spec.launch),
        mpi_seed=salted_hmac("fairlot.mpi", str(lease.token), algorithm="sha256").digest()
        if spec.launch
        else b"",
    )


def _beside(held: Sequence[Worker], number: int) -> list[Worker]:
    """Returns the gang's `number` workers without GPUs. They run on the nodes of the workers in `held`, in turn."""
    return [
        Worker(
            rank=len(held) + index,
            node=held[index % len(held)].node,
            gpu_indices=(),
            gpu_uuids=(),
            virtual_speed=None,
        )
        for index in range(number)
    ]


def _role(role: Role, job: Job, spec: JobSpec) -> GangRole:
    waits = bool(spec.launch) and not role.ends_job and not role.command
    return GangRole(
        name=role.name,
        workers=role.workers,
        holds_gpus=role.holds_gpus,
        command=WAIT_FOR_MPIRUN if waits else role.argv or spec.argv,
        environment_name=role.environment or spec.environment,
        environment=_variables(job, spec) | role.variables,
        container=_container_of_role(job, spec, role),
        ends_job=role.ends_job,
        waits_for_mpirun=waits,
    )


def _variables(job: Job, spec: JobSpec) -> dict[str, str]:
    """Returns the variables of the specification, and those that a session or a member of a sweep has besides."""
    of_session = {"FAIRLOT_BASE_URL": base_url(job)} if job.kind == Job.Kind.SESSION else {}
    of_member = {SWEEP_VARIABLE: str(job.sweep_id)} if job.sweep_id is not None else {}
    return spec.variables | of_session | of_member


def _secrets(lease: Lease, spec: JobSpec) -> Secrets:
    secrets = secrets_of(lease.job, spec)
    if lease.job.kind != Job.Kind.SESSION:
        return secrets
    return replace(secrets, variables={**secrets.variables, "FAIRLOT_SESSION_TOKEN": token_of(lease.job)})


def _container(job: Job, spec: JobSpec) -> Container:
    """Returns the container settings of a job's workers, with resources that fit on every node that the job may use.

    The settings are the same for every attempt, whatever nodes the attempt gets.
    """
    if job.cluster.backend == Cluster.Backend.LOCAL:
        return DEFAULT_CONTAINER
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


def _container_of_role(job: Job, spec: JobSpec, role: Role) -> Container:
    """Returns the container settings of the workers of a role."""
    own = {name: value for name in ("cpu", "memory") if (value := getattr(role, name))}
    whole = _container(job, spec.model_copy(update=own))
    if role.holds_gpus or job.cluster.backend == Cluster.Backend.LOCAL:
        return whole
    room = room_without_gpus(role)
    return replace(whole, cpus=room.cpus, memory=room.memory, shared_memory=room.shared_memory)


def _endpoint(spec: JobSpec, job: Job) -> Endpoint | None:
    if spec.port is None:
        return None
    how = spec.readiness_path, spec.readiness_period_seconds, spec.readiness_failures
    return Endpoint(spec.port, *how, service=job.service_id, is_session=job.kind in Job.UNSLICED)
