"""Model of drafts: forms that a user has filled in, and has not submitted yet."""

from __future__ import annotations

from typing import Self

from django.db import models
from django.db.models.functions import Now

from accounting.models import User


class DraftQuerySet(models.QuerySet["Draft"]):
    def visible_to(self, user: User) -> Self:
        """Returns the drafts of `user`. Nobody else sees them, and no operator either."""
        return self.filter(owner=user.pk) if user.is_active else self.none()


class Draft(models.Model):
    """The content of a form as it was typed, which may be incomplete or wrong.

    The form's request key identifies the draft. A submit with this key deletes it.
    """

    class Kind(models.TextChoices):
        JOB = "job", "Job"
        SWEEP = "sweep", "Sweep"
        PIPELINE = "pipeline", "Pipeline"
        SCHEDULE = "schedule", "Schedule"

    owner = models.ForeignKey(User, on_delete=models.PROTECT, related_name="drafts")
    kind = models.CharField(max_length=8, choices=Kind)
    name = models.CharField(max_length=120, blank=True)  # as typed so far
    request_key = models.CharField(max_length=80)
    content = models.JSONField(help_text="The texts of the form: portal/submit/kept.py.")
    # The upload that the form names. It is kept as long as the draft.
    upload = models.ForeignKey(
        "scheduling.CodeUpload", on_delete=models.SET_NULL, null=True, related_name="drafts"
    )
    created_at = models.DateTimeField(db_default=Now())
    saved_at = models.DateTimeField(db_default=Now())

    objects = DraftQuerySet.as_manager()

    class Meta:
        indexes = [models.Index(fields=["saved_at"], name="draft_by_age")]
        constraints = [
            models.UniqueConstraint(name="one_draft_a_request_key", fields=["owner", "request_key"])
        ]

    def __str__(self) -> str:
        return self.name or "Unnamed"
