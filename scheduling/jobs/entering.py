"""Decides who may run programs in a running job, through a terminal or through the page of a session."""

from __future__ import annotations

from accounting.models import User
from scheduling.clusters.isolation import why_refused
from scheduling.models import Job
from scheduling.models.entering import enterable


def may_enter(user: User, job: Job) -> bool:
    """Returns whether `user` may run programs in the job while it runs. Reads the job's cluster."""
    return (
        Job.objects.visible_to(user).filter(enterable(user), pk=job.pk).exists()
        # Where jobs have the rights of the portal, a shell would give these rights to whoever opens it.
        and not why_refused(job.cluster, user)
    )
