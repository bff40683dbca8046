"""The hardware as the scheduler knows it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Self

from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.functions import RandomUUID
from django.db import models
from django.db.models.functions import Now

from accounting.core.name_order import by_name
from accounting.models import Generation, Tenant
from fairshare.policies import DEFAULT

# However dear switching is (a job may take an hour to save), quanta grow no longer than this many times.
MOST_STRETCH = 10
# A quiet API server still speaks about once a minute.
SILENCE = timedelta(seconds=150)
FAILURES_SHOWN = timedelta(days=1)


class ClusterQuerySet(models.QuerySet["Cluster"]):
    def attached(self) -> Self:
        """Those where jobs may run; a detached one is kept for its history."""
        return self.filter(detached_at=None)


class Cluster(models.Model):
    """Nodes under one backend, scheduled together in rounds."""

    class Backend(models.TextChoices):
        LOCAL = "local", "This machine"
        KUBERNETES = "kubernetes", "Kubernetes"

    class Ordering(models.TextChoices):
        STRIDE = "stride", "Stride (deterministic)"
        LOTTERY = "lottery", "Lottery (seeded, verifiable)"

    class Slicing(models.TextChoices):
        CHECKPOINT = "checkpoint", "Checkpoint, exit and resume"
        FREEZE = "freeze", "Freeze and thaw"

    name = models.CharField(max_length=63, unique=True)
    backend = models.CharField(max_length=20, choices=Backend, default=Backend.LOCAL)
    ordering = models.CharField(max_length=10, choices=Ordering, default=Ordering.STRIDE)
    slicing = models.CharField(max_length=12, choices=Slicing, default=Slicing.CHECKPOINT)
    trading = models.BooleanField(default=True)
    # The policy's name, and those of its options that are set here beside `ordering` and `trading`.
    policy = models.CharField(max_length=40, default=DEFAULT, db_default=DEFAULT)
    policy_options = models.JSONField(default=dict, blank=True, db_default={})
    # [name, version] of the policy that is asked beside, without effect; null: none is.
    shadow = models.JSONField(null=True, blank=True)
    quantum_seconds = models.FloatField(default=60)
    min_hold_seconds = models.FloatField(default=0)
    # How long before others' claims stop a service's replica or a session its people are warned, at least.
    notice_seconds = models.FloatField(default=60, db_default=60)
    # The quantum is stretched so that switching costs at most this part of it.
    overhead_limit = models.FloatField(default=0.05)
    # Marks what is ours there, should another Fairlot use the same Kubernetes.
    uid = models.UUIDField(db_default=RandomUUID(), unique=True, editable=False)
    # Processors, and GiB of memory, that a worker gets for each GPU when its job says nothing; null: its part
    # of the node.
    cpu_per_gpu = models.FloatField(null=True, blank=True)
    memory_per_gpu = models.FloatField(null=True, blank=True)
    # The most that a job may ask for; null: as much as a node has.
    cpu_limit_per_gpu = models.FloatField(null=True, blank=True)
    memory_limit_per_gpu = models.FloatField(null=True, blank=True)
    detached_at = models.DateTimeField(null=True, blank=True)
    paused_at = models.DateTimeField(null=True, blank=True)
    paused_reason = models.CharField(max_length=200, blank=True, default="", db_default="")
    # Set when something happened that a round could answer before the quantum is over.
    round_wanted_at = models.DateTimeField(null=True, blank=True)
    # When the policy wants to be asked before the quantum is over, though nothing happens until then.
    ask_again_at = models.DateTimeField(null=True, blank=True)
    last_round_at = models.DateTimeField(null=True, blank=True)
    last_quantum_at = models.DateTimeField(null=True, blank=True)
    # Of an attached cluster: until when all is known of it, and when it last left an order unanswered.
    last_observed_at = models.DateTimeField(null=True, blank=True)
    unanswered_at = models.DateTimeField(null=True, blank=True)
    # What last went wrong in following it, and when; it is followed all the same.
    failure = models.TextField(blank=True, default="", db_default="")
    failed_at = models.DateTimeField(null=True, blank=True)
    round_number = models.BigIntegerField(default=0)
    # Smoothed seconds that a gang loses by giving way and going on later: its stop and its next start, as observed.
    switch_seconds = models.FloatField(default=0)

    objects = ClusterQuerySet.as_manager()

    class Meta:
        constraints = [
            models.CheckConstraint(name="quantum_is_positive", condition=models.Q(quantum_seconds__gt=0)),
            models.CheckConstraint(
                name="overhead_limit_is_a_part",
                condition=models.Q(overhead_limit__gt=0, overhead_limit__lte=1),
            ),
        ]

    def __str__(self) -> str:
        return self.name

    def is_silent(self, now: datetime) -> bool:
        """Whether too little is known of an attached cluster to decide anything there."""
        if self.backend == self.Backend.LOCAL:
            return False
        heard = self.last_observed_at
        if heard is None or now - heard > SILENCE:
            return True
        return self.unanswered_at is not None and self.unanswered_at >= heard

    def has_failure(self, now: datetime) -> bool:
        """Whether something went wrong in following it so lately that it may be so still."""
        return self.failed_at is not None and now - self.failed_at < FAILURES_SHOWN

    @property
    def effective_quantum(self) -> float:
        """Seconds between quantum rounds: as set, or longer where switching is dear."""
        stretched = min(self.switch_seconds / self.overhead_limit, MOST_STRETCH * self.quantum_seconds)
        return max(self.quantum_seconds, stretched)


class ClusterAccess(models.Model):
    """How Fairlot reaches the API server of an attached Kubernetes cluster, and what it last said."""

    cluster = models.OneToOneField(Cluster, on_delete=models.CASCADE, related_name="access")
    sealed_kubeconfig = models.BinaryField()  # encrypted with FAIRLOT_SEALING_KEYS; never shown again
    server = models.CharField(max_length=500)  # the API server's address
    namespace_prefix = models.CharField(max_length=40, default="fairlot")
    # The claim that a team's namespace has for checkpoints; each job gets a folder in it. Empty: there is none.
    checkpoint_claim = models.CharField(max_length=253, blank=True, default="", db_default="")
    # Ranges of addresses that jobs may reach, beside each other and the cluster's name service.
    reachable = models.JSONField(default=list, blank=True, db_default=[])
    reachable_since = models.DateTimeField(null=True)  # tells a return to earlier ranges from no change
    # Jobs of one worker run as pods without a Job over them, for bursts.
    bare_pods = models.BooleanField(default=False, db_default=False)
    # Requests that change something, of all workers together.
    writes_per_second = models.FloatField(default=50)
    writes_at_once = models.PositiveIntegerField(default=100)
    changed_at = models.DateTimeField(db_default=Now())  # of the kubeconfig
    checked_at = models.DateTimeField(null=True)
    user = models.CharField(max_length=300, blank=True, default="")  # as the API server names us
    version = models.CharField(max_length=60, blank=True, default="")
    # The uid of its namespace kube-system: tells clusters apart, whatever address they are reached by.
    identity = models.CharField(max_length=60, blank=True, default="", db_default="")
    trouble = models.TextField(blank=True, default="")  # in plain words; empty: all is well
    # Each right that Fairlot needs (its name in backends/kubernetes/rights.py): whether it is there.
    rights = models.JSONField(default=dict, blank=True)
    beyond = models.JSONField(default=list, blank=True, db_default=[])  # rights that it should not have
    # The version of PodGroups (scheduling.k8s.io) that its API server offers and Fairlot knows; empty: none.
    podgroups = models.CharField(max_length=20, blank=True, default="", db_default="")

    class Meta:
        constraints = [
            models.CheckConstraint(
                name="writes_are_possible",
                condition=models.Q(writes_per_second__gt=0, writes_at_once__gt=0),
            ),
            models.UniqueConstraint(
                name="a_cluster_is_attached_once", fields=["identity"], condition=~models.Q(identity="")
            ),
        ]

    def __str__(self) -> str:
        return self.server


class NodeQuerySet(models.QuerySet["Node"]):
    def present(self) -> Self:
        """Those that were not removed."""
        return self.exclude(gpus=0)


class Node(models.Model):
    """A machine (or a declared part of one) with GPUs of one generation; without any it was removed.

    What was removed stays for its history.
    """

    class State(models.TextChoices):
        READY = "ready", "Ready"
        DRAINED = "drained", "Drained"  # by an operator: what runs goes on until it ends, nothing new starts
        CLOSED = "closed", "Closed"  # as observed: what runs goes on, nothing new starts
        DOWN = "down", "Down"  # as observed

    cluster = models.ForeignKey(Cluster, on_delete=models.PROTECT, related_name="nodes")
    name = models.CharField(max_length=253)
    generation = models.ForeignKey(Generation, on_delete=models.PROTECT, related_name="nodes")
    gpus = models.PositiveIntegerField()
    state = models.CharField(max_length=10, choices=State, default=State.READY)
    state_reason = models.CharField(max_length=200, blank=True)
    state_since = models.DateTimeField(db_default=Now())
    # When what still runs on a drained node is stopped; None: it finishes, or was stopped.
    drain_deadline = models.DateTimeField(null=True, blank=True)
    # Of real GPUs, their UUIDs in index order; empty for declared virtual ones.
    gpu_uuids = ArrayField(models.CharField(max_length=80), default=list, blank=True)
    # In Kubernetes: the machine, which may be several nodes here when its GPUs are cut into several kinds
    # of slices, and what a pod asks for to get one of them.
    host = models.CharField(max_length=253, blank=True, default="")
    resource = models.CharField(max_length=100, blank=True, default="")
    # Of the whole machine, what pods may have of it, where that is known.
    cpus = models.FloatField(null=True, blank=True)
    memory = models.BigIntegerField(null=True, blank=True)  # bytes
    failed_gpus = models.PositiveIntegerField(default=0)
    others_gpus = models.PositiveIntegerField(default=0)  # held by pods that are not Fairlot's
    # When the cluster it belongs to stopped having it; it stays for its history.
    gone_at = models.DateTimeField(null=True, blank=True)
    # Of virtual GPUs, the speed that programs are told to honour; None for real ones.
    virtual_speed = models.FloatField(null=True, blank=True)

    objects = NodeQuerySet.as_manager()

    class Meta:
        ordering = ["cluster", "generation", *by_name("name")]
        constraints = [
            models.UniqueConstraint(name="one_node_a_name_and_cluster", fields=["cluster", "name"])
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def usable_gpus(self) -> int:
        """How many gangs may be given, some of them holding them now."""
        if self.state != self.State.READY:
            return 0
        return max(0, self.gpus - self.failed_gpus - self.others_gpus)


class NodeChange(models.Model):
    """What a node was from a moment on, until its next change.

    The database itself adds a row whenever a node changes in what counts for accounting, and lets none be
    changed (scheduling/migrations/0026); none is of an earlier time than one before it (0039). A node that is gone
    has no GPUs.
    """

    cluster = models.ForeignKey(Cluster, on_delete=models.PROTECT, related_name="+")
    node_id = models.BigIntegerField()  # of a node that may have been removed since
    name = models.CharField(max_length=253)
    generation = models.ForeignKey(Generation, on_delete=models.PROTECT, related_name="+")
    gpus = models.PositiveIntegerField()
    state = models.CharField(max_length=10, choices=Node.State)
    failed_gpus = models.PositiveIntegerField()
    others_gpus = models.PositiveIntegerField()
    at = models.DateTimeField()

    class Meta:
        ordering = ["at", "id"]
        indexes = [models.Index(fields=["cluster", "node_id", "at"], name="changes_of_node")]

    def __str__(self) -> str:
        return f"{self.name} from {self.at}"


class TeamUid(models.Model):
    """The user on the portal's machine that runs a team's local jobs. It outlives its team: none gets it again."""

    tenant = models.OneToOneField(Tenant, on_delete=models.SET_NULL, null=True, related_name="local_uid")
    uid = models.PositiveIntegerField(unique=True)
    created_at = models.DateTimeField(db_default=Now())

    def __str__(self) -> str:
        return str(self.uid)
