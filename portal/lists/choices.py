"""The columns that users have chosen for lists: remembers them, and handles the form that chooses them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from django.contrib import messages
from django.db import transaction
from django.http import HttpResponse, QueryDict
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse

from accounting.access.audit import record
from accounting.core.errors import NotAllowed
from accounting.core.prepared import Prepared
from accounting.models import User
from portal.access import posted_from
from portal.lists.columns import Columns
from portal.models import ListChoice
from portal.user_request import UserRequest


@dataclass(frozen=True)
class Choices:
    """What a user has chosen for a list: the keys of the columns, empty for the usual ones, and the key of the view
    with which the list opens."""

    columns: Sequence[str] = ()
    default_view: int | None = None


_choice = Prepared(
    lambda user, name: ListChoice.objects.filter(user=user, list_name=name).values_list(
        "columns", "default_view"
    )
)


def choice_of(user: User, name: str) -> Choices:
    """Returns what the user has chosen for the list with the URL name `name`."""
    return Choices(*(_choice.first(user.pk, name) or ()))


def choose_columns(*, actor: User, name: str, columns: Sequence[str]) -> ListChoice:
    """Remembers the columns in which the actor wants to see the list `name`. No columns mean the usual ones.

    `columns` are keys that `Columns.valid` has returned. Raises NotAllowed if the actor is inactive.
    """
    if not actor.is_active:
        raise NotAllowed("Only active users may choose columns.")
    with transaction.atomic(durable=True):
        chosen, _ = ListChoice.objects.update_or_create(
            user=actor, list_name=name, defaults={"columns": list(columns)}
        )
        record(
            actor=actor,
            verb="list.choose_columns",
            target=chosen,
            after={"list": name, "columns": list(columns)},
        )
    return chosen


def choosable(
    columns: Columns, shown: Sequence[str], more: Iterable[str] = ()
) -> list[tuple[str, str, bool]]:
    """Returns (key, heading, whether it is shown) for each column that users can choose, such as those in `more`."""
    keys = dict.fromkeys([*columns.known, *more, *shown])
    found = [(key, column) for key in keys if (column := columns.find(key)) and not column.is_fixed]
    return [(key, column.label, key in shown) for key, column in found]


def columns_view(name: str, columns: Columns) -> Callable[..., HttpResponseBase]:
    """Returns the view for the form that chooses the columns of the list with the URL name `name`.

    It remembers the columns, and leads back to the list, whose address then has them.
    """

    @posted_from(name)
    def choose(request: UserRequest) -> HttpResponse:
        query = QueryDict(request.POST.get("back", "")[:2000], mutable=True)
        query.pop("columns", None)
        wanted = () if "usual" in request.POST else columns.valid(request.POST.getlist("column"))
        choose_columns(actor=request.user, name=name, columns=wanted)
        if wanted:
            query["columns"] = ",".join(wanted)
        messages.success(request, "The columns have been saved for you.")
        return redirect(f"{reverse(name)}{'?' if query else ''}{query.urlencode(safe=',:')}")

    return choose
