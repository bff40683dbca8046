"""The audit trail.

Each change of data is one row, which is written in the transaction of the change and never edited.
"""

from __future__ import annotations

from typing import Self

from django.db import models
from django.db.models.functions import Now

from accounting.models.tenants import Membership, Tenant, User


class AuditEventQuerySet(models.QuerySet["AuditEvent"]):
    def visible_to(self, user: User) -> Self:
        """Returns the events that `user` may see.

        Operators and admins may see all events. Other users may see the events of the tenants that they manage.
        """
        if user.is_anonymous or not user.is_active:
            return self.none()
        if user.is_operator:
            return self
        return self.filter(tenant__in=Tenant.objects.visible_to(user, role=Membership.Role.MANAGER))


class AuditEvent(models.Model):
    at = models.DateTimeField(db_default=Now(), db_index=True)
    actor = models.ForeignKey(User, on_delete=models.PROTECT, null=True)  # None: Fairlot itself
    actor_name = models.CharField(max_length=150)
    verb = models.CharField(max_length=60)  # "tenant.create", "job.cancel"
    target_type = models.CharField(max_length=40)
    target_id = models.CharField(max_length=40)
    target_name = models.CharField(max_length=150)
    # No database constraint: a tenant without history may be deleted, and its audit events stay.
    tenant = models.ForeignKey(Tenant, on_delete=models.DO_NOTHING, null=True, db_constraint=False)
    before = models.JSONField(default=dict)
    after = models.JSONField(default=dict)

    objects = AuditEventQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        indexes = [models.Index(fields=["target_type", "target_id"])]
