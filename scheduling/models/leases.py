"""Models of leases. A lease gives a gang certain GPUs on certain nodes for a period."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Self

from django.contrib.postgres.constraints import ExclusionConstraint
from django.contrib.postgres.fields import DateTimeRangeField, RangeOperators
from django.db import models
from django.db.models.functions import Now

from accounting.models import Generation
from scheduling.models.clusters import Cluster, Node
from scheduling.models.event_codes import Cause, LeaseEnd, accepted
from scheduling.models.jobs import Job

# Leases of which the ledger does not cover all the time on GPUs.
UNBOOKED = models.Q(held_from__isnull=False) & (
    models.Q(billed_until=None)
    | models.Q(held_until=None)
    | models.Q(billed_until__lt=models.F("held_until"))
)


class LeaseQuerySet(models.QuerySet["Lease"]):
    def of_frozen_processes(self) -> Self:
        """Returns one lease for each job whose processes are frozen (suspended, but kept in memory).

        This is the job's latest lease that ended with the freezing of the processes.
        """
        frozen = self.filter(job__frozen=True, state=Lease.State.CLOSED, end_reason=Lease.End.FROZEN)
        return frozen.order_by("job_id", "-epoch").distinct("job_id")

    def on_notice(self) -> Self:
        """Returns the open leases whose owners were warned that the gang may be preempted.

        Owners are warned if the lease holds GPUs beyond the guarantee of its account.
        """
        return self.filter(notice_since__isnull=False).exclude(state=Lease.State.CLOSED)

    def unbooked(self) -> Self:
        """Returns the leases that have unbooked time: time on GPUs that is not yet in the ledger."""
        return self.filter(UNBOOKED)

    def ready(self) -> Self:
        """Returns the running leases whose program answers at its address.

        Leaves out stopping leases, because Fairlot no longer probes their programs.
        """
        return self.filter(state=Lease.State.RUNNING, ready_since__isnull=False)


class Lease(models.Model):
    """One allocation of GPUs to a job for one attempt. Leases are the unit of accounting.

    The times when the GPUs were held are observed, not planned.
    """

    class State(models.TextChoices):
        RESERVED = "reserved", "Reserved"  # other leases still hold its GPUs
        STARTING = "starting", "Starting"  # holds its GPUs; its processes are being started
        RUNNING = "running", "Running"
        STOPPING = "stopping", "Stopping"  # ordered to return its GPUs
        CLOSED = "closed", "Closed"

    End = LeaseEnd
    OPEN = (State.RESERVED, State.STARTING, State.RUNNING, State.STOPPING)
    HOLDING = (State.STARTING, State.RUNNING, State.STOPPING)

    job = models.ForeignKey(Job, on_delete=models.PROTECT, related_name="leases")
    cluster = models.ForeignKey(Cluster, on_delete=models.PROTECT, related_name="leases")
    epoch = models.PositiveIntegerField()
    token = models.UUIDField(default=uuid.uuid4, unique=True)
    generation = models.ForeignKey(Generation, on_delete=models.PROTECT)
    gpus = models.PositiveIntegerField()
    state = models.CharField(max_length=10, choices=State, default=State.RESERVED)
    decided_at = models.DateTimeField(db_default=Now())
    held_from = models.DateTimeField(null=True)  # when the gang got its GPUs
    running_from = models.DateTimeField(null=True)  # when all workers ran
    stop_asked_at = models.DateTimeField(null=True)
    held_until = models.DateTimeField(null=True)  # when all workers were gone
    last_seen_at = models.DateTimeField(null=True)
    missing_since = models.DateTimeField(null=True)  # since when its backend no longer reports it
    # Only for replicas and sessions: since when the lease is beyond its account's guarantee. Once the cluster's notice
    # time is over, it may be preempted for claims of others.
    notice_since = models.DateTimeField(null=True)
    billed_until = models.DateTimeField(null=True)  # the ledger covers the time from held_from to here
    end_reason = models.CharField(max_length=40, blank=True)  # a LeaseEnd
    stop_cause = models.CharField(max_length=20, blank=True, default="", db_default="")  # a Cause
    # The last observed progress in this lease; speeds are computed from differences.
    progress_steps = models.FloatField(null=True)
    progress_at = models.DateTimeField(null=True)
    # The first observed progress in this lease, and the time from which its work was lost and had to be repeated; see
    # scheduling/leases/lost_work.py.
    first_steps = models.FloatField(null=True)
    first_steps_at = models.DateTimeField(null=True)
    lost_from = models.DateTimeField(null=True)
    # Only for jobs with a port: the address, since when the program is or was ready, and why it was last not ready.
    address = models.CharField(max_length=300, blank=True, default="", db_default="")
    ready_since = models.DateTimeField(null=True)
    why_not_ready = models.CharField(max_length=300, blank=True, default="", db_default="")

    objects = LeaseQuerySet.as_manager()

    class Meta:
        indexes = [
            models.Index(fields=["cluster", "state"]),
            models.Index(fields=["held_from"]),
            models.Index(fields=["cluster", "held_until"]),
            models.Index(
                fields=["cluster", "notice_since"],
                condition=models.Q(notice_since__isnull=False) & ~models.Q(state="closed"),
                name="lease_on_notice",
            ),
            models.Index(
                fields=["held_until"],
                include=["job", "generation", "gpus", "lost_from"],
                condition=models.Q(lost_from__isnull=False),
                name="lost_attempts",
            ),
            # Finds the few leases that still have to be billed.
            models.Index(
                fields=["job"],
                condition=UNBOOKED,
                name="lease_not_billed",
            ),
        ]
        constraints = [
            models.UniqueConstraint(name="one_lease_a_job_and_epoch", fields=["job", "epoch"]),
            # A gang never runs twice, even if a process acts on outdated data.
            models.UniqueConstraint(
                name="one_held_lease_a_job",
                fields=["job"],
                condition=models.Q(state__in=["starting", "running", "stopping"]),
            ),
            # A moving gang has a reservation for its destination as well as the lease that it leaves.
            models.UniqueConstraint(
                name="one_reserved_lease_a_job", fields=["job"], condition=models.Q(state="reserved")
            ),
            models.CheckConstraint(
                name="ends_of_leases",
                condition=models.Q(end_reason__in=accepted(LeaseEnd), stop_cause__in=accepted(Cause)),
            ),
            models.CheckConstraint(
                name="a_lease_ends_after_it_began",
                condition=models.Q(held_until=None) | models.Q(held_until__gte=models.F("held_from")),
            ),
            models.CheckConstraint(
                name="a_lease_loses_no_more_than_it_held",
                condition=models.Q(lost_from=None)
                | models.Q(lost_from__gte=models.F("held_from"), lost_from__lt=models.F("held_until")),
            ),
        ]

    @property
    def unbooked_from(self) -> datetime | None:
        """Returns the start of the time that the ledger does not contain yet; None if the lease has not held GPUs."""
        return self.billed_until or self.held_from

    @property
    def is_ready(self) -> bool:
        """Returns whether the lease is running and its program answers, by the rule of `LeaseQuerySet.ready`."""
        return self.state == self.State.RUNNING and self.ready_since is not None

    @property
    def is_unbooked(self) -> bool:
        """Returns whether the lease has unbooked time (time on GPUs that is not yet in the ledger), by the rule of
        `LeaseQuerySet.unbooked`."""
        begins, ends = self.unbooked_from, self.held_until
        return begins is not None and (self.billed_until is None or ends is None or begins < ends)

    def unbooked_period(self, until: datetime | None) -> tuple[datetime, datetime] | None:
        """Returns the period (start, end) of the lease that the ledger does not contain yet; None if there is none.

        The period ends at `until`, or at the lease's end if that is earlier. `until` None means the lease's end;
        returns None if the lease has not ended.
        """
        begins, ends = self.unbooked_from, min(filter(None, (until, self.held_until)), default=None)
        return (begins, ends) if begins is not None and ends is not None and begins < ends else None


class HeldGpu(models.Model):
    """One GPU of a lease. `during` is NULL while the GPU is only reserved."""

    lease = models.ForeignKey(Lease, on_delete=models.CASCADE, related_name="held_gpus")
    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="held_gpus")
    rank = models.PositiveIntegerField()
    gpu_index = models.PositiveIntegerField()
    during = DateTimeRangeField(null=True)

    class Meta:
        ordering = ["rank", "node", "gpu_index"]
        constraints = [
            # No GPU is ever held twice at one moment.
            ExclusionConstraint(
                name="a_gpu_is_held_once_at_any_moment",
                expressions=[
                    ("node", RangeOperators.EQUAL),
                    ("gpu_index", RangeOperators.EQUAL),
                    ("during", RangeOperators.OVERLAPS),
                ],
            ),
        ]


class PreemptibleTime(models.Model):
    """A period in which rounds let a gang have its GPUs only because nobody else wanted them.

    It begins and ends with a round. So it may begin before the lease holds its GPUs, and end after the lease.
    """

    lease = models.ForeignKey(Lease, on_delete=models.CASCADE, related_name="preemptible")
    during = DateTimeRangeField(help_text="Period of preemptible time; has no end while it continues.")

    class Meta:
        constraints = [
            ExclusionConstraint(
                name="a_lease_is_preemptible_once_at_any_moment",
                expressions=[("lease", RangeOperators.EQUAL), ("during", RangeOperators.OVERLAPS)],
            ),
        ]
