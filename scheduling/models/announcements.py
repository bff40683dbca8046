"""Announcements of operators, which pages show to the users whom they concern."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Self

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from accounting.core.statements import Statement
from accounting.models import Membership, Tenant, User
from scheduling.models.clusters import Cluster
from scheduling.models.jobs import Job

LONGEST = 500  # characters of an announcement


class AnnouncementQuerySet(models.QuerySet["Announcement"]):
    def visible_to(self, user: User) -> Self:
        """Returns the announcements that `user` may see: all for operators; for others, what their pages show."""
        if user.is_anonymous or not user.is_active:
            return self.none()
        return self if user.is_operator else self.filter(pk__in=[one.pk for one in shown_to(user)])


class Announcement(models.Model):
    """Represents a text that pages show above their content, from one time to another, to the users whom it concerns.

    A kind of target that is empty fits every user; of the other kinds, each must fit. See `shown_to`.
    """

    class Severity(models.TextChoices):
        INFO = "info", "Information"
        WARNING = "warning", "Warning"
        CRITICAL = "critical", "Critical"

    class Role(models.TextChoices):
        VIEWER = Membership.Role.VIEWER.value, "Viewers of a team"
        MEMBER = Membership.Role.MEMBER.value, "Members of a team"
        MANAGER = Membership.Role.MANAGER.value, "Managers of a team"
        OPERATOR = User.PortalRole.OPERATOR.value, "Operators"
        ADMIN = User.PortalRole.ADMIN.value, "Admins"

    text = models.CharField(max_length=LONGEST)
    severity = models.CharField(max_length=10, choices=Severity, default=Severity.INFO)
    begins_at = models.DateTimeField()
    ends_at = models.DateTimeField(null=True, help_text="Empty: shown until somebody withdraws it.")
    dismissible = models.BooleanField(default=True)
    roles = ArrayField(models.CharField(max_length=10, choices=Role), default=list)
    teams = models.ManyToManyField(Tenant, related_name="+")
    clusters = models.ManyToManyField(Cluster, related_name="+")
    created_by = models.ForeignKey(User, on_delete=models.PROTECT, null=True, related_name="+")
    created_at = models.DateTimeField(db_default=Now())
    withdrawn_at = models.DateTimeField(null=True)

    objects = AnnouncementQuerySet.as_manager()

    class Meta:
        ordering = ["-begins_at", "-pk"]
        constraints = [
            models.CheckConstraint(
                name="an_announcement_ends_after_it_begins",
                condition=Q(ends_at=None) | Q(ends_at__gt=F("begins_at")),
            ),
        ]

    def __str__(self) -> str:
        return self.text

    def state_at(self, now: datetime) -> str:
        """Returns whether the announcement is withdrawn, ended, scheduled or shown at the time `now`."""
        if self.withdrawn_at is not None:
            return "withdrawn"
        if self.ends_at is not None and self.ends_at <= now:
            return "ended"
        return "scheduled" if self.begins_at > now else "shown"


class AnnouncementDismissal(models.Model):
    """Represents that a user has dismissed an announcement, so that the user's pages no longer show it."""

    announcement = models.ForeignKey(Announcement, on_delete=models.CASCADE, related_name="dismissals")
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                name="one_dismissal_an_announcement_and_user", fields=["announcement", "user"]
            )
        ]

    def __str__(self) -> str:
        return f"{self.user} dismissed {self.announcement_id}"


@dataclass(frozen=True, slots=True)
class ShownAnnouncement:
    """An announcement as the pages of one user show it."""

    pk: int
    severity: str
    text: str
    dismissible: bool
    ends_at: datetime | None


def shown_to(user: User) -> list[ShownAnnouncement]:
    """Returns the announcements that the user's pages show now, the most severe first. Makes one query.

    These are the current ones that concern the user, without those that the user has dismissed.

    - Teams: the user is a member of the team, of a team below it, or of a team above it.
    - Roles: the user has one of the roles in some team, or in the portal.
    - Clusters: the user has unfinished work there, or is an operator or admin.
    """
    return [ShownAnnouncement(*row) for row in _shown.ask([user.pk, list(map(str, Job.UNFINISHED))])]


_shown = Statement(
    "SELECT one.id, one.severity, one.text, one.dismissible, one.ends_at"
    " FROM scheduling_announcement one JOIN accounting_user reader ON reader.id = $1 AND reader.is_active"
    " WHERE one.withdrawn_at IS NULL AND one.begins_at <= statement_timestamp()"
    " AND (one.ends_at IS NULL OR one.ends_at > statement_timestamp())"
    " AND NOT (one.dismissible AND EXISTS (SELECT FROM scheduling_announcementdismissal gone"
    " WHERE gone.announcement_id = one.id AND gone.user_id = $1))"
    " AND (one.roles = '{}' OR reader.portal_role = ANY(one.roles) OR EXISTS (SELECT FROM accounting_membership own"
    " WHERE own.user_id = $1 AND own.role = ANY(one.roles)))"
    " AND (NOT EXISTS (SELECT FROM scheduling_announcement_teams wanted WHERE wanted.announcement_id = one.id)"
    " OR EXISTS (SELECT FROM scheduling_announcement_teams wanted"
    " JOIN accounting_tenant team ON team.id = wanted.tenant_id"
    " JOIN accounting_membership own ON own.user_id = $1"
    " JOIN accounting_tenant its ON its.id = own.tenant_id"
    " WHERE wanted.announcement_id = one.id"
    " AND (starts_with(its.path, team.path) OR starts_with(team.path, its.path))))"
    " AND (NOT EXISTS (SELECT FROM scheduling_announcement_clusters wanted WHERE wanted.announcement_id = one.id)"
    " OR reader.portal_role IN ('operator', 'admin')"
    " OR EXISTS (SELECT FROM scheduling_announcement_clusters wanted"
    " JOIN scheduling_job job ON job.cluster_id = wanted.cluster_id AND job.owner_id = $1 AND job.state = ANY($2)"
    " WHERE wanted.announcement_id = one.id))"
    " ORDER BY array_position(ARRAY['critical', 'warning', 'info'], one.severity::text), one.begins_at DESC, one.id",
    "bigint",
    "text[]",
)
