"""The pages on which users save, share and remove views of a list."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import ValidationError
from django.http import HttpResponse, QueryDict
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404, redirect
from django.urls import path, reverse
from django.views.decorators.http import require_http_methods

from accounting.core.name_order import by_name
from accounting.core.numbers import read_key
from accounting.models import Membership, Tenant
from portal.access import posted_from
from portal.forms.fields import NOT_LISTED, Choice, Switch, Text
from portal.forms.form import Form
from portal.forms.posting import act_on, show, tell
from portal.fragments import wanted_part
from portal.lists.choices import Choices, choice_of
from portal.lists.columns import Columns
from portal.lists.facets import Chip
from portal.lists.saved import (
    ALL,
    address_of,
    choose_default_view,
    find_view,
    kept,
    remove_view,
    save_view,
    views_for,
)
from portal.models import SavedView
from portal.user_request import UserRequest


class ViewForm(Form):
    """The form that saves a view: its name, with whom it is shared, and whether it opens first."""

    name = Text("Name", maxlength=60, help_text="A view of yours with this name is replaced.")
    team = Choice("Who sees it")
    is_default = Switch("Open the list with this view")

    def __init__(self, request: UserRequest, *, is_posted: bool) -> None:
        super().__init__("view", request if is_posted else None)
        managed = Tenant.objects.visible_to(request.user, role=Membership.Role.MANAGER).active()
        self.teams = {team.slug: team for team in managed.order_by(*by_name("name"))}
        named = [(slug, f"I and all members of {team.name}") for slug, team in self.teams.items()]
        self.offer("team", [("", "only I"), *named])

    def clean_team(self) -> Tenant | None:
        slug = self.cleaned_data["team"]
        if slug and slug not in self.teams:
            raise ValidationError(NOT_LISTED)
        return self.teams.get(slug)


@dataclass
class Opened:
    """The view in whose state a list is shown, for the menu of views.

    - `views`: (view, its address) for each view that the reader may open.
    - `view`: the view that the address names; None without one.
    - `is_changed`: whether the address has something else than the view.
    - `redirect`: where the reader finds the view that the list opens with, if the address has no state.
    - `unknown`: the view in the address that does not exist; "" if there is none.
    """

    views: list[tuple[SavedView, str]]
    view: SavedView | None = None
    is_changed: bool = False
    redirect: HttpResponse | None = None
    unknown: str = ""


def opened(request: UserRequest, name: str, parameters: Collection[str], choice: Choices) -> Opened:
    """Returns the view in which the list with the URL name `name` is shown. `choice` is what its reader has chosen."""
    if wanted_part(request):  # refreshes the table alone
        return Opened([])
    views = views_for(request.user, name)
    found = Opened([(one, address_of(one)) for one in views])
    asked = request.GET.get("view", "") if request.GET else str(choice.default_view or ALL)
    if asked in {"", ALL}:
        return found
    found.view = find_view(views, asked)
    if found.view is None:
        found.unknown = asked if request.GET else ""
    elif set(request.GET) <= {"view"} and found.view.query:
        found.redirect = redirect(address_of(found.view))
    else:
        found.is_changed = kept(request.GET, parameters) != found.view.query
    return found


def view_pages(
    name: str,
    title: str,
    parameters: Collection[str],
    columns: Columns,
    chips: Callable[[QueryDict], Sequence[Chip]],
) -> list[Any]:
    """Returns the URLs of the pages for the views of the list with the URL name `name`.

    - `title`: the list in words, such as "jobs".
    - `parameters`: what a view keeps of the list's address.
    - `chips`: returns a chip for each value in the address that narrows the list.
    """
    pages = _views(name, title, parameters, lambda query: _in_words(query, columns, chips))
    return [
        path(f"{title}/views/", pages, name=f"{name}_views"),
        path(f"{title}/views/<int:pk>/remove/", _remove(name), name=f"{name}_view_remove"),
        path(f"{title}/views/default/", _default(name), name=f"{name}_view_default"),
    ]


def _in_words(
    query: QueryDict, columns: Columns, chips: Callable[[QueryDict], Sequence[Chip]]
) -> list[tuple[str, str]]:
    """Returns what a view of this address would keep, as pairs of a title and words."""
    found = [(chip.title, chip.label) for chip in chips(query)]
    sort = query.get("sort", "")
    if sort and columns.sorts_by(sort):
        direction = "descending" if sort.startswith("-") else "ascending"
        found.append(("Order", f"{columns.label_of(sort.removeprefix('-'))}, {direction}"))
    if group := query.get("group"):
        found.append(("Groups", columns.label_of(group)))
    if shown := query.get("columns"):
        found.append(("Columns", ", ".join(map(columns.label_of, columns.chosen(shown)))))
    return [*found, ("Counts", "shown")] if query.get("facets") else found


def _views(
    name: str,
    title: str,
    parameters: Collection[str],
    in_words: Callable[[QueryDict], list[tuple[str, str]]],
) -> Callable[..., HttpResponse]:
    @require_http_methods(["GET", "HEAD", "POST"])
    def views(request: UserRequest) -> HttpResponse:
        """Lists the views that the user may open. A POST saves the state of the list in the address as a view."""
        query = kept(request.GET, parameters)
        form = ViewForm(request, is_posted=request.method == "POST")
        saved: list[SavedView] = []
        if form.is_bound and act_on(
            form,
            lambda values: saved.append(
                save_view(
                    actor=request.user,
                    list_name=name,
                    name=values["name"],
                    query=query,
                    tenant=values["team"],
                    is_default=values["is_default"],
                )
            ),
        ):
            return redirect(address_of(saved[0]))
        changeable = set(SavedView.objects.changeable_by(request.user).values_list("pk", flat=True))
        found = views_for(request.user, name)
        context = {
            "title": title,
            "list": reverse(name),
            "query": query,
            "words": in_words(QueryDict(query)),
            "default": choice_of(request.user, name).default_view,
            "default_address": reverse(f"{name}_view_default"),
            "rows": [
                (one, address_of(one), reverse(f"{name}_view_remove", args=[one.pk]), one.pk in changeable)
                for one in found
            ],
            "form": form,
        }
        return show(request, "lists/views.html", context, posted=form if form.is_bound else None)

    return views


def _remove(name: str) -> Callable[..., HttpResponseBase]:
    @posted_from(f"{name}_views")
    def remove(request: UserRequest, pk: int) -> HttpResponse:
        view = get_object_or_404(SavedView.objects.visible_to(request.user).filter(list_name=name), pk=pk)
        tell(
            request,
            lambda: remove_view(actor=request.user, view=view),
            f"The view {view.name} has been removed.",
        )
        return redirect(f"{name}_views")

    return remove


def _default(name: str) -> Callable[..., HttpResponseBase]:
    @posted_from(f"{name}_views")
    def choose(request: UserRequest) -> HttpResponse:
        """Opens the list with the posted view from now on; with all rows if none is posted."""
        key = read_key(request.POST.get("view", ""))
        seen = SavedView.objects.visible_to(request.user).filter(list_name=name)
        view = get_object_or_404(seen, pk=key) if key else None
        tell(
            request,
            lambda: choose_default_view(actor=request.user, list_name=name, view=view),
            f"The list opens with {view.name}." if view else "The list opens without filters.",
        )
        return redirect(f"{name}_views")

    return choose
