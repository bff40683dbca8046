"""Models of jobs, their history, and their measured speed."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Self

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models.functions import Now

from accounting.models import Generation, Tenant, User
from accounting.models.tenants import ids_with_role, sees_every_tenant, tenants_visible_to
from scheduling.models.clusters import Cluster
from scheduling.models.event_codes import EventCode, JobEnd, Message, accepted
from scheduling.models.ownership import changeable
from scheduling.spec.roles import SpecOfRoles, leader_of, roles_by_rank, worker_names


class JobQuerySet(models.QuerySet["Job"]):
    def visible_to(self, user: User) -> Self:
        """Returns the jobs of tenants that `user` may see."""
        if sees_every_tenant(user):
            return self
        return self.filter(tenant__in=tenants_visible_to(user))

    def changeable_by(self, user: User) -> Self:
        """Returns the jobs that `user` may change or cancel, by the rule of `changeable`
        (scheduling/models/ownership.py)."""
        return self.filter(changeable(user))

    def unfinished(self) -> Self:
        return self.filter(state__in=Job.UNFINISHED)  # uses an index, because ended jobs are many more

    def waiting(self) -> Self:
        return self.filter(state__in=Job.WAITING)

    def new_to_rounds(self) -> Self:
        """Returns the waiting jobs that no round has considered since they began to wait. No reason is stored for them
        yet."""
        return self.waiting().filter(has_no_reason=True)


class Job(models.Model):
    """A job: a gang of workers that needs GPUs. scheduling/leases/lifecycle.py defines the transitions between its
    states."""

    class State(models.TextChoices):
        QUEUED = "queued", "Queued"
        STARTING = "starting", "Starting"
        RUNNING = "running", "Running"
        STOPPING = "stopping", "Stopping"  # is ordered to return its GPUs; continues later
        SUSPENDED = "suspended", "Suspended"  # waits for its next attempt; keeps its progress
        CANCELLING = "cancelling", "Cancelling"
        SUCCEEDED = "succeeded", "Succeeded"
        FAILED = "failed", "Failed"
        CANCELLED = "cancelled", "Cancelled"

    End = JobEnd

    class Kind(models.TextChoices):
        TRAINING = "training", "Training"  # runs until its program ends
        REPLICA = "replica", "Replica"  # belongs to a service, which starts and ends it
        SESSION = "session", "Session"  # a notebook session: a user works in it

    # Kinds that are not time-sliced while their account is within its guarantee.
    UNSLICED = (Kind.REPLICA, Kind.SESSION)
    WAITING = (State.QUEUED, State.SUSPENDED)
    HOLDING = (State.STARTING, State.RUNNING, State.STOPPING, State.CANCELLING)
    UNFINISHED = (*WAITING, *HOLDING)
    ENDED = (State.SUCCEEDED, State.FAILED, State.CANCELLED)
    BY_ITSELF = (State.SUCCEEDED, State.FAILED)

    cluster = models.ForeignKey(Cluster, on_delete=models.PROTECT, related_name="jobs")
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="jobs")
    owner = models.ForeignKey(User, on_delete=models.PROTECT, related_name="jobs")
    kind = models.CharField(max_length=10, choices=Kind, default=Kind.TRAINING, db_default=Kind.TRAINING)
    name = models.CharField(max_length=120)
    spec = models.JSONField(help_text="The canonical JobSpec, as scheduling/spec/job_spec.py writes it.")
    workers = models.PositiveIntegerField()
    # Of an elastic job, which runs with any number of workers from `workers` to this. NULL: `workers` is the number.
    max_workers = models.PositiveIntegerField(null=True, blank=True)
    gpus_per_worker = models.PositiveIntegerField()
    # How long its processes may take to end. A column rather than only in the spec, so that a stop never parses a spec.
    checkpoint_grace_seconds = models.FloatField(default=30, db_default=30)
    # Kubernetes only: the worker is a pod without a Job. Set at submit; never changes.
    is_bare_pod = models.BooleanField(default=False, db_default=False)
    # Ids of acceptable generations; empty: any.
    generation_ids = ArrayField(models.BigIntegerField(), default=list, blank=True)
    priority = models.IntegerField(default=0)
    # A preemptible job takes no share: it runs only on GPUs that nobody else wants. The spec keeps the value at submit.
    preemptible = models.BooleanField(default=False, db_default=False)
    # The owner's estimate of the total time on GPUs, and the deadline. Only some policies use them.
    expected_seconds = models.FloatField(null=True, blank=True)
    deadline = models.DateTimeField(null=True, blank=True)
    # The owner's time limit: scheduling/jobs/time_limit.py stops the job after this time on GPUs, over all attempts.
    time_limit_hours = models.FloatField(null=True, blank=True)

    state = models.CharField(max_length=12, choices=State, default=State.QUEUED)
    # Fencing token: the number of leases given to this job. Messages with a lower number are void.
    epoch = models.PositiveIntegerField(default=0)
    reason = models.PositiveSmallIntegerField(
        default=0, help_text="Why the job waits: a value of fairshare.Reason."
    )
    # A separate column for the index below: if the index had `reason`, each change of a reason would update all indexes
    # of the row, and rounds change thousands of reasons.
    has_no_reason = models.GeneratedField(
        expression=models.ExpressionWrapper(models.Q(reason=0), models.BooleanField()),
        output_field=models.BooleanField(),
        db_persist=True,
    )
    # Frozen processes of the last lease are kept, to be thawed (slicing by freeze).
    frozen = models.BooleanField(default=False)
    failed_starts = models.PositiveIntegerField(default=0)
    # How often the program has failed (a worker's exit code was not 0), in all attempts.
    failures = models.PositiveIntegerField(default=0, db_default=0)
    not_before = models.DateTimeField(null=True, blank=True)

    created_at = models.DateTimeField(db_default=Now())
    state_since = models.DateTimeField(db_default=Now())
    first_started_at = models.DateTimeField(null=True)
    first_ready_at = models.DateTimeField(null=True)  # only for jobs that serve a port
    ended_at = models.DateTimeField(null=True)
    # The generation of the first attempt, and the total time on GPUs in finished attempts: copied from leases, so that
    # scheduling/reports/job_waits.py reads many jobs without their leases.
    first_generation = models.ForeignKey(
        Generation, on_delete=models.PROTECT, null=True, related_name="+", db_index=False
    )
    held_for = models.DurationField(default=timedelta(0), db_default=timedelta(0))
    files_removed_at = models.DateTimeField(
        null=True, help_text="When the job's log and checkpoints were deleted."
    )
    # Their space was measured after the end of the job, so that nothing changes any more.
    files_measured = models.BooleanField(default=False, db_default=False)
    exit_code = models.IntegerField(null=True)
    end_reason = models.CharField(max_length=40, blank=True)  # a JobEnd
    # Why the job was cancelled: an EventCode and its parameters. For other ends, `end_message` has the backend's
    # message.
    end_code = models.CharField(max_length=40, blank=True, default="", db_default="")
    end_detail = models.JSONField(default=dict, db_default={})
    end_message = models.TextField(blank=True)
    steps_done = models.DecimalField(max_digits=24, decimal_places=3, null=True)
    # Only for replicas: the service, revision and slot, and the position among all replicas that have had this slot.
    service = models.ForeignKey("Service", on_delete=models.PROTECT, null=True, related_name="jobs")
    revision = models.ForeignKey("ServiceRevision", on_delete=models.PROTECT, null=True, related_name="jobs")
    slot = models.PositiveIntegerField(null=True)
    attempt = models.PositiveIntegerField(null=True)
    # Only for the jobs of a sweep: the sweep, and which of its members the job is.
    sweep = models.ForeignKey(
        "Sweep", on_delete=models.PROTECT, null=True, related_name="jobs", db_index=False
    )
    sweep_index = models.PositiveIntegerField(null=True)
    # Only for the jobs of a pipeline: the pipeline, and which of its steps the job is.
    pipeline = models.ForeignKey(
        "Pipeline", on_delete=models.PROTECT, null=True, related_name="jobs", db_index=False
    )
    step_index = models.PositiveIntegerField(null=True)
    # The job whose spec was submitted again, perhaps with changes. Nothing looks for clones, so there is no index.
    cloned_from = models.ForeignKey(
        "self", on_delete=models.SET_NULL, null=True, related_name="+", db_index=False
    )
    # The client's idempotency key; NULL rather than "" because it must be unique if given.
    request_key = models.CharField(max_length=80, null=True)  # noqa: DJ001

    objects = JobQuerySet.as_manager()

    class Meta:
        indexes = [
            models.Index(fields=["cluster", "state"]),
            models.Index(fields=["tenant", "-id"]),
            models.Index(fields=["owner", "-id"]),
            # Lists show the newest jobs first, and count all of them.
            models.Index(fields=["-created_at", "-id"], include=["tenant", "kind"], name="job_newest"),
            models.Index(fields=["cluster", "ended_at"], name="job_ended"),
            # Covers what scheduling/reports/job_waits.py, job_waste.py and demand.py read, so that they read no other
            # jobs.
            models.Index(
                fields=["tenant", "first_started_at"],
                include=["kind", "created_at", "workers", "gpus_per_worker", "first_generation"],
                name="job_first_started",
            ),
            models.Index(
                fields=["tenant", "ended_at"],
                include=["kind", "created_at", "workers", "gpus_per_worker", "first_generation", "held_for"],
                name="job_ended_in_team",
            ),
            models.Index(
                fields=["ended_at"],
                include=["cluster_id", "created_at", "workers", "gpus_per_worker"],
                name="job_ended_anywhere",
            ),
            models.Index(
                fields=["ended_at"],
                include=["id", "state", "first_started_at"],
                condition=models.Q(kind="training", state__in=["failed", "cancelled"]),
                name="training_in_vain",
            ),
            models.Index(
                fields=["ended_at"], condition=models.Q(files_removed_at=None), name="job_with_files"
            ),
            models.Index(
                fields=["cluster"],
                condition=models.Q(
                    files_measured=False, files_removed_at=None, first_started_at__isnull=False
                ),
                name="job_with_unmeasured_files",
            ),
            models.Index(
                fields=["cluster"],
                condition=models.Q(has_no_reason=True, state__in=["queued", "suspended"]),
                name="job_new_to_rounds",
            ),
            models.Index(
                fields=["cluster", "not_before"],
                condition=models.Q(not_before__isnull=False, state__in=["queued", "suspended"]),
                name="job_backs_off",
            ),
            models.Index(
                fields=["sweep", "sweep_index"],
                condition=models.Q(sweep__isnull=False),
                name="job_of_a_sweep",
            ),
            models.Index(
                fields=["pipeline", "step_index"],
                condition=models.Q(pipeline__isnull=False),
                name="job_of_a_pipeline",
            ),
        ]
        constraints = [
            models.CheckConstraint(
                name="a_gang_has_gpus", condition=models.Q(workers__gte=1, gpus_per_worker__gte=1)
            ),
            models.CheckConstraint(
                name="an_elastic_gang_may_grow",
                condition=models.Q(max_workers=None)
                | models.Q(max_workers__gt=models.F("workers"), kind="training", is_bare_pod=False),
            ),
            models.CheckConstraint(
                name="a_grace_is_an_hour_at_most",
                condition=models.Q(checkpoint_grace_seconds__gte=0, checkpoint_grace_seconds__lte=3600),
            ),
            models.CheckConstraint(
                name="a_time_limit_is_of_a_job_that_ends",
                condition=models.Q(time_limit_hours=None) | models.Q(time_limit_hours__gt=0, kind="training"),
            ),
            # Before the first attempt both are null.
            models.CheckConstraint(
                name="what_held_gpus_says_which",
                condition=models.Q(first_generation=None, first_started_at=None, held_for=timedelta(0))
                | models.Q(
                    first_generation__isnull=False, first_started_at__isnull=False, held_for__gte=timedelta(0)
                ),
            ),
            models.CheckConstraint(
                name="ends_of_jobs",
                condition=models.Q(end_reason__in=accepted(JobEnd), end_code__in=accepted(EventCode)),
            ),
            models.UniqueConstraint(name="one_job_a_request_key", fields=["owner", "request_key"]),
            # If several controllers find a replica missing, only one of them creates it.
            models.UniqueConstraint(
                name="one_living_replica_a_slot",
                fields=["service", "slot"],
                condition=~models.Q(state__in=["succeeded", "failed", "cancelled"]),
            ),
            models.UniqueConstraint(name="one_replica_an_attempt", fields=["service", "slot", "attempt"]),
            models.UniqueConstraint(
                name="one_living_job_a_member",
                fields=["sweep", "sweep_index"],
                condition=models.Q(sweep__isnull=False)
                & ~models.Q(state__in=["succeeded", "failed", "cancelled"]),
            ),
            models.CheckConstraint(
                name="a_job_of_a_sweep_has_its_index",
                condition=models.Q(sweep=None, sweep_index=None)
                | models.Q(sweep__isnull=False, sweep_index__isnull=False, kind="training"),
            ),
            models.UniqueConstraint(
                name="one_living_job_a_step",
                fields=["pipeline", "step_index"],
                condition=models.Q(pipeline__isnull=False)
                & ~models.Q(state__in=["succeeded", "failed", "cancelled"]),
            ),
            models.CheckConstraint(
                name="a_job_of_a_pipeline_has_its_step",
                condition=models.Q(pipeline=None, step_index=None)
                | models.Q(pipeline__isnull=False, step_index__isnull=False, kind="training"),
            ),
            models.CheckConstraint(
                name="a_bare_pod_is_one_worker_that_ends",
                condition=models.Q(is_bare_pod=False) | models.Q(workers=1, kind="training"),
            ),
            models.CheckConstraint(
                name="a_replica_is_of_a_service",
                condition=models.Q(
                    kind="replica",
                    service__isnull=False,
                    revision__isnull=False,
                    slot__isnull=False,
                    attempt__isnull=False,
                )
                | (
                    ~models.Q(kind="replica") & models.Q(service=None, revision=None, slot=None, attempt=None)
                ),
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def gpus(self) -> int:
        """Returns the GPUs that the job asks for; of an elastic job the least with which it runs."""
        return self.workers * self.gpus_per_worker

    @property
    def most_gpus(self) -> int:
        return (self.max_workers or self.workers) * self.gpus_per_worker

    @cached_property
    def worker_names(self) -> list[str]:
        """Returns the name of each worker by rank, also of those without GPUs: "ps 0" in a job with roles, else the
        rank. An elastic job has as many names as its largest attempt had workers."""
        names = worker_names(SpecOfRoles.of_stored(self.spec))
        if self.spec.get("max_workers") is None:
            return names
        most = self.leases.aggregate(most=models.Max("gpus", default=0))["most"] // self.gpus_per_worker
        return [str(rank) for rank in range(max(most, len(names)))]

    @property
    def leading_rank(self) -> int:
        """Returns the rank of the worker whose progress and port count."""
        return leader_of(roles_by_rank(SpecOfRoles.of_stored(self.spec)))

    @property
    def has_ended(self) -> bool:
        return self.state in self.ENDED

    @property
    def waited_seconds(self) -> float | None:
        """Returns how long the job waited for its first start, or for its end without one; None while it waits."""
        until = self.first_started_at or self.ended_at
        return self.waited_seconds_at(until) if until else None

    def waited_seconds_at(self, now: datetime) -> float:
        """Returns how long the job has waited at the time `now`, or had waited when it started or ended before."""
        return ((self.first_started_at or self.ended_at or now) - self.created_at).total_seconds()

    @property
    def is_at_end(self) -> bool:
        """Returns whether the job has ended or is being cancelled, so that it never gets GPUs again."""
        return self.has_ended or self.state == self.State.CANCELLING


class JobEvent(models.Model):
    """An entry in a job's history: a code with parameters, or a text from outside Fairlot or from an earlier release.

    `detail` has the parameters and, for many codes, a Cause. scheduling/core/event_texts.py makes a sentence of them.
    """

    SHARING = "sharing"  # kind of the events with which a job becomes preemptible or stops being preemptible
    PLACE_LOST = "place_lost"  # kind of the events that say why a round picked a job but found no GPUs

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="events")
    at = models.DateTimeField(db_default=Now())
    epoch = models.PositiveIntegerField(default=0)
    kind = models.CharField(max_length=40)
    code = models.CharField(max_length=40, blank=True, default="", db_default="")
    text = models.TextField(blank=True, default="", db_default="")
    detail = models.JSONField(default=dict)

    class Meta:
        ordering = ["id"]
        constraints = [
            models.CheckConstraint(
                name="codes_of_job_events", condition=models.Q(code__in=accepted(EventCode))
            ),
            models.CheckConstraint(
                name="an_event_has_a_code_or_a_text", condition=models.Q(code="") | models.Q(text="")
            ),
        ]

    @classmethod
    def of(cls, job: Job, kind: str, message: Message, **fields: Any) -> Self:
        """Returns an unsaved event with `message` for the job's latest attempt.

        `fields` are values for other fields of the event. To name another attempt, pass its number as `epoch`.
        """
        parameters = dict(message.parameters)
        return cls(
            **{"job": job, "epoch": job.epoch, "kind": kind, "code": message.code, "detail": parameters}
            | fields
        )


class JobSpeed(models.Model):
    """The measured progress of a job on one generation: it made `steps` steps in `seconds` seconds of running."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="speeds")
    generation = models.ForeignKey(Generation, on_delete=models.PROTECT)
    steps = models.FloatField(default=0)
    seconds = models.FloatField(default=0)
    updated_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            models.UniqueConstraint(name="one_speed_a_job_and_generation", fields=["job", "generation"])
        ]

    @property
    def rate(self) -> float | None:
        """Returns the job's steps per second on this generation; None before the first measurement."""
        return self.steps / self.seconds if self.seconds > 0 else None


def job_in_sight(user: User, found: Job | None) -> Job | None:
    """Returns `found` if `user` may see this job, by the rule of `JobQuerySet.visible_to`; otherwise None."""
    if found is None or sees_every_tenant(user):
        return found
    return found if found.tenant_id in ids_with_role(user) else None
