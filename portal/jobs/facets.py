"""Counts the jobs of the list by state, team, owner, GPU type and label."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from django.db.models import Count

from accounting.models import Tenant, User
from portal.jobs.filters import GROUPS, JobFilter, of_generation, states_of
from portal.lists.facets import Facet, facet
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
    teams = {one.pk: one for one in Tenant.objects.filter(pk__in={row[1] for row in rows})}
    owners = dict(User.objects.filter(pk__in={row[2] for row in rows}).values_list("pk", "username"))
    states = states_of(chosen.state) if chosen.state else None
    inside = _subtree(user, chosen.team) if chosen.team else None
    owner = user.get_username() if chosen.owner == "me" else chosen.owner
    by_state: Counter[str] = Counter()
    by_team: Counter[int] = Counter()
    by_owner: Counter[str] = Counter()
    for state, team, of, number in rows:
        fits = (
            states is None or state in states,
            inside is None or team in inside,
            not owner or owners[of] == owner,
        )
        if fits[1] and fits[2]:
            by_state[HOLDING if state in Job.HOLDING else state] += number
        if fits[0] and fits[2]:
            by_team[team] += number
        if fits[0] and fits[1]:
            by_owner[owners[of]] += number
    labels = dict(Job.State.choices) | {HOLDING: GROUPS[HOLDING][0]}
    below = {
        one.pk: sum(by_team[other.pk] for other in teams.values() if other.path.startswith(one.path))
        for one in teams.values()
    }
    facets = (
        ("state", "State", [(one, labels[one], by_state[one]) for one in by_state], [chosen.state]),
        ("team", "Team", [(one.slug, one.name, below[one.pk]) for one in teams.values()], [chosen.team]),
        ("owner", "Owner", [(one, one, by_owner[one]) for one in by_owner], [owner]),
    )
    cap = _cap(sum(row[3] for row in rows))
    return [facet(*one, of_newest=cap) for one in facets]


def _subtree(user: User, slug: str) -> set[int]:
    roots = Tenant.objects.visible_to(user).filter(slug=slug).values("pk")
    return set(Tenant.objects.subtree_of(roots).values_list("pk", flat=True))


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
