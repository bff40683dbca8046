"""Lets a view show, beside the fields of its form, which posted texts the database cannot store."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from django.http import HttpRequest
from django.http.response import HttpResponseBase

View = TypeVar("View", bound=Callable[..., HttpResponseBase])


def keeps_form(view: View) -> View:
    """Marks a view whose form shows, beside its fields, why the database cannot store a posted text.

    `InputsMiddleware` lets requests with such texts through to a marked view.
    """
    view.keeps_form = True  # type: ignore[attr-defined]
    return view


def unstorable_of(request: HttpRequest) -> dict[str, str]:
    """Returns, by name of the field, why the database cannot store the posted text; empty if it can store all texts.

    Only views with `keeps_form` get such requests.
    """
    return getattr(request, "unstorable", {})
