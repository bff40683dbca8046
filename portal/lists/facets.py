"""Facets of a list: how many rows have each value, with links that narrow the list; and chips of what narrows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from accounting.models import Tenant, User

MOST_VALUES = 12  # of one facet


@dataclass(frozen=True)
class Chip:
    """A value that narrows a list. The page shows a link that removes it: the parameter `name` with `value`."""

    name: str
    value: str
    title: str
    label: str


@dataclass(frozen=True)
class FacetValue:
    """A value by which the list can be narrowed, and how many rows the list then has."""

    value: str
    label: str
    count: int
    is_chosen: bool


@dataclass(frozen=True)
class Facet:
    """The values of one parameter of the address. `more` is how many values are left out. If `of_newest` is not 0, the
    counts are of so many of the newest rows, and the list may have more."""

    name: str
    title: str
    values: list[FacetValue]
    more: int = 0
    of_newest: int = 0


def facet(
    name: str,
    title: str,
    counts: Iterable[tuple[str, str, int]],
    chosen: Collection[str],
    *,
    of_newest: int = 0,
) -> Facet:
    """Returns a facet with the values that have the most rows, and those that are chosen.

    `counts` are (value, label, number of rows), and `chosen` the values by which the list is narrowed.
    """
    values = [FacetValue(*one, is_chosen=one[0] in chosen) for one in counts if one[2] or one[0] in chosen]
    shown = sorted(values, key=lambda one: (not one.is_chosen, -one.count, one.label))[:MOST_VALUES]
    return Facet(name, title, shown, len(values) - len(shown), of_newest)


def facets_of_states(
    user: User,
    rows: Collection[tuple[str, int, int, int]],
    labels: Mapping[str, str],
    *,
    state: str,
    team: str,
    owner: str,
    meant: Collection[str] | None = None,
    group: Callable[[str], str] = str,
    of_newest: int = 0,
) -> list[Facet]:
    """Returns the facets of three columns. `rows` are (state, key of the team, key of the owner, number of rows).

    - `labels`: the words for each value of the facet of states.
    - `state`, `team`, `owner`: the values by which the list is narrowed, "" for none.
    - `meant`: the states that `state` means, if it is not a single one.
    - `group`: returns the value of the facet to which a state belongs.
    - `of_newest`: as in Facet.
    """
    teams = {one.pk: one for one in Tenant.objects.filter(pk__in={row[1] for row in rows})}
    owners = dict(User.objects.filter(pk__in={row[2] for row in rows}).values_list("pk", "username"))
    states = {state} if meant is None else meant
    inside = subtree(user, team) if team else set()
    owner = user.get_username() if owner == "me" else owner
    by_state: Counter[str] = Counter()
    by_team: Counter[int] = Counter()
    by_owner: Counter[str] = Counter()
    for one, of_team, of, number in rows:
        fits = (not state or one in states, not team or of_team in inside, not owner or owners[of] == owner)
        if fits[1] and fits[2]:
            by_state[group(one)] += number
        if fits[0] and fits[2]:
            by_team[of_team] += number
        if fits[0] and fits[1]:
            by_owner[owners[of]] += number
    below = {
        one.pk: sum(by_team[other.pk] for other in teams.values() if other.path.startswith(one.path))
        for one in teams.values()
    }
    facets = (
        ("state", "State", [(one, labels[one], by_state[one]) for one in by_state], [state]),
        ("team", "Team", [(one.slug, one.name, below[one.pk]) for one in teams.values()], [team]),
        ("owner", "Owner", [(one, one, by_owner[one]) for one in by_owner], [owner]),
    )
    found = [facet(*one, of_newest=of_newest) for one in facets]
    return [one for one in found if one.values]


def subtree(user: User, slug: str) -> set[int]:
    """Returns the keys of a team that `user` may see, and of all teams below it."""
    roots = Tenant.objects.visible_to(user).filter(slug=slug).values("pk")
    return set(Tenant.objects.subtree_of(roots).values_list("pk", flat=True))
