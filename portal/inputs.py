"""Refuses values that no database column can store, in URLs, headers, cookies, forms and JSON.

Pages answer 400 with a sentence, and the API answers 422 with a problem document. Either response names the parameter.
Views and actions check what a value means, but need not handle zero bytes, lone surrogates, or numbers beyond 64 bits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from django.core.exceptions import BadRequest
from django.db import DatabaseError
from django.db.backends.postgresql.psycopg_any import errors
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from accounting.core.texts import not_storable, why_not_storable
from portal.api.problems import NOT_ACCEPTED, problem
from portal.reports.periods import WrongQuestion

logger = logging.getLogger(__name__)

CHARSETS = {"", "utf-8", "utf8", "us-ascii"}
# PostgreSQL's errors for values that a column cannot store: too long, too large, or not text.
NOT_HELD = (
    errors.StringDataRightTruncation,
    errors.NumericValueOutOfRange,
    errors.DatetimeFieldOverflow,
    errors.CharacterNotInRepertoire,
    errors.UntranslatableCharacter,
    errors.ProgramLimitExceeded,
)
TOO_LARGE = (
    "A text or number in this request is too large to be stored. Send a shorter text or a smaller number."
)


class InputsMiddleware:
    """Middleware that refuses a request with a text or number that the database cannot store, before the view runs.

    It runs before the session middleware, which looks up the session cookie in the database. For API requests,
    `portal.api.parsing` checks the bodies, because the API authenticates callers before it reads bodies.
    """

    sync_capable = True
    async_capable = False

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        if (request.content_params or {}).get("charset", "").lower() not in CHARSETS:
            if _is_api(request):
                return problem(400, "The body is not UTF-8. Send it as UTF-8.")
            raise BadRequest("The body is not UTF-8.")
        # Fairlot sets no such cookie. Another program on the host may have set it, so the request goes on without the
        # cookie.
        for name in [name for name, text in request.COOKIES.items() if why_not_storable(name + text)]:
            del request.COOKIES[name]
        return self.get_response(request)

    def process_view(
        self, request: HttpRequest, view: Callable[..., Any], args: Any, kwargs: dict[str, Any]
    ) -> HttpResponse | None:
        if not_storable(kwargs):  # no object has this name or number
            if _is_api(request):
                return problem(404, "Nothing exists at this address, or you may not see it.")
            raise Http404
        in_form = dict(_form_problems(request))
        if in_form and getattr(view, "keeps_form", False):
            request.unstorable, in_form = in_form, {}  # type: ignore[attr-defined]  # see unstorable_of
        if found := dict(_problems(request)) | in_form:
            if _is_api(request):
                return problem(422, NOT_ACCEPTED, found)
            raise WrongQuestion({name: f"{name}: {why}." for name, why in found.items()})
        return None

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        """Answers 422 (API) or 400 (pages) if PostgreSQL refused a value. Returns None for any other error.

        Logs the request, because the middleware should have refused the value before.
        """
        if not (isinstance(error, DatabaseError) and isinstance(error.__cause__, NOT_HELD)):
            return None
        logger.error("Unchecked input for %s %s", request.method, request.path, exc_info=error)
        if _is_api(request):
            return problem(422, TOO_LARGE)
        raise WrongQuestion({"": TOO_LARGE}) from error


def _problems(request: HttpRequest) -> Iterable[tuple[str, str]]:
    """Yields a pair (name, reason) for each query parameter and header whose value the database cannot store."""
    yield from _of(request.GET.lists())
    yield from _of((name, [value]) for name, value in request.headers.items())


def _form_problems(request: HttpRequest) -> Iterable[tuple[str, str]]:
    """Yields a pair (name, reason) for each form field whose value the database cannot store, in a POST request to a
    page.

    Of an uploaded file, only the file name is checked. Yields nothing for API requests.
    """
    if request.method == "POST" and not _is_api(request):
        yield from _of(request.POST.lists())
        yield from _of((name, [str(one.name) for one in files]) for name, files in request.FILES.lists())


def _of(parameters: Iterable[tuple[str, list[str]]]) -> Iterable[tuple[str, str]]:
    parameters = list(parameters)
    # A single check of all parameters is fast, and nearly always finds no problem.
    if not why_not_storable("".join(text for name, values in parameters for text in (name, *values))):
        return
    for name, values in parameters:
        if why := next(filter(None, map(why_not_storable, (name, *values))), ""):
            yield _shown(name), why


def _shown(name: str) -> str:
    """Returns a parameter's name as the response shows it.

    A name that the database cannot store is escaped as ASCII; any other name is cut to 100 characters.
    """
    return ascii(name)[1:-1] if why_not_storable(name) else name[:100]


def _is_api(request: HttpRequest) -> bool:
    return request.path_info.startswith("/api/")
