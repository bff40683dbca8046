"""Leases: a gang holds certain GPUs of certain nodes from one moment to another."""

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

# Leases that held GPUs for longer than the ledger says.
UNBOOKED = models.Q(held_from__isnull=False) & (
    models.Q(billed_until=None)
    | models.Q(held_until=None)
    | models.Q(billed_until__lt=models.F("held_until"))
)


class LeaseQuerySet(models.QuerySet["Lease"]):
    def of_frozen_processes(self) -> Self:
        """Returns, for each job with frozen processes, the lease in which they were frozen."""
        frozen = self.filter(job__frozen=True, state=Lease.State.CLOSED, end_reason=Lease.End.FROZEN)
        return frozen.order_by("job_id", "-epoch").distinct("job_id")

    def on_notice(self) -> Self:
        """Returns the leases beyond their account's guarantee whose people were warned."""
        return self.filter(notice_since__isnull=False).exclude(state=Lease.State.CLOSED)

    def unbooked(self) -> Self:
        """Returns the leases that held GPUs for longer than the ledger says."""
        return self.filter(UNBOOKED)

    def ready(self) -> Self:
        """Returns the leases whose address answers now; stopping ones are no longer probed."""
        return self.filter(state=Lease.State.RUNNING, ready_since__isnull=False)


class Lease(models.Model):
    """The atom of accounting. All times are observed, never intended."""

    class State(models.TextChoices):
        RESERVED = "reserved", "Reserved"  # others still hold its GPUs; it holds nothing yet
        STARTING = "starting", "Starting"  # holds its GPUs; processes are being started
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
    held_from = models.DateTimeField(null=True)  # the gang holds its GPUs
    running_from = models.DateTimeField(null=True)  # all workers run
    stop_asked_at = models.DateTimeField(null=True)
    held_until = models.DateTimeField(null=True)  # all workers are gone
    last_seen_at = models.DateTimeField(null=True)
    missing_since = models.DateTimeField(null=True)  # its backend no longer knows it
    # Of a service's replica or a session: since when it is beyond its account's guarantee, so that claims of others may
    # stop it after the cluster's notice time.
    notice_since = models.DateTimeField(null=True)
    billed_until = models.DateTimeField(null=True)  # the ledger covers held_from up to here
    end_reason = models.CharField(max_length=40, blank=True)  # a LeaseEnd
    stop_cause = models.CharField(max_length=20, blank=True, default="", db_default="")  # a Cause
    # Last progress seen in this lease, to measure speed from differences.
    progress_steps = models.FloatField(null=True)
    progress_at = models.DateTimeField(null=True)
    # The first progress seen in it, and since when its work was lost and repeated; see scheduling/leases/lost_work.py.
    first_steps = models.FloatField(null=True)
    first_steps_at = models.DateTimeField(null=True)
    lost_from = models.DateTimeField(null=True)
    # Of a job with a port: its address, since when it is or was ready, and the last negative answer.
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
            # The leases that still are to be billed, among all there ever were.
            models.Index(
                fields=["job"],
                condition=UNBOOKED,
                name="lease_not_billed",
            ),
        ]
        constraints = [
            models.UniqueConstraint(name="one_lease_a_job_and_epoch", fields=["job", "epoch"]),
            # A gang never runs twice, whatever any process believes.
            models.UniqueConstraint(
                name="one_held_lease_a_job",
                fields=["job"],
                condition=models.Q(state__in=["starting", "running", "stopping"]),
            ),
            # A moving gang has a reservation for its destination besides the lease that it leaves.
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
        """Returns when the time begins that the ledger does not cover; None if the lease has held nothing."""
        return self.billed_until or self.held_from

    @property
    def is_unbooked(self) -> bool:
        """Returns whether it is among `LeaseQuerySet.unbooked`."""
        begins, ends = self.unbooked_from, self.held_until
        return begins is not None and (self.billed_until is None or ends is None or begins < ends)

    def unbooked_period(self, until: datetime | None) -> tuple[datetime, datetime] | None:
        """Returns the time up to its end, or to `until` if that is earlier, that the ledger does not cover."""
        begins, ends = self.unbooked_from, min(filter(None, (until, self.held_until)), default=None)
        return (begins, ends) if begins is not None and ends is not None and begins < ends else None


class HeldGpu(models.Model):
    """One GPU of a lease. `during` is empty (NULL) while the GPU is only reserved."""

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
    """A time in which a gang had its GPUs only because nobody else wanted them, as rounds decided.

    It may begin before the lease holds its GPUs and end after it.
    """

    lease = models.ForeignKey(Lease, on_delete=models.CASCADE, related_name="preemptible")
    during = DateTimeRangeField(help_text="Open at the end while it goes on.")

    class Meta:
        constraints = [
            ExclusionConstraint(
                name="a_lease_is_preemptible_once_at_any_moment",
                expressions=[("lease", RangeOperators.EQUAL), ("during", RangeOperators.OVERLAPS)],
            ),
        ]
