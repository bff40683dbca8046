"""Reads jobs and turns for exports, some at a time, so that a million of them need no memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db.models import Max, Min, Q, QuerySet
from django.utils.crypto import salted_hmac

from accounting.models import Generation, Membership, Tenant, User
from accounting.models.tenants import has_role
from scheduling.models import Cluster, HeldGpu, Job, Lease

# So many primary keys are looked at with each query.
STEP = 2000


@dataclass(frozen=True)
class Selection:
    """What is exported: of [begins, ends), all that is in `tenants`; None are all, for operators and the shell."""

    begins: datetime
    ends: datetime
    tenants: Sequence[int] | None
    anonymous: bool = False
    seen: frozenset[int] | None = None  # teams that may be named; None are all

    @classmethod
    def of(
        cls, user: User | None, begins: datetime, ends: datetime, *, tenant: Tenant | None, anonymous: bool
    ) -> Selection:
        """As far as `user` may export: operators all, managers their own teams and those below them."""
        if tenant is None and (user is None or user.is_operator):
            return cls(begins, ends, None, anonymous)
        found = exportable_tenants(user)
        if tenant is not None:
            found = found.within(tenant)
        return cls(
            begins,
            ends,
            list(found.order_by().values_list("pk", flat=True)),
            anonymous,
            None if user is None else frozenset(Tenant.objects.visible_to(user).values_list("pk", flat=True)),
        )

    def jobs(self) -> QuerySet[Job]:
        """Jobs that were there at any moment of the period."""
        there = Q(ended_at__gt=self.begins) | Q(ended_at=None)
        found = Job.objects.filter(there, created_at__lt=self.ends)
        return found if self.tenants is None else found.filter(tenant__in=self.tenants)

    def turns(self) -> QuerySet[Lease]:
        """Turns that ended in the period, so that adjoining periods have each of them once."""
        ended = Lease.objects.filter(
            held_until__gte=self.begins, held_until__lt=self.ends, held_from__isnull=False
        ).filter(cluster__in=list(Cluster.objects.values_list("pk", flat=True)))
        return ended if self.tenants is None else ended.filter(job__tenant__in=self.tenants)


def exportable_tenants(user: User | None) -> Any:
    """Tenants whose jobs `user` may export."""
    if user is None or user.is_operator:
        return Tenant.objects.all()
    return Tenant.objects.visible_to(user, role=Membership.Role.MANAGER)


def may_export(user: User) -> bool:
    return Tenant.objects.exists() if user.is_operator else has_role(user, Membership.Role.MANAGER)


@dataclass(frozen=True)
class Turn:
    """One time that a job held GPUs."""

    lease: Lease
    nodes: Sequence[str]
    waits_since: datetime  # the submit, or the end of the turn before


@dataclass(frozen=True)
class Told:
    """A job with what is known of it; its turns are in order. Names and numbers of people as they are exported."""

    job: Job
    user: str
    user_number: int
    account: str
    account_number: int
    account_path: str
    name: str
    turns: Sequence[Turn] = field(default=())


def read_jobs(selection: Selection) -> Iterator[list[Told]]:
    """Jobs with all their turns, in order of their numbers, some at a time."""
    teller = _Teller(selection)
    for jobs in _in_steps(selection.jobs()):
        some = list(jobs.select_related("owner", "tenant", "cluster").defer("spec"))
        turns = _turns([job.pk for job in some])
        yield [teller.told(job, turns[job.pk]) for job in some]


def read_turns(selection: Selection) -> Iterator[list[Told]]:
    """For each turn its job with this turn alone, in order of the turns' keys, some at a time."""
    teller = _Teller(selection)
    for leases in _in_steps(selection.turns()):
        some = list(leases.values_list("job_id", "pk"))
        jobs = Job.objects.filter(pk__in={job for job, _ in some})
        known = {job.pk: job for job in jobs.select_related("owner", "tenant", "cluster").defer("spec")}
        turns = {turn.lease.pk: turn for each in _turns(list(known)).values() for turn in each}
        yield [teller.told(known[job], [turns[lease]]) for job, lease in some]


def _in_steps(found: Any) -> Iterator[Any]:
    """By ranges of primary keys: each query reads a stretch of the table, whatever has been read before."""
    bounds = found.aggregate(first=Min("pk"), last=Max("pk"))
    if bounds["first"] is None:
        return
    for first in range(bounds["first"], bounds["last"] + 1, STEP):
        yield found.filter(pk__gte=first, pk__lt=first + STEP).order_by("pk")


def _turns(jobs: Sequence[int]) -> dict[int, list[Turn]]:
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
    found: dict[int, list[Turn]] = defaultdict(list)
    for lease in leases:
        before = found[lease.job_id][-1].lease.held_until if found[lease.job_id] else None
        found[lease.job_id].append(Turn(lease, nodes[lease.pk], before or lease.job.created_at))
    return found


class _Teller:
    """Names, or pseudonyms: keyed, so that only who has SECRET_KEY can tell whose they are, and always the same."""

    def __init__(self, selection: Selection) -> None:
        self._anonymous = selection.anonymous
        tenants = (
            Tenant.objects.all() if selection.seen is None else Tenant.objects.filter(pk__in=selection.seen)
        )
        self._tenants = dict(tenants.values_list("pk", "name"))

    def told(self, job: Job, turns: Sequence[Turn]) -> Told:
        # From the first team that the reader may see; whoever sees one sees all below it.
        path = [
            self._name("team", step, self._tenants[step])
            for step in job.tenant.lineage
            if step in self._tenants
        ]
        return Told(
            job=job,
            user=self._name("user", job.owner_id, job.owner.get_username()),
            user_number=self._number("user", job.owner_id),
            account=self._name("team", job.tenant_id, job.tenant.slug),
            account_number=self._number("team", job.tenant_id),
            account_path="/".join(path),
            name=self._name("job", job.name, job.name),
            turns=turns,
        )

    def _name(self, kind: str, key: object, name: str) -> str:
        return pseudonym(kind, key) if self._anonymous else name

    def _number(self, kind: str, key: int) -> int:
        return pseudonymous_number(kind, key) if self._anonymous else key


def pseudonym(kind: str, key: object) -> str:
    """Such as user-5c1d9be0a4f2: 48 bits of an HMAC-SHA-256 of what it stands for."""
    return f"{kind}-{_digest(kind, key)[:12]}"


def pseudonymous_number(kind: str, key: int) -> int:
    """31 bits of the same HMAC, as UIDs and GIDs have; others than those of the pseudonym."""
    return int(_digest(kind, key)[-8:], 16) & 0x7FFFFFFF


def _digest(kind: str, key: object) -> str:
    return salted_hmac("fairlot.exports", f"{kind}:{key}", algorithm="sha256").hexdigest()


def generations_of() -> dict[int, str]:
    return dict(Generation.objects.values_list("pk", "name"))
