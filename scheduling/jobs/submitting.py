"""Submits jobs: one job, or many jobs of the same actor, team and cluster in one transaction with few SQL
statements."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeAlias

from django.db import DataError, IntegrityError, transaction
from psycopg2.errors import ForeignKeyViolation, UniqueViolation

from accounting.access import audit
from accounting.core.clock import now_from_database
from accounting.core.errors import NotAllowed, Refused
from accounting.models import Generation, Membership, Tenant, User
from accounting.models.tenants import members_among
from scheduling.clusters.backend_factory import environments_of
from scheduling.clusters.isolation import why_refused
from scheduling.core import pubsub
from scheduling.core.enqueue import wake_rounds
from scheduling.core.locks import stay_attached
from scheduling.jobs.code import find_code, note_code
from scheduling.jobs.code_from_git import fetches_code
from scheduling.jobs.drafts import forget_draft
from scheduling.jobs.explain import Explainer, why_owner_may_not
from scheduling.jobs.labels import note_labels
from scheduling.jobs.resources import Machine, machines, problems_of
from scheduling.jobs.run_times import run_time_of_spec
from scheduling.jobs.secrets import find_secrets, note_secrets
from scheduling.jobs.volumes import find_volumes, note_volumes
from scheduling.leases.history import History
from scheduling.limits.blocking import Binding
from scheduling.limits.queue_slots import QueuePlaces
from scheduling.models import Cluster, ClusterAccess, CodeUpload, Job, Node, Secret, Volume
from scheduling.models.event_codes import EventCode, Message
from scheduling.models.jobs import job_in_sight
from scheduling.spec.job_spec import JobSpec, SpecError

NO_REPLICA: Mapping[str, Any] = MappingProxyType({})
MOST_AT_ONCE = 1000
# The result for one spec: the job, or the reason why it was not submitted.
Outcome: TypeAlias = "Job | SpecError | Refused"
_Brought: TypeAlias = tuple[Mapping[str, Secret], Mapping[str, Volume], CodeUpload | None]


class NotAllSubmitted(Exception):
    """Raised if the caller asked to submit either all specs or none, and some specs were refused. No job was submitted.

    `refusals` maps the position of each refused spec to the reason.
    """

    def __init__(self, refusals: Mapping[int, SpecError | Refused]) -> None:
        super().__init__(f"{len(refusals)} of the specs were refused, so no job was submitted")
        self.refusals = refusals


@fetches_code
@transaction.atomic(durable=True)
def submit_job(
    *,
    actor: User,
    tenant: Tenant,
    cluster: Cluster,
    spec: JobSpec,
    request_key: str | None = None,
    even_if_never: bool = True,
    cloned_from: Job | None = None,
) -> Job:
    """Queues a job of `actor` in `tenant`, and returns the job.

    - `request_key`: a key that the client chooses. If a job was submitted with this key before, returns that job. So a
      client can safely repeat a request. The draft with this key is deleted.
    - `even_if_never`: whether to queue a job that can never run on the cluster. If False, raises Refused with all
      reasons for such a job; the error's field is "even_if_never".
    - `cloned_from`: the job whose spec the actor started from. Ignored if the actor may not see it.

    Raises NotAllowed if the actor is not a member of the tenant, and Refused if the tenant is archived. Raises
    SpecError if the cluster does not accept the spec.
    """
    forget_draft(actor, request_key)
    return submit_within(
        actor=actor,
        tenant=tenant,
        cluster=cluster,
        spec=spec,
        request_key=request_key,
        even_if_never=even_if_never,
        cloned_from=job_in_sight(actor, cloned_from),
        reader=actor,
    )


@transaction.atomic(durable=True)
def submit_jobs(
    *,
    actor: User,
    tenant: Tenant,
    cluster: Cluster,
    specs: Sequence[JobSpec],
    request_keys: Sequence[str] | None = None,
    even_if_never: bool = True,
    all_or_none: bool = True,
) -> list[Outcome]:
    """Queues a job for each of `specs`, in order. Returns, for each spec, the job or the error with which it was
    refused.

    The result is the same as if `submit_job` were called for one spec after another. For example, if the limit on
    waiting jobs leaves room for two jobs, the first two of three specs are accepted and the third is refused.

    If `all_or_none` is True and a spec is refused, submits nothing and raises NotAllSubmitted. Raises NotAllowed or
    Refused if the actor cannot submit any job to the tenant or cluster. Raises ValueError for more than MOST_AT_ONCE
    specs.
    """
    if len(specs) > MOST_AT_ONCE:
        raise ValueError(f"{len(specs)} specs are too many for one call; at most {MOST_AT_ONCE} are accepted")
    place = _Place(actor, tenant, cluster, reader=actor)
    keys: Sequence[str | None] = request_keys or [None] * len(specs)
    outcomes: dict[int, Outcome] = {}
    ready: dict[int, _Draft] = {}
    for position, (spec, key) in enumerate(zip(specs, keys, strict=True)):
        try:
            ready[position] = place.draft(spec, request_key=key, even_if_never=even_if_never)
        except (SpecError, Refused) as refusal:
            outcomes[position] = refusal
    if not (outcomes and all_or_none):
        outcomes |= dict(zip(ready, place.submit(list(ready.values())), strict=True))
    refusals = {at: one for at, one in outcomes.items() if not isinstance(one, Job)}
    if refusals and all_or_none:
        raise NotAllSubmitted(refusals)
    return [outcomes[position] for position in range(len(specs))]


def submit_within(
    *,
    actor: User,
    tenant: Tenant,
    cluster: Cluster,
    spec: JobSpec,
    request_key: str | None = None,
    even_if_never: bool = True,
    why: Message | None = None,
    reader: User | None = None,
    replica: Mapping[str, Any] = NO_REPLICA,
    cloned_from: Job | None = None,
) -> Job:
    """Queues and returns a job like `submit_job`, but within the caller's transaction.

    - `why`: the message for the job's history.
    - `reader`: the user who will read the error messages. They name only limits that this user may see. If None, they
      name only limits that everybody who sees the team may see.
    - `replica`: the extra Job fields of a service's replica, which Fairlot submits in the name of `actor`.
    - `cloned_from`: the job whose spec the actor started from; None if there is none.
    """
    place = _Place(actor, tenant, cluster, reader=reader, why=why, replica=replica)
    draft = place.draft(spec, request_key=request_key, even_if_never=even_if_never)
    draft.job.cloned_from = cloned_from
    [outcome] = place.submit([draft])
    if not isinstance(outcome, Job):
        raise outcome
    return outcome


def submit_stored(*, data: Any, name: str | None = None, **where: Any) -> Job:
    """Queues a job like `submit_within`, for a spec that was accepted and stored earlier.

    - `data`: the stored spec. It is accepted even if the rules for specs have changed since.
    - `name`: a name that replaces the name in the spec.
    - `where`: the other arguments of `submit_within`. `actor` and `tenant` are required; `actor` is the owner.

    Raises NotAllowed if the owner may no longer submit in the team; the message names the owner. Raises Refused if the
    spec has values that the database rejects.
    """
    owner, tenant = where["actor"], where["tenant"]
    if not members_among({(tenant.pk, owner.pk)}):
        raise NotAllowed(f"{why_owner_may_not(owner, tenant)}.")
    spec = JobSpec.stored(data)
    if name is not None:
        spec = spec.model_copy(update={"name": name})
    try:
        with transaction.atomic():
            return submit_within(spec=spec, **where)
    except (DataError, IntegrityError) as error:
        if isinstance(error.__cause__, UniqueViolation | ForeignKeyViolation):
            raise
        raise Refused(f"The stored spec cannot be submitted any more. Change the spec. {error}") from error


def submit_each_stored(
    *,
    actor: User,
    tenant: Tenant,
    cluster: Cluster,
    specs: Sequence[JobSpec],
    fields: Sequence[Mapping[str, Any]],
    why: Message,
) -> list[Outcome]:
    """Queues a job for each of `specs` like `submit_stored`, with few queries. Returns, for each spec, the job or the
    error with which a limit refused it.

    - `specs`: specs that were accepted and stored earlier. They name the same GPUs, secrets and volumes.
    - `fields`: for each spec, extra fields of its job.

    Raises NotAllowed, Refused or SpecError if none of the jobs can be submitted.
    """
    if not members_among({(tenant.pk, actor.pk)}):
        raise NotAllowed(f"{why_owner_may_not(actor, tenant)}.")
    try:
        with transaction.atomic():
            place = _Place(actor, tenant, cluster, reader=None, why=why)
            drafts = [
                place.draft(spec, request_key=None, even_if_never=True, fields=extra)
                for spec, extra in zip(specs, fields, strict=True)
            ]
            return place.submit(drafts)
    except (DataError, IntegrityError) as error:
        if isinstance(error.__cause__, UniqueViolation | ForeignKeyViolation):
            raise
        raise Refused(f"The stored spec cannot be submitted any more. {error}") from error


def check_spec(*, cluster: Cluster, spec: JobSpec) -> list[int]:
    """Returns the ids of the generations that `spec` names.

    Raises SpecError if the cluster does not have a generation, the environment or the resources that the spec names.
    """
    return _Check(cluster).generation_ids(spec)


@dataclass
class _Check:
    """Checks many specs for one cluster. Reads the cluster's generations, environments and node sizes once."""

    cluster: Cluster
    _machines: dict[tuple[Hashable, ...], list[Machine]] = field(default_factory=dict)

    @cached_property
    def _known(self) -> dict[str, int]:
        return dict(
            Generation.objects.filter(nodes__cluster=self.cluster, nodes__gpus__gt=0).values_list(
                "name", "id"
            )
        )

    @cached_property
    def _environments(self) -> Sequence[str] | None:
        return environments_of(self.cluster)

    def generation_ids(self, spec: JobSpec) -> list[int]:
        """Returns the ids of the generations that `spec` names.

        Raises SpecError if the cluster does not have a generation, the environment or the resources that the spec
        names.
        """
        problems = {}
        if unknown := [name for name in spec.generations if name not in self._known]:
            names, known = ", ".join(unknown), ", ".join(sorted(self._known)) or "none yet"
            problems["generations"] = f"{self.cluster.name} has no GPUs of type {names}; accepted: {known}"
        environments = self._environments
        if environments is not None and spec.environment and spec.environment not in environments:
            problems["environment"] = (
                f"{spec.environment} is not an environment of this cluster; accepted: {', '.join(environments)}"
            )
        problems |= problems_of(self.cluster, spec, self._machines_for(spec))
        images = [role.environment or spec.environment for role in spec.roles] or [spec.environment]
        if environments is None and not all(images):
            problems["environment"] = f"enter the container image to run in {self.cluster.name}"
        for at, role in enumerate(spec.roles):
            if environments is not None and role.environment and role.environment not in environments:
                problems[f"roles.{at}.environment"] = (
                    f"{role.environment} is not an environment of this cluster; accepted: {', '.join(environments)}"
                )
        if problems:
            raise SpecError(problems)
        return [self._known[name] for name in spec.generations]

    def _machines_for(self, spec: JobSpec) -> list[Machine]:
        if self.cluster.backend == Cluster.Backend.LOCAL:
            return []  # processes of local jobs share the machine, without limits per node
        key = (*spec.generations, spec.gpus_per_worker)
        if key not in self._machines:
            nodes = Node.objects.filter(cluster=self.cluster)
            if spec.generations:
                nodes = nodes.filter(generation__name__in=spec.generations)
            self._machines[key] = machines(nodes, spec)
        return self._machines[key]


@dataclass(frozen=True)
class _Draft:
    """A job that is not saved yet, with its spec and the secrets, volumes and code that the spec names."""

    job: Job
    spec: JobSpec
    secrets: Mapping[str, Secret]
    volumes: Mapping[str, Volume]
    code: CodeUpload | None


class _Place:
    """The team and the cluster to which one transaction submits jobs. Reads each fact about them at most once.

    The constructor raises NotAllowed or Refused if the actor may not submit to this team or cluster.
    """

    def __init__(
        self,
        actor: User,
        tenant: Tenant,
        cluster: Cluster,
        *,
        reader: User | None,
        why: Message | None = None,
        replica: Mapping[str, Any] = NO_REPLICA,
    ) -> None:
        if not Tenant.objects.visible_to(actor, role=Membership.Role.MEMBER).filter(pk=tenant.pk).exists():
            raise NotAllowed(f"Only members of {tenant.name} may submit jobs there.")
        if tenant.archived_at:
            raise Refused(f"{tenant.name} is archived; it accepts no new jobs.", field="tenant")
        stay_attached(cluster.pk)
        if not Cluster.objects.attached().filter(pk=cluster.pk).exists():
            raise Refused(f"{cluster.name} is detached; it accepts no jobs.", field="cluster")
        if refusal := why_refused(cluster, actor):
            raise Refused(refusal, field="cluster")
        self.actor, self.tenant, self.cluster, self.reader = actor, tenant, cluster, reader
        self.why = why or Message.of(EventCode.SUBMITTED, user=actor.get_username())
        self.replica = replica
        self.now = now_from_database()
        self._check = _Check(cluster)
        self._explainer = Explainer(cluster, reader)
        self._never: dict[tuple[Hashable, ...], list[str]] = {}
        self._brought: dict[str, _Brought] = {}

    def draft(
        self,
        spec: JobSpec,
        *,
        request_key: str | None,
        even_if_never: bool,
        fields: Mapping[str, Any] = NO_REPLICA,
    ) -> _Draft:
        """Returns an unsaved job for `spec`. Raises SpecError or Refused if the team or the cluster does not accept the
        spec.

        If `even_if_never` is False, also refuses a job that can never run. `fields` are extra fields of the job.
        """
        generation_ids = self._check.generation_ids(spec)
        secrets, volumes, code = self._brings(spec)
        job = Job(
            cluster=self.cluster,
            tenant=self.tenant,
            owner=self.actor,
            name=spec.name,
            spec=spec.to_dict(),
            workers=spec.workers,
            max_workers=spec.elastic_workers,
            gpus_per_worker=spec.gpus_per_worker,
            checkpoint_grace_seconds=spec.checkpoint_grace_seconds,
            is_bare_pod=not (self.replica or secrets or code) and self._is_bare_pod(spec),
            generation_ids=generation_ids,
            priority=spec.priority,
            preemptible=spec.preemptible,
            **run_time_of_spec(spec, self.now),
            request_key=request_key,
            created_at=self.now,
            state_since=self.now,
        )
        for name, value in (*self.replica.items(), *fields.items()):
            setattr(job, name, value)
        if not even_if_never and (never := self._why_never(job)):
            raise Refused(" ".join(never), field="even_if_never")
        return _Draft(job, spec, secrets, volumes, code)

    def submit(self, drafts: Sequence[_Draft]) -> list[Outcome]:
        """Stores the jobs that fit within the limits on waiting jobs. Returns, for each draft, the job or the refusal.

        If a job was submitted with a draft's request key before, returns that job for the draft.
        """
        outcomes: dict[int, Outcome] = {}
        accepted: list[tuple[int, _Draft, list[str]]] = []
        places = None
        if not self.replica:
            is_local = self.cluster.backend == Cluster.Backend.LOCAL
            places = QueuePlaces(self.tenant, self.actor, self.reader, now=self.now, leaves_files=is_local)
        stored = self._stored(drafts)
        limits = Binding(
            self.cluster, at=self.now
        )  # without a reader: everybody who sees the job may read its history
        for position, draft in enumerate(drafts):
            if (there := stored.get(draft.job.request_key or "")) is not None:
                outcomes[position] = there
                continue
            warnings: list[str] = []
            if places is not None:
                if (refusal := places.take()) is not None:
                    outcomes[position] = refusal
                    continue
                job = draft.job
                found = limits.warnings(job, is_new=True, beside=len(accepted))
                warnings = limits.in_words(job, found)
            accepted.append((position, draft, warnings))
        jobs = self._store([(draft, warnings) for _, draft, warnings in accepted])
        outcomes |= {position: job for (position, _, _), job in zip(accepted, jobs, strict=True)}
        return [outcomes[position] for position in range(len(drafts))]

    def _stored(self, drafts: Sequence[_Draft]) -> dict[str, Job]:
        """Returns the jobs that earlier requests stored with the request keys of these drafts, by request key."""
        keys = [draft.job.request_key for draft in drafts if draft.job.request_key is not None]
        if not keys:
            return {}
        found = Job.objects.filter(owner=self.actor, request_key__in=keys)
        return {job.request_key: job for job in found if job.request_key is not None}

    def _store(self, accepted: Sequence[tuple[_Draft, list[str]]]) -> list[Job]:
        """Stores and returns the jobs of the accepted drafts.

        `accepted` has a pair for each job: the draft, and warnings for the job's history about limits that the job
        exceeds. If another request has just stored a job with the same request key, returns that job instead.
        """
        drafts = [draft for draft, _ in accepted]
        if not drafts:
            return []
        if all(draft.job.request_key is None for draft in drafts):
            Job.objects.bulk_create([draft.job for draft in drafts])
        else:
            try:
                with transaction.atomic():
                    Job.objects.bulk_create([draft.job for draft in drafts])
            except IntegrityError:
                # The faster request has been committed with all its jobs.
                there = self._stored(drafts)
                if not there:
                    raise
                rest = self._store([one for one in accepted if (one[0].job.request_key or "") not in there])
                left = iter(rest)
                return [there.get(draft.job.request_key or "") or next(left) for draft in drafts]
        jobs = [draft.job for draft in drafts]
        for draft in drafts:
            note_secrets(draft.job, draft.secrets)
            note_volumes(draft.job, draft.volumes)
        note_code(self.tenant, [(draft.job, draft.code) for draft in drafts if draft.code])
        note_labels(self.tenant, [(draft.job, draft.spec.labels) for draft in drafts])
        history = History()
        for draft, warnings in accepted:
            history.note(draft.job, "submitted", self.why, at=self.now)
            for warning in warnings:
                said = Message.of(EventCode.LIMIT_EXCEEDED, limit=warning)
                history.note(draft.job, "warned", said, at=self.now)
        history.save()
        audit.record_many(
            actor=None if self.replica else self.actor,
            verb="job.submit",
            tenant=self.tenant,
            changes=[
                (job, {"gpus": job.gpus} | ({"preemptible": True} if job.preemptible else {})) for job in jobs
            ],
        )
        pubsub.publish(f"jobs:{self.tenant.pk}")
        wake_rounds(self.cluster.pk)
        return jobs

    def _brings(self, spec: JobSpec) -> _Brought:
        """Returns the secrets and the volumes that the spec names, by name, and its code.

        Locks the rows of these secrets, volumes and uploads until the transaction ends.
        """
        named = repr((spec.secrets, spec.secret_files, spec.image_pull_secret, spec.volumes, spec.code))
        if named not in self._brought:
            self._brought[named] = (
                find_secrets(owner=self.actor, tenant=self.tenant, spec=spec, lock=True),
                find_volumes(tenant=self.tenant, cluster=self.cluster, spec=spec, lock=True),
                find_code(actor=self.actor, tenant=self.tenant, cluster=self.cluster, spec=spec, lock=True),
            )
        return self._brought[named]

    def _why_never(self, job: Job) -> list[str]:
        shape = (*job.generation_ids, job.workers, job.gpus_per_worker)
        if shape not in self._never:
            self._never[shape] = self._explainer.never_in_words(job)
        return self._never[shape]

    def _is_bare_pod(self, spec: JobSpec) -> bool:
        """Returns whether the job may run as a bare pod, that is, without a Kubernetes Job object.

        True only for one worker without a port and a role, on a Kubernetes cluster for which an admin has allowed bare
        pods.
        """
        is_single = spec.workers == 1 and spec.elastic_workers is None
        is_plain = is_single and spec.port is None and not spec.roles and not spec.launch
        return is_plain and self._makes_bare_pods

    @cached_property
    def _makes_bare_pods(self) -> bool:
        if self.cluster.backend == Cluster.Backend.LOCAL:
            return False
        return ClusterAccess.objects.filter(cluster=self.cluster, bare_pods=True).exists()
