"""The filter and order of the job list, read from the URL's query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple, Self
from urllib.parse import urlencode

from django.db.models import Exists, OuterRef, Q, QuerySet
from django.http import QueryDict
from django.urls import reverse
from django.utils.timezone import localtime, now

from accounting.core.numbers import read_key
from accounting.core.wording import to_the_second
from accounting.models import Generation, Tenant, User
from portal.jobs.columns import COLUMNS as LIST
from portal.jobs.columns import GPUS, GROUPED_BY, LABEL, NOW_ON
from portal.lists.facets import Chip
from scheduling.models import Job, JobLabel, Lease

S = Job.State
GROUPS: dict[str, tuple[str, tuple[str, ...]]] = {
    "active": ("Not ended", Job.UNFINISHED),
    "waiting": ("Waiting", Job.WAITING),
    "running": ("Holding GPUs", Job.HOLDING),
    "ended": ("Ended", Job.ENDED),
}
LISTED = (
    "name", "state", "reason", "preemptible", "created_at", "ended_at", "tenant__name", "tenant__slug",
    "owner__username",
)  # fmt: skip
USUAL_SORT = LIST.usual_sort
ALL = "all"


class ListedJob(NamedTuple):
    """A row of the job list.

    It is a tuple and not a model instance, because creating fifty `Job` instances, each with its team and owner, takes
    longer than reading the rows from the database.
    """

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
    now_on: str | None  # the generation of the GPUs that the job holds
    # The interval in which a waiting job is expected to start.
    earliest: datetime | None
    starts_by: datetime | None
    first_started_at: datetime | None
    held_for: timedelta  # in the attempts that have ended
    kind: str
    priority: int
    deadline: datetime | None
    time_limit_hours: float | None
    attempts: int
    failures: int
    exit_code: int | None
    steps: Decimal | None
    sweep: str | None
    pipeline: str | None
    cluster: str
    labels: dict[str, str] | None


# The query's columns, in the order of the fields of ListedJob.
COLUMNS = (
    "pk", "name", "state", "reason", "preemptible", "created_at", "ended_at", "tenant__name", "owner__username",
    "wanted", "now_on", "forecast__earliest", "forecast__starts_by", "first_started_at", "held_for", "kind", "priority",
    "deadline", "time_limit_hours", "epoch", "failures", "exit_code", "steps_done", "sweep__name", "pipeline__name",
    "cluster__name", "spec__labels",
)  # fmt: skip


# Titles of the parameters that narrow the list, for the chips above it.
TITLES = {
    "q": "Search", "state": "State", "owner": "Owner", "team": "Team", "generation": "GPU type", "kind": "Kind",
    "label": "Label", "preemptible": "Sharing", "service": "Service", "sweep": "Sweep", "pipeline": "Pipeline",
    "held": "Held GPUs",
}  # fmt: skip
MOST_LABELS = 10
# What a saved view keeps of the address of the list.
PARAMETERS = (*TITLES, "sort", "columns", "group", "facets")


@dataclass(frozen=True)
class JobFilter:
    """The filter and order of the job list. `ignored` lists the invalid values in the URL, which have no effect."""

    q: str = ""
    state: str = ""
    owner: str = ""  # a user name, "me", or empty for all owners
    team: str = ""  # slug of a tenant
    generation: str = ""
    kind: str = ""  # a kind of job, "all", or empty for all kinds except replicas
    service: str = ""  # key of the service whose replicas are listed
    sweep: str = ""  # key of the sweep whose jobs are listed
    pipeline: str = ""  # key of the pipeline whose jobs are listed
    held: str = ""  # "begin/end" of the period in which jobs held GPUs, in ISO format
    label: tuple[str, ...] = ()  # each "key=value", or "key" for any value; a job must have all of them
    preemptible: bool = False  # whether only preemptible jobs are listed
    sort: str = USUAL_SORT
    group: str = ""  # one of GROUPED_BY, or "label:KEY"; empty for no groups
    columns: tuple[str, ...] = ()  # keys; empty for those that the reader has chosen before
    ignored: tuple[tuple[str, str], ...] = ()  # (name of the parameter, invalid value)

    @classmethod
    def read(cls, get: QueryDict) -> Self:
        sort = get.get("sort") or USUAL_SORT
        state = get.get("state", "")
        kind, service, sweep, pipeline = (
            get.get(name, "") for name in ("kind", "service", "sweep", "pipeline")
        )
        group = get.get("group", "")
        columns = [key for key in get.get("columns", "").split(",") if key]
        unknown = ",".join(key for key in columns if not LIST.find(key))
        held = get.get("held", "")
        known = {
            "column": not unknown,
            "period": not held or period_of(held) is not None,
            "kind": kind in {"", ALL, *Job.Kind.values},
            "state": state in GROUPS or state in S.values or not state,
            "order": LIST.sorts_by(sort),
            "group": group in {"", *GROUPED_BY} or (group.startswith(LABEL) and LIST.find(group) is not None),
        }
        asked = {
            "column": unknown,
            "state": state,
            "order": sort,
            "kind": kind,
            "group": group,
            "period": held,
        }
        labels = dict.fromkeys(text.strip()[:400] for text in get.getlist("label"))
        return cls(
            q=get.get("q", "").strip()[:200],
            state=state if known["state"] else "",
            owner=get.get("owner", "").strip()[:150],
            team=get.get("team", ""),
            generation=get.get("generation", ""),
            kind=kind if known["kind"] else "",
            label=tuple(filter(None, labels))[:MOST_LABELS],
            preemptible=get.get("preemptible") == "true",
            held=held if known["period"] else "",
            service=service if read_key(service) else "",
            sweep=sweep if read_key(sweep) else "",
            pipeline=pipeline if read_key(pipeline) else "",
            sort=sort if known["order"] else USUAL_SORT,
            group=group if known["group"] else "",
            columns=LIST.valid(columns) if columns else (),
            ignored=tuple((what, asked[what][:40]) for what in known if not known[what]),
        )

    @property
    def is_narrow(self) -> bool:
        """Returns whether the filter excludes any jobs."""
        return any(getattr(self, name) for name in TITLES)

    def chips(self) -> list[Chip]:
        """Returns a chip for each value that narrows the list."""
        words = {
            "state": {key: label for key, (label, _) in GROUPS.items()} | dict(S.choices),
            "kind": dict(Job.Kind.choices) | {ALL: "All"},
            "owner": {"me": "You"},
        }
        words["state"] |= {key: label for key, (label, _) in GROUPS.items()}
        found = []
        for name, title in TITLES.items():
            value = getattr(self, name)
            if name == "held" and (period := period_of(value)):
                begins, ends = (to_the_second(localtime(one), now()) for one in period)
                found.append(Chip(name, value, title, f"{begins} to {ends}"))
                continue
            if name == "preemptible":
                found += [Chip(name, "true", title, "Preemptible")] if value else []
                continue
            for one in value if isinstance(value, tuple) else filter(None, [value]):
                found.append(Chip(name, one, title, str(words.get(name, {}).get(one, one))))
        return found

    def narrow(self, jobs: QuerySet[Job], user: User | None = None) -> QuerySet[Job]:
        """Returns the jobs in `jobs` that match the filter.

        `user` is the reader. The owner "me" in the filter means this user, and a filter by team finds only teams that
        this user may see.
        """
        if self.q:
            text = Q(name__icontains=self.q) | Q(owner__username__icontains=self.q)
            if number := read_key(self.q.removeprefix("#")):
                text |= Q(pk=number)
            jobs = jobs.filter(text)
        if self.state:
            jobs = jobs.filter(state__in=states_of(self.state))
        if self.owner:
            jobs = jobs.filter(owner=user) if self.owner == "me" else jobs.filter(owner__username=self.owner)
        if self.service:
            jobs = jobs.filter(service=int(self.service))
        elif self.kind in Job.Kind.values:
            jobs = jobs.filter(kind=self.kind)
        elif self.kind != ALL:
            jobs = jobs.exclude(kind=Job.Kind.REPLICA)
        whole = {"sweep": self.sweep, "pipeline": self.pipeline}
        jobs = jobs.filter(**{name: int(key) for name, key in whole.items() if key})
        if self.preemptible:
            jobs = jobs.filter(preemptible=True)
        for label in self.label:
            jobs = labelled(jobs, label)
        if self.team and user:
            roots = Tenant.objects.visible_to(user).filter(slug=self.team).values("pk")
            jobs = jobs.filter(tenant__in=Tenant.objects.subtree_of(roots))
        if period := period_of(self.held):
            jobs = jobs.filter(held_gpus_in(period, self.generation))
        elif self.generation:
            jobs = jobs.filter(of_generation(self.generation))
        return jobs

    def apply(self, jobs: QuerySet[Job], user: User | None = None) -> QuerySet[Job]:
        """Returns the jobs in `jobs` that match the filter, sorted. `user` is the reader, as for `narrow`."""
        return self.narrow(jobs, user).order_by(*LIST.by(self.sort))


def states_of(text: str) -> Sequence[str]:
    """Returns the states that the name of a state, or of a group of states, means."""
    return GROUPS[text][1] if text in GROUPS else [text]


def period_of(text: str) -> tuple[datetime, datetime] | None:
    """Returns the period (begin, end) in a text such as "2026-11-27T10:00:00Z/2026-11-27T11:00:00Z".

    Returns None for an empty text, and for one that is no such period.
    """
    try:
        begins, ends = map(datetime.fromisoformat, text.split("/"))
    except ValueError:
        return None
    if not (begins.tzinfo and ends.tzinfo and begins.year >= 2000 and ends.year <= 2200):
        return None
    return (begins, ends) if begins < ends else None


def held_gpus_in(period: tuple[datetime, datetime], generation: str = "") -> Exists:
    """Returns the condition that a job held GPUs in the period; with `generation`, GPUs of this type."""
    begins, ends = period
    held = Lease.objects.filter(job=OuterRef("pk"), held_from__lt=ends)
    if generation:
        held = held.filter(generation__name=generation)
    return Exists(held.filter(Q(held_until=None) | Q(held_until__gt=begins)))


def jobs_in(
    begins: datetime, ends: datetime, *, team: str = "", generation: str = "", owner: str = ""
) -> str:
    """Returns the address of the list of jobs that held GPUs in a period, for charts and tables that lead to the jobs
    behind a value."""
    held = "/".join(one.astimezone(UTC).isoformat(timespec="seconds") for one in (begins, ends))
    chosen = {"kind": ALL, "held": held, "team": team, "generation": generation, "owner": owner}
    return f"{reverse('jobs')}?{urlencode({name: value for name, value in chosen.items() if value})}"


def of_generation(name: str) -> Q:
    """Returns the condition that a job accepts only some generations, with this one, or has held GPUs of it."""
    wanted = Generation.objects.filter(name=name).values_list("pk", flat=True)[:1]
    held = Lease.objects.filter(job=OuterRef("pk"), generation__name=name)
    return Q(generation_ids__contains=list(wanted)) & ~Q(generation_ids=[]) | Q(Exists(held))


def listed(jobs: QuerySet[Job]) -> QuerySet[Job, tuple[Any, ...]]:
    """Returns jobs as tuples of the fields of ListedJob."""
    return annotated(jobs).values_list(*COLUMNS)


def labelled(jobs: QuerySet[Job], text: str) -> QuerySet[Job]:
    """Returns the jobs that have a label. `text` is "key=value", or "key" for a label with any value."""
    return jobs.filter(Exists(JobLabel.objects.saying(text).filter(job=OuterRef("pk"))))


def with_generation(jobs: QuerySet[Job]) -> QuerySet[Job]:
    """Returns the jobs with the annotations `now_on` (the name of the generation that the job holds) and `wanted` (the
    number of GPUs that it needs).

    Reads only those columns of job, team and owner that lists show.
    """
    return annotated(jobs.select_related("tenant", "owner").only(*LISTED))


def annotated(jobs: QuerySet[Job]) -> QuerySet[Job]:
    """Annotates each job with `now_on` and `wanted`.

    `now_on` is the name of the generation whose GPUs the job holds, or None. `wanted` is the number of GPUs that the
    whole gang needs.
    """
    return jobs.annotate(now_on=NOW_ON, wanted=GPUS)
