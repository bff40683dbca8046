"""Lets a view show, beside each field of its form, why the database cannot store the posted text.

The database can store neither zero bytes nor lone surrogates (U+D800 to U+DFFF).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from django.http import HttpRequest
from django.http.response import HttpResponseBase

View = TypeVar("View", bound=Callable[..., HttpResponseBase])


def keeps_form(view: View) -> View:
    """Marks a view whose form shows, beside its fields, why the database cannot store a posted text.

    `InputsMiddleware` passes a request with such a text to a marked view, and refuses it for any other view.
    """
    view.keeps_form = True  # type: ignore[attr-defined]
    return view


def unstorable_of(request: HttpRequest) -> dict[str, str]:
    """Returns why the database cannot store the posted texts, as a mapping from the field's name to the reason.

    The mapping is empty if the database can store all texts. It is always empty in a view that is not marked with
    `keeps_form`.
    """
    return getattr(request, "unstorable", {})
