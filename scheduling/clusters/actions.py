"""Actions of operators on clusters and nodes, such as pausing a cluster or declaring a node."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from django.db import IntegrityError, transaction
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange
from django.db.models import Exists, OuterRef, Q

from accounting.access import audit
from accounting.access.permissions import require
from accounting.actions.checks import check_name
from accounting.core.clock import now_from_database
from accounting.core.errors import Refused
from accounting.core.wording import fixed
from accounting.models import Generation, User
from fairshare import policies
from fairshare.policies.base import InvalidOption, read_options
from scheduling.core import pubsub
from scheduling.core.locks import lock_schedule
from scheduling.models import Cluster, ClusterPause, HeldGpu, Lease, Node
from scheduling.models.versions import require_version
from scheduling.shares.situations import OWN_SETTINGS

CHANGEABLE: dict[str, Callable[[Any], bool]] = {
    "ordering": lambda value: value in Cluster.Ordering.values,
    "slicing": lambda value: value in Cluster.Slicing.values,
    "trading": lambda value: isinstance(value, bool),
    "policy": lambda value: value in policies.names(),
    "policy_options": lambda value: isinstance(value, dict),
    "shadow": lambda value: value is None or tuple(value) in policies.all_versions(),
    "quantum_seconds": lambda value: value is not None and 1 <= value <= 86_400,
    "min_hold_seconds": lambda value: value is not None and 0 <= value <= 86_400,
    "notice_seconds": lambda value: value is not None and 0 <= value <= 3_600,
    "overhead_limit": lambda value: value is not None and 0 < value <= 1,
    "cpu_per_gpu": lambda value: value is None or 0.1 <= value <= 1024,
    "memory_per_gpu": lambda value: value is None or 0.1 <= value <= 65_536,
    "cpu_limit_per_gpu": lambda value: value is None or 0.1 <= value <= 1024,
    "memory_limit_per_gpu": lambda value: value is None or 0.1 <= value <= 65_536,
}
ACCEPTED = {
    "ordering": "stride or lottery (the two orderings)",
    "slicing": "checkpoint (save and exit), freeze (pause the processes) or auto (freeze jobs without a `checkpoint`)",
    "trading": "true (teams may trade GPU time) or false (they may not)",
    "policy": "the name of a scheduling policy",
    "policy_options": 'a JSON object with option names of the policy as keys, such as {"memory": 3600}',
    "shadow": "a version of a policy for comparison, or empty for none",
    "quantum_seconds": f"1 to {fixed(86_400)} seconds",
    "min_hold_seconds": f"0 to {fixed(86_400)} seconds",
    "notice_seconds": f"0 to {fixed(3_600)} seconds",
    "overhead_limit": "the largest fraction of a quantum to spend on switching between jobs: more than 0 and at most 1",
    "cpu_per_gpu": (
        f"0.1 to {fixed(1_024)} CPUs per GPU, or empty to give workers a part of the node's CPUs in proportion to"
        " their GPUs"
    ),
    "memory_per_gpu": (
        f"0.1 to {fixed(65_536)} GiB per GPU, or empty to give workers a part of the node's memory in proportion to"
        " their GPUs"
    ),
    "cpu_limit_per_gpu": f"0.1 to {fixed(1_024)} CPUs per GPU, or empty for no limit",
    "memory_limit_per_gpu": f"0.1 to {fixed(65_536)} GiB per GPU, or empty for no limit",
}
FASTEST = 1_000_000  # greatest speed of a virtual GPU
NODE_NAME = re.compile(r"[A-Za-z0-9]([-._A-Za-z0-9]{0,61}[A-Za-z0-9])?")
NODE_NAME_IN_WORDS = (
    "1 to 63 characters: letters (a–z, A–Z), digits, - . or _. It must begin and end with a letter or digit"
)
MOST_GPUS = 64  # of a declared node, because the cluster's page draws each GPU


@transaction.atomic(durable=True)
def create_cluster(*, actor: User | None, name: str, backend: str = Cluster.Backend.LOCAL) -> Cluster:
    """Creates a cluster without nodes. `actor` is None if Fairlot's setup creates the cluster.

    Raises Refused if the name is taken or invalid.
    """
    require(actor, "cluster.attach")
    check_name(name)
    try:
        with transaction.atomic():
            cluster = Cluster.objects.create(name=name, backend=backend)
    except IntegrityError:
        raise Refused(f"A cluster named {name} already exists.", field="name") from None
    audit.record(actor=actor, verb="cluster.create", target=cluster, after={"backend": backend})
    return cluster


@transaction.atomic(durable=True)
def update_cluster(
    *, actor: User | None, cluster: Cluster, seen: Collection[str] | None = None, **changes: Any
) -> Cluster:
    """Changes scheduling settings of a cluster. The changes take effect in the next round.

    `changes` maps the names of settings to their new values. `seen`: versions of which the cluster must have one; see
    accounting/models/versions.py. Raises Refused if a setting is unknown or its value is
    invalid; `field` of the error is the name of the setting.
    """
    require(actor, "cluster.update")
    check_settings(changes)
    lock_schedule(cluster.pk)
    cluster = Cluster.objects.get(pk=cluster.pk)
    require_version(cluster, seen)
    if "policy" in changes:  # a policy's options mean nothing to another policy
        changes.setdefault("policy_options", {})
    if "policy_options" in changes:
        check_options(changes.get("policy", cluster.policy), changes["policy_options"])
    before = {name: getattr(cluster, name) for name in changes}
    for name, value in changes.items():
        setattr(cluster, name, value)
    cluster.save(update_fields=list(changes))
    audit.record(actor=actor, verb="cluster.update", target=cluster, before=before, after=changes)
    return cluster


def check_settings(changes: Mapping[str, Any]) -> None:
    """Raises Refused, with the setting as `field`, if a setting of a cluster is unknown or its value is invalid."""
    for name, value in changes.items():
        if name not in CHANGEABLE:
            raise Refused(f"The setting {name} cannot be changed.", field=name)
        if not CHANGEABLE[name](value):
            raise Refused(f"Accepted: {ACCEPTED[name]}.", field=name)


def check_options(policy: str, options: Mapping[str, object]) -> None:
    """Raises Refused if the scheduling policy `policy` does not accept one of the options; `field` of the error is the
    option's name."""
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
    """Pauses a cluster: no job starts, waiting jobs show `reason`, and running jobs continue."""
    _set_paused(actor, cluster, reason=reason)


@transaction.atomic(durable=True)
def resume_cluster(*, actor: User, cluster: Cluster) -> None:
    """Resumes a paused cluster."""
    _set_paused(actor, cluster, reason=None)


def _set_paused(actor: User, cluster: Cluster, *, reason: str | None) -> None:
    """Pauses the cluster for the given reason; resumes it if `reason` is None."""
    require(actor, "cluster.pause")
    lock_schedule(cluster.pk)
    now = now_from_database()
    paused = reason is not None
    Cluster.objects.filter(pk=cluster.pk).update(
        paused_at=now if paused else None, paused_reason=(reason or "")[:200]
    )
    pause = ClusterPause.objects.filter(cluster=cluster, during__upper_inf=True).first()
    if paused and pause is None:
        ClusterPause.objects.create(cluster=cluster, during=DateTimeTZRange(now, None))
    elif not paused and pause is not None:
        since = pause.during.lower
        pause.during = DateTimeTZRange(since, max(since, now))
        pause.save(update_fields=["during"])
    verb = "cluster.pause" if paused else "cluster.resume"
    audit.record(actor=actor, verb=verb, target=cluster, after={"reason": reason} if paused else {})
    pubsub.publish(f"cluster:{cluster.pk}")


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
    """Creates a node, or restores a removed node of this name.

    A virtual node (a node with simulated GPUs) has a `virtual_speed`. A node with real GPUs has `gpu_uuids` instead.
    `gpus` is the number of GPUs. Raises Refused if the name is invalid or taken, or if a value is out of bounds.
    """
    require(actor, "node.declare")
    if virtual_speed is None:  # a machine keeps its own name, so only virtual nodes must match NODE_NAME
        check_name(name)
    elif not NODE_NAME.fullmatch(name):
        raise Refused(f"A node's name must have {NODE_NAME_IN_WORDS}.", field="name")
    if not 1 <= gpus <= MOST_GPUS:
        raise Refused(f"A node must have 1 to {MOST_GPUS} GPUs.", field="gpus")
    if virtual_speed is not None and not 0 < virtual_speed <= FASTEST:
        raise Refused(
            f"The speed of simulated GPUs must be more than 0 and at most {fixed(FASTEST)}.",
            field="virtual_speed",
        )
    lock_schedule(cluster.pk)
    node = Node.objects.filter(cluster=cluster, name=name).first() or Node(cluster=cluster, name=name)
    if node.gpus:
        raise Refused(f"{cluster.name} already has a node {name}.", field="name")
    node.generation, node.gpus, node.gpu_uuids = generation, gpus, gpu_uuids or []
    node.virtual_speed, node.gone_at = virtual_speed, None
    node.state, node.state_reason, node.state_since = Node.State.READY, "", now_from_database()
    node.save()
    after = {"generation": generation.name, "gpus": gpus, "virtual_speed": virtual_speed}
    audit.record(actor=actor, verb="node.declare", target=node, after=after)
    pubsub.publish(f"cluster:{cluster.pk}")
    return node


def may_be_removed() -> Q:
    """Returns a Django filter (Q) for the nodes that `remove_node` accepts."""
    held = HeldGpu.objects.filter(node=OuterRef("pk"))
    is_over = Q(cluster__backend=Cluster.Backend.LOCAL) | Q(gone_at__isnull=False)
    has_left = Q(state__in=(Node.State.DRAINED, Node.State.DOWN))
    return is_over & (~Exists(held) | has_left & ~Exists(held.filter(lease__state__in=Lease.OPEN)))


@transaction.atomic(durable=True)
def remove_node(*, actor: User, node: Node) -> None:
    """Removes a node. If the node has ever held leases, its row stays in the database, for the history.

    Raises Refused if jobs may still run on the node, or if the node is still part of its Kubernetes cluster.
    """
    require(actor, "node.declare")
    lock_schedule(node.cluster_id)
    node = Node.objects.select_related("cluster").get(pk=node.pk)
    if node.cluster.backend != Cluster.Backend.LOCAL and node.gone_at is None:
        raise Refused(
            f"The Kubernetes cluster {node.cluster.name} still contains {node.name}. Remove the node in"
            " Kubernetes first."
        )
    now = now_from_database()
    audit.record(actor=actor, verb="node.remove", target=node, before={"gpus": node.gpus})
    if not HeldGpu.objects.filter(node=node).exists():
        node.delete()
    elif node.state not in (Node.State.DRAINED, Node.State.DOWN):
        raise Refused(f"Drain {node.name} first, because jobs can start on the node at any time.")
    elif HeldGpu.objects.filter(node=node, lease__state__in=Lease.OPEN).exists():
        raise Refused(f"Jobs still hold GPUs of {node.name}. Remove the node when they have ended or moved.")
    else:
        Node.objects.filter(pk=node.pk).update(
            gpus=0, failed_gpus=0, others_gpus=0, gpu_uuids=[], gone_at=node.gone_at or now,
            state=Node.State.DOWN, state_reason="the node was removed", state_since=now, drain_deadline=None,
        )  # fmt: skip
    pubsub.publish(f"cluster:{node.cluster_id}")
