"""Computes how many CPUs and how much memory a worker's container gets.

Rounds place workers only by their GPUs. The CPUs and the memory of a node must then suffice for all workers on it. So
by default, a worker with a quarter of a node's GPUs gets at most a quarter of its CPUs and memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from accounting.core.wording import counted
from scheduling.models import Cluster, ClusterAccess
from scheduling.models.clusters import NodeQuerySet
from scheduling.spec.attachments import read_bytes
from scheduling.spec.job_spec import JobSpec
from scheduling.spec.paths import SECRETS, VOLUMES, is_in
from scheduling.spec.roles import Role

GIB = 2**30
# The fraction of a node's CPUs and memory that is left to system programs and to agents of the cluster.
FOR_OTHERS = 0.1
# What a worker of a role without GPUs gets if the role does not say it.
CPUS_WITHOUT_GPUS, MEMORY_WITHOUT_GPUS = 1.0, 2 * GIB
LEAST_CPUS = 0.1  # of a worker with GPUs
NO_ROOM_BESIDE = (
    "the workers without GPUs would leave too few CPUs or too little memory to those with GPUs, on whose nodes they"
    " run; ask for fewer or smaller ones (cpu, memory)"
)
ONLY_IN_CONTAINERS = (
    "cpu", "memory", "shm", "working_directory", "user_id", "group_id", "image_pull_policy", "image_pull_secret",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Room:
    """The CPUs and memory of a worker's container. Each amount is both request and limit; None means unlimited."""

    cpus: float | None = None
    memory: int | None = None  # bytes
    shared_memory: int | None = None  # bytes, a part of `memory`


@dataclass(frozen=True, slots=True)
class Machine:
    """The size of a node: its GPUs, and how much of its CPUs and memory pods may use. None means that an amount is
    unknown."""

    gpus: int
    cpus: float | None
    memory: int | None  # bytes


def machines(nodes: NodeQuerySet, spec: JobSpec) -> list[Machine]:
    """Returns the distinct (GPUs, CPUs, memory) sizes of those `nodes` that have enough GPUs for one worker of `spec`.

    Returns sizes instead of nodes, because a cluster may have thousands of nodes but has only a few sizes.
    """
    fitting = nodes.filter(gpus__gte=spec.gpus_per_worker).order_by()
    return [Machine(*row) for row in fitting.values_list("gpus", "cpus", "memory").distinct()]


def room_for(cluster: Cluster, spec: JobSpec, nodes: Sequence[Machine]) -> Room:
    """Returns the CPUs and memory of a worker.

    Each amount comes from the first of these sources that gives a value:

    - the amount in the spec
    - the cluster's amount per GPU, times the worker's GPUs
    - a part of a node (see `_part`): a worker with a quarter of a node's GPUs gets at most a quarter of its CPUs or
      memory

    `nodes` are the sizes of the nodes that the job may use.
    """
    cpus = spec.cpu
    memory: float | None = read_bytes(spec.memory) if spec.memory else None
    cpus_beside, memory_beside = _beside(spec)
    if cpus is None:
        usual = _times(cluster.cpu_per_gpu, spec.gpus_per_worker)
        if usual is None:
            usual = _part([(node.cpus, node.gpus) for node in nodes], spec.gpus_per_worker)
        cpus = None if usual is None else usual - cpus_beside
    if memory is None:
        usual = _times(cluster.memory_per_gpu, spec.gpus_per_worker * GIB)
        if usual is None:
            usual = _part([(node.memory, node.gpus) for node in nodes], spec.gpus_per_worker)
        memory = None if usual is None else usual - memory_beside
    if memory is not None and spec.shm:
        memory = max(memory, read_bytes(spec.shm))
    shm = read_bytes(spec.shm) if spec.shm else memory and memory // 2
    return Room(
        cpus=None if cpus is None else max(0.001, int(cpus * 1000) / 1000),
        memory=None if memory is None else int(memory),
        shared_memory=None if shm is None else int(shm),
    )


def room_without_gpus(role: Role) -> Room:
    """Returns the CPUs and memory of a worker without GPUs: those of the role, or else CPUS_WITHOUT_GPUS and
    MEMORY_WITHOUT_GPUS."""
    memory = read_bytes(role.memory) if role.memory else MEMORY_WITHOUT_GPUS
    return Room(cpus=role.cpu or CPUS_WITHOUT_GPUS, memory=memory, shared_memory=memory // 2)


def _beside(spec: JobSpec) -> tuple[float, int]:
    """Returns the most CPUs and memory that workers without GPUs take from each worker with GPUs.

    They run on the nodes of the workers with GPUs, in turn, so each such worker makes room for its part of them.
    """
    rooms = [
        room_without_gpus(role) for role in spec.roles if not role.holds_gpus for _ in range(role.workers)
    ]
    if not rooms:
        return 0.0, 0
    most = -(-len(rooms) // spec.workers)
    return most * max(room.cpus or 0.0 for room in rooms), most * max(room.memory or 0 for room in rooms)


def problems_of(cluster: Cluster, spec: JobSpec, nodes: Sequence[Machine]) -> dict[str, str]:
    """Returns a message for each resource in the spec that the cluster cannot provide, by field of the spec.

    `nodes` are the sizes of the nodes with suitable GPUs.
    """
    if cluster.backend == "local":
        return _not_here(spec)
    problems: dict[str, str] = {}
    if any(not role.holds_gpus for role in spec.roles):
        room = room_for(cluster, spec, nodes)
        if (room.cpus is not None and room.cpus < LEAST_CPUS) or (
            room.memory is not None and room.memory < GIB
        ):
            problems["roles"] = NO_ROOM_BESIDE
    problems |= _roles_beyond_limits(cluster, spec)
    if spec.checkpoint and not ClusterAccess.objects.filter(cluster=cluster).exclude(checkpoint_claim=""):
        problems["checkpoint"] = (
            f"leave checkpoint out: no claim for checkpoints was named when {cluster.name} was attached, so no"
            " checkpoint survives an attempt there"
        )
    gpus = spec.gpus_per_worker
    gpus_in_words = counted(gpus, "GPU")
    limit = _times(cluster.cpu_limit_per_gpu, gpus)
    if spec.cpu is not None:
        largest = _most(node.cpus for node in nodes)
        if limit is not None and spec.cpu > limit:
            problems["cpu"] = (
                f"{cluster.name} allows at most {cluster.cpu_limit_per_gpu:g} CPUs per GPU, so a worker with"
                f" {gpus_in_words} may have {limit:g} CPUs"
            )
        elif largest is not None and spec.cpu > largest:
            problems["cpu"] = f"no node with an accepted GPU type has more than {largest:g} CPUs"
    for field in ("memory", "shm"):
        text = getattr(spec, field)
        try:
            size = read_bytes(text) if text else 0
        except ValueError as error:  # the spec was stored under earlier rules
            problems[field] = str(error)
            continue
        most = _times(cluster.memory_limit_per_gpu, gpus * GIB)
        largest = _most(node.memory for node in nodes)
        if most is not None and size > most:
            problems[field] = (
                f"{cluster.name} allows at most {cluster.memory_limit_per_gpu:g} GiB of memory per GPU, so a worker"
                f" with {gpus_in_words} may have {most / GIB:g}Gi of memory"
            )
        elif largest is not None and size > largest:
            problems[field] = (
                f"no node with an accepted GPU type has more than {largest / GIB:.1f}Gi of memory"
            )
    return problems


def _roles_beyond_limits(cluster: Cluster, spec: JobSpec) -> dict[str, str]:
    """Returns a message if the roles ask for more CPUs or memory than the cluster allows for the job's GPUs.

    Workers without GPUs count as a part of the workers with GPUs beside which they run.
    """
    holding = [role for role in spec.roles if role.holds_gpus]
    if not holding:
        return {}
    cpus_beside, memory_beside = _beside(spec)
    cpus = max(role.cpu or spec.cpu or 0.0 for role in holding) + cpus_beside
    amounts = [read_bytes(text) for role in holding if (text := role.memory or spec.memory)]
    memory = max(amounts, default=0) + memory_beside
    most_cpus = _times(cluster.cpu_limit_per_gpu, spec.gpus_per_worker)
    most_memory = _times(cluster.memory_limit_per_gpu, spec.gpus_per_worker * GIB)
    if most_cpus is not None and cpus > most_cpus:
        return {
            "roles": f"a worker and those without GPUs beside it have {cpus:g} CPUs; {most_cpus:g} are allowed"
        }
    if most_memory is not None and memory > most_memory:
        told = f"{memory / GIB:g}Gi of memory; {most_memory / GIB:g}Gi are allowed"
        return {"roles": f"a worker and those without GPUs beside it have {told}"}
    return {}


def _not_here(spec: JobSpec) -> dict[str, str]:
    usual = type(spec).model_fields
    problems = {
        field: f"leave {field} out: jobs of this cluster are processes on the portal's machine, not containers"
        for field in ONLY_IN_CONTAINERS
        if getattr(spec, field) != usual[field].default
    }
    for at, role in enumerate(spec.roles):
        for field in ("cpu", "memory"):
            if getattr(role, field):
                problems[f"roles.{at}.{field}"] = (
                    f"leave {field} out: jobs of this cluster are processes on the portal's machine, not containers"
                )
    for field, root, variable, mounted in (
        ("secret_files", SECRETS, "FAIRLOT_SECRETS_DIR", spec.secret_files),
        ("volumes", VOLUMES, "FAIRLOT_VOLUMES_DIR", spec.volumes),
    ):
        if away := [one.place for one in mounted if not is_in(one.place, root) or one.place == root]:
            problems[field] = f"in this cluster, paths must be below {root} (${variable}); {away[0]} is not"
    return problems


def _part(nodes: Sequence[tuple[float | None, int]], gpus: int) -> float | None:
    """Returns the CPUs or memory for a worker with `gpus` GPUs, such that the worker fits on each node.

    `nodes` has a pair for each node: its amount of CPUs or memory, and its number of GPUs. The part FOR_OTHERS of each
    amount is left to system programs. The result is `gpus` times the smallest amount per GPU; None if an amount is
    unknown or `nodes` is empty.
    """
    parts = []
    for amount, of in nodes:
        if amount is None or not of:
            return None
        parts.append(amount * (1 - FOR_OTHERS) * gpus / of)
    return min(parts, default=None)


def _times(each: float | None, times: int) -> float | None:
    return None if each is None else each * times


def _most(amounts: Iterable[float | None]) -> float | None:
    """Returns the largest amount; None if one of the amounts is unknown or there are no amounts."""
    known = list(amounts)
    if not known or None in known:
        return None
    return max(amount for amount in known if amount is not None)
