"""Counts the jobs of the list by state, team, owner, GPU type and label."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from django.db.models import Count

from accounting.models import User
from portal.jobs.filters import GROUPS, JobFilter, of_generation, states_of
from portal.lists.facets import Facet, facet, facets_of_states
from scheduling.models import Job, JobLabel
from scheduling.models.jobs import JobQuerySet

MOST_COUNTED = 5_000  # jobs; of more jobs, the newest are counted
MOST_SHOWN = 100  # labels that are read
HOLDING = "running"  # the group of states whose jobs hold GPUs


def facets_of(user: User, chosen: JobFilter, generations: Sequence[str], *, number: int) -> list[Facet]:
    """Returns the facets of the job list.

    Each count says how many jobs the list would have if its link replaced the present value of the same facet. If that
    would have to count MOST_COUNTED jobs or more, the newest of them are counted, and the list has at least so many.
    `generations` are the names of the generations to count, and `number` is how many jobs the list has.
    """
    found = [
        *_state_team_and_owner(user, chosen),
        _generations(user, chosen, generations),
        _labels(user, chosen, number=number),
    ]
    return [one for one in found if one.values]


def _newest(user: User, chosen: JobFilter) -> JobQuerySet:
    """Returns the newest jobs that match the filter, not sorted."""
    jobs = chosen.narrow(Job.objects.visible_to(user), user)
    newest = jobs.order_by("-created_at", "-pk").values("pk")[:MOST_COUNTED]
    return Job.objects.filter(pk__in=newest).order_by()


def _cap(number: int) -> int:
    return MOST_COUNTED if number >= MOST_COUNTED else 0


def _state_team_and_owner(user: User, chosen: JobFilter) -> list[Facet]:
    """Returns the facets of three columns, from one query that counts their combinations."""
    rows = list(
        _newest(user, replace(chosen, state="", team="", owner=""))
        .values_list("state", "tenant", "owner")
        .annotate(number=Count("pk"))
        .values_list("state", "tenant", "owner", "number")
    )
    return facets_of_states(
        user,
        rows,
        dict(Job.State.choices) | {HOLDING: GROUPS[HOLDING][0]},
        state=chosen.state,
        team=chosen.team,
        owner=chosen.owner,
        meant=states_of(chosen.state),
        group=lambda state: HOLDING if state in Job.HOLDING else state,
        of_newest=_cap(sum(row[3] for row in rows)),
    )


def _generations(user: User, chosen: JobFilter, names: Sequence[str]) -> Facet:
    counts = {f"of_{place}": Count("pk", filter=of_generation(name)) for place, name in enumerate(names)}
    numbers = _newest(user, replace(chosen, generation="")).aggregate(number=Count("pk"), **counts)
    return facet(
        "generation",
        "GPU type",
        [(name, name, numbers[f"of_{place}"]) for place, name in enumerate(names)],
        [chosen.generation],
        of_newest=_cap(numbers["number"]),
    )


def _labels(user: User, chosen: JobFilter, *, number: int) -> Facet:
    """Returns the facet of labels. Unlike other values, each label narrows the list further."""
    found = (
        JobLabel.objects.filter(job__in=_newest(user, chosen).values("pk"))
        .order_by()
        .values_list("key", "value")
        .annotate(number=Count("pk"))
        .order_by("-number", "key", "value")[:MOST_SHOWN]
    )
    texts = [(f"{key}={value}" if value else key, count) for key, value, count in found]
    counts = [(text, text, count) for text, count in texts]
    return facet("label", "Label", counts, chosen.label, of_newest=_cap(number))
