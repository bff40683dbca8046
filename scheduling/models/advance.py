"""Advance reservations: GPUs of a cluster that a team has in given windows of time."""

from __future__ import annotations

from datetime import datetime
from typing import Self

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from accounting.models import Generation, Tenant, User
from scheduling.models.clusters import Cluster, Node


class AdvanceReservationQuerySet(models.QuerySet["AdvanceReservation"]):
    def visible_to(self, user: User) -> Self:
        """Returns the reservations that `user` may see: all for operators; for others, those of teams they see."""
        if user.is_anonymous or not user.is_active:
            return self.none()
        return self if user.is_operator else self.filter(tenant__in=Tenant.objects.visible_to(user))


class AdvanceReservation(models.Model):
    """Represents GPUs of one generation that a team, with all teams below it, has in windows of time.

    The GPUs are on fixed nodes (`ReservedNode`). The windows are stored one by one (`AdvanceWindow`), also those of a
    reservation that repeats weekly.
    """

    cluster = models.ForeignKey(Cluster, on_delete=models.PROTECT, related_name="advance_reservations")
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="advance_reservations")
    generation = models.ForeignKey(Generation, on_delete=models.PROTECT, related_name="+")
    name = models.CharField(max_length=100)
    begins = models.DateTimeField(help_text="Begin of the first window.")
    ends = models.DateTimeField(help_text="End of the first window.")
    weekly_until = models.DateTimeField(
        null=True, help_text="The windows repeat weekly and begin before this time; empty: one window."
    )
    zone = models.CharField(max_length=60, help_text="Time zone in which weekly windows keep their hours.")
    lends = models.BooleanField(
        help_text="Whether jobs of others may run on the GPUs until the team needs them."
    )
    created_by = models.ForeignKey(User, on_delete=models.PROTECT, null=True, related_name="+")
    created_at = models.DateTimeField(db_default=Now())
    cancelled_at = models.DateTimeField(null=True)

    objects = AdvanceReservationQuerySet.as_manager()

    class Meta:
        ordering = ["-begins", "-pk"]
        constraints = [
            models.CheckConstraint(
                name="an_advance_reservation_ends_after_it_begins", condition=Q(ends__gt=F("begins"))
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def gpus(self) -> int:
        """Returns the number of reserved GPUs."""
        return sum(one.gpus for one in self.nodes.all())

    def state_at(self, now: datetime) -> str:
        """Returns whether the reservation is cancelled, ended, open, or waits for its next window."""
        if self.cancelled_at is not None:
            return "cancelled"
        windows = [one for one in self.windows.all() if one.ends > now]
        if not windows:
            return "ended"
        return "open" if any(one.begins <= now for one in windows) else "coming"


class ReservedNode(models.Model):
    """The number of GPUs that an advance reservation has on one node."""

    reservation = models.ForeignKey(AdvanceReservation, on_delete=models.CASCADE, related_name="nodes")
    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="+")
    gpus = models.PositiveIntegerField()

    class Meta:
        ordering = ["pk"]
        constraints = [
            models.UniqueConstraint(name="a_node_is_reserved_once", fields=["reservation", "node"]),
            models.CheckConstraint(name="some_gpus_are_reserved", condition=Q(gpus__gt=0)),
        ]

    def __str__(self) -> str:
        return f"{self.gpus} GPUs of {self.node}"


class AdvanceWindow(models.Model):
    """One window of an advance reservation."""

    reservation = models.ForeignKey(AdvanceReservation, on_delete=models.CASCADE, related_name="windows")
    begins = models.DateTimeField()
    ends = models.DateTimeField()

    class Meta:
        ordering = ["begins", "pk"]
        constraints = [
            models.CheckConstraint(name="a_window_ends_after_it_begins", condition=Q(ends__gt=F("begins"))),
        ]
        indexes = [models.Index(fields=["ends"], name="windows_by_end")]

    def __str__(self) -> str:
        return f"{self.begins} – {self.ends}"
