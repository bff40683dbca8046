"""Texts of a form that no column can hold: which views show them beside their fields, and what they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from django.http import HttpRequest
from django.http.response import HttpResponseBase

View = TypeVar("View", bound=Callable[..., HttpResponseBase])


def keeps_form(view: View) -> View:
    """Marks a view that itself refuses texts of its form that no column can hold, beside their fields."""
    view.keeps_form = True  # type: ignore[attr-defined]
    return view


def unstorable_of(request: HttpRequest) -> dict[str, str]:
    """By field of the form of such a view, why it cannot be stored."""
    return getattr(request, "unstorable", {})
