"""The pages for what went wrong; they say what to do next and never show what happened inside."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from portal.reports.periods import WrongQuestion


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    problems = exception.problems.values() if isinstance(exception, WrongQuestion) else ()
    return render(request, "400.html", {"problems": problems}, status=400)


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    return render(request, "403.html", status=403)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    return render(request, "404.html", status=404)


def server_error(request: HttpRequest) -> HttpResponse:
    """Rendered without the session or the user: the database may be what is broken."""
    return render(None, "500.html", status=500)
