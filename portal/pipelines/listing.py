"""The list of pipelines."""

from __future__ import annotations

from django.db.models import QuerySet
from django.urls import reverse

from accounting.models import User
from portal.lists.cells import Label, Link, chip_of, chips_of, counts_in_words
from portal.lists.columns import Column, Columns
from portal.lists.work import WorkList, ended_of
from portal.sorting import Names
from scheduling.models import Draft, Pipeline, PipelineStep

# Tone and icon of each state's chip.
STATES = {
    "running": ("info", "play"),
    "succeeded": ("good", "check-circle"),
    "failed": ("bad", "x-circle"),
    "cancelled": ("muted", "slash"),
}
STEP_LABELS = dict(PipelineStep.State.choices)


def label_of(shown: Pipeline) -> Label:
    """Returns the chip of a pipeline's state."""
    return chip_of(shown, STATES)


def _seen(user: User) -> QuerySet[Pipeline]:
    return Pipeline.objects.visible_to(user).select_related("tenant", "owner", "cluster")


PIPELINES = WorkList(
    name="pipelines",
    one="pipeline",
    seen=_seen,
    columns=Columns(
        {
            "name": Column(
                "Pipeline",
                (Names("name"),),
                is_fixed=True,
                cell=lambda one: Link(one.name, reverse("pipeline", args=[one.pk])),
            ),
            "state": Column("State", ("state",), cell=lambda one: chips_of(one, STATES)),
            "steps": Column(
                "Steps",
                (ended_of("succeeded", "failed", "cancelled", "skipped"),),
                cell=lambda one: counts_in_words(one.counts, STEP_LABELS),
            ),
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
    states=dict(Pipeline.State.choices),
    about="A pipeline runs jobs one after another, and passes their files on.",
    icon="flow",
    purpose="A pipeline submits each job once the jobs that it needs have ended.",
    create="Create a pipeline",
    drafts=Draft.Kind.PIPELINE,
)
