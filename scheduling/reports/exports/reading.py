"""Reads jobs and attempts for exports in batches, so that an export of a million jobs needs little memory."""

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

# Size of the range of primary keys that one query reads.
STEP = 2000


@dataclass(frozen=True)
class Selection:
    """The jobs to export: those that existed at any moment from `begins` to `ends`, of the teams whose ids are in
    `tenants`.

    `tenants` None means all teams.
    """

    begins: datetime
    ends: datetime
    tenants: Sequence[int] | None
    anonymous: bool = False
    seen: frozenset[int] | None = None  # ids of the teams whose names may be shown; None: all
    whole: bool = False  # True: jobs and attempts are not cut at `begins` and `ends`

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
        """Returns the selection of everything that `user` may export.

        Operators may export all teams, and managers their own teams with the teams below.

        - `user`: None means a command in the shell, which may export all teams.
        - `tenant`: if given, only its subtree is exported.
        - `anonymous`: whether names and ids of users and teams are replaced by pseudonyms.
        - `whole`: whether jobs and attempts that are only partly in the period are exported in full.
        """
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
        """Returns the jobs of the selected teams that existed at any moment of the period."""
        there = Q(ended_at__gt=self.begins) | Q(ended_at=None)
        found = Job.objects.filter(there, created_at__lt=self.ends)
        return found if self.tenants is None else found.filter(tenant__in=self.tenants)

    def cut(self, begins: datetime, ends: datetime | None, now: datetime) -> Stretch | None:
        """Returns the part of an interval that is in the selection's period; None if there is no such part.

        `begins` and `ends` are the interval's start and end; `ends` None means that it is not over at `now`. If the
        selection's field `whole` is True, returns the whole interval.
        """
        if self.whole:
            return Stretch(begins, ends, ends is None)
        if begins >= self.ends or (ends is not None and begins < self.begins >= ends):
            return None
        goes_on = ends is None or ends > self.ends
        if goes_on:
            ends = self.ends.astimezone(UTC) if self.ends <= now else None
        return Stretch(max(begins, self.begins).astimezone(UTC), ends, goes_on)

    def attempts(self) -> QuerySet[Lease]:
        """Returns the attempts that ended in the period. So exports of successive periods contain each attempt exactly
        once."""
        ended = Lease.objects.filter(
            held_until__gte=self.begins, held_until__lt=self.ends, held_from__isnull=False
        ).filter(cluster__in=list(Cluster.objects.values_list("pk", flat=True)))
        return ended if self.tenants is None else ended.filter(job__tenant__in=self.tenants)


def exportable_tenants(user: User | None) -> Any:
    """Returns the tenants whose jobs `user` may export; all tenants if `user` is None."""
    return Tenant.objects.all() if user is None else tenants_where(user, "report.export")


def may_export(user: User) -> bool:
    return Tenant.objects.exists() if may(user, "report.export") else may_somewhere(user, "report.export")


@dataclass(frozen=True)
class Stretch:
    """An interval, perhaps cut to the exported period. `ends` is None if the interval is not over.

    `goes_on` is True if the interval is not over, or if it was cut at the end of the exported period.
    """

    begins: datetime
    ends: datetime | None
    goes_on: bool


@dataclass(frozen=True)
class Attempt:
    """One attempt: an interval in which a job held GPUs."""

    lease: Lease
    number: int  # position among the job's attempts, from 1
    is_last: bool
    nodes: Sequence[str]
    waits_since: datetime  # the job's submit, or the end of its previous attempt
    held: Stretch  # the exported part of the attempt


@dataclass(frozen=True)
class ExportedJob:
    """A job and its attempts in order, with times cut to the exported period.

    In anonymous exports, names and ids of users and teams are pseudonyms.
    """

    job: Job
    cpu: float | None  # CPUs of each worker; None if the spec gives no number
    state: str  # the job's state at the end of the period
    there: Stretch  # from the job's submit to its end
    waits_since: datetime  # the submit, or the end of the last attempt that ended by the end of the period
    attempts_over: int
    user: str
    user_number: int
    account: str
    account_number: int
    account_path: str
    name: str
    attempts: Sequence[Attempt] = field(default=())


def read_jobs(selection: Selection, now: datetime) -> Iterator[list[ExportedJob]]:
    """Yields the selected jobs in batches, in order of their ids. Each job includes only those of its attempts
    that overlap the period."""
    exporter = _JobExporter(selection, now)
    for jobs in _in_steps(selection.jobs()):
        some = list(_with_names(jobs))
        attempts = _attempts([job.pk for job in some])
        yield [exporter.exported(job, attempts[job.pk]) for job in some]


def read_attempts(selection: Selection, now: datetime) -> Iterator[list[ExportedJob]]:
    """Yields the attempts that ended in the period, in batches, in order of their ids.

    Each attempt is yielded as an ExportedJob that has only this attempt. Its times are not cut to the period.
    """
    exporter = _JobExporter(replace(selection, whole=True), now)
    for leases in _in_steps(selection.attempts()):
        some = list(leases.values_list("job_id", "pk"))
        known = {job.pk: job for job in _with_names(Job.objects.filter(pk__in={job for job, _ in some}))}
        attempts = {attempt.lease.pk: attempt for each in _attempts(list(known)).values() for attempt in each}
        yield [exporter.exported(known[job], [attempts[lease]]) for job, lease in some]


def _with_names(jobs: QuerySet[Job]) -> QuerySet[Job]:
    """Returns a query for the same jobs that also reads each job's owner, team, cluster and CPUs per worker.

    It does not read the column `spec`, so an export does not load whole job specifications.
    """
    jobs = jobs.select_related("owner", "tenant", "cluster").defer("spec")
    return jobs.annotate(cpu=KeyTransform("cpu", "spec"))


def _in_steps(found: Any) -> Iterator[Any]:
    """Splits a query set by ranges of STEP primary keys. Yields a query set for each range, in order of the keys."""
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
    """Creates ExportedJob objects, with real names or with pseudonyms.

    The same name always gets the same pseudonym. Without SECRET_KEY, nobody can find the name for a pseudonym.
    """

    def __init__(self, selection: Selection, now: datetime) -> None:
        self._selection, self._now = selection, now
        self._anonymous = selection.anonymous
        tenants = (
            Tenant.objects.all() if selection.seen is None else Tenant.objects.filter(pk__in=selection.seen)
        )
        self._tenants = dict(tenants.values_list("pk", "name"))

    def exported(self, job: Job, attempts: Sequence[Attempt]) -> ExportedJob:
        # The path begins with the topmost team that the reader may see. The reader then may see all teams below it.
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
    """Returns the job's state at the end of the exported period.

    This is the present state if the period is not over, or if the job ended in it. For other jobs, it is running,
    queued before the first attempt, or suspended between attempts.

    - `there`: the time from submission to end, cut to the period.
    - `held`: the intervals in which the job held GPUs, cut to the period.
    - `started`: whether an attempt of the job ended before the end of the period.
    """
    if there.ends is None or not there.goes_on:
        return job.state
    if held and held[-1].goes_on:
        return Job.State.RUNNING
    return Job.State.SUSPENDED if started else Job.State.QUEUED


def pseudonym(kind: str, key: object) -> str:
    """Returns a pseudonym such as user-5c1d9be0a4f2: `kind`, and 48 bits of an HMAC-SHA-256 of `kind` and `key`."""
    return f"{kind}-{_digest(kind, key)[:12]}"


def pseudonymous_number(kind: str, key: int) -> int:
    """Returns a number of 31 bits that replaces a UID or GID in anonymous exports: part of an HMAC-SHA-256 of `kind`
    and `key`."""
    # `pseudonym` uses another part of the HMAC, so that nobody can compute one from the other without SECRET_KEY.
    return int(_digest(kind, key)[-8:], 16) & 0x7FFFFFFF


def _digest(kind: str, key: object) -> str:
    return salted_hmac("fairlot.exports", f"{kind}:{key}", algorithm="sha256").hexdigest()


def generations_of() -> dict[int, str]:
    return dict(Generation.objects.values_list("pk", "name"))
