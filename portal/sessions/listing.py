"""The list of sessions."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db.models import Case, DurationField, ExpressionWrapper, F, QuerySet, Value, When
from django.urls import reverse

from accounting.models import User
from portal import wording
from portal.lists.cells import Label, Link, Muted
from portal.lists.columns import Column, Columns
from portal.lists.work import WorkList
from portal.sessions.detail import SessionDetail, details_of
from portal.sorting import Given, Names
from scheduling.models import Job, Session

LONGEST = ExpressionWrapper(F("longest_hours") * Value(timedelta(hours=1)), output_field=DurationField())
IDLE = ExpressionWrapper(F("idle_minutes") * Value(timedelta(minutes=1)), output_field=DurationField())
STATES = {state: label for state, label in Job.State.choices if state not in Job.HOLDING} | {
    "holding": "Holding GPUs"
}


def _state(told: SessionDetail) -> list[Any]:
    state = told.job.state
    if told.is_ready:
        shown = Label("Ready", "good", "check-circle")
    elif state == Job.State.RUNNING:
        shown = Label("Not ready", "warn", "clock")
    else:
        shown = Label(Job.State(state).label, *wording.STATES[state])
    found: list[Any] = [shown]
    if told.claimable_from:
        found.append(Label("Not guaranteed", "warn", "clock"))
    return [*found, Muted(told.reason)] if told.reason else found


def _gpus(told: SessionDetail) -> str | None:
    return f"{told.lease.gpus} × {told.lease.generation.name}" if told.lease else None


def _seen(user: User) -> QuerySet[Session]:
    return Session.objects.visible_to(user).select_related("job__tenant", "job__owner", "job__cluster")


def _unless_over(moment: Any) -> Case:
    return Case(When(job__state__in=Job.ENDED, then=None), default=moment)


SESSIONS = WorkList(
    name="sessions",
    one="session",
    prefix="job__",
    seen=_seen,
    rows=details_of,
    columns=Columns(
        {
            "name": Column(
                "Session",
                (Names("job__name"),),
                is_fixed=True,
                cell=lambda told: Link(told.job.name, reverse("session", args=[told.job.pk])),
            ),
            "state": Column("State", ("job__state",), cell=_state),
            "gpus": Column("GPUs", (F("job__workers") * F("job__gpus_per_worker"),), cell=_gpus),
            "idle": Column("Idle timeout ends", (), cell=lambda told: told.idle_ends),
            "ends": Column(
                "Time limit ends",
                (_unless_over(F("job__first_started_at") + LONGEST),),
                cell=lambda told: told.ends,
            ),
            "team": Column("Team", (Names("job__tenant__name"),), cell=lambda told: told.job.tenant.name),
            "owner": Column(
                "Owner", (Names("job__owner__username"),), cell=lambda told: told.job.owner.get_username()
            ),
            "cluster": Column(
                "Cluster",
                (Names("job__cluster__name"),),
                is_usual=False,
                cell=lambda told: told.job.cluster.name,
            ),
            "latest": Column(
                "Submitted", (Given("pk"),), is_usual=False, cell=lambda told: told.job.created_at
            ),
            "ended": Column("Ended", ("job__ended_at",), is_usual=False, cell=lambda told: told.job.ended_at),
        },
        usual_sort="-latest",
    ),
    state=Case(When(job__state__in=Job.HOLDING, then=Value("holding")), default=F("job__state")),
    states=STATES,
    about="Sessions are notebooks and other interactive programs. The same tickets and limits apply to sessions as to "
    "jobs.",
    icon="edit",
    purpose="A session is a notebook or another interactive program that holds GPUs while you use it.",
    create="Start a session",
)
