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
    "submitted": Label("Submitted", "muted", "play"),
    "skipped": Label("Skipped", "muted", "slash"),
    "refused": Label("Refused", "bad", "x-circle"),
}


class Row(NamedTuple):
    """A schedule, its latest run, and the latest one that was not skipped; None without such a run."""

    schedule: Schedule
    run: ScheduleRun | None
    tried: ScheduleRun | None


def _last(row: Row) -> list[Any] | None:
    """Returns what became of the last run that was not skipped, and beside it the skip of a later one."""
    if row.run is None:
        return None
    shown = _became(row.tried) if row.tried else []
    return shown if row.tried == row.run else [*shown, *_became(row.run)]


def _became(run: ScheduleRun) -> list[Any]:
    if (job := run.job) is None:
        return [OUTCOMES[run.outcome], run.at]
    state = Label(job.get_state_display(), *wording.STATES[job.state])
    return [state, Link(f"#{job.pk}", reverse("job", args=[job.pk])), run.at]


def _when(schedule: Schedule) -> list[Any]:
    try:
        written: Any = schedule.timetable.rule.in_words()
    except TimetableError:  # the page of the schedule says why
        written = Code(schedule.expression)
    return [written, Muted(schedule.time_zone)]


def _seen(user: User) -> QuerySet[Schedule]:
    runs = ScheduleRun.objects.filter(schedule=OuterRef("pk")).order_by("-id").values("pk")
    tried = runs.exclude(outcome=ScheduleRun.Outcome.SKIPPED)
    found = Schedule.objects.visible_to(user).kept()
    found = found.annotate(latest=Subquery(runs[:1]), tried=Subquery(tried[:1]), now_state=STATE)
    return found.select_related("tenant", "owner", "cluster")


def _rows(found: Sequence[Schedule], reader: User) -> list[Row]:
    asked: list[tuple[int | None, int | None]] = [(one.latest, one.tried) for one in found]  # type: ignore[attr-defined]  # annotated
    keys = {key for pair in asked for key in pair if key}
    runs: dict[int | None, ScheduleRun] = {
        **ScheduleRun.objects.select_related("job").defer("job__spec").in_bulk(keys)
    }
    return [
        Row(one, runs.get(latest), runs.get(tried)) for one, (latest, tried) in zip(found, asked, strict=True)
    ]


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
