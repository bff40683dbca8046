"""The list of schedules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from django.db.models import Case, F, OuterRef, QuerySet, Subquery, Value, When
from django.urls import reverse

from accounting.models import User
from portal import wording
from portal.lists.cells import Code, Label, Link, Muted
from portal.lists.columns import Column, Columns
from portal.lists.selection import Choice
from portal.lists.work import WorkList
from portal.sorting import Names, Since
from scheduling.models import Draft, Schedule, ScheduleRun
from scheduling.schedules.actions import pause_schedule, resume_schedule
from scheduling.timetable import TimetableError

# A paused schedule has no next run, although `next_due_at` keeps its value.
NEXT = Case(When(paused_at=None, then=F("next_due_at")))
STATE = Case(
    When(paused_at__isnull=False, then=Value("paused")),
    When(next_due_at=None, then=Value("over")),
    When(cluster__detached_at__isnull=False, then=Value("detached")),
    When(tenant__archived_at__isnull=False, then=Value("archived")),
    default=Value("active"),
)
# By state: the text, tone and icon of its chip.
LABELS = {
    "active": Label("Active", "good", "check-circle"),
    "paused": Label("Paused", "warn", "pause"),
    "over": Label("Over", "muted", "to-end"),
    "detached": Label("Cluster detached", "warn", "clock"),
    "archived": Label("Team archived", "warn", "clock"),
}
OUTCOMES = {
    "submitted": Label("Submitted", "good", "play"),
    "skipped": Label("Skipped", "muted", "slash"),
    "refused": Label("Refused", "bad", "x-circle"),
}


class Row(NamedTuple):
    """A schedule and its latest run; None without runs."""

    schedule: Schedule
    run: ScheduleRun | None


def _last(row: Row) -> list[Any] | None:
    if row.run is None:
        return None
    if (job := row.run.job) is None:
        return [OUTCOMES[row.run.outcome], row.run.at]
    state = Label(job.get_state_display(), *wording.STATES[job.state])
    return [state, Link(f"#{job.pk}", reverse("job", args=[job.pk])), row.run.at]


def _when(schedule: Schedule) -> list[Any]:
    try:
        written: Any = schedule.timetable.rule.in_words()
    except TimetableError:  # the page of the schedule says why
        written = Code(schedule.expression)
    return [written, Muted(schedule.time_zone)]


def _seen(user: User) -> QuerySet[Schedule]:
    latest = ScheduleRun.objects.filter(schedule=OuterRef("pk")).order_by("-id").values("pk")[:1]
    found = Schedule.objects.visible_to(user).kept().annotate(latest=Subquery(latest), now_state=STATE)
    return found.select_related("tenant", "owner", "cluster")


def _rows(found: Sequence[Schedule], reader: User) -> list[Row]:
    latest: list[int | None] = [one.latest for one in found]  # type: ignore[attr-defined]  # annotated
    runs = ScheduleRun.objects.select_related("job").defer("job__spec").in_bulk(filter(None, latest))
    return [Row(one, runs.get(key) if key else None) for one, key in zip(found, latest, strict=True)]


SCHEDULES = WorkList(
    name="schedules",
    one="schedule",
    seen=_seen,
    rows=_rows,
    columns=Columns(
        {
            "name": Column(
                "Schedule",
                (Names("name"),),
                is_fixed=True,
                cell=lambda row: Link(row.schedule.name, reverse("schedule", args=[row.schedule.pk])),
            ),
            "state": Column(
                "State", (Since("paused_at"), NEXT), cell=lambda row: LABELS[row.schedule.now_state]
            ),
            "when": Column(
                "When",
                ("expression",),
                cell=lambda row: _when(row.schedule),
            ),
            "next": Column(
                "Next run",
                (NEXT,),
                cell=lambda row: None if row.schedule.paused_at else row.schedule.next_due_at,
            ),
            "last": Column("Last run", ("latest",), cell=_last),
            "team": Column("Team", (Names("tenant__name"), NEXT), cell=lambda row: row.schedule.tenant.name),
            "owner": Column(
                "Owner", (Names("owner__username"), NEXT), cell=lambda row: row.schedule.owner.get_username()
            ),
            "cluster": Column(
                "Cluster",
                (Names("cluster__name"),),
                is_usual=False,
                cell=lambda row: row.schedule.cluster.name,
            ),
            "created": Column(
                "Created", ("created_at",), is_usual=False, cell=lambda row: row.schedule.created_at
            ),
        },
        usual_sort="next",
    ),
    state=STATE,
    states={key: label.text for key, label in LABELS.items()},
    about="Schedules submit jobs repeatedly. The same tickets and limits apply to these jobs as to other jobs.",
    icon="calendar",
    purpose="A schedule submits a job at set times: every night, every Monday, on the last day of each month.",
    create="Create a schedule",
    drafts=Draft.Kind.SCHEDULE,
    choices={
        "pause": Choice(
            "Pause the selected schedules?",
            "Pause",
            "pause",
            "paused",
            lambda user, one: pause_schedule(actor=user, schedule=one),
            lambda one: "is paused already" if one.paused_at else "",
        ),
        "resume": Choice(
            "Resume the selected schedules?",
            "Resume",
            "play",
            "resumed",
            lambda user, one: resume_schedule(actor=user, schedule=one),
            lambda one: "" if one.paused_at else "is not paused",
        ),
    },
)
