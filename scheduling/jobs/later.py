"""Checks specifications whose jobs are submitted later: by a sweep, a pipeline, a schedule or a service."""

from __future__ import annotations

from collections.abc import Sequence

from accounting.core.errors import Refused
from accounting.models import Tenant, User
from scheduling.jobs.code import find_code, keep_code
from scheduling.jobs.explain import Explainer
from scheduling.jobs.secrets import find_secrets
from scheduling.jobs.submitting import check_spec
from scheduling.jobs.volumes import find_volumes
from scheduling.models import Cluster, Job
from scheduling.spec.job_spec import JobSpec, SpecError


def check_later(*, actor: User, tenant: Tenant, cluster: Cluster, spec: JobSpec) -> list[int]:
    """Checks a spec as its submit will, and keeps its code until then. Returns the ids of its generations.

    Raises SpecError or Refused if the cluster or the tenant does not accept such a job.
    """
    generation_ids = check_spec(cluster=cluster, spec=spec)
    find_secrets(owner=actor, tenant=tenant, spec=spec)
    find_volumes(tenant=tenant, cluster=cluster, spec=spec)
    keep_code(actor=actor, tenant=tenant, cluster=cluster, spec=spec)
    return generation_ids


def check_only(*, actor: User, tenant: Tenant, cluster: Cluster, spec: JobSpec) -> list[int]:
    """Checks a spec like `check_later`, for a preview: keeps nothing, and locks nothing."""
    generation_ids = check_spec(cluster=cluster, spec=spec)
    find_secrets(owner=actor, tenant=tenant, spec=spec)
    find_volumes(tenant=tenant, cluster=cluster, spec=spec)
    find_code(actor=actor, tenant=tenant, cluster=cluster, spec=spec)
    return generation_ids


def why_never(
    *, actor: User, tenant: Tenant, cluster: Cluster, spec: JobSpec, generation_ids: Sequence[int]
) -> str:
    """Returns why such a job could never run with the present nodes and limits, in words; "" if it could."""
    like = Job(
        cluster=cluster,
        tenant=tenant,
        owner=actor,
        workers=spec.workers,
        gpus_per_worker=spec.gpus_per_worker,
        generation_ids=list(generation_ids),
        priority=spec.priority,
        preemptible=spec.preemptible,
    )
    return " ".join(Explainer(cluster, actor).never_in_words(like))


def require_code(
    *, actor: User, tenant: Tenant, cluster: Cluster, spec: JobSpec, refused: str, instead: str
) -> None:
    """Raises Refused if the code that jobs are to be submitted with again has been deleted. Otherwise the code stays
    until the transaction ends.

    `refused` says what cannot be done, and `instead` what can.
    """
    try:
        find_code(actor=actor, tenant=tenant, cluster=cluster, spec=spec, lock=True)
    except SpecError as error:
        why = "; ".join(error.problems.values())
        raise Refused(f"{refused}: {why}. {instead}") from None
