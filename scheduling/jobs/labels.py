"""Stores the labels of new jobs, in the transaction that submits the jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from accounting.models import Tenant
from scheduling.models import Job, JobLabel, LabelKey


def note_labels(tenant: Tenant, labels: Sequence[tuple[Job, Mapping[str, str]]]) -> None:
    """Stores the labels of each job. Also stores label keys that no job of `tenant` had before."""
    keys = {key for _, some in labels for key in some}
    if not keys:
        return
    JobLabel.objects.bulk_create(
        JobLabel(job=job, key=key, value=value) for job, some in labels for key, value in some.items()
    )
    known = set(LabelKey.objects.filter(tenant=tenant, key__in=keys).values_list("key", flat=True))
    # Sorted, so that two concurrent submissions never deadlock.
    new = sorted(keys - known)
    LabelKey.objects.bulk_create((LabelKey(tenant=tenant, key=key) for key in new), ignore_conflicts=True)
