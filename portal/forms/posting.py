"""Passes the values of a posted form to an action, and shows the form's page again if the action refuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect

from accounting.core.errors import NotAllowed, Refused
from portal.forms.form import Form, Values
from portal.fragments import render_page
from scheduling.shares.preview import ShareChange

Result = TypeVar("Result")


def act_on(form: Form, act: Callable[[Values], object]) -> bool:
    """Calls `act` with the form's values. Returns True if the form is valid and `act` accepted the values.

    Otherwise returns False, and the form contains the problems.
    """
    if not form.is_valid():
        return False
    try:
        act(form.cleaned_data)
    except Refused as error:
        for one in error.all:
            form.refuse(one.message, one.field)
    except NotAllowed as error:
        form.refuse(str(error))
    return form.is_valid()


def perform(
    request: HttpRequest,
    form: Form,
    act: Callable[[Values], object],
    *,
    done: str | Callable[[Values], str],
    to: tuple[Any, ...] | Callable[[], tuple[Any, ...]],
    page: Callable[..., HttpResponse],
) -> HttpResponse:
    """Calls `act` with the form's values, shows a message, and redirects.

    If the form is invalid or `act` refuses the values, returns `page(request, posted=form)` instead: the form's page
    with the problems.

    - `done`: the message, or a function that is called with the form's values and returns the message.
    - `to`: the arguments for `redirect` as a tuple, or a function without arguments that returns this tuple. The
      function is called after `act`, because the URL may depend on the change.
    """
    if not act_on(form, act):
        return page(request, posted=form)
    messages.success(request, done(form.cleaned_data) if callable(done) else done)
    return redirect(*(to() if callable(to) else to))


def tell(
    request: HttpRequest,
    act: Callable[[], Result],
    done: str | Callable[[Result], str],
    *,
    refusals: tuple[type[Exception], ...] = (NotAllowed, Refused),
) -> bool:
    """Calls `act` and shows a message: `done`, or why the action refuses. Returns True if the action did not refuse.

    - `done`: the message, or a function that is called with what `act` returned and returns the message.
    - `refusals`: the exceptions by which `act` refuses. The function does not catch others.
    """
    try:
        result = act()
    except refusals as refused:
        messages.error(request, str(refused))
        return False
    messages.success(request, done(result) if callable(done) else done)
    return True


def show(
    request: HttpRequest, template: str, context: dict[str, Any], *, posted: Form | None
) -> HttpResponse:
    """Renders a page with forms. The status is 422 if the form `posted` has problems, otherwise 200."""
    status = 422 if posted is not None and posted.errors else 200
    return render_page(request, template, context | {"posted": posted}, status=status)


def previewed(form: Form, rows: Sequence[ShareChange]) -> dict[str, Any]:
    """Returns the context of forms/preview_answer.html: the shares before and after a change, and the posted fields.

    The page sends the posted fields again when the user saves the change.
    """
    return {
        "rows": rows,
        "changes": any(row.changes for row in rows),
        "fields": [(name, text) for name, text in form.data.items() if name != "csrfmiddlewaretoken"],
    }
