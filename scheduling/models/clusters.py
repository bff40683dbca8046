"""Models of clusters and nodes, of the access to clusters, and of the history of nodes and pauses."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Self

from django.contrib.postgres.constraints import ExclusionConstraint
from django.contrib.postgres.fields import ArrayField, DateTimeRangeField, RangeOperators
from django.contrib.postgres.functions import RandomUUID
from django.db import models
from django.db.models.functions import Now

from accounting.core.name_order import by_name
from accounting.models import Generation, Tenant
from fairshare.policies import DEFAULT

# A quantum is stretched at most by this factor, even if switching is expensive: a checkpoint may take an hour.
MOST_STRETCH = 10
# Even without changes an API server sends something about once a minute.
SILENCE = timedelta(seconds=150)
FAILURES_SHOWN = timedelta(days=1)


class ClusterQuerySet(models.QuerySet["Cluster"]):
    def attached(self) -> Self:
        """Returns the clusters where jobs may run. Leaves out detached clusters, which are kept for their history."""
        return self.filter(detached_at=None)


class Cluster(models.Model):
    """A set of nodes under one backend. Each scheduling round decides for one cluster."""

    class Backend(models.TextChoices):
        LOCAL = "local", "This machine"
        KUBERNETES = "kubernetes", "Kubernetes"

    class Ordering(models.TextChoices):
        STRIDE = "stride", "Stride (deterministic)"
        LOTTERY = "lottery", "Lottery (seeded, verifiable)"

    class Slicing(models.TextChoices):
        CHECKPOINT = "checkpoint", "Save a checkpoint and exit, resume later"
        FREEZE = "freeze", "Freeze processes, continue later"
        AUTO = "auto", "Freeze jobs without a checkpoint pattern, stop the others"

    name = models.CharField(max_length=63, unique=True)
    backend = models.CharField(max_length=20, choices=Backend, default=Backend.LOCAL)
    ordering = models.CharField(max_length=10, choices=Ordering, default=Ordering.STRIDE)
    slicing = models.CharField(max_length=12, choices=Slicing, default=Slicing.CHECKPOINT)
    trading = models.BooleanField(default=True)
    # The policy's name, and its options beyond `ordering` and `trading`.
    policy = models.CharField(max_length=40, default=DEFAULT, db_default=DEFAULT)
    policy_options = models.JSONField(default=dict, blank=True, db_default={})
    # [name, version] of the shadow policy, whose decisions have no effect; null: none.
    shadow = models.JSONField(null=True, blank=True)
    quantum_seconds = models.FloatField(default=60)
    min_hold_seconds = models.FloatField(default=0)
    # A replica or session is warned at least this long before it is preempted for claims of others.
    notice_seconds = models.FloatField(default=60, db_default=60)
    # The quantum is stretched so that switching costs at most this fraction of it.
    overhead_limit = models.FloatField(default=0.05)
    # Marks Fairlot's objects in Kubernetes, in case another Fairlot uses the same cluster.
    uid = models.UUIDField(db_default=RandomUUID(), unique=True, editable=False)
    # CPUs and GiB of memory per GPU for workers whose spec sets none; null: the GPUs' part of the node.
    cpu_per_gpu = models.FloatField(null=True, blank=True)
    memory_per_gpu = models.FloatField(null=True, blank=True)
    # The most CPUs and GiB of memory per GPU that a spec may request; null: as much as a node has.
    cpu_limit_per_gpu = models.FloatField(null=True, blank=True)
    memory_limit_per_gpu = models.FloatField(null=True, blank=True)
    detached_at = models.DateTimeField(null=True, blank=True)
    paused_at = models.DateTimeField(null=True, blank=True)
    paused_reason = models.CharField(max_length=200, blank=True, default="", db_default="")
    # Set when a round could react to an event before the quantum ends.
    round_wanted_at = models.DateTimeField(null=True, blank=True)
    # When the policy wants to decide again before the quantum ends, even without an event.
    ask_again_at = models.DateTimeField(null=True, blank=True)
    last_round_at = models.DateTimeField(null=True, blank=True)
    last_quantum_at = models.DateTimeField(null=True, blank=True)
    # Only for Kubernetes clusters: until when the cluster's state is known, and when an order last got no answer.
    last_observed_at = models.DateTimeField(null=True, blank=True)
    unanswered_at = models.DateTimeField(null=True, blank=True)
    # The last error while Fairlot followed the cluster, and its time. Fairlot follows the cluster nevertheless.
    failure = models.TextField(blank=True, default="", db_default="")
    failed_at = models.DateTimeField(null=True, blank=True)
    round_number = models.BigIntegerField(default=0)
    # Seconds that a gang loses when it is preempted and resumed (its stop and its next start), as a moving average.
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

    @property
    def freezes(self) -> bool:
        """Returns whether gangs may be frozen when their turn is over: only local clusters can, whatever is set."""
        return self.backend == self.Backend.LOCAL and self.slicing != self.Slicing.CHECKPOINT

    def is_silent(self, now: datetime) -> bool:
        """Returns whether a Kubernetes cluster does not answer; False for local clusters. Rounds make no decisions for
        a silent cluster.

        A cluster is silent if its last observation is too old, or if a request after that observation got no answer
        from its API server.
        """
        if self.backend == self.Backend.LOCAL:
            return False
        heard = self.last_observed_at
        if heard is None or now - heard > SILENCE:
            return True
        return self.unanswered_at is not None and self.unanswered_at >= heard

    def has_failure(self, now: datetime) -> bool:
        """Returns whether the last stored failure of the cluster is less than FAILURES_SHOWN (one day) old at `now`."""
        return self.failed_at is not None and now - self.failed_at < FAILURES_SHOWN

    @property
    def effective_quantum(self) -> float:
        """Returns the seconds between quantum rounds: the configured quantum, or a longer time if the gangs take long
        to stop and start."""
        stretched = min(self.switch_seconds / self.overhead_limit, MOST_STRETCH * self.quantum_seconds)
        return max(self.quantum_seconds, stretched)


class ClusterPause(models.Model):
    """A period in which a cluster was paused. The period has no upper bound while the cluster is still paused."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="pauses")
    during = DateTimeRangeField()

    class Meta:
        constraints = [
            ExclusionConstraint(
                name="a_cluster_is_paused_once_at_any_moment",
                expressions=[("cluster", RangeOperators.EQUAL), ("during", RangeOperators.OVERLAPS)],
            ),
        ]

    def __str__(self) -> str:
        return f"cluster {self.cluster_id} paused during {self.during}"


class ImportedTrace(models.Model):
    """The trace from which a cluster's history was imported. The same trace cannot be imported twice."""

    cluster = models.OneToOneField(Cluster, on_delete=models.CASCADE, related_name="trace")
    fingerprint = models.CharField(max_length=64, unique=True)  # the SHA-256 of the trace's contents

    def __str__(self) -> str:
        return self.fingerprint


class ClusterAccess(models.Model):
    """Credentials and settings for the API server of an attached Kubernetes cluster, with the result of the last
    check."""

    cluster = models.OneToOneField(Cluster, on_delete=models.CASCADE, related_name="access")
    sealed_kubeconfig = models.BinaryField()  # encrypted with FAIRLOT_SEALING_KEYS; never shown again
    server = models.CharField(max_length=500)  # the API server's address
    namespace_prefix = models.CharField(max_length=40, default="fairlot")
    # The PersistentVolumeClaim in each team's namespace that holds checkpoints, one folder per job; empty: no claim.
    checkpoint_claim = models.CharField(max_length=253, blank=True, default="", db_default="")
    # IP address ranges that jobs may reach, in addition to each other and the cluster's DNS.
    reachable = models.JSONField(default=list, blank=True, db_default=[])
    reachable_since = models.DateTimeField(
        null=True
    )  # distinguishes a return to earlier ranges from no change
    # Whether jobs of one worker run as pods without a Job, which is faster in bursts.
    bare_pods = models.BooleanField(default=False, db_default=False)
    # Rate limit for write requests of all Celery workers together.
    writes_per_second = models.FloatField(default=50)
    writes_at_once = models.PositiveIntegerField(default=100)
    changed_at = models.DateTimeField(db_default=Now())  # when the kubeconfig changed
    checked_at = models.DateTimeField(null=True)
    user = models.CharField(max_length=300, blank=True, default="")  # Fairlot's user name at the API server
    version = models.CharField(max_length=60, blank=True, default="")
    # The UID of the namespace kube-system: it identifies the cluster even if the API server's address changes.
    identity = models.CharField(max_length=60, blank=True, default="", db_default="")
    trouble = models.TextField(blank=True, default="")  # the problem, in words for people; empty: no problem
    # For each right that Fairlot needs, by its name in backends/kubernetes/rights.py, whether Fairlot has that right.
    rights = models.JSONField(default=dict, blank=True)
    beyond = models.JSONField(
        default=list, blank=True, db_default=[]
    )  # rights that Fairlot has but should not have
    # The version of the PodGroup API (scheduling.k8s.io) that Fairlot uses on this API server; empty: unsupported.
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
        """Returns the nodes that have GPUs. Leaves out removed nodes, which have 0 GPUs."""
        return self.exclude(gpus=0)


class Node(models.Model):
    """A machine, or a declared part of a machine, with GPUs of one generation.

    A removed node has 0 GPUs. Its row stays in the database, because the history refers to it.
    """

    class State(models.TextChoices):
        READY = "ready", "Ready"
        DRAINED = (
            "drained",
            "Drained",
        )  # set by an operator: running gangs continue to their end, nothing new starts
        CLOSED = "closed", "Closed"  # observed: running gangs continue, nothing new starts
        DOWN = "down", "Down"  # observed

    cluster = models.ForeignKey(Cluster, on_delete=models.PROTECT, related_name="nodes")
    name = models.CharField(max_length=253)
    generation = models.ForeignKey(Generation, on_delete=models.PROTECT, related_name="nodes")
    gpus = models.PositiveIntegerField()
    state = models.CharField(max_length=10, choices=State, default=State.READY)
    state_reason = models.CharField(max_length=200, blank=True)
    state_since = models.DateTimeField(db_default=Now())
    # When gangs on a drained node are stopped; None: they may run to their end, or were stopped already.
    drain_deadline = models.DateTimeField(null=True, blank=True)
    # UUIDs of real GPUs in index order; empty for declared virtual GPUs.
    gpu_uuids = ArrayField(models.CharField(max_length=80), default=list, blank=True)
    # Kubernetes only: the name of the machine, and the resource that a pod requests to get one of these GPUs. A machine
    # whose GPUs are cut into several kinds of slices has several Node rows.
    host = models.CharField(max_length=253, blank=True, default="")
    resource = models.CharField(max_length=100, blank=True, default="")
    # CPUs and memory of the whole machine that pods may use; null: unknown.
    cpus = models.FloatField(null=True, blank=True)
    memory = models.BigIntegerField(null=True, blank=True)  # bytes
    failed_gpus = models.PositiveIntegerField(default=0)
    others_gpus = models.PositiveIntegerField(default=0)  # GPUs held by pods that Fairlot did not create
    # When the node disappeared from its cluster; its row stays for its history.
    gone_at = models.DateTimeField(null=True, blank=True)
    # The speed that programs simulate on virtual GPUs; None for real ones.
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
        """Returns how many of the node's GPUs Fairlot's gangs may use, including GPUs that gangs hold. Returns 0 unless
        the node is ready."""
        if self.state != self.State.READY:
            return 0
        return max(0, self.gpus - self.failed_gpus - self.others_gpus)


class NodeChange(models.Model):
    """The state of a node from the time `at` until the node's next change. A node that is gone has 0 GPUs.

    A database trigger inserts a row whenever a field that accounting uses changes. Rows are never changed
    (scheduling/migrations/0026). The rows of a node are in the order of `at` (0039).
    """

    cluster = models.ForeignKey(Cluster, on_delete=models.PROTECT, related_name="+")
    node_id = models.BigIntegerField()  # the node may have been deleted since
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
        return f"change of node {self.name} at {self.at}"


class TeamUid(models.Model):
    """The UID of the system user that runs a team's local jobs on the portal's machine.

    A UID is never reused for another team.
    """

    tenant = models.OneToOneField(Tenant, on_delete=models.SET_NULL, null=True, related_name="local_uid")
    uid = models.PositiveIntegerField(unique=True)
    created_at = models.DateTimeField(db_default=Now())

    def __str__(self) -> str:
        return str(self.uid)
