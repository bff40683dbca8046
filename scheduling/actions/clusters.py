"""What operators do with clusters and nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import ProtectedError

from accounting import audit
from accounting.actions.checks import check_name
from accounting.clock import now_from_database
from accounting.errors import Refused
from accounting.models import Generation, User
from accounting.permissions import require
from accounting.wording import fixed
from fairshare import policies
from fairshare.policies.base import InvalidOption, read_options
from scheduling import live
from scheduling.locks import lock_schedule
from scheduling.models import Cluster, Node
from scheduling.situations import OWN_SETTINGS

CHANGEABLE: dict[str, Callable[[Any], bool]] = {
    "draw": lambda value: value in Cluster.Draw.values,
    "slicing": lambda value: value in Cluster.Slicing.values,
    "trading": lambda value: isinstance(value, bool),
    "policy": lambda value: value in policies.names(),
    "policy_options": lambda value: isinstance(value, dict),
    "shadow": lambda value: value is None or tuple(value) in policies.all_versions(),
    "quantum_seconds": lambda value: 1 <= value <= 86_400,
    "residence_seconds": lambda value: 0 <= value <= 86_400,
    "overhead_limit": lambda value: 0 < value <= 1,
    "cpu_per_gpu": lambda value: value is None or 0.1 <= value <= 1024,
    "memory_per_gpu": lambda value: value is None or 0.1 <= value <= 65_536,
    "cpu_limit_per_gpu": lambda value: value is None or 0.1 <= value <= 1024,
    "memory_limit_per_gpu": lambda value: value is None or 0.1 <= value <= 65_536,
}
ACCEPTED = {
    "draw": "stride or lottery",
    "slicing": "checkpoint or freeze",
    "trading": "on or off",
    "policy": "the name of a policy",
    "policy_options": "names and values of the policy's options",
    "shadow": "a version of a policy, or none",
    "quantum_seconds": f"1 to {fixed(86_400)} seconds",
    "residence_seconds": f"0 to {fixed(86_400)} seconds",
    "overhead_limit": "more than 0 and at most 1",
    "cpu_per_gpu": f"0.1 to {fixed(1_024)} processors, or nothing",
    "memory_per_gpu": f"0.1 to {fixed(65_536)} GiB, or nothing",
    "cpu_limit_per_gpu": f"0.1 to {fixed(1_024)} processors, or nothing",
    "memory_limit_per_gpu": f"0.1 to {fixed(65_536)} GiB, or nothing",
}
FASTEST = 1_000_000  # times that of a GPU of speed 1
# By these words a job's history tells for what its turn ended.
SHUTTING_DOWN = "Fairlot is shutting down"


@transaction.atomic(durable=True)
def create_cluster(*, actor: User | None, name: str, backend: str = Cluster.Backend.LOCAL) -> Cluster:
    """Adds an empty cluster. `actor` None is Fairlot's own set-up."""
    require(actor, "cluster.attach")
    check_name(name)
    try:
        with transaction.atomic():
            cluster = Cluster.objects.create(name=name, backend=backend)
    except IntegrityError:
        raise Refused(f"There is a cluster {name} already.", field="name") from None
    audit.record(actor=actor, verb="cluster.create", target=cluster, after={"backend": backend})
    return cluster


@transaction.atomic(durable=True)
def update_cluster(*, actor: User | None, cluster: Cluster, **changes: Any) -> Cluster:
    """Changes how a cluster is scheduled; from the next round on."""
    require(actor, "cluster.update")
    for name, value in changes.items():
        if name not in CHANGEABLE:
            raise Refused(f"{name} cannot be changed.", field=name)
        if not CHANGEABLE[name](value):
            raise Refused(f"Accepted: {ACCEPTED[name]}.", field=name)
    lock_schedule(cluster.pk)
    cluster = Cluster.objects.get(pk=cluster.pk)
    if "policy" in changes:  # options are a policy's own
        changes.setdefault("policy_options", {})
    if "policy_options" in changes:
        check_options(changes.get("policy", cluster.policy), changes["policy_options"])
    before = {name: getattr(cluster, name) for name in changes}
    for name, value in changes.items():
        setattr(cluster, name, value)
    cluster.save(update_fields=list(changes))
    audit.record(actor=actor, verb="cluster.update", target=cluster, before=before, after=changes)
    return cluster


def check_options(policy: str, options: Mapping[str, object]) -> None:
    """Raises Refused, with the option's name as the field, where the policy does not accept the options."""
    for name in OWN_SETTINGS & options.keys():
        raise Refused(f"{name} is a setting of the cluster, not an option of its policy.", field=name)
    try:
        read_options(policies.policy_type(policy), options)
    except policies.UnknownPolicy as error:
        raise Refused(f"{error}.", field="policy") from None
    except InvalidOption as error:
        raise Refused(f"{error}.", field=error.option) from None


@transaction.atomic(durable=True)
def pause_cluster(*, actor: User, cluster: Cluster, reason: str) -> None:
    """Nothing new starts, and whoever waits is told `reason`; what runs goes on."""
    _set_paused(actor, cluster, reason=reason)


@transaction.atomic(durable=True)
def resume_cluster(*, actor: User, cluster: Cluster) -> None:
    """Ends a pause."""
    _set_paused(actor, cluster, reason=None)


def _set_paused(actor: User, cluster: Cluster, *, reason: str | None) -> None:
    """Paused for `reason`; None resumes."""
    require(actor, "cluster.pause")
    lock_schedule(cluster.pk)
    now = now_from_database()
    paused = reason is not None
    Cluster.objects.filter(pk=cluster.pk).update(
        paused_at=now if paused else None, paused_reason=(reason or "")[:200]
    )
    verb = "cluster.pause" if paused else "cluster.resume"
    audit.record(actor=actor, verb=verb, target=cluster, after={"reason": reason} if paused else {})
    live.publish(f"cluster:{cluster.pk}")


@transaction.atomic(durable=True)
def declare_node(
    *,
    actor: User | None,
    cluster: Cluster,
    name: str,
    generation: Generation,
    gpus: int,
    virtual_speed: float | None = None,
    gpu_uuids: list[str] | None = None,
) -> Node:
    """Adds a node: a virtual one by its speed, a real one by the UUIDs of its GPUs."""
    require(actor, "node.declare")
    check_name(name)
    if gpus < 1:
        raise Refused("A node has at least one GPU.", field="gpus")
    if virtual_speed is not None and not 0 < virtual_speed <= FASTEST:
        raise Refused(f"A speed is more than 0 and at most {fixed(FASTEST)}.", field="virtual_speed")
    lock_schedule(cluster.pk)
    try:
        with transaction.atomic():
            node = Node.objects.create(
                cluster=cluster,
                name=name,
                generation=generation,
                gpus=gpus,
                virtual_speed=virtual_speed,
                gpu_uuids=gpu_uuids or [],
            )
    except IntegrityError:
        raise Refused(f"{cluster.name} has a node {name} already.", field="name") from None
    after = {"generation": generation.name, "gpus": gpus, "virtual_speed": virtual_speed}
    audit.record(actor=actor, verb="node.declare", target=node, after=after)
    live.publish(f"cluster:{cluster.pk}")
    return node


@transaction.atomic(durable=True)
def remove_node(*, actor: User, node: Node) -> None:
    """Removes a node that never held a lease; others are drained, for their history's sake."""
    require(actor, "node.declare")
    lock_schedule(node.cluster_id)
    audit.record(actor=actor, verb="node.remove", target=node, before={"gpus": node.gpus})
    try:
        with transaction.atomic():
            node.delete()
    except ProtectedError:
        raise Refused(f"{node.name} has held leases, which keep its name; drain it instead.") from None
    live.publish(f"cluster:{node.cluster_id}")
