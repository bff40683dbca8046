"""Reads jobs and attempts for exports in batches, so that a million of them need little memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from django.db.models import Max, Min, Q, QuerySet
from django.db.models.fields.json import KeyTransform
from django.utils.crypto import salted_hmac

from accounting.access.permissions import may, may_somewhere, tenants_where
from accounting.models import Generation, Tenant, User
from scheduling.models import Cluster, HeldGpu, Job, Lease

# Primary keys per query.
STEP = 2000


@dataclass(frozen=True)
class Selection:
    """What is exported: everything of `tenants` in [begins, ends); None: all tenants, for operators and the shell."""

    begins: datetime
    ends: datetime
    tenants: Sequence[int] | None
    anonymous: bool = False
    seen: frozenset[int] | None = None  # teams that may be named; None: all
    whole: bool = False  # jobs are not cut at the bounds

    @classmethod
    def of(
        cls,
        user: User | None,
        begins: datetime,
        ends: datetime,
        *,
        tenant: Tenant | None,
        anonymous: bool,
        whole: bool,
    ) -> Selection:
        """Returns what `user` may export: operators everything, managers their teams and those below."""
        if tenant is None and (user is None or user.is_operator):
            return cls(begins, ends, None, anonymous, whole=whole)
        found = exportable_tenants(user)
        if tenant is not None:
            found = found.within(tenant)
        return cls(
            begins,
            ends,
            list(found.order_by().values_list("pk", flat=True)),
            anonymous,
            None if user is None else frozenset(Tenant.objects.visible_to(user).values_list("pk", flat=True)),
            whole,
        )

    def jobs(self) -> QuerySet[Job]:
        """Returns the jobs that existed at any moment of the period."""
        there = Q(ended_at__gt=self.begins) | Q(ended_at=None)
        found = Job.objects.filter(there, created_at__lt=self.ends)
        return found if self.tenants is None else found.filter(tenant__in=self.tenants)

    def cut(self, begins: datetime, ends: datetime | None, now: datetime) -> Stretch | None:
        """Returns the part of [begins, ends) in the period, None if there is none; `ends` None stands for `now`."""
        if self.whole:
            return Stretch(begins, ends, ends is None)
        if begins >= self.ends or (ends is not None and begins < self.begins >= ends):
            return None
        goes_on = ends is None or ends > self.ends
        if goes_on:
            ends = self.ends.astimezone(UTC) if self.ends <= now else None
        return Stretch(max(begins, self.begins).astimezone(UTC), ends, goes_on)

    def attempts(self) -> QuerySet[Lease]:
        """Returns the attempts that ended in the period, so that adjoining periods contain each of them once."""
        ended = Lease.objects.filter(
            held_until__gte=self.begins, held_until__lt=self.ends, held_from__isnull=False
        ).filter(cluster__in=list(Cluster.objects.values_list("pk", flat=True)))
        return ended if self.tenants is None else ended.filter(job__tenant__in=self.tenants)


def exportable_tenants(user: User | None) -> Any:
    """Returns the tenants whose jobs `user` may export."""
    return Tenant.objects.all() if user is None else tenants_where(user, "report.export")


def may_export(user: User) -> bool:
    return Tenant.objects.exists() if may(user, "report.export") else may_somewhere(user, "report.export")


@dataclass(frozen=True)
class Stretch:
    """A time from `begins` to `ends` (None: not over); `goes_on` if it is not over or lasts beyond the period."""

    begins: datetime
    ends: datetime | None
    goes_on: bool


@dataclass(frozen=True)
class Attempt:
    """One time in which a job held GPUs."""

    lease: Lease
    number: int  # 1, 2, 3, … within the job
    is_last: bool
    nodes: Sequence[str]
    waits_since: datetime  # the submit, or the end of the attempt before
    held: Stretch  # the exported part


@dataclass(frozen=True)
class ExportedJob:
    """A job with its attempts in order, both cut to what is exported.

    Names and numbers of people are in their exported form.
    """

    job: Job
    cpu: float | None  # CPUs of each worker, if its spec gives a number
    state: str  # of the job, at the end of the period
    there: Stretch  # from its submit to its end
    waits_since: datetime  # the submit, or the end of its last attempt that ended in or before the period
    attempts_over: int
    user: str
    user_number: int
    account: str
    account_number: int
    account_path: str
    name: str
    attempts: Sequence[Attempt] = field(default=())


def read_jobs(selection: Selection, now: datetime) -> Iterator[list[ExportedJob]]:
    """Yields batches of jobs with what they held in the period, in order of their ids."""
    exporter = _JobExporter(selection, now)
    for jobs in _in_steps(selection.jobs()):
        some = list(_with_names(jobs))
        attempts = _attempts([job.pk for job in some])
        yield [exporter.exported(job, attempts[job.pk]) for job in some]


def read_attempts(selection: Selection, now: datetime) -> Iterator[list[ExportedJob]]:
    """Yields, for each attempt, its job with this attempt alone, both uncut, in batches in order of the attempts'
    ids."""
    exporter = _JobExporter(replace(selection, whole=True), now)
    for leases in _in_steps(selection.attempts()):
        some = list(leases.values_list("job_id", "pk"))
        known = {job.pk: job for job in _with_names(Job.objects.filter(pk__in={job for job, _ in some}))}
        attempts = {attempt.lease.pk: attempt for each in _attempts(list(known)).values() for attempt in each}
        yield [exporter.exported(known[job], [attempts[lease]]) for job, lease in some]


def _with_names(jobs: QuerySet[Job]) -> QuerySet[Job]:
    """Adds names, and the CPUs of each worker, the only part of the specs that is read."""
    jobs = jobs.select_related("owner", "tenant", "cluster").defer("spec")
    return jobs.annotate(cpu=KeyTransform("cpu", "spec"))


def _in_steps(found: Any) -> Iterator[Any]:
    """Yields batches by ranges of primary keys: each query reads its range only."""
    bounds = found.aggregate(first=Min("pk"), last=Max("pk"))
    if bounds["first"] is None:
        return
    for first in range(bounds["first"], bounds["last"] + 1, STEP):
        yield found.filter(pk__gte=first, pk__lt=first + STEP).order_by("pk")


def _attempts(jobs: Sequence[int]) -> dict[int, list[Attempt]]:
    leases = list(
        Lease.objects.filter(job__in=jobs, held_from__isnull=False)
        .select_related("generation", "job")
        .defer("job__spec")
        .order_by("job_id", "epoch")
    )
    nodes: dict[int, list[str]] = defaultdict(list)
    places = HeldGpu.objects.filter(lease__in=[one.pk for one in leases]).order_by("lease_id", "node__name")
    for lease_id, node in places.values_list("lease_id", "node__name").distinct():
        nodes[lease_id].append(node)
    last = {lease.job_id: lease.pk for lease in leases}
    found: dict[int, list[Attempt]] = defaultdict(list)
    for lease in leases:
        before = found[lease.job_id][-1].held.ends if found[lease.job_id] else None
        assert lease.held_from is not None  # noqa: S101 - those alone were asked for
        found[lease.job_id].append(
            Attempt(
                lease=lease,
                number=len(found[lease.job_id]) + 1,
                is_last=last[lease.job_id] == lease.pk,
                nodes=nodes[lease.pk],
                waits_since=before or lease.job.created_at,
                held=Stretch(lease.held_from, lease.held_until, lease.held_until is None),
            )
        )
    return found


class _JobExporter:
    """Writes names or pseudonyms. Pseudonyms are keyed and stable: only the holder of SECRET_KEY can resolve them."""

    def __init__(self, selection: Selection, now: datetime) -> None:
        self._selection, self._now = selection, now
        self._anonymous = selection.anonymous
        tenants = (
            Tenant.objects.all() if selection.seen is None else Tenant.objects.filter(pk__in=selection.seen)
        )
        self._tenants = dict(tenants.values_list("pk", "name"))

    def exported(self, job: Job, attempts: Sequence[Attempt]) -> ExportedJob:
        # From the first team that the reader may see; who sees one sees all below it.
        path = [
            self._name("team", step, self._tenants[step])
            for step in job.tenant.lineage
            if step in self._tenants
        ]
        cut = [
            (attempt, self._selection.cut(attempt.held.begins, attempt.held.ends, self._now))
            for attempt in attempts
        ]
        there = self._selection.cut(job.created_at, job.ended_at, self._now)
        assert there is not None  # noqa: S101 - it was selected for that
        last = there.ends or self._now
        over = [attempt.held.ends for attempt in attempts if attempt.held.ends and attempt.held.ends <= last]
        return ExportedJob(
            job=job,
            cpu=job.cpu,  # type: ignore[attr-defined]  # annotated
            state=_state(job, there, [held for _, held in cut if held], started=bool(over)),
            there=there,
            waits_since=over[-1] if over else job.created_at,
            attempts_over=len(over),
            user=self._name("user", job.owner_id, job.owner.get_username()),
            user_number=self._number("user", job.owner_id),
            account=self._name("team", job.tenant_id, job.tenant.slug),
            account_number=self._number("team", job.tenant_id),
            account_path="/".join(path),
            name=self._name("job", job.name, job.name),
            attempts=[replace(attempt, held=held) for attempt, held in cut if held],
        )

    def _name(self, kind: str, key: object, name: str) -> str:
        return pseudonym(kind, key) if self._anonymous else name

    def _number(self, kind: str, key: int) -> int:
        return pseudonymous_number(kind, key) if self._anonymous else key


def _state(job: Job, there: Stretch, held: Sequence[Stretch], *, started: bool) -> str:
    """Returns the job's state at the end of the period: the present one unless it changed after that."""
    if there.ends is None or not there.goes_on:
        return job.state
    if held and held[-1].goes_on:
        return Job.State.RUNNING
    return Job.State.SUSPENDED if started else Job.State.QUEUED


def pseudonym(kind: str, key: object) -> str:
    """Returns a name such as user-5c1d9be0a4f2: 48 bits of an HMAC-SHA-256 of what it replaces."""
    return f"{kind}-{_digest(kind, key)[:12]}"


def pseudonymous_number(kind: str, key: int) -> int:
    """Returns 31 other bits of the same HMAC, the size of UIDs and GIDs."""
    return int(_digest(kind, key)[-8:], 16) & 0x7FFFFFFF


def _digest(kind: str, key: object) -> str:
    return salted_hmac("fairlot.exports", f"{kind}:{key}", algorithm="sha256").hexdigest()


def generations_of() -> dict[int, str]:
    return dict(Generation.objects.values_list("pk", "name"))
