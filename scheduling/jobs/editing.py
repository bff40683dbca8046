"""Changes fields of jobs: priority, labels, GPU types, most workers, run times and deadline; of ended jobs, labels."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from django.db import transaction

from accounting.access import audit
from accounting.core.clock import now_from_database
from accounting.core.errors import Refused
from accounting.models import User
from scheduling.core.locks import lock_schedule
from scheduling.jobs.explain import Explainer
from scheduling.jobs.labels import note_labels
from scheduling.jobs.run_times import run_time_of_spec
from scheduling.jobs.submitting import check_spec
from scheduling.leases.history import History
from scheduling.models import Job, JobLabel, Lease
from scheduling.models.event_codes import EventCode, Message
from scheduling.models.ownership import require_changeable
from scheduling.models.versions import require_version
from scheduling.spec.job_spec import JobSpec, SpecError

EDITABLE = (
    "priority", "labels", "generations", "expected_hours", "deadline_hours", "time_limit_hours", "max_workers",
)  # fmt: skip
EDITABLE_AT_END = ("labels",)  # because labels only sort jobs, and do not say how they run
# What bounds the most workers of a job.
BOUNDS = ("workers", "gpus_per_worker", "roles", "launch")
EDITED = "edited"  # kind of the events of such changes


@transaction.atomic(durable=True)
def edit_job(
    *, actor: User, job: Job, changes: Mapping[str, Any], seen: Collection[str] | None = None
) -> Job:
    """Sets fields of a job's spec, from the next round on. Returns the job. Setting present values changes nothing.

    `changes` maps names in EDITABLE to values, as a spec has them. The job's history and the audit trail keep the
    values before and after the change. `seen`: the versions that the caller has seen (require_version).

    Raises NotAllowed unless the actor is the owner, a manager of the team or an operator. Raises SpecError for invalid
    values and for fields that cannot be changed. Raises Refused for replicas, and for fields outside EDITABLE_AT_END
    of jobs that have ended or are being cancelled. Also raises Refused for GPU types if the job holds or has reserved
    GPUs, or if it could never run on the new types.
    """
    require_changeable(actor, job, "change this job")
    if unknown := [name for name in changes if name not in EDITABLE]:
        accepted = ", ".join(EDITABLE)
        raise SpecError(dict.fromkeys(unknown, f"cannot be changed after the submit; accepted: {accepted}"))
    lock_schedule(job.cluster_id)
    job = Job.objects.select_related("tenant", "cluster").get(pk=job.pk)
    require_version(job, seen)
    if job.kind == Job.Kind.REPLICA:
        raise Refused("A replica has the fields of its service. Change the service.")
    if job.is_at_end and (late := [name for name in changes if name not in EDITABLE_AT_END]):
        raise Refused(f"The job has ended. Only its labels can be changed, not {', '.join(late)}.", late[0])
    # The spec was accepted by the rules of its time, so only the changed fields are checked.
    beside = {name: job.spec[name] for name in BOUNDS if name in job.spec} if "max_workers" in changes else {}
    wanted = JobSpec.parse({"name": job.name, "command": "true", **beside} | dict(changes))
    if job.kind == Job.Kind.SESSION and (wrong := wanted.problems_of_endless()):
        raise SpecError(wrong)
    before = JobSpec.stored(job.spec).to_dict()
    changed = {
        name: value for name, value in wanted.to_dict().items() if name in changes and value != before[name]
    }
    if changed.get("max_workers", 0) is None and job.epoch:
        changed["max_workers"] = before["workers"]  # so that the workers of its larger attempts stay known
    if changed:
        _save(actor, job, changed, {name: before[name] for name in changed})
    return job


def _save(actor: User, job: Job, changed: Mapping[str, Any], before: Mapping[str, Any]) -> None:
    spec = JobSpec.stored(job.spec | changed)
    fields: dict[str, Any] = {"spec": job.spec | changed, "reason": 0, "priority": spec.priority}
    if "generations" in changed:
        fields["generation_ids"] = _generation_ids(actor, job, spec)
    if "max_workers" in changed:
        fields["max_workers"] = spec.elastic_workers
        if job.is_bare_pod and spec.elastic_workers:
            raise Refused(
                "The job runs as a bare pod with one worker. Clone it to make it elastic.", "max_workers"
            )
    # A deadline counts from the submit, also if it is set later.
    if {"expected_hours", "deadline_hours", "time_limit_hours"} & changed.keys():
        fields |= run_time_of_spec(spec, job.created_at)
    if "labels" in changed:
        JobLabel.objects.filter(job=job).delete()
        note_labels(job.tenant, [(job, spec.labels)])
    history = History()
    history.change(job, **fields)
    parts = [[name, before[name], value] for name, value in changed.items()]
    said = Message.of(EventCode.EDITED, user=actor.get_username(), changes=parts)
    history.note(job, EDITED, said, at=now_from_database())
    history.save()
    audit.record(
        actor=actor, verb="job.edit", target=job, tenant=job.tenant, before=dict(before), after=dict(changed)
    )


def _generation_ids(actor: User, job: Job, spec: JobSpec) -> list[int]:
    """Returns the ids of the generations that `spec` names. Raises Refused if the job cannot change to them."""
    if job.leases.filter(state__in=Lease.OPEN).exists():
        raise Refused(
            "GPU types can be changed only while the job waits without reserved GPUs.", "generations"
        )
    explainer = Explainer(job.cluster, actor)
    present = explainer.never_in_words(job)
    job.generation_ids = check_spec(cluster=job.cluster, spec=spec)
    # A job that can never run for another reason, such as a limit, may still change.
    if new := [why for why in explainer.never_in_words(job) if why not in present]:
        raise Refused(" ".join(new), "generations")
    return job.generation_ids
