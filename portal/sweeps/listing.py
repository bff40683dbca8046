"""The list of sweeps."""

from __future__ import annotations

from django.db.models import QuerySet
from django.urls import reverse

from accounting.models import User
from portal.lists.cells import Label, Link, chip_of, chips_of, counts_in_words
from portal.lists.columns import Column, Columns
from portal.lists.selection import Choice
from portal.lists.work import WorkList, ended_of
from portal.sorting import Names
from scheduling.models import Draft, Sweep, SweepMember
from scheduling.sweeps.actions import cancel_sweep

# Tone and icon of each state's chip.
STATES = {
    "running": ("info", "play"),
    "finished": ("good", "check-circle"),
    "stopped": ("good", "to-end"),
    "cancelled": ("muted", "slash"),
}
MEMBER_LABELS = dict(SweepMember.State.choices)


def label_of(shown: Sweep) -> Label:
    """Returns the chip of a sweep's state."""
    return chip_of(shown, STATES)


def _seen(user: User) -> QuerySet[Sweep]:
    found = Sweep.objects.visible_to(user).defer("spec", "parameters")
    return found.select_related("tenant", "owner", "cluster")


def _why_not_cancelled(one: Sweep) -> str:
    return "has already ended" if one.ended_at or one.state == Sweep.State.CANCELLED else ""


SWEEPS = WorkList(
    name="sweeps",
    one="sweep",
    seen=_seen,
    columns=Columns(
        {
            "name": Column(
                "Sweep",
                (Names("name"),),
                is_fixed=True,
                cell=lambda one: Link(one.name, reverse("sweep", args=[one.pk])),
            ),
            "state": Column("State", ("state",), cell=lambda one: chips_of(one, STATES)),
            "size": Column("Members", ("size",), "number", cell=lambda one: one.size),
            "progress": Column(
                "Progress",
                (ended_of("succeeded", "failed", "cancelled", "stopped", "skipped"),),
                cell=lambda one: counts_in_words(one.counts, MEMBER_LABELS),
            ),
            "metric": Column("Metric", ("metric",), is_usual=False, cell=lambda one: one.metric),
            "team": Column("Team", (Names("tenant__name"),), cell=lambda one: one.tenant.name),
            "owner": Column("Owner", (Names("owner__username"),), cell=lambda one: one.owner.get_username()),
            "cluster": Column(
                "Cluster", (Names("cluster__name"),), is_usual=False, cell=lambda one: one.cluster.name
            ),
            "created": Column("Created", ("created_at",), cell=lambda one: one.created_at),
            "ended": Column("Ended", ("ended_at",), is_usual=False, cell=lambda one: one.ended_at),
        },
        usual_sort="-created",
    ),
    state="state",
    states=dict(Sweep.State.choices),
    about="A sweep runs one job many times with different parameters.",
    icon="sliders",
    purpose="A sweep submits a job for each combination of parameters, a few at a time, and compares their metrics.",
    create="Create a sweep",
    drafts=Draft.Kind.SWEEP,
    choices={
        "cancel": Choice(
            "Cancel the selected sweeps?",
            "Cancel sweeps",
            "x-circle",
            "cancelled",
            lambda user, one: cancel_sweep(actor=user, sweep=one),
            _why_not_cancelled,
            is_dangerous=True,
        ),
    },
)
