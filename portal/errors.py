"""The error pages. They tell the user what to do next, and show no internal details."""

from __future__ import annotations

import sys

from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from portal.edge.full_disks import is_disk_full
from portal.hashing import TooManyPasswords
from portal.reports.periods import WrongQuestion

DISK_FULL = (
    "A disk of Fairlot is full. Nothing can be saved until an operator frees space. Pages that "
    "only read still work."
)
DATABASE_AWAY = "Fairlot's database does not answer, or it cancelled the request. Try again in a moment."


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    problems = exception.problems.values() if isinstance(exception, WrongQuestion) else ()
    return render(request, "400.html", {"problems": problems}, status=400)


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    return render(request, "403.html", status=403)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    return render(request, "404.html", status=404)


def server_error(request: HttpRequest) -> HttpResponse:
    """Renders the page for status 500 without session and user, because the database may be the cause of the error."""
    error = sys.exc_info()[1]
    if is_disk_full(error):
        return _unavailable(507, "A disk is full", DISK_FULL)
    if isinstance(error, OperationalError | InterfaceError):
        return _unavailable(503, "The database does not answer", DATABASE_AWAY)
    if isinstance(error, TooManyPasswords):
        return _unavailable(503, "Fairlot is busy", f"{error} Try again in a moment.")
    return render(None, "500.html", status=500)


def _unavailable(status: int, title: str, detail: str) -> HttpResponse:
    words = {"status": status, "title": title, "detail": detail}
    answer = render(None, "unavailable.html", words, status=status)
    if status == 503:
        answer["Retry-After"] = "5"
    answer["Cache-Control"] = "no-store"
    return answer
