"""Does one thing with several objects that the user selected in a list of work, after a page that lists them.

Jobs have their own selection (portal/jobs/selection.py), because some of its actions ask for values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.contrib import messages
from django.http import HttpResponse, QueryDict
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse

from accounting.core.errors import NotAllowed, Refused
from accounting.core.numbers import read_key
from accounting.core.wording import counted
from accounting.models import User
from portal.access import posted_from
from portal.user_request import UserRequest

if TYPE_CHECKING:
    from portal.lists.work import WorkList

MOST_SELECTED = 200
MOST_REFUSALS = 5  # that are told one by one


@dataclass(frozen=True)
class Choice:
    """Something that users can do with the objects that they selected.

    - `done`: after the number of objects, in the message.
    - `act`: does it with one object.
    - `why_not`: returns why an object is skipped; "" if it is not.
    """

    title: str
    button: str
    icon: str
    done: str
    act: Callable[[User, Any], object]
    why_not: Callable[[Any], str]
    is_dangerous: bool = False


def selected_view(work: WorkList[Any]) -> Callable[..., HttpResponseBase]:
    """Returns the view that lists the objects selected in a list and what is about to happen to them, and does it once
    the user has confirmed it."""

    @posted_from(work.name)
    def selected(request: UserRequest) -> HttpResponse:
        choice = work.choices.get(request.POST.get("do", ""))
        keys = {key for text in request.POST.getlist("chosen") if (key := read_key(text))}
        chosen = list(work.seen(request.user).filter(pk__in=keys).order_by("-pk")[:MOST_SELECTED])
        back = QueryDict(request.POST.get("back", "")[:2000]).urlencode()
        listed = f"{reverse(work.name)}?{back}" if back else reverse(work.name)
        if choice is None or not chosen:
            messages.error(request, f"Select one or more {work.name} first.")
            return redirect(listed)
        rows = _rows(work, choice, chosen, request.user)
        if "confirmed" in request.POST:
            _perform(request, work, choice, [one for one, why in rows if not why])
            return redirect(listed)
        context = {
            "work": work,
            "choice": choice,
            "rows": [(one, reverse(work.one, args=[one.pk]), why) for one, why in rows],
            "concerned": sum(not why for _, why in rows),
            "do": request.POST["do"],
            "back": back,
            "listed": listed,
            "address": reverse(f"{work.name}_selected"),
        }
        return render(request, "lists/selected.html", context)

    return selected


def _rows(work: WorkList[Any], choice: Choice, chosen: Sequence[Any], user: User) -> list[tuple[Any, str]]:
    """Returns each object with the reason why it is skipped; "" if it is not."""
    changeable = type(chosen[0])._default_manager.changeable_by(user)
    may_change = set(changeable.filter(pk__in=[one.pk for one in chosen]).values_list("pk", flat=True))
    return [
        (one, choice.why_not(one) if one.pk in may_change else f"you may not change this {work.one}")
        for one in chosen
    ]


def _perform(request: UserRequest, work: WorkList[Any], choice: Choice, chosen: Sequence[Any]) -> None:
    """Does it with each object, in a transaction each, and adds messages that say what was done and refused."""
    done, refusals = 0, []
    for one in chosen:
        try:
            choice.act(request.user, one)
            done += 1
        except (NotAllowed, Refused) as error:
            refusals.append(f"{one.name}: {error}")
    if done:
        messages.success(request, f"{counted(done, work.one)} {choice.done}.")
    for text in refusals[:MOST_REFUSALS]:
        messages.error(request, text)
    if len(refusals) > MOST_REFUSALS:
        more = counted(len(refusals) - MOST_REFUSALS, f"more {work.one}")
        messages.error(request, f"{more} could not be changed.")
