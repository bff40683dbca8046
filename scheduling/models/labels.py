"""Models of job labels. Labels are database rows, so that lists and reports can filter a million jobs by label."""

from __future__ import annotations

from collections.abc import Collection
from typing import Self

from django.db import models
from django.db.models import QuerySet

from accounting.models import Tenant, User
from accounting.models.tenants import tenants_visible_to
from scheduling.models.jobs import Job
from scheduling.spec.labels import LONGEST_KEY, LONGEST_VALUE


class JobLabelQuerySet(models.QuerySet["JobLabel"]):
    def saying(self, text: str) -> Self:
        """Returns the labels that match `text`.

        The text "key=value" matches only labels with this key and this value. The text "key" matches all labels with
        this key.
        """
        key, equals, value = text.partition("=")
        return self.filter(key=key, value=value) if equals else self.filter(key=key)

    def names(self, key: str, tenants: Collection[int] | None) -> QuerySet[JobLabel, tuple[int, str]]:
        """Returns the (job id, value) pairs of the label `key`, as a query set for reports by label.

        `tenants` are the ids of the tenants whose jobs are included; None means all. A job belongs to the tenant that
        submitted it, even if a correction in the ledger bills it to another tenant.
        """
        found = self.filter(key=key) if tenants is None else self.filter(key=key, job__tenant__in=tenants)
        return found.order_by().values_list("job_id", "value")


class JobLabel(models.Model):
    """A label of a job, from the job's spec. `value` may be empty."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="labels", db_index=False)
    key = models.CharField(max_length=LONGEST_KEY)
    value = models.CharField(max_length=LONGEST_VALUE, blank=True)

    objects = JobLabelQuerySet.as_manager()

    class Meta:
        ordering = ["key"]
        indexes = [models.Index(fields=["key", "value", "job"], name="label_by_key_and_value")]
        constraints = [
            # `include` covers the column that reports by label read.
            models.UniqueConstraint(name="one_label_a_key_of_a_job", fields=["job", "key"], include=["value"])
        ]

    def __str__(self) -> str:
        return f"{self.key}={self.value}" if self.value else self.key


class LabelKeyQuerySet(models.QuerySet["LabelKey"]):
    def visible_to(self, user: User) -> Self:
        return self.filter(tenant__in=tenants_visible_to(user))


class LabelKey(models.Model):
    """A label key that jobs of a tenant have used. Reports list these keys for grouping without reading all jobs."""

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="label_keys")
    key = models.CharField(max_length=LONGEST_KEY)

    objects = LabelKeyQuerySet.as_manager()

    class Meta:
        ordering = ["key"]
        constraints = [models.UniqueConstraint(name="one_label_key_a_tenant", fields=["tenant", "key"])]

    def __str__(self) -> str:
        return self.key
