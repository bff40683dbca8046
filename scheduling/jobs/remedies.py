"""Finds what would let a waiting job start, and does it: changes of the job, clones of another shape, and whom to ask.
Also finds what helps a job that does its work again after each suspension.

Explanations say why a job waits (explain.py). A remedy is a button or a link beside the explanation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

from django.db import transaction

from accounting.access import audit
from accounting.access.permissions import may
from accounting.core.clock import now_from_database
from accounting.core.errors import Refused
from accounting.core.wording import counted
from accounting.models import Membership, Quota, User
from accounting.models.tenants import ids_with_role
from fairshare.model import Reason
from scheduling.core.locks import lock_schedule
from scheduling.jobs.editing import edit_job
from scheduling.jobs.explain import Explainer
from scheduling.jobs.preemptible import set_preemptible
from scheduling.leases.history import History
from scheduling.models import Cluster, Job, Node, Service
from scheduling.models.event_codes import EventCode, Message
from scheduling.models.ownership import require_changeable

HIGHEST_PRIORITY = 100
TRIED_NOW = "tried_now"  # kind of the event of a job that a user lets start before its back-off ends


class RemedyKind(StrEnum):
    """How a remedy is performed."""

    CHANGE = "change"  # Fairlot changes the waiting job
    CLONE = "clone"  # the user submits a clone
    PAGE = "page"  # the user asks for something, or an operator acts, on another page


class RemedyCode(StrEnum):
    """What a remedy does."""

    EVERY_TYPE = "every_type"
    RUN_FIRST = "run_first"
    END_PREEMPTIBLE = "end_preemptible"
    TRY_NOW = "try_now"

    STOP_SESSION = "stop_session"
    SCALE_SERVICE = "scale_service"

    FEWER_WORKERS = "fewer_workers"
    OTHER_SHAPE = "other_shape"
    OTHER_TEAM = "other_team"

    CHANGE_LIMIT = "change_limit"
    ASK_MANAGER = "ask_manager"
    ASK_FOR_LIMIT = "ask_for_limit"
    ASK_FOR_TICKETS = "ask_for_tickets"
    RESUME_CLUSTER = "resume_cluster"
    RETURN_NODES = "return_nodes"
    HAND_OVER = "hand_over"

    SAVE_CHECKPOINTS = "save_checkpoints"
    CLONE_CORRECTED = "clone_corrected"
    FREEZE_JOBS = "freeze_jobs"


_KINDS = {
    RemedyCode.EVERY_TYPE: RemedyKind.CHANGE,
    RemedyCode.RUN_FIRST: RemedyKind.CHANGE,
    RemedyCode.END_PREEMPTIBLE: RemedyKind.CHANGE,
    RemedyCode.TRY_NOW: RemedyKind.CHANGE,
    RemedyCode.FEWER_WORKERS: RemedyKind.CLONE,
    RemedyCode.OTHER_SHAPE: RemedyKind.CLONE,
    RemedyCode.OTHER_TEAM: RemedyKind.CLONE,
    RemedyCode.CLONE_CORRECTED: RemedyKind.CLONE,
}


@dataclass(frozen=True, slots=True)
class Remedy:
    """Something that would help a job. `label` is the text of its button, and `effect` says what it does.

    `changes` are the values of the job's spec that it sets: of the job itself, or of a clone.
    """

    code: RemedyCode
    label: str
    effect: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    team: str = ""  # slug of the team whose page helps, if it is another than the job's
    target: int | None = None  # primary key of the session or service whose page helps

    @property
    def kind(self) -> RemedyKind:
        return _KINDS.get(self.code, RemedyKind.PAGE)


def remedies_of(job: Job, *, reader: User, explainer: Explainer | None = None) -> list[Remedy]:
    """Returns what `reader` can do so that a waiting job starts, or starts sooner.

    For a running job that others are ahead of, returns what may let it keep its GPUs in its next turn. Returns an empty
    list for other jobs.

    Contains only what the reader may do: changes for those who may change the job, requests for managers, and so on.
    `explainer` is one for the same reader that has explained the job; what it has read is not read again.
    """
    explainer = explainer or Explainer(job.cluster, reader)
    if job.state in Job.WAITING:
        return list(_Finder(job, reader, explainer).found(_OF_REASONS.get(Reason(job.reason), ())))
    place = explainer.place(job) if job.state == Job.State.RUNNING else None
    if place is None or place.position == 1:
        return []
    return list(_Finder(job, reader, explainer).found(_OF_THE_NEXT_TURN))


def remedies_of_repeats(job: Job, *, reader: User) -> list[Remedy]:
    """Returns what `reader` can do about a job that does its work again (scheduling/leases/repeated_work.py)."""
    effect = "Opens the lines of code with which a program saves checkpoints and resumes."
    found = [Remedy(RemedyCode.SAVE_CHECKPOINTS, "Make the program resume", effect)]
    if job.kind == Job.Kind.TRAINING and job.tenant_id in ids_with_role(reader, Membership.Role.MEMBER):
        effect = (
            "Opens the submit form with this job, for corrected code. This job runs on until you cancel it."
        )
        found.append(Remedy(RemedyCode.CLONE_CORRECTED, "Clone and correct", effect))
    stops = job.cluster.slicing == Cluster.Slicing.CHECKPOINT
    if stops and job.cluster.backend == Cluster.Backend.LOCAL and may(reader, "cluster.update"):
        effect = "Opens the settings of time slicing, where such jobs are frozen instead of stopped."
        found.append(Remedy(RemedyCode.FREEZE_JOBS, "Freeze jobs instead", effect))
    return found


def apply_remedy(*, actor: User, job: Job, code: str) -> None:
    """Performs a remedy that changes the job.

    Raises Refused if this remedy is not, or no longer, among those of the job. Raises the errors of the action that
    makes the change.
    """
    remedy = next((one for one in remedies_of(job, reader=actor) if one.code == code), None)
    if remedy is None or remedy.kind is not RemedyKind.CHANGE:
        raise Refused("The job's situation has changed, and this would not help any more.")
    match remedy.code:
        case RemedyCode.END_PREEMPTIBLE:
            set_preemptible(actor=actor, job=job, preemptible=False)
        case RemedyCode.TRY_NOW:
            try_now(actor=actor, job=job)
        case _:
            edit_job(actor=actor, job=job, changes=remedy.changes)


@transaction.atomic(durable=True)
def try_now(*, actor: User, job: Job) -> Job:
    """Ends the time for which the job waits after a failed attempt. Has no effect on a job that does not wait for it.

    The number of failed attempts stays, so that the next pause is not shorter. Raises NotAllowed unless the actor is
    the owner, a manager of the team or an operator.
    """
    require_changeable(actor, job, "change this job")
    lock_schedule(job.cluster_id)
    job = Job.objects.select_related("tenant").get(pk=job.pk)
    if job.not_before is None or job.state not in Job.WAITING:
        return job
    history = History()
    history.change(job, not_before=None, reason=0)
    history.note(
        job, TRIED_NOW, Message.of(EventCode.TRIED_NOW, user=actor.get_username()), at=now_from_database()
    )
    history.save()
    audit.record(actor=actor, verb="job.try_now", target=job, tenant=job.tenant)
    return job


@dataclass
class _Finder:
    """Finds the remedies of one job for one reader."""

    job: Job
    reader: User
    explainer: Explainer

    def found(self, finders: Iterable[Callable[[_Finder], Remedy | None]]) -> Iterable[Remedy]:
        for find in finders:
            if (remedy := find(self)) is not None:
                yield remedy

    @cached_property
    def _may_change(self) -> bool:
        return Job.objects.changeable_by(self.reader).filter(pk=self.job.pk).exists()

    @cached_property
    def _may_submit(self) -> bool:
        return self.job.tenant_id in ids_with_role(self.reader, Membership.Role.MEMBER)

    # --- changes of the job ---

    def every_type(self) -> Remedy | None:
        job = self.job
        accepted = {node.generation.name for node in self.explainer.accepted(job)}
        more = sorted({node.generation.name for node in self.explainer.nodes} - accepted)
        if not more or job.kind == Job.Kind.REPLICA or not self._may_change:
            return None
        wide = self._with(generation_ids=[])
        if self.explainer.never(wide):
            return None
        effect = f"The job then also accepts {' and '.join(more)}."
        return Remedy(RemedyCode.EVERY_TYPE, "Accept every GPU type", effect, {"generations": []})

    def run_first(self) -> Remedy | None:
        job = self.job
        # Sessions and replicas go before all other jobs of their owner, whatever priority these have.
        own = Job.objects.filter(
            cluster=job.cluster_id,
            owner=job.owner_id,
            tenant=job.tenant_id,
            kind=Job.Kind.TRAINING,
            preemptible=False,
        )
        ahead = (
            own.unfinished()
            .exclude(pk=job.pk)
            .order_by("-priority")
            .values_list("priority", flat=True)
            .first()
        )
        if ahead is None or not job.priority <= ahead < HIGHEST_PRIORITY:
            return None
        if job.kind == Job.Kind.REPLICA or not self._may_change:
            return None
        effect = f"Its priority becomes {ahead + 1}, higher than that of the owner's other jobs."
        return Remedy(RemedyCode.RUN_FIRST, "Run this job first", effect, {"priority": ahead + 1})

    def end_preemptible(self) -> Remedy | None:
        job = self.job
        if not job.preemptible or job.kind == Job.Kind.REPLICA or not self._may_change:
            return None
        effect = "The job then runs within the fair share of its team."
        return Remedy(RemedyCode.END_PREEMPTIBLE, "End preemptible mode", effect)

    def try_now(self) -> Remedy | None:
        if self.job.not_before is None or not self._may_change:
            return None
        effect = "The next round may start the job without waiting for the end of the pause."
        return Remedy(RemedyCode.TRY_NOW, "Try again now", effect)

    # --- the owner's sessions and services ---

    def stop_session(self) -> Remedy | None:
        found = next((one for one in self.explainer.holders(self.job) if not one.is_service), None)
        if found is None or not Job.objects.changeable_by(self.reader).filter(pk=found.pk).exists():
            return None
        effect = f"The session holds {counted(found.gpus, 'GPU')}. Opens its page, where you stop it."
        label = f"Stop session “{found.name}”"
        return Remedy(RemedyCode.STOP_SESSION, label, effect, target=found.pk)

    def scale_service(self) -> Remedy | None:
        found = next((one for one in self.explainer.holders(self.job) if one.is_service), None)
        if found is None or not Service.objects.changeable_by(self.reader).filter(pk=found.pk).exists():
            return None
        effect = (
            f"The service holds {counted(found.gpus, 'GPU')}. Opens its page, where you set fewer replicas."
        )
        label = f"Scale service “{found.name}”"
        return Remedy(RemedyCode.SCALE_SERVICE, label, effect, target=found.pk)

    # --- another job ---

    def fewer_workers(self) -> Remedy | None:
        """Proposes the most workers of this size that fit on the nodes of one generation."""
        most = max(self._fitting(self.job.gpus_per_worker, free=False).values(), default=0)
        if not 0 < most < self.job.workers:
            return None
        return self._clone(RemedyCode.FEWER_WORKERS, most, self.job.gpus_per_worker)

    def smaller_least(self) -> Remedy | None:
        """Proposes the workers of an elastic job for which GPUs are idle now, as its least."""
        if self.job.max_workers is None:
            return None
        most = max(self._fitting(self.job.gpus_per_worker, free=True).values(), default=0)
        if not 0 < most < self.job.workers:
            return None
        return self._clone(RemedyCode.FEWER_WORKERS, most, self.job.gpus_per_worker)

    def other_shape_now(self) -> Remedy | None:
        return self._other_shape(free=True)

    def other_shape_ever(self) -> Remedy | None:
        return self._other_shape(free=False)

    def _other_shape(self, *, free: bool) -> Remedy | None:
        """Proposes the same number of GPUs in smaller workers, the largest that fit: on the free GPUs, or on all."""
        for size in range(self.job.gpus_per_worker - 1, 0, -1):
            workers, rest = divmod(self.job.gpus, size)
            if rest == 0 and max(self._fitting(size, free=free).values(), default=0) >= workers:
                return self._clone(RemedyCode.OTHER_SHAPE, workers, size)
        return None

    def _fitting(self, size: int, *, free: bool) -> dict[int, int]:
        """Returns, by generation id, how many workers of `size` GPUs fit on the nodes that the job accepts.

        Counts only free GPUs if `free` is true.
        """
        found: dict[int, int] = {}
        for node in self.explainer.accepted(self.job):
            gpus = self.explainer.free.get(node.pk, 0) if free else node.gpus
            found[node.generation_id] = found.get(node.generation_id, 0) + gpus // size
        return found

    def _clone(self, code: RemedyCode, workers: int, gpus: int) -> Remedy | None:
        if self.job.spec.get("roles"):
            return None  # the roles say how many workers there are
        shaped = self._with(workers=workers, gpus_per_worker=gpus)
        if self.job.kind != Job.Kind.TRAINING or not self._may_submit or self.explainer.never(shaped):
            return None
        shape = f"{workers} × {gpus} GPUs" if workers > 1 else counted(gpus, "GPU")
        label = f"Clone with {'at least ' if self.job.max_workers else ''}{shape}"
        effect = "Opens the submit form with this shape. The waiting job stays until you cancel it."
        return Remedy(code, label, effect, {"workers": workers, "gpus_per_worker": gpus})

    def other_team(self) -> Remedy | None:
        others = set(ids_with_role(self.reader, Membership.Role.MEMBER)) - {self.job.tenant_id}
        if self.job.kind != Job.Kind.TRAINING or not others:
            return None
        effect = "Opens the submit form, where you choose another of your teams."
        return Remedy(RemedyCode.OTHER_TEAM, "Clone in another team", effect)

    # --- pages where somebody can help ---

    def ask_for_limit(self) -> Remedy | None:
        return self._ask(RemedyCode.ASK_FOR_LIMIT, "Ask for a larger limit")

    def raise_managers_limit(self) -> Remedy | None:
        """Leads managers of the team to the limit that they set, and its member to the list of limits and managers."""
        tenants = {quota.tenant_id: quota.tenant for quota in self._managers_limits()}
        for tenant in tenants.values():
            if may(self.reader, "member_limit.set", tenant):
                effect = f"Opens the page of {tenant.name}, where its managers set limits on members."
                return Remedy(RemedyCode.CHANGE_LIMIT, "Change the limit", effect, team=tenant.slug)
        if not tenants or self.reader.pk != self.job.owner_id:
            return None
        names = " or ".join(sorted(tenant.name for tenant in tenants.values()))
        effect = f"Opens your limits, with the managers of {names} who can raise this one."
        return Remedy(RemedyCode.ASK_MANAGER, "Ask a manager", effect)

    def _managers_limits(self) -> list[Quota]:
        """Returns the limits that block the job and that managers set."""
        job, reason = self.job, Reason(self.job.reason)
        if reason == Reason.NEVER_OVER_QUOTA:
            quotas = Quota.objects.in_force_for(job.tenant, job.owner_id).filter(
                by_managers=True, limit__lt=job.gpus
            )
            gpus = quotas.filter(kind=Quota.Kind.GPUS, at_limit=Quota.AtLimit.BLOCK)
            return list(gpus.select_related("tenant"))
        return [one.quota for one in self.explainer.binding(job, reason) if one.quota.by_managers]

    def ask_for_tickets(self) -> Remedy | None:
        return self._ask(RemedyCode.ASK_FOR_TICKETS, "Ask for more tickets")

    def _ask(self, code: RemedyCode, label: str) -> Remedy | None:
        if self.job.tenant_id not in ids_with_role(self.reader, Membership.Role.MANAGER):
            return None
        return Remedy(
            code, label, f"Opens the form for requests of {self.job.tenant.name}. An operator answers it."
        )

    def resume_cluster(self) -> Remedy | None:
        if not may(self.reader, "cluster.pause"):
            return None
        return Remedy(RemedyCode.RESUME_CLUSTER, "Resume the cluster", "Opens the page where you resume it.")

    def return_nodes(self) -> Remedy | None:
        away = [node for node in self.explainer.accepted(self.job) if node.state == Node.State.DRAINED]
        if not away or not may(self.reader, "node.drain"):
            return None
        return Remedy(RemedyCode.RETURN_NODES, "Return drained nodes", "Opens the list of nodes.")

    def hand_over(self) -> Remedy | None:
        if not may(self.reader, "member.change", self.job.tenant):
            return None
        effect = "Opens the page of the team, where you restore the owner's role or hand over the work."
        return Remedy(RemedyCode.HAND_OVER, "Open the team", effect)

    def _with(self, **fields: Any) -> Job:
        """Returns an unsaved copy of the job with other values in some columns."""
        copied = {one.attname: getattr(self.job, one.attname) for one in Job._meta.concrete_fields}
        return Job(**{name: value for name, value in copied.items() if name != "has_no_reason"} | fields)


_OF_REASONS = {
    Reason.NEVER_NO_SUCH_GENERATION: (_Finder.every_type,),
    Reason.NEVER_TOO_LARGE: (_Finder.every_type, _Finder.fewer_workers),
    Reason.NEVER_WORKER_TOO_LARGE: (_Finder.every_type, _Finder.other_shape_ever),
    Reason.NEVER_OVER_QUOTA: (
        _Finder.raise_managers_limit,
        _Finder.every_type,
        _Finder.ask_for_limit,
        _Finder.other_team,
    ),
    Reason.QUOTA_IN_USE: (
        _Finder.raise_managers_limit,
        _Finder.run_first,
        _Finder.ask_for_limit,
        _Finder.other_team,
    ),
    Reason.HOURS_SPENT: (_Finder.raise_managers_limit, _Finder.ask_for_limit, _Finder.other_team),
    Reason.BORROWED_ENOUGH: (_Finder.every_type, _Finder.ask_for_limit),
    Reason.SHARE_IN_USE: (
        _Finder.stop_session,
        _Finder.scale_service,
        _Finder.every_type,
        _Finder.smaller_least,
        _Finder.ask_for_tickets,
    ),
    Reason.RESERVED: (_Finder.every_type,),
    Reason.OWN_JOBS_AHEAD: (
        _Finder.stop_session,
        _Finder.scale_service,
        _Finder.run_first,
        _Finder.every_type,
        _Finder.smaller_least,
    ),
    Reason.FRAGMENTED: (_Finder.smaller_least, _Finder.other_shape_now, _Finder.every_type),
    Reason.NODES_AWAY: (_Finder.every_type, _Finder.return_nodes),
    Reason.CLUSTER_PAUSED: (_Finder.resume_cluster,),
    Reason.BACKING_OFF: (_Finder.try_now,),
    Reason.RETRYING: (_Finder.try_now,),
    Reason.PREEMPTIBLE: (
        _Finder.raise_managers_limit,
        _Finder.end_preemptible,
        _Finder.every_type,
        _Finder.ask_for_limit,
    ),
    Reason.TEAM_ARCHIVED: (_Finder.other_team,),
    Reason.OWNER_MAY_NOT: (_Finder.hand_over,),
}
# A running job that others are ahead of keeps its GPUs in its next turn if one of these moves it ahead of them.
_OF_THE_NEXT_TURN = (_Finder.run_first, _Finder.end_preemptible, _Finder.ask_for_tickets)
