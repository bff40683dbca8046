"""Explains a job's state to people, in sentences with figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import NamedTuple

import numpy as np
from django.db import models

from accounting.core.wording import counted, fixed
from accounting.limits.quotas import LimitUsage, never_fits
from accounting.models import Quota, Tenant, User
from fairshare.model import Reason
from fairshare.reasons import hardware_reason
from scheduling.core.event_texts import end_text_of, text_of
from scheduling.core.reason_labels import SHORT
from scheduling.jobs.queue_place import QueuePlace, queue_place_of
from scheduling.limits.blocking import AT_ONCE, Binding
from scheduling.models import (
    AdvanceReservation,
    AdvanceWindow,
    Cluster,
    HeldGpu,
    Job,
    JobEvent,
    Lease,
    Node,
    ShareBalance,
)
from scheduling.shares.advance import windows_near
from scheduling.spec.retries import Retries

MOST_HOLDERS = 3  # sessions and services of the owner that an explanation names
MOST_WINDOWS = 3  # windows of advance reservations that an explanation names


@dataclass(frozen=True, slots=True)
class Explanation:
    """Explains a job's state: a sentence, a short label, details with figures, and what would unblock the job.

    `never` is True if the job can never start as things are, so waiting does not help. `says_more` is False if the
    sentence only repeats the name of the job's state.
    """

    sentence: str
    short: str
    never: bool = False
    detail: tuple[str, ...] = ()
    unblock: tuple[str, ...] = ()
    says_more: bool = True


@dataclass(frozen=True, slots=True)
class Holder:
    """A session or service that holds GPUs. `pk` is the primary key of the session or service."""

    is_service: bool
    pk: int
    name: str
    gpus: int

    @property
    def in_words(self) -> str:
        return f"{'service' if self.is_service else 'session'} “{self.name}” ({counted(self.gpus, 'GPU')})"


@dataclass
class Explainer:
    """Explains the jobs of one cluster. Reads each fact about the cluster at most once.

    Explanations name only limits of teams that `reader` may see. If `reader` is None, they name only limits of the
    job's own team.
    """

    cluster: Cluster
    reader: User | None = None
    _balances: dict[tuple[int, int], tuple[float, float]] = field(default_factory=dict)
    _standing: dict[tuple[int, int], list[_Held]] = field(default_factory=dict)
    _places: dict[int, QueuePlace | None] = field(default_factory=dict)

    @cached_property
    def _limits(self) -> Binding:
        return Binding(self.cluster, self.reader)

    @cached_property
    def nodes(self) -> list[Node]:
        return list(Node.objects.filter(cluster=self.cluster).present().select_related("generation"))

    @cached_property
    def free(self) -> dict[int, int]:
        """Returns the number of free GPUs on each ready node, by node id."""
        held: dict[int, int] = {}
        rows = HeldGpu.objects.filter(
            lease__cluster=self.cluster, lease__state__in=Lease.HOLDING
        ).values_list("node_id", flat=True)
        for node in rows:
            held[node] = held.get(node, 0) + 1
        return {
            node.pk: max(0, node.usable_gpus - held.get(node.pk, 0))
            for node in self.nodes
            if node.state == Node.State.READY
        }

    def startable(self, job: Job) -> str:
        """Returns from where a job gets its GPUs that starts at once, in words: how many of those that it accepts are
        free, and how many other jobs release already."""
        accepted = self.accepted(job)
        freed = HeldGpu.objects.filter(
            node__in=[node.pk for node in accepted], lease__state=Lease.State.STOPPING
        )
        free, coming = self._free_count(job), freed.count()
        said = f"{free} free now" + (f", {coming} being freed" if coming else "")
        if free + coming < job.workers * job.gpus_per_worker:
            said += ", the others are taken back from preemptible jobs or jobs beyond their guarantee"
        return said

    def explain(self, job: Job) -> Explanation:
        """Returns an explanation of the present state of `job`."""
        if job.state in Job.WAITING:
            return self._waiting(job)
        says_more = bool(end_text_of(job)) if job.has_ended else job.state != Job.State.RUNNING
        sentence = _ACTIVE[job.state](job)
        if job.state == Job.State.RUNNING:
            sentence = self._size(job) or sentence
        return Explanation(
            sentence,
            job.get_state_display(),
            detail=tuple(self._reached(job)),
            says_more=says_more,
        )

    def place(self, job: Job) -> QueuePlace | None:
        """Returns the place of `job` in the queue as `reader`, who must be given, may know it."""
        if self.reader is not None and job.pk not in self._places:
            self._places[job.pk] = queue_place_of(job, self.reader)
        return self._places.get(job.pk)

    def _size(self, job: Job) -> str:
        """Returns with how many workers an elastic job runs, and why not with more; "" for other jobs."""
        held = job.max_workers and job.leases.filter(state=Lease.State.RUNNING).first()
        if not held:
            return ""
        workers = held.gpus // job.gpus_per_worker
        runs = f"Running with {workers} of {job.workers} to {job.max_workers} workers"
        if workers >= (job.max_workers or 0):
            return f"{runs}."
        kind = held.generation.name
        fit = sum(
            self.free.get(node.pk, 0) // job.gpus_per_worker
            for node in self.nodes
            if node.generation_id == held.generation_id
        )
        if not fit:
            return f"{runs}, because no other {kind} is idle where a worker fits."
        return (
            f"{runs}. GPUs for {counted(fit, 'more worker')} are idle now. The job takes them at the end of a quantum,"
            " if limits allow it and the restart pays off."
        )

    def _reached(self, job: Job) -> list[str]:
        """Returns a sentence for each reached limit that makes the job preemptible or that only warns.

        Returns an empty list if the job has ended.
        """
        if job.has_ended:
            return []
        limits = self._limits
        return limits.in_words(job, [*limits.reached(job, Quota.AtLimit.IDLE), *limits.warnings(job)])

    def _waiting(self, job: Job) -> Explanation:
        reason = Reason(job.reason)
        if reason.is_never:
            return self._never(job, reason)
        binding = self.binding(job, reason)
        match reason:
            case Reason.TEAM_ARCHIVED:
                sentence = f"{job.tenant.name} is archived; jobs of this team do not run."
            case Reason.OWNER_MAY_NOT:
                sentence = f"{why_owner_may_not(job.owner, job.tenant)}; the job does not run."
            case Reason.PLACE_LOST:
                sentence = self._place_lost(job)
            case Reason.RESERVED:
                sentence = self._reserved(job)
            case _:
                sentence = self._not_now(job, reason, self._limits.in_words(job, binding))
        helps = self._limits.when(job, binding) or _UNBLOCK.get(reason, ())
        if reason is Reason.PREEMPTIBLE and job.preemptible:
            helps = (
                "The job starts when there are GPUs that no other job can use, or after its preemptible mode ends.",
            )
        if reason == Reason.SHARE_IN_USE and self._could_accept_more(job):
            helps = (*helps, "The job may start sooner if it accepts more GPU types.")
        short = self._limits.in_short(job, binding) or SHORT[reason]
        return Explanation(sentence, short, False, tuple(self._detail(job)), helps)

    def binding(self, job: Job, reason: Reason) -> list[LimitUsage]:
        """Returns the limits that block the job now. `reason` is the reason that the last round gave for the job.

        The list is empty if `reason` is not about limits, or if usage has fallen below the limits since the last round.
        """
        match reason:
            case Reason.QUOTA_IN_USE:
                return self._limits.in_the_way(job, *AT_ONCE)
            case Reason.HOURS_SPENT:
                return self._limits.in_the_way(job, *Quota.OF_A_PERIOD)
            case Reason.BORROWED_ENOUGH:
                return self._limits.in_the_way(job, Quota.Kind.BORROWED)
            case Reason.PREEMPTIBLE if not job.preemptible:
                return self._limits.in_the_way(job, *AT_ONCE, at_limit=Quota.AtLimit.IDLE)
            case _:
                return []

    def _never(self, job: Job, first: Reason) -> Explanation:
        """Returns an explanation with all reasons why the job can never run. The first one is `first`, which the last
        round gave."""
        # All reasons, because the job could still not run after only `first` is remedied.
        reasons = [first, *(one for one in self.never(job) if one != first)]
        sentence = " ".join(self._never_sentence(job, one) for one in reasons)
        helps = dict.fromkeys(line for one in reasons for line in _UNBLOCK.get(one, ()))
        return Explanation(sentence, SHORT[first], True, tuple(self._detail(job)), tuple(helps))

    def never(self, job: Job) -> list[Reason]:
        """Returns the reasons why `job` can never run with the present nodes and limits; an empty list if the job can
        run.

        `job` need not be saved in the database.
        """
        slots = np.array([list(self._slots(job).values())], np.int64)
        hardware = hardware_reason(slots >= 0, slots, np.array([job.workers]))
        reasons = [*hardware.tolist(), Reason.NEVER_OVER_QUOTA if self._over_quota(job) else Reason.NONE]
        return [Reason(reason) for reason in reasons if reason != Reason.NONE]

    def _slots(self, job: Job) -> dict[int, int]:
        """Returns, by generation id, how many workers of the job would fit if all GPUs were free. Counts only nodes
        that the job accepts."""
        return slots_on(self.nodes, job)

    def _over_quota(self, job: Job) -> str | None:
        """Returns a text that says which limits forbid the job even if no other job runs; None if the limits allow it.

        Considers only generations whose nodes have room for the whole gang, if there are any.
        """
        slots = self._slots(job)
        fitting = [pk for pk, workers in slots.items() if workers >= job.workers]
        kinds = fitting or list(slots) or job.generation_ids
        return never_fits(job.tenant, kinds, job.gpus, job.owner_id, seen=self._limits.seen(job))

    def never_in_words(self, job: Job) -> list[str]:
        """Returns a sentence for each reason why `job` can never run; an empty list if the job can run."""
        return [self._never_sentence(job, reason) for reason in self.never(job)]

    def _never_sentence(self, job: Job, reason: Reason) -> str:
        match reason:
            case Reason.NEVER_NO_SUCH_GENERATION:
                if not self.nodes:
                    return f"{self.cluster.name} has no nodes yet."
                return f"The job can never run here: no node has {self._kinds(job)} GPUs."
            case Reason.NEVER_TOO_LARGE:
                return (
                    f"The job can never run here: it needs {job.gpus} GPUs of one type at once, and the cluster has"
                    f" {self._totals(job)}."
                )
            case Reason.NEVER_WORKER_TOO_LARGE:
                return (
                    f"The job can never run here: each worker needs {job.gpus_per_worker} GPUs on one node, and "
                    f"the largest node with {self._kinds(job)} has {self._largest_node(job)}."
                )
            case _:
                limit = self._over_quota(job) or f"a limit forbids {job.gpus} GPUs at once"
                return f"The job can never run: {limit}."

    def _not_now(self, job: Job, reason: Reason, limits: list[str]) -> str:
        """Returns a sentence that says why the job does not run now. `limits` are sentences about the limits that block
        the job."""
        match reason:
            case Reason.HOURS_SPENT if limits:
                return f"{'. '.join(limits)}."
            case Reason.QUOTA_IN_USE | Reason.BORROWED_ENOUGH if limits:
                return f"{'. '.join(limits)}. This job needs {counted(job.gpus, 'more GPU')}."
            case Reason.QUOTA_IN_USE | Reason.HOURS_SPENT | Reason.BORROWED_ENOUGH:
                return "A limit left no room for the job in the last round; the next round checks again."
            case Reason.PREEMPTIBLE:
                said = ". ".join(limits) or self._preemptible(job)
                return f"{said}; the job runs only on GPUs that no other job can use, and there are none now."
            case Reason.SHARE_IN_USE:
                gpus, gpu_types = _wants(job), self._kinds(job)
                return (
                    f"The job needs {gpus} ({gpu_types}). Other jobs, running or waiting, go first, because their"
                    f" owners are owed more GPU time.{self._owed(job)}{self._held_by_own(job)}"
                )
            case Reason.OWN_JOBS_AHEAD:
                return f"{_go_first(*self._ahead(job))}.{self._owed(job)}{self._held_by_own(job)}"
            case Reason.FRAGMENTED:
                free, gpu_types = self._free_count(job), self._kinds(job)
                return (
                    f"{free} GPUs ({gpu_types}) are free, but they are scattered over nodes. Each worker of the job"
                    f" needs {job.gpus_per_worker} GPUs on one node."
                )
            case Reason.NODES_AWAY:
                return f"The job would fit if {self._away(job)} were ready again."
            case Reason.GPUS_DRAINING:
                return "The job's GPUs are chosen. The job starts as soon as other jobs have released these GPUs."
            case Reason.CLUSTER_PAUSED:
                return f"{paused_in_words(self.cluster)}; no waiting job starts."
            case Reason.BACKING_OFF | Reason.RETRYING:
                return _starts_again(job, reason)
            case _:
                return "The job waits for the next round."

    @cached_property
    def _windows(self) -> list[tuple[AdvanceWindow, bool]]:
        """Returns the windows of advance reservations that are open or come soon, and whether the reader may know whose
        they are."""
        found = windows_near(self.cluster, self._limits.now)
        ids = [one.reservation_id for one in found]
        seen = AdvanceReservation.objects.filter(pk__in=ids)
        known = set(seen.visible_to(self.reader).values_list("pk", flat=True)) if self.reader else set()
        return [(one, one.reservation_id in known) for one in found]

    def _reserved(self, job: Job) -> str:
        """Returns a sentence that names the advance reservations which have GPUs that the job could use."""
        generations = {node.generation_id for node in self.accepted(job)}
        told = [
            _window_in_words(one, is_known=is_known)
            for one, is_known in self._windows
            if one.reservation.generation_id in generations
            and not job.tenant.path.startswith(one.reservation.tenant.path)
        ]
        if not told:
            return "GPUs that the job could use were reserved in advance; the next round checks again."
        return f"GPUs that the job could use are reserved in advance: {'; '.join(told[:MOST_WINDOWS])}."

    @staticmethod
    def _place_lost(job: Job) -> str:
        told = job.events.filter(kind=JobEvent.PLACE_LOST).last()
        said = text_of(told) if told else "The job was assigned GPUs, but could not start on them"
        return f"{said}. The next round chooses other GPUs."

    @staticmethod
    def _preemptible(job: Job) -> str:
        if job.preemptible:
            return "The job is preemptible"
        return f"{job.tenant.name} uses all GPUs that its limits allow"

    def _detail(self, job: Job) -> list[str]:
        lines = self._limits.in_words(job, self._limits.warnings(job, is_new=job.pk is None))
        away: Counter[tuple[str, str]] = Counter()
        for node in self.accepted(job):
            if node.state != Node.State.READY:
                away[node.generation.name, node.get_state_display().lower()] += node.gpus
        for node_kind, total, free in self._per_generation(job):
            told = "".join(
                f", {gpus} {state}" for (name, state), gpus in sorted(away.items()) if name == node_kind
            )
            lines.append(f"{node_kind}: {free} of {total} GPUs free{told}")
        return lines

    def accepted(self, job: Job) -> list[Node]:
        wanted = set(job.generation_ids)
        return [node for node in self.nodes if not wanted or node.generation_id in wanted]

    def _could_accept_more(self, job: Job) -> bool:
        """Returns whether the cluster has nodes of generations that the job does not accept."""
        return len(self.accepted(job)) < len(self.nodes)

    def _per_generation(self, job: Job) -> list[tuple[str, int, int]]:
        totals: dict[str, list[int]] = {}
        for node in self.accepted(job):
            entry = totals.setdefault(node.generation.name, [0, 0])
            entry[0] += node.gpus
            entry[1] += self.free.get(node.pk, 0)
        return [(name, total, free) for name, (total, free) in sorted(totals.items())]

    def _kinds(self, job: Job) -> str:
        names = sorted({node.generation.name for node in self.accepted(job)})
        return " or ".join(names) if names else "such"

    def _free_count(self, job: Job) -> int:
        return sum(free for _, _, free in self._per_generation(job))

    def _totals(self, job: Job) -> str:
        return " and ".join(f"{total} {name}" for name, total, _ in self._per_generation(job))

    def _largest_node(self, job: Job) -> int:
        return max((node.gpus for node in self.accepted(job)), default=0)

    def _away(self, job: Job) -> str:
        away = [node for node in self.accepted(job) if node.state != Node.State.READY]
        return ", ".join(f"{node.name} ({node.get_state_display().lower()})" for node in away) or "its nodes"

    def _ahead(self, job: Job) -> tuple[int, int]:
        """Returns the number of jobs of the same owner that go first, and how many of them hold GPUs now."""
        own = Job.objects.filter(
            cluster=self.cluster, owner=job.owner_id, tenant=job.tenant_id, preemptible=False
        ).unfinished()
        before = {} if job.pk is None else {"pk__lt": job.pk}  # a job that is not submitted yet comes last
        first = models.Q(priority__gt=job.priority) | models.Q(priority=job.priority, **before)
        found = own.filter(first).aggregate(
            all=models.Count("pk"), holding=models.Count("pk", filter=models.Q(state__in=Job.HOLDING))
        )
        return found["all"], found["holding"]

    def _owed(self, job: Job) -> str:
        owed, _ = self._balance(job)
        return f" The job's owner is owed {fixed(owed)} GPU-seconds." if owed >= 1.5 else ""

    def _balance(self, job: Job) -> tuple[float, float]:
        """Returns the GPU-seconds that the job's owner is owed, and the owner's share in GPUs."""
        key = (job.tenant_id, job.owner_id)
        if key not in self._balances:
            rows = ShareBalance.objects.filter(cluster=self.cluster, tenant=key[0], user=key[1])
            sums = rows.aggregate(
                owed=models.Sum("owed", default=0.0), share=models.Sum("share", default=0.0)
            )
            self._balances[key] = sums["owed"], sums["share"]
        return self._balances[key]

    def holders(self, job: Job) -> list[Holder]:
        """Returns the owner's sessions and services that leave too little of the owner's share for the job, those with
        the most GPUs first.

        Counts only GPUs of types that the job accepts. Leaves out preemptible ones, which use no share, and the job's
        own service.
        """
        key = (job.tenant_id, job.owner_id)
        if key not in self._standing:
            kinds = [Job.Kind.SESSION, Job.Kind.REPLICA]
            rows = Lease.objects.filter(
                cluster=self.cluster,
                state__in=Lease.HOLDING,
                job__tenant=key[0],
                job__owner=key[1],
                job__kind__in=kinds,
                job__preemptible=False,
            )
            names = ("job__service", "job", "job__service__name", "job__name", "generation", "gpus")
            self._standing[key] = [_Held(*row) for row in rows.order_by("job").values_list(*names)]
        found: dict[tuple[bool, int], Holder] = {}
        for held in self._standing[key]:
            if job.generation_ids and held.generation not in job.generation_ids:
                continue
            if held.service is not None and held.service == job.service_id:
                continue
            at = (held.service is not None, held.service or held.job)
            gpus = held.gpus + (found[at].gpus if at in found else 0)
            found[at] = Holder(*at, name=held.service_name or held.job_name, gpus=gpus)
        _, share = self._balance(job)
        if sum(one.gpus for one in found.values()) + job.gpus <= share:
            return []
        return sorted(found.values(), key=lambda one: (-one.gpus, one.name))

    def _held_by_own(self, job: Job) -> str:
        """Returns a sentence that names the owner's sessions and services which hold the owner's share; "" if there are
        none."""
        found = self.holders(job)
        if not found:
            return ""
        named = [one.in_words for one in found[:MOST_HOLDERS]]
        if len(found) > MOST_HOLDERS:
            named.append(f"{len(found) - MOST_HOLDERS} more")
        listed = " and ".join([", ".join(named[:-1]), named[-1]] if named[1:] else named)
        gpus = counted(sum(one.gpus for one in found), "GPU")
        _, share = self._balance(job)
        return (
            f" The owner's {listed} {'hold' if found[1:] else 'holds'} {gpus}, and the owner's share is now"
            f" {fixed(share)}."
        )


class _Held(NamedTuple):
    """The GPUs that a session or a replica of a service holds. `service` is None for sessions."""

    service: int | None
    job: int
    service_name: str | None
    job_name: str
    generation: int
    gpus: int


def slots_on(nodes: Iterable[Node], job: Job) -> dict[int, int]:
    """Returns, by generation id, how many workers of the job would fit on these nodes if all GPUs were free.

    Leaves out generations that the job does not accept.
    """
    slots: dict[int, int] = {}
    for node in nodes:
        if not job.generation_ids or node.generation_id in job.generation_ids:
            workers = node.gpus // job.gpus_per_worker
            slots[node.generation_id] = slots.get(node.generation_id, 0) + workers
    return slots


def paused_in_words(cluster: Cluster) -> str:
    why = f" ({cluster.paused_reason})" if cluster.paused_reason else ""
    return f"{cluster.name} is paused by an operator{why}"


def why_owner_may_not(owner: User, tenant: Tenant) -> str:
    """Returns the reason why `owner` may no longer run jobs in `tenant`: a sentence without the full stop at its end.

    Must be called only if `owner` may not run jobs in `tenant`.
    """
    name = owner.get_username()
    if not owner.is_active:
        return f"The account of {name} is deactivated"
    return f"{name} may no longer run jobs in {tenant.name}"


def explain(job: Job, *, reader: User | None = None) -> Explanation:
    """Returns the explanation of one job for `reader`. To explain many jobs of a cluster, create one Explainer
    instead."""
    return Explainer(job.cluster, reader).explain(job)


def _window_in_words(window: AdvanceWindow, *, is_known: bool) -> str:
    reservation = window.reservation
    gpus = counted(reservation.gpus, f"{reservation.generation.name} GPU")
    whose = f"for {reservation.tenant.name} (“{reservation.name}”)" if is_known else "for another team"
    return f"{gpus} {whose} from {_utc(window.begins)} to {_utc(window.ends)} UTC"


def _utc(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M}"


def _starts_again(job: Job, reason: Reason) -> str:
    """Returns a sentence about a job that waits because its program (RETRYING) or its last start (BACKING_OFF)
    failed."""
    if reason is Reason.RETRYING:
        retries, failed = Retries.of_stored(job.spec).times, "failed"
        if job.failures > 1:
            failed = f"failed {job.failures} times"
        when = f" at {job.not_before:%Y-%m-%d %H:%M:%S} UTC at the earliest" if job.not_before else ""
        return (
            f"The job's program {failed}. Fairlot starts it again{when}: retry {job.failures} of {retries}."
        )
    attempts = f"{job.failed_starts} attempts" if job.failed_starts > 1 else "attempt"
    return f"The last {attempts} of the job failed to start or lasted less than a minute; Fairlot tries again soon."


def _go_first(count: int, holding: int) -> str:
    """Returns how many jobs of the same owner go first, and how many of them hold GPUs, as text.

    The place in the queue counts only those that wait.
    """
    first = "1 job of the same owner goes first" if count == 1 else f"{count} jobs of the same owner go first"
    if not holding:
        return first
    if count == 1:
        return f"{first}, and runs now"
    return f"{first}; {'all' if holding == count else holding} of them run{'s' if holding == 1 else ''} now"


def _wants(job: Job) -> str:
    """Returns the number of GPUs that the job needs, as text: "2 × 4 GPUs" for two workers of four GPUs each, "4 GPUs"
    for one worker."""
    least = "at least " if job.max_workers else ""
    if job.workers > 1:
        return f"{least}{job.workers} × {job.gpus_per_worker} GPUs"
    if least:
        return least + counted(job.gpus_per_worker, "GPU")
    return counted(job.gpus_per_worker, "GPU")


_UNBLOCK: Mapping[Reason, tuple[str, ...]] = {
    Reason.NEVER_NO_SUCH_GENERATION: ("Clone the job and accept a GPU type that the cluster has.",),
    Reason.NEVER_TOO_LARGE: ("Clone the job with fewer workers or GPUs.",),
    Reason.NEVER_WORKER_TOO_LARGE: ("Clone the job with more workers that have fewer GPUs each.",),
    Reason.NEVER_OVER_QUOTA: ("Clone the job with fewer GPUs, or ask for a larger limit.",),
    Reason.QUOTA_IN_USE: (
        "The job starts when another job that counts towards the limit ends, or when the limit is raised.",
    ),
    Reason.HOURS_SPENT: (
        "The job starts when the limit has enough GPU-hours or money left again, or when the limit is raised.",
    ),
    Reason.BORROWED_ENOUGH: (
        "The job starts when another job that counts towards the limit ends, or when the limit is raised.",
    ),
    Reason.PREEMPTIBLE: (
        "The job starts when there are GPUs that no other job can use. To use the team's share, ask for a larger"
        " limit, or end preemptible mode on the job's page.",
    ),
    Reason.TEAM_ARCHIVED: (
        "The job starts when an admin restores the team. You can also submit a clone of the job in another team.",
    ),
    Reason.OWNER_MAY_NOT: (
        "The job continues when its owner may run jobs in the team again, or after the job is handed over to another"
        " member.",
    ),
    Reason.SHARE_IN_USE: ("The team's tickets decide when it is the job's turn.",),
    Reason.RESERVED: (
        "The job starts when the window of the advance reservation is over, or on other GPUs.",
    ),
    Reason.FRAGMENTED: ("The job may start sooner with more workers that have fewer GPUs each.",),
}

_ACTIVE: Mapping[str, Callable[[Job], str]] = {
    Job.State.STARTING: lambda job: "The job holds its GPUs, and its processes are being started.",
    Job.State.RUNNING: lambda job: "Running.",
    Job.State.STOPPING: lambda job: "The job is giving its GPUs to others; it resumes in its next attempt.",
    Job.State.CANCELLING: lambda job: (
        f"{end_text_of(job) or 'Cancelled'}; the processes of the job are being ended."
    ),
    Job.State.SUCCEEDED: lambda job: end_text_of(job) or "Succeeded.",
    Job.State.FAILED: lambda job: end_text_of(job) or "Failed.",
    Job.State.CANCELLED: lambda job: end_text_of(job) or "Cancelled.",
}
