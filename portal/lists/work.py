"""Lists of work, such as the list of sweeps. From one declaration come the page with its columns, order, filters,
counts and saved views, and the order of the API."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Self

from django.core.paginator import Paginator
from django.db.models import Count, F, IntegerField, QuerySet
from django.db.models.expressions import Combinable
from django.db.models.fields.json import KT
from django.db.models.functions import Cast, Coalesce
from django.http import HttpResponse, QueryDict
from django.urls import path, reverse
from django.utils.functional import SimpleLazyObject
from django.views.decorators.http import require_safe

from accounting.models import Tenant, User
from portal.fragments import render_page, wanted_part
from portal.lists.choices import choice_of, choosable, columns_view
from portal.lists.columns import Columns
from portal.lists.facets import Chip, Facet, facets_of_states, subtree
from portal.lists.selection import Choice, selected_view
from portal.lists.views import opened, view_pages
from portal.live.topics import topics_of_jobs
from portal.sorting import M
from portal.user_request import UserRequest
from scheduling.models import Draft

ROWS = 50
# Titles of the parameters that narrow a list, for the chips above it.
TITLES = {"q": "Search", "state": "State", "team": "Team", "owner": "Owner"}
# What a saved view keeps of the address of a list.
PARAMETERS = (*TITLES, "sort", "columns", "facets")
KEPT = ("team", "owner", "sort", "columns", "facets")  # by the form that filters


@dataclass(frozen=True)
class WorkList(Generic[M]):
    """A list of objects that belong to a team and an owner, and have a state.

    - `name`: the plural, such as "sweeps". It is also the name of the list's URL, and its first part.
    - `one`: the singular.
    - `seen`: returns the objects that a user sees in the list, with everything that `columns` and `state` need.
    - `columns`: each has a cell.
    - `state`: what gives an object's state: a field or an expression.
    - `states`: the states by which the list can be narrowed, with their words.
    - `about`: what such an object is, in a sentence below the heading.
    - `icon`, `purpose`, `create`: for a list without rows: an icon, what the objects are for, and the text of the
      button, which leads to the URL `{one}_new`.
    - `prefix`: begins the lookups of name, team and owner, if they are fields of a related object.
    - `drafts`: the kind of drafts of such objects, whose number the page shows; "" if there are none.
    - `rows`: returns the rows of a page of objects, in the same order, for the cells; by default the objects.
    - `choices`: what users can do with several objects that they select, by a key. Their model has `changeable_by`.
    """

    name: str
    one: str
    seen: Callable[[User], QuerySet[M]]
    columns: Columns
    state: str | Combinable
    states: Mapping[str, str]
    about: str
    icon: str
    purpose: str
    create: str
    prefix: str = ""
    drafts: str = ""
    rows: Callable[[Sequence[M], User], Sequence[Any]] = lambda found, reader: found
    choices: Mapping[str, Choice] = field(default_factory=dict)

    @property
    def urls(self) -> list[Any]:
        """Returns the URLs of the list, of the form that chooses its columns, and of its saved views."""
        return [
            path(f"{self.name}/", self._view(), name=self.name),
            path(f"{self.name}/columns/", columns_view(self.name, self.columns), name=f"{self.name}_columns"),
            *view_pages(
                self.name,
                self.name,
                PARAMETERS,
                self.columns,
                lambda query: WorkFilter.read(query, self).chips(self),
            ),
            *(
                [path(f"{self.name}/selected/", selected_view(self), name=f"{self.name}_selected")]
                if self.choices
                else []
            ),
        ]

    def _view(self) -> Callable[[UserRequest], HttpResponse]:
        @require_safe
        def listing(request: UserRequest) -> HttpResponse:
            """Lists what the user sees. The URL's query sets the filter, the order, the columns and the page."""
            return show_list(request, self)

        return listing


@dataclass(frozen=True)
class WorkFilter:
    """The filter and order of a list of work. `ignored` lists the invalid values in the URL, which have no effect."""

    q: str = ""
    state: str = ""
    team: str = ""  # slug of a team
    owner: str = ""  # a user name, "me", or empty for all owners
    sort: str = ""
    columns: tuple[str, ...] = ()  # keys; empty for those that the reader has chosen before
    ignored: tuple[tuple[str, str], ...] = ()  # (name of the parameter, invalid value)

    @classmethod
    def read(cls, get: QueryDict, work: WorkList[Any]) -> Self:
        columns = [key for key in get.get("columns", "").split(",") if key]
        state, sort = get.get("state", ""), get.get("sort", "")
        unknown = {
            "state": "" if state in work.states else state,
            "order": "" if work.columns.sorts_by(sort) else sort,
            "column": ",".join(key for key in columns if not work.columns.find(key)),
        }
        return cls(
            q=get.get("q", "").strip()[:200],
            state="" if unknown["state"] else state,
            team=get.get("team", ""),
            owner=get.get("owner", "").strip()[:150],
            sort="" if unknown["order"] else sort,
            columns=work.columns.valid(columns) if columns else (),
            ignored=tuple((what, value[:40]) for what, value in unknown.items() if value),
        )

    @property
    def is_narrow(self) -> bool:
        return any(getattr(self, name) for name in TITLES)

    def chips(self, work: WorkList[Any]) -> list[Chip]:
        """Returns a chip for each value that narrows the list."""
        words = {"state": work.states, "owner": {"me": "You"}}
        values = [(name, title, getattr(self, name)) for name, title in TITLES.items()]
        return [
            Chip(name, value, title, words.get(name, {}).get(value, value))
            for name, title, value in values
            if value
        ]

    def narrow(self, found: QuerySet[M], work: WorkList[M], user: User) -> QuerySet[M]:
        """Returns the objects in `found` that match the filter. The owner "me" is `user`, the reader."""
        if self.q:
            found = found.filter(**{f"{work.prefix}name__icontains": self.q})
        if self.owner:
            who = {"": user} if self.owner == "me" else {"__username": self.owner}
            found = found.filter(**{f"{work.prefix}owner{lookup}": value for lookup, value in who.items()})
        if self.team:
            found = found.filter(**{f"{work.prefix}tenant__in": subtree(user, self.team)})
        if self.state:
            found = with_state(found, work).filter(listed_state=self.state)
        return found


def with_state(found: QuerySet[Any], work: WorkList[Any]) -> QuerySet[Any]:
    """Annotates each object with `listed_state`, its state in the list."""
    state = F(work.state) if isinstance(work.state, str) else work.state
    annotated: QuerySet[Any] = found.annotate(listed_state=state)
    return annotated


def ended_of(*states: str) -> Combinable:
    """Returns how many parts have one of these states, in objects whose field `counts` has their number by state."""
    first, *others = (Coalesce(Cast(KT(f"counts__{state}"), IntegerField()), 0) for state in states)
    total: Combinable = first
    for one in others:
        total = total + one
    return total


def show_list(request: UserRequest, work: WorkList[Any]) -> HttpResponse:
    """Renders the page of a list, or its table alone."""
    user = request.user
    chosen, choice = WorkFilter.read(request.GET, work), choice_of(user, work.name)
    view = opened(request, work.name, PARAMETERS, choice)
    if view.redirect:
        return view.redirect
    sort = chosen.sort or work.columns.usual_sort
    found = chosen.narrow(work.seen(user), work, user).order_by(*work.columns.by(sort))
    page = Paginator(found, ROWS).get_page(request.GET.get("page"))
    shown = list(page.object_list)
    columns = chosen.columns or work.columns.chosen("", choice.columns)
    if not chosen.columns and Tenant.objects.visible_to(user).count() < 2:
        columns = tuple(key for key in columns if key != "team")
    counted = request.GET.get("facets") == "1" and not wanted_part(request)
    context = {
        "work": work,
        "filter": chosen,
        "chips": chosen.chips(work),
        "view": view,
        "facets": facets_of_work(user, work, chosen) if counted else None,
        "sort": sort,
        "hidden": [(name, text) for name in KEPT if (text := request.GET.get(name))],
        "heads": [(key, work.columns.known[key]) for key in columns],
        "page": page,
        "rows": list(zip((one.pk for one in shown), work.rows(shown, user), strict=True)),
        "choosable": SimpleLazyObject(lambda: choosable(work.columns, columns)),
        "drafts": _drafts(user, work) if not wanted_part(request) else 0,
        "topics": topics_of_jobs(user),
        "addresses": {
            "list": reverse(work.name),
            "columns": reverse(f"{work.name}_columns"),
            "views": reverse(f"{work.name}_views"),
            "new": reverse(f"{work.one}_new"),
            "selected": reverse(f"{work.name}_selected") if work.choices else "",
        },
    }
    return render_page(request, "lists/work.html", context)


def _drafts(user: User, work: WorkList[Any]) -> int:
    """Returns how many drafts of such objects the user has."""
    return Draft.objects.visible_to(user).filter(kind=work.drafts).count() if work.drafts else 0


def facets_of_work(user: User, work: WorkList[Any], chosen: WorkFilter) -> list[Facet]:
    """Returns how many rows each state, team and owner has, from one query that counts their combinations.

    Each count says how many rows the list would have if its link replaced the present value of the same facet.
    """
    every = replace(chosen, state="", team="", owner="").narrow(work.seen(user), work, user)
    names = ("listed_state", f"{work.prefix}tenant", f"{work.prefix}owner")
    rows = (
        with_state(every, work)
        .order_by()
        .values(*names)
        .annotate(number=Count("pk"))
        .values_list(*names, "number")
    )
    return facets_of_states(
        user, list(rows), work.states, state=chosen.state, team=chosen.team, owner=chosen.owner
    )
