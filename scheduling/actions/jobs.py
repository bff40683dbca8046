"""What people do with jobs."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from django.db import IntegrityError, transaction

from accounting import audit
from accounting.clock import now_from_database
from accounting.errors import NotAllowed, Refused
from accounting.models import Generation, Membership, Tenant, User
from scheduling import live
from scheduling.actions.labels import note_labels
from scheduling.actions.leases import ask_to_stop, end_frozen
from scheduling.actions.promises import withdraw
from scheduling.actions.queue_places import take_queue_place
from scheduling.actions.secrets import find_secrets, note_secrets
from scheduling.actions.volumes import find_volumes, note_volumes
from scheduling.backends import environments_of
from scheduling.binding import Binding
from scheduling.containers import machines, problems_of
from scheduling.explain import Explainer
from scheduling.history import History
from scheduling.isolation import why_refused
from scheduling.lifecycle import Event
from scheduling.locks import lock_schedule, stay_attached
from scheduling.models import Cluster, ClusterAccess, Job, Lease, Node, Operation
from scheduling.spec import JobSpec, SpecError
from scheduling.wake import wake_operations, wake_rounds

NO_REPLICA: Mapping[str, Any] = MappingProxyType({})


def check_spec(*, cluster: Cluster, spec: JobSpec) -> list[int]:
    """The ids of the generations that `spec` names; SpecError for what this cluster does not know."""
    known = dict(Generation.objects.filter(nodes__cluster=cluster).values_list("name", "id"))
    unknown = [name for name in spec.generations if name not in known]
    problems = {}
    if unknown:
        problems["generations"] = (
            f"{', '.join(unknown)} is not in {cluster.name}; accepted are {', '.join(sorted(known)) or 'none yet'}"
        )
    environments = environments_of(cluster)
    if environments is not None and spec.environment and spec.environment not in environments:
        problems["environment"] = (
            f"{spec.environment} is not known here; accepted are {', '.join(environments)}"
        )
    nodes = Node.objects.filter(cluster=cluster)
    if spec.generations:
        nodes = nodes.filter(generation__name__in=spec.generations)
    problems |= problems_of(cluster, spec, machines(nodes, spec))
    if environments is None and not spec.environment:
        problems["environment"] = f"name the container image to run in {cluster.name}"
    if problems:
        raise SpecError(problems)
    return [known[name] for name in spec.generations]


@transaction.atomic(durable=True)
def submit_job(
    *,
    actor: User,
    tenant: Tenant,
    cluster: Cluster,
    spec: JobSpec,
    request_key: str | None = None,
    even_if_never: bool = True,
) -> Job:
    """Queues a job of `actor` in `tenant`. The same `request_key` again gives the same job again.

    Raises NotAllowed without the member role, Refused for an archived tenant, SpecError for a spec that
    the cluster does not understand. A job that can never run here is queued and says so; without
    `even_if_never` it is Refused with all reasons, of the field "even_if_never".
    """
    return submit_within(
        actor=actor,
        tenant=tenant,
        cluster=cluster,
        spec=spec,
        request_key=request_key,
        even_if_never=even_if_never,
        reader=actor,
    )


def submit_within(
    *,
    actor: User,
    tenant: Tenant,
    cluster: Cluster,
    spec: JobSpec,
    request_key: str | None = None,
    even_if_never: bool = True,
    why: str = "",
    reader: User | None = None,
    replica: Mapping[str, Any] = NO_REPLICA,
) -> Job:
    """The same inside a transaction of the caller's; `why` is what the job's time line says of it.

    `reader` is who is told of limits that refuse it; None: all who see the team, as of what is written down.
    `replica` are the fields that make it one of a service's, which Fairlot itself submits for `actor`.
    """
    if not Tenant.objects.visible_to(actor, role=Membership.Role.MEMBER).filter(pk=tenant.pk).exists():
        raise NotAllowed(f"Only members of {tenant.name} may submit jobs there.")
    if tenant.archived_at:
        raise Refused(f"{tenant.name} is archived; it takes no new jobs.", field="tenant")
    stay_attached(cluster.pk)
    if not Cluster.objects.attached().filter(pk=cluster.pk).exists():
        raise Refused(f"{cluster.name} is detached; it takes no jobs.", field="cluster")
    if refusal := why_refused(cluster, actor):
        raise Refused(refusal, field="cluster")
    generation_ids = check_spec(cluster=cluster, spec=spec)
    secrets = find_secrets(owner=actor, tenant=tenant, spec=spec, lock=True)
    volumes = find_volumes(tenant=tenant, cluster=cluster, spec=spec, lock=True)
    now = now_from_database()
    job = Job(
        cluster=cluster,
        tenant=tenant,
        owner=actor,
        name=spec.name,
        spec=spec.to_dict(),
        workers=spec.workers,
        gpus_per_worker=spec.gpus_per_worker,
        is_bare_pod=not (replica or secrets) and _is_bare_pod(cluster, spec),
        generation_ids=generation_ids,
        priority=spec.priority,
        only_idle=spec.only_idle,
        request_key=request_key,
        created_at=now,
        state_since=now,
    )
    for field, value in replica.items():
        setattr(job, field, value)
    if not even_if_never and (never := Explainer(cluster, reader).never_in_words(job)):
        raise Refused(" ".join(never), field="even_if_never")
    warnings: list[str] = []
    if not replica:
        take_queue_place(tenant=tenant, user=actor, reader=reader, request_key=request_key)
        limits = Binding(cluster)  # all who see the job read its time line
        warnings = limits.told(job, limits.warnings(job, is_new=True))
    try:
        with transaction.atomic():
            job.save(force_insert=True)
    except IntegrityError:
        if request_key is None:
            raise
        return Job.objects.get(owner=actor, request_key=request_key)
    note_secrets(job, secrets)
    note_volumes(job, volumes)
    if spec.labels:
        note_labels(job, spec)
    history = History()
    history.note(job, "submitted", why or f"Submitted by {actor.get_username()}", at=now)
    for warning in warnings:
        history.note(job, "warned", warning, at=now)
    history.save()
    by = None if replica else actor
    after = {"gpus": job.gpus} | ({"only_idle": True} if job.only_idle else {})
    audit.record(actor=by, verb="job.submit", target=job, tenant=tenant, after=after)
    live.publish(f"jobs:{tenant.pk}")
    wake_rounds(cluster.pk)
    return job


def _is_bare_pod(cluster: Cluster, spec: JobSpec) -> bool:
    """Of what is over at some time by itself and needs no other object of Kubernetes: where an admin wants it so."""
    if spec.workers > 1 or spec.port is not None:
        return False
    return ClusterAccess.objects.filter(cluster=cluster, bare_pods=True).exists()


@transaction.atomic(durable=True)
def cancel_job(*, actor: User, job: Job) -> Job:
    """Ends a job for good; its processes get a short grace. Cancelling twice is as good as once."""
    return cancel_within(actor=actor, job=job)


def cancel_within(*, actor: User | None, job: Job, why: str = "") -> Job:
    """The same inside a transaction of the caller's; `why` is what the job's time line says of it.

    `actor` None is Fairlot itself.
    """
    if actor is not None and not Job.objects.changeable_by(actor).filter(pk=job.pk).exists():
        raise NotAllowed("Only the owner, a manager of the team or an operator may cancel this job.")
    lock_schedule(job.cluster_id)
    job = Job.objects.select_related("tenant").get(pk=job.pk)
    if job.has_ended or job.state == Job.State.CANCELLING:
        return job
    now = now_from_database()
    history = History()
    text = why or f"Cancelled by {actor.get_username() if actor else 'Fairlot'}"
    if job.state in Job.WAITING:
        promised = list(job.leases.filter(state=Lease.State.PROMISED))
        if promised:
            withdraw(promised, why="cancelled")
            # Others may have the GPUs that were kept for it.
            Cluster.objects.filter(pk=job.cluster_id).update(round_wanted_at=now)
            wake_rounds(job.cluster_id)
        if job.frozen:
            end_frozen(job, verb=Operation.Verb.KILL)
        outcome: dict[str, Any] = {"end_reason": "cancelled", "end_message": text, "frozen": False}
        history.move(job, Event.CANCEL, at=now, text=text, **outcome)
    else:
        withdraw(list(job.leases.filter(state=Lease.State.PROMISED)), why="cancelled")
        lease = job.leases.select_related("job").get(state__in=Lease.HOLDING)
        history.change(job, end_message=text)
        if lease.state == Lease.State.STOPPING:
            history.move(job, Event.CANCEL, at=now, text=text, turn=lease.epoch)
            # It may have been told to freeze only, or given a long grace; another stop shortens that.
            again = {"cluster_id": job.cluster_id, "done_at": None, "not_before": now}
            Operation.objects.update_or_create(lease=lease, verb=Operation.Verb.STOP, defaults=again)
            wake_operations(job.cluster_id)
        else:
            lease.job = job
            ask_to_stop([lease], event=Event.CANCEL, text=text, now=now, history=history)
    history.save()
    audit.record(actor=actor, verb="job.cancel", target=job, tenant=job.tenant)
    return job
