"""What the items of all outboxes have in common."""

from __future__ import annotations

import uuid

from django.db import models
from django.db.models.functions import Now


class OutboxItem(models.Model):
    """Represents something to send: an e-mail or a webhook call.

    It is stored in the same database transaction as the change that it reports, and sent after the commit.
    accounting/notifications/outbox.py decides when.
    """

    identity = models.UUIDField(default=uuid.uuid4, unique=True)
    written_at = models.DateTimeField(db_default=Now())
    not_before = models.DateTimeField(db_default=Now())
    attempts = models.PositiveIntegerField(default=0, db_default=0)
    sent_at = models.DateTimeField(null=True)
    error = models.CharField(max_length=300, blank=True, default="", db_default="")

    class Meta:
        abstract = True
