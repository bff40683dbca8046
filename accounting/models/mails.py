"""The outbox of e-mail."""

from __future__ import annotations

from django.db import models

from accounting.models.invitations import Invitation
from accounting.models.outbox import OutboxItem


class Mail(OutboxItem):
    """Represents an e-mail to one address.

    `identity` is part of the Message-ID header, so that mail programs can recognise an e-mail that was sent twice.
    """

    address = models.EmailField()
    subject = models.CharField(max_length=200)
    text = models.TextField()
    # The mail that leaves ends with the link of this invitation. The text does not have it, so that it is not stored.
    invitation = models.ForeignKey(Invitation, on_delete=models.CASCADE, null=True, related_name="mails")

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
