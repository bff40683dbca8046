"""The groups of the job list: jobs and GPUs by team, owner, state, sweep or the value of a label."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from django.db.models import Count, F, OuterRef, Q, QuerySet, Subquery, Sum

from accounting.models import User
from portal.jobs.columns import COLUMNS, GPUS, GROUPED_BY, LABEL
from portal.jobs.facets import HOLDING
from portal.jobs.filters import GROUPS, JobFilter, ListedJob, listed
from scheduling.models import Job, JobLabel

MOST_GROUPS = 200
MOST_OPEN = 5
JOBS_OF_GROUP = 20
NONE = "-"  # the value of the group of jobs without one


@dataclass
class Group:
    """The jobs of the list that have one value in common.

    - `narrows`: the parameter and its value with which the list has only these jobs; None if there is none.
    - `gpus`: the GPUs that the jobs need together, and `held` those that they hold.
    - `rows`: the first jobs, if the group is open.
    """

    value: str
    label: str
    narrows: tuple[str, str] | None
    jobs: int
    gpus: int
    held: int
    is_open: bool = False
    rows: list[ListedJob] = field(default_factory=list)


@dataclass(frozen=True)
class Grouped:
    """The groups of a list: those that are shown, the number of all, and their sums."""

    shown: list[Group]
    number: int
    jobs: int
    gpus: int
    held: int

    @property
    def left_out(self) -> int:
        return self.number - len(self.shown)


def groups_of(user: User, chosen: JobFilter, opened: Iterable[str] = ()) -> Grouped:
    """Returns the groups of the jobs that match the filter, those with the most jobs first.

    `opened` are the values of the groups whose first jobs are read, at most MOST_OPEN.
    """
    by = chosen.group
    jobs = chosen.narrow(Job.objects.visible_to(user), user)
    groups = group(jobs, by)
    wanted = list(dict.fromkeys(opened))[:MOST_OPEN]
    shown = groups[:MOST_GROUPS]
    for one in shown:
        if one.value in wanted:
            one.is_open = True
            inside = _inside(_valued(jobs, by), by, one.value).order_by(*COLUMNS.by(chosen.sort))
            keys = list(inside.values_list("pk", flat=True)[:JOBS_OF_GROUP])
            read = {row[0]: ListedJob(*row) for row in listed(Job.objects.filter(pk__in=keys))}
            one.rows = [read[key] for key in keys if key in read]
    sums = (sum(getattr(one, name) for one in groups) for name in ("jobs", "gpus", "held"))
    return Grouped(shown, len(groups), *sums)


def group(jobs: QuerySet[Job], by: str) -> list[Group]:
    """Returns the groups of jobs, those with the most jobs first. `by` is a key of GROUPED_BY, or "label:KEY"."""
    rows = (
        _valued(jobs, by)
        .order_by()
        .values("group_value", "group_label")
        .annotate(
            number=Count("pk"), gpus=Sum(GPUS), held=Sum(GPUS, filter=Q(state__in=Job.HOLDING), default=0)
        )
        .values_list("group_value", "group_label", "number", "gpus", "held")
    )
    found: dict[str, Group] = {}
    for value, label, number, gpus, held in rows:
        one = _group(by, value, label)
        one = found.setdefault(one.value, one)
        one.jobs, one.gpus, one.held = one.jobs + number, one.gpus + gpus, one.held + held
    return sorted(found.values(), key=lambda one: (-one.jobs, one.label))


def _valued(jobs: QuerySet[Any], by: str) -> QuerySet[Any]:
    """Annotates each job with the value and the label of its group."""
    if by in GROUPED_BY:
        value, label = GROUPED_BY[by]
        words: dict[str, Any] = {"group_value": F(value), "group_label": F(label)}
    else:
        labels = JobLabel.objects.filter(job=OuterRef("pk"), key=by.removeprefix(LABEL)).values("value")[:1]
        words = {"group_value": Subquery(labels), "group_label": F("group_value")}
    valued: QuerySet[Any] = jobs.annotate(**words)
    return valued


def _group(by: str, value: Any, label: str | None) -> Group:
    key = by.removeprefix(LABEL)
    if value is None:
        return Group(NONE, f"No {key}", None, 0, 0, 0)
    if by == "state":
        value = HOLDING if value in Job.HOLDING else value
        label = GROUPS[HOLDING][0] if value == HOLDING else Job.State(value).label
    if by not in GROUPED_BY:
        narrows = ("label", f"{key}={value}")
        return Group(f"={value}", str(value) or f"{key} without a value", narrows, 0, 0, 0)
    return Group(str(value), str(label), (by, str(value)), 0, 0, 0)


def _inside(jobs: QuerySet[Any], by: str, value: str) -> QuerySet[Any]:
    if value == NONE:
        return jobs.filter(group_value=None)
    if by == "state" and value == HOLDING:
        return jobs.filter(state__in=Job.HOLDING)
    return jobs.filter(group_value=value if by in GROUPED_BY else value.removeprefix("="))


def groupings(label_keys: Iterable[str], *, with_team: bool) -> list[tuple[str, str]]:
    """Returns what jobs can be grouped by, and the words for it. `label_keys` are the labels to offer."""
    words = [("team", "Team")] if with_team else []
    words += [("owner", "Owner"), ("state", "State"), ("sweep", "Sweep")]
    return [*words, *((f"{LABEL}{key}", f"Label {key}") for key in label_keys)]
