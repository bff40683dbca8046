"""The outbox of e-mail.

An e-mail is stored in the same database transaction as the change that it reports, and sent after the commit.
"""

from __future__ import annotations

import uuid

from django.db import models
from django.db.models.functions import Now


class Mail(models.Model):
    """Represents an e-mail to one address.

    `identity` is part of the Message-ID header, so that mail programs can recognise an e-mail that was sent twice.
    """

    identity = models.UUIDField(default=uuid.uuid4, unique=True)
    address = models.EmailField()
    subject = models.CharField(max_length=200)
    text = models.TextField()
    written_at = models.DateTimeField(db_default=Now())
    not_before = models.DateTimeField(db_default=Now())
    attempts = models.PositiveIntegerField(default=0, db_default=0)
    sent_at = models.DateTimeField(null=True)
    error = models.CharField(max_length=300, blank=True, default="", db_default="")

    class Meta:
        indexes = [models.Index(fields=["not_before"], condition=models.Q(sent_at=None), name="mail_due")]

    def __str__(self) -> str:
        return f"{self.subject} to {self.address}"


class MailAttachment(models.Model):
    """Represents a file that is attached to an e-mail. It is deleted together with the e-mail."""

    mail = models.ForeignKey(Mail, on_delete=models.CASCADE, related_name="attachments")
    name = models.CharField(max_length=200)
    content_type = models.CharField(max_length=100)
    content = models.BinaryField()

    def __str__(self) -> str:
        return self.name
