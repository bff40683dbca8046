"""The columns of the job list."""

from __future__ import annotations

from django.db.models import F, OuterRef, Subquery

from portal.lists.columns import Column, Columns
from portal.sorting import Given, Names
from scheduling.models import JobLabel, Lease
from scheduling.spec.labels import LONGEST_KEY

LABEL = "label:"  # begins the key of a column that shows one label

GPUS = F("workers") * F("gpus_per_worker")  # of the whole gang
# The name of the generation whose GPUs the job holds.
NOW_ON = Subquery(
    Lease.objects.filter(job=OuterRef("pk"), state__in=Lease.HOLDING).values("generation__name")[:1]
)


def _label_column(key: str) -> Column | None:
    label = key.removeprefix(LABEL)
    if (
        not key.startswith(LABEL)
        or not 0 < len(label) <= LONGEST_KEY
        or "," in label
        or not label.isprintable()
    ):
        return None
    value = JobLabel.objects.filter(job=OuterRef("pk"), key=label).values("value")[:1]
    return Column(label, (Subquery(value),), is_usual=False)


COLUMNS = Columns(
    {
        "name": Column("Job", (Names("name"),), is_fixed=True),
        "state": Column("State", ("state",)),
        "gpus": Column("GPUs", (GPUS,), "number"),
        "team": Column("Team", (Names("tenant__name"),)),
        "owner": Column("Owner", (Names("owner__username"),)),
        "created": Column("Submitted", (Given("created_at"),)),
        "ended": Column("Ended", ("ended_at",)),
        "started": Column("First started", ("first_started_at",), is_usual=False),
        "held": Column("Time on GPUs", ("held_for",), "number", is_usual=False),
        "generation": Column("GPU type", (NOW_ON,), is_usual=False),
        "kind": Column("Kind", ("kind",), is_usual=False),
        "priority": Column("Priority", ("priority",), "number", is_usual=False),
        "deadline": Column("Deadline", ("deadline",), is_usual=False),
        "time_limit": Column("Time limit", ("time_limit_hours",), "number", is_usual=False),
        "attempts": Column("Attempts", ("epoch",), "number", is_usual=False),
        "failures": Column("Failures", ("failures",), "number", is_usual=False),
        "exit": Column("Exit code", ("exit_code",), "number", is_usual=False),
        "steps": Column("Steps", ("steps_done",), "number", is_usual=False),
        "sweep": Column("Sweep", (Names("sweep__name"),), is_usual=False),
        "pipeline": Column("Pipeline", (Names("pipeline__name"),), is_usual=False),
        "cluster": Column("Cluster", (Names("cluster__name"),), is_usual=False),
    },
    usual_sort="-created",
    last="id",
    derive=_label_column,
)

# What jobs are grouped by, with the columns that have the value and its words. A label is "label:KEY".
GROUPED_BY: dict[str, tuple[str, str]] = {
    "team": ("tenant__slug", "tenant__name"),
    "owner": ("owner__username", "owner__username"),
    "state": ("state", "state"),
    "sweep": ("sweep", "sweep__name"),
}
