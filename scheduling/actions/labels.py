"""Noting the labels of a job, within the transaction that submits it."""

from __future__ import annotations

from scheduling.models import Job, JobLabel, LabelKey
from scheduling.spec import JobSpec


def note_labels(job: Job, spec: JobSpec) -> None:
    JobLabel.objects.bulk_create(
        JobLabel(job=job, key=key, value=value) for key, value in spec.labels.items()
    )
    known = set(LabelKey.objects.filter(tenant=job.tenant, key__in=spec.labels).values_list("key", flat=True))
    # In one order, so that no two submissions wait for each other.
    new = sorted(set(spec.labels) - known)
    LabelKey.objects.bulk_create((LabelKey(tenant=job.tenant, key=key) for key in new), ignore_conflicts=True)
