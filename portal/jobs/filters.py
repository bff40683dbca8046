"""The job list's filter, order and page, all from the URL."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, Self

from django.db.models import Exists, F, OuterRef, Q, QuerySet, Subquery
from django.http import QueryDict

from accounting.core.numbers import read_key
from accounting.models import Generation, Tenant, User
from portal.sorting import Names, Sorting
from scheduling.models import Job, JobLabel, Lease

S = Job.State
GROUPS: dict[str, tuple[str, tuple[str, ...]]] = {
    "active": ("Not ended", Job.UNFINISHED),
    "waiting": ("Waiting", Job.WAITING),
    "running": ("Holding GPUs", Job.HOLDING),
    "ended": ("Ended", Job.ENDED),
}
SORTING = Sorting(
    {
        "created": ("created_at",), "name": (Names("name"),), "state": ("state",), "gpus": ("wanted",),
        "owner": (Names("owner__username"),), "team": (Names("tenant__name"),), "ended": ("ended_at",),
    },
    usual="-created",
    last="id",
)  # fmt: skip
LISTED = (
    "name", "state", "reason", "preemptible", "created_at", "ended_at", "tenant__name", "tenant__slug",
    "owner__username",
)  # fmt: skip
USUAL_SORT = SORTING.usual
ALL = "all"


class ListedJob(NamedTuple):
    """A job as the list shows it. A tuple, because fifty jobs with teams and owners take longer to make than to
    read."""

    pk: int
    name: str
    state: str
    reason: int
    preemptible: bool
    created_at: datetime
    ended_at: datetime | None
    team: str
    owner: str
    wanted: int  # GPUs of the whole gang
    now_on: str | None  # the generation that it holds
    starts_by: datetime | None  # when it starts at the latest, while it waits


# What the fields of ListedJob are read from.
COLUMNS = (
    "pk", "name", "state", "reason", "preemptible", "created_at", "ended_at", "tenant__name", "owner__username",
    "wanted", "now_on", "forecast__starts_by",
)  # fmt: skip


@dataclass(frozen=True)
class JobFilter:
    """The list's state; invalid values are treated as missing, and listed in `ignored`."""

    q: str = ""
    state: str = ""
    owner: str = ""  # "me" or everybody
    team: str = ""  # a tenant's slug
    generation: str = ""
    kind: str = ""  # "me" or everybody
    service: str = ""  # the key of a service: its replicas
    label: str = ""  # key=value, or a key with any value
    preemptible: bool = False  # those that take no part in the sharing
    sort: str = USUAL_SORT
    ignored: tuple[tuple[str, str], ...] = ()  # what it is, and the value without a meaning

    @classmethod
    def read(cls, get: QueryDict) -> Self:
        sort = get.get("sort") or USUAL_SORT
        state = get.get("state", "")
        kind, service = get.get("kind", ""), get.get("service", "")
        known = {
            "kind": kind in {"", ALL, *Job.Kind.values},
            "state": state in GROUPS or state in S.values or not state,
            "order": sort.removeprefix("-") in SORTING.columns,
        }
        asked = {"state": state, "order": sort, "kind": kind}
        return cls(
            q=get.get("q", "").strip()[:200],
            state=state if known["state"] else "",
            owner="me" if get.get("owner") == "me" else "",
            team=get.get("team", ""),
            generation=get.get("generation", ""),
            kind=kind if known["kind"] else "",
            label=get.get("label", "").strip()[:400],
            preemptible=get.get("preemptible") == "true",
            service=service if read_key(service) else "",
            sort=sort if known["order"] else USUAL_SORT,
            ignored=tuple((what, asked[what][:40]) for what in known if not known[what]),
        )

    @property
    def is_narrow(self) -> bool:
        """Returns whether anything is filtered out."""
        chosen = (
            self.q,
            self.state,
            self.owner,
            self.team,
            self.generation,
            self.kind,
            self.service,
            self.label,
            self.preemptible,
        )
        return any(chosen)

    def apply(self, jobs: QuerySet[Job], user: User | None = None) -> QuerySet[Job, tuple[Any, ...]]:
        """The chosen ones of `jobs` in order, as tuples for ListedJob; `user` is who "me" is, and sees the team."""
        if self.q:
            text = Q(name__icontains=self.q) | Q(owner__username__icontains=self.q)
            if number := read_key(self.q.removeprefix("#")):
                text |= Q(pk=number)
            jobs = jobs.filter(text)
        if self.state:
            jobs = jobs.filter(state__in=GROUPS[self.state][1] if self.state in GROUPS else [self.state])
        if self.owner:
            jobs = jobs.filter(owner=user)
        if self.service:
            jobs = jobs.filter(service=int(self.service))
        elif self.kind in Job.Kind.values:
            jobs = jobs.filter(kind=self.kind)
        elif self.kind != ALL:
            jobs = jobs.exclude(kind=Job.Kind.REPLICA)
        if self.preemptible:
            jobs = jobs.filter(preemptible=True)
        if self.label:
            jobs = labelled(jobs, self.label)
        if self.team and user:
            roots = Tenant.objects.visible_to(user).filter(slug=self.team).values("pk")
            jobs = jobs.filter(tenant__in=Tenant.objects.subtree_of(roots))
        if self.generation:
            wanted = Generation.objects.filter(name=self.generation).values_list("pk", flat=True)[:1]
            held = Lease.objects.filter(job=OuterRef("pk"), generation__name=self.generation)
            jobs = jobs.filter(
                Q(generation_ids__contains=list(wanted)) & ~Q(generation_ids=[]) | Exists(held)
            )
        return annotated(jobs).order_by(*SORTING.by(self.sort)).values_list(*COLUMNS)


def labelled(jobs: QuerySet[Job], text: str) -> QuerySet[Job]:
    """Returns the jobs with such a label: `text` is key=value, or a key with any value."""
    return jobs.filter(Exists(JobLabel.objects.saying(text).filter(job=OuterRef("pk"))))


def with_generation(jobs: QuerySet[Job]) -> QuerySet[Job]:
    """Like `annotated`; reads only what lists show of the job, its team and its owner."""
    return annotated(jobs.select_related("tenant", "owner").only(*LISTED))


def annotated(jobs: QuerySet[Job]) -> QuerySet[Job]:
    """Adds `now_on` (name of the generation that a job holds now) and `wanted` (GPUs of the whole gang)."""
    held = Lease.objects.filter(job=OuterRef("pk"), state__in=Lease.HOLDING).values("generation__name")[:1]
    return jobs.annotate(now_on=Subquery(held), wanted=F("workers") * F("gpus_per_worker"))
