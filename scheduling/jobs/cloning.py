"""Submits a job again, with changes, under a name that no other job has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import count
from typing import Any

from accounting.models import Tenant, User
from scheduling.jobs.submitting import submit_job
from scheduling.models import Cluster, Job
from scheduling.spec.job_spec import JobSpec

NUMBERED = re.compile(r"(.+) (\d{1,9})", re.DOTALL | re.ASCII)
LOOKED_AT = 2000  # the newest jobs of the team, whose names are not given again
LONGEST = 120


def free_name(tenant: Tenant, name: str) -> str:
    """Returns the name for a clone of a job of this name: `train`, then `train 2`, then `train 3`.

    A number at the end counts as such only if a job has the name without it, so `resnet 50` becomes `resnet 50 2`.
    """
    newest = Job.objects.filter(tenant=tenant).order_by("-pk").values("name")[:LOOKED_AT]
    taken = {row["name"] for row in newest}
    if name not in taken:
        return name
    numbered = NUMBERED.fullmatch(name)
    base = numbered[1] if numbered and numbered[1] in taken else name
    names = (f"{base[: LONGEST - len(f' {number}')]} {number}" for number in count(2))
    return next(one for one in names if one not in taken)


def clone_job(
    *,
    actor: User,
    job: Job,
    changes: Mapping[str, Any],
    tenant: Tenant | None = None,
    cluster: Cluster | None = None,
    request_key: str | None = None,
    even_if_never: bool = True,
) -> Job:
    """Submits a job like `job`, which the actor may see, and returns it.

    `changes` replace fields of the specification. Without another name, the clone gets a free one. By default it runs
    for the team and on the cluster of `job`. Raises what `submit_job` raises.
    """
    tenant = tenant or job.tenant
    spec = {**job.spec, "name": free_name(tenant, job.name), **changes}
    return submit_job(
        actor=actor,
        tenant=tenant,
        cluster=cluster or job.cluster,
        spec=JobSpec.parse(spec),
        request_key=request_key,
        even_if_never=even_if_never,
        cloned_from=job,
    )
