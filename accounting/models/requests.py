"""Requests of managers for tickets, a limit, a new team, or more time for an earlier grant.

The target of a grant is a string that identifies what was granted, for example "team:7" for a new team.
"""

from __future__ import annotations

import json
from typing import Self

from django.db import models
from django.db.models.functions import Now

from accounting.models.quotas import Quota
from accounting.models.tenants import Membership, Tenant, User

# A target names the value that a grant sets. A tenant has one value for each target at a time.
TICKETS = "tickets"


def limit_target(quota: Quota) -> str:
    """Returns the target of grants of this limit."""
    key = quota.key()
    return "limit:" + ",".join(json.dumps(key[name]) for name in sorted(key))


def team_target(team: Tenant) -> str:
    """Returns the target of the grant that created this team."""
    return f"team:{team.pk}"


class RequestQuerySet(models.QuerySet["Request"]):
    def visible_to(self, user: User) -> Self:
        """Returns the requests that `user` may see.

        Operators and admins may see all requests. Other users may see the requests of the tenants that they manage.
        """
        if user.is_anonymous or not user.is_active:
            return self.none()
        if user.is_operator:
            return self
        return self.filter(tenant__in=Tenant.objects.visible_to(user, role=Membership.Role.MANAGER))

    def in_force(self) -> Self:
        """Returns the approved requests whose grant has not ended."""
        return self.filter(state=Request.State.APPROVED, ended_at=None)

    def overtake(self, target: str, *, tenant: Tenant | None = None) -> None:
        """Cancels the effect of grants on a value, because somebody sets the value by hand.

        When these grants end, the value stays. `target`: the target of the grants. `tenant`: the tenant of the grants;
        None means any tenant. The caller must have locked the tenant's row in its transaction.
        """
        of = {} if tenant is None else {"tenant": tenant}
        self.in_force().filter(target=target, overtaken_at=None, **of).update(overtaken_at=Now())


class Request(models.Model):
    """Represents a manager's request and the operator's answer. An approved request is a grant.

    If the grant has an end, the value in `former` is restored at that time.
    """

    class Kind(models.TextChoices):
        TICKETS = "tickets", "Tickets"
        LIMIT = "limit", "Limit"
        EXTENSION = "extension", "More time"
        TEAM = "team", "New team"

    class State(models.TextChoices):
        OPEN = "open", "Open"
        APPROVED = "approved", "Approved"
        DECLINED = "declined", "Declined"
        WITHDRAWN = "withdrawn", "Withdrawn"

    tenant = models.ForeignKey(
        Tenant,
        on_delete=models.PROTECT,
        related_name="requests",
        help_text="Team that the request is about; for a new team, the team above it.",
    )
    kind = models.CharField(max_length=10, choices=Kind)
    asked_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    asked_at = models.DateTimeField(db_default=Now())
    reason = models.TextField()
    # {"tickets": 200}; {"limit": "100", "kind": "gpus", …}; {"name": "Stars", "tickets": 100}; {}
    wanted = models.JSONField(default=dict)
    until = models.DateTimeField(
        null=True, help_text="Requested end of the grant; empty: the grant has no end."
    )
    extends = models.ForeignKey("self", on_delete=models.PROTECT, null=True, related_name="extensions")

    state = models.CharField(max_length=10, choices=State, default=State.OPEN, db_default=State.OPEN)
    decided_by = models.ForeignKey(User, on_delete=models.PROTECT, null=True, related_name="+")
    decided_at = models.DateTimeField(null=True)
    answer = models.TextField(blank=True, default="", db_default="")
    granted = models.JSONField(
        null=True, help_text="What the operator granted, in the same format as `wanted`."
    )
    # What the grant set, such as "tickets". A later grant with the same target is stacked on this grant.
    target = models.CharField(max_length=200, blank=True, default="", db_default="")
    former = models.CharField(
        max_length=40,
        blank=True,
        default="",
        db_default="",
        help_text="Value before the grant; empty if there was none.",
    )
    ends_at = models.DateTimeField(null=True)
    told_of_end = models.DateTimeField(
        null=True,
        help_text="End of the grant that the last reminder mail stated; null if no such mail was sent.",
    )
    overtaken_at = models.DateTimeField(
        null=True, help_text="Time at which somebody changed the granted value by hand, without a request."
    )
    ended_at = models.DateTimeField(null=True)
    ending = models.CharField(max_length=200, blank=True, default="", db_default="")

    objects = RequestQuerySet.as_manager()

    class Meta:
        ordering = ["-pk"]
        indexes = [
            models.Index(
                fields=["ends_at"],
                condition=models.Q(state="approved", ended_at=None, ends_at__isnull=False),
                name="grants_that_will_end",
            )
        ]
        constraints = [
            models.CheckConstraint(
                name="an_extension_is_of_a_request",
                condition=models.Q(kind="extension", extends__isnull=False)
                | (~models.Q(kind="extension") & models.Q(extends=None)),
            ),
            models.CheckConstraint(
                name="a_decision_has_a_moment",
                condition=models.Q(state="open", decided_at=None)
                | models.Q(~models.Q(state="open"), decided_at__isnull=False),
            ),
            models.CheckConstraint(
                name="what_is_granted_is_approved",
                condition=models.Q(state="approved", granted__isnull=False)
                | (~models.Q(state="approved") & models.Q(granted=None, ends_at=None, ended_at=None)),
            ),
        ]

    def __str__(self) -> str:
        return f"request {self.pk}: {self.get_kind_display().lower()} for {self.tenant.name}"

    @property
    def is_in_force(self) -> bool:
        return self.state == self.State.APPROVED and self.ended_at is None
