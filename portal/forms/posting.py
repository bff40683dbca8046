"""Passes a posted form to one action, and shows the form's page again if the action refuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect

from accounting.core.errors import NotAllowed, Refused
from portal.forms.form import Form, Values
from portal.fragments import render_page
from scheduling.shares.preview import ShareChange


def act_on(form: Form, act: Callable[[Values], object]) -> bool:
    """Calls `act` with the values of the form. Returns False, with the problems in the form, if there are any."""
    if not form.is_valid():
        return False
    try:
        act(form.cleaned_data)
    except Refused as error:
        form.refuse(error.message, error.field)
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
    """Calls `act` with the values of the posted form; then redirects to `to`, or shows `page` again with the problems.

    A callable `to` is evaluated after `act`, for addresses that depend on the change.
    """
    if not act_on(form, act):
        return page(request, posted=form)
    messages.success(request, done(form.cleaned_data) if callable(done) else done)
    return redirect(*(to() if callable(to) else to))


def show(
    request: HttpRequest, template: str, context: dict[str, Any], *, posted: Form | None
) -> HttpResponse:
    """Shows a page with forms; answers 422 if `posted` has problems."""
    status = 422 if posted is not None and posted.errors else 200
    return render_page(request, template, context | {"posted": posted}, status=status)


def previewed(form: Form, rows: Sequence[ShareChange]) -> dict[str, Any]:
    """Returns the context of forms/preview_answer.html: shares before and after, and the fields to send again."""
    return {
        "rows": rows,
        "changes": any(row.changes for row in rows),
        "fields": [(name, text) for name, text in form.data.items() if name != "csrfmiddlewaretoken"],
    }
