"""Error answers as application/problem+json (RFC 9457), with a mapping from each field to its problem."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.urls import Resolver404, resolve
from django.views.decorators.csrf import csrf_exempt
from ninja import NinjaAPI
from ninja.errors import AuthenticationError, HttpError, ValidationError

from accounting.core.errors import NotAllowed, Refused
from portal.api.parsing import NotStorable, why_no_json
from portal.api.plain_problems import plain_problem
from portal.api.seen import Hidden
from portal.reports.periods import WrongQuestion
from scheduling.backends.base import RETRY_SECONDS, FilesNotReady, FileUnreadable, NoSuchFile
from scheduling.jobs.submitting import NotAllSubmitted
from scheduling.models.versions import OtherVersion
from scheduling.spec.job_spec import SpecError

PROBLEM = "application/problem+json"
API_TYPES = (PROBLEM, "application/json")  # portal/api/compatible answers errors in JSON of its own
NOT_ACCEPTED = "The request is not accepted because of these fields or parameters."
# Steps of a pydantic error location that are no fields: the tried member of a union, and the mark of a mapping's key.
BRANCH = re.compile(r"str|int|float|bool|none|.*\[.*\]")
_WORDS = {
    403: (
        "The call was refused. A call that uses a session cookie and changes something must "
        "send the CSRF token."
    ),
    405: "This address does not support this method. The header Allow lists the supported methods.",
    416: "The range begins after the end of the file. The header Content-Range has the file's size.",
    500: "Something went wrong inside Fairlot. Fairlot's log has the details.",
    503: "The database is busy or does not answer. Try again in a moment.",
    507: "A disk of Fairlot is full. Nothing can be saved until an operator frees space.",
}


def problem(status: int, detail: str, problems: Mapping[str, str] | None = None) -> HttpResponse:
    """Returns an error answer as a problem document (RFC 9457). `problems` maps each field to its problem."""
    body: dict[str, object] = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
    }
    if problems:
        body["problems"] = dict(problems)
    return JsonResponse(body, status=status, content_type=PROBLEM)


def unauthorized() -> HttpResponse:
    """Returns the 401 response to a call that has neither a valid token nor a session."""
    answer = problem(
        401, "The call has neither a token nor a session. Send Authorization: Bearer TOKEN, or sign in."
    )
    answer["WWW-Authenticate"] = "Bearer"
    return answer


@csrf_exempt  # changes nothing, and Django would answer a failed CSRF check with an HTML page
def not_found(request: HttpRequest, rest: str = "") -> HttpResponse:
    """Answers 404 for an unknown URL. If the URL without its trailing slash exists, redirects there instead (308).

    `rest`, the part of the URL after the prefix of the API, is not used.
    """
    shorter = request.path_info.rstrip("/")
    if shorter != request.path_info and _is_there(shorter):
        query = request.META.get("QUERY_STRING", "")
        answer = problem(308, f"The address must not end with a slash. Use {shorter}.")
        answer["Location"] = f"{request.META.get('SCRIPT_NAME', '')}{shorter}{'?' if query else ''}{query}"
        return answer
    return problem(404, "Nothing exists at this address, or you may not see it.")


def _is_there(path: str) -> bool:
    try:
        return resolve(path).url_name != "api_not_found"
    except Resolver404:
        return False


class ApiProblemsMiddleware:
    """Middleware that converts errors under /api/ to problem documents if Django or other middleware produced them."""

    sync_capable = True
    async_capable = False

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response = self.get_response(request)
        is_from_api = response.headers.get("Content-Type", "").startswith(API_TYPES)
        if response.status_code < 400 or is_from_api or not request.path_info.startswith("/api/"):
            return response
        answer = problem(response.status_code, _words(response))
        for name in ("Allow", "Content-Range", "Retry-After"):
            if name in response.headers:
                answer[name] = response[name]
        return answer


def _words(response: HttpResponseBase) -> str:
    """Returns the text that describes an error response: its own text if it is plain text, or a fixed text for its HTTP
    status."""
    if isinstance(response, HttpResponse) and response.headers.get("Content-Type") == "text/plain":
        return response.content.decode().strip()
    return _WORDS.get(response.status_code, "The call was refused. The HTTP status says why.")


def answer_with_problems(api: NinjaAPI) -> None:
    """Registers exception handlers with `api` that answer each expected exception with a problem document."""

    @api.exception_handler(Http404)
    def _not_found(request: HttpRequest, error: Http404) -> HttpResponse:
        return not_found(request)

    @api.exception_handler(Hidden)
    def _hidden(request: HttpRequest, error: Hidden) -> HttpResponse:
        return problem(404, str(error))

    @api.exception_handler(AuthenticationError)
    def _unauthorized(request: HttpRequest, error: AuthenticationError) -> HttpResponse:
        return unauthorized()

    @api.exception_handler(HttpError)
    def _http_error(request: HttpRequest, error: HttpError) -> HttpResponse:
        cause = error.__cause__  # set if the body could not be parsed
        if isinstance(cause, NotStorable):
            return problem(422, NOT_ACCEPTED, cause.problems)
        return problem(error.status_code, why_no_json(cause) if cause else str(error))

    @api.exception_handler(NotAllowed)
    def _not_allowed(request: HttpRequest, error: NotAllowed) -> HttpResponse:
        return problem(403, str(error))

    @api.exception_handler(OtherVersion)
    def _other_version(request: HttpRequest, error: OtherVersion) -> HttpResponse:
        return problem(412, error.message)

    @api.exception_handler(Refused)
    def _refused(request: HttpRequest, error: Refused) -> HttpResponse:
        return problem(409, error.message, {one.field: one.message for one in error.all if one.field} or None)

    @api.exception_handler(NoSuchFile)
    def _no_such_file(request: HttpRequest, error: NoSuchFile) -> HttpResponse:
        return problem(404, str(error))

    @api.exception_handler(FilesNotReady)
    def _files_not_ready(request: HttpRequest, error: FilesNotReady) -> HttpResponse:
        answer = problem(503, str(error))
        answer["Retry-After"] = str(RETRY_SECONDS)
        return answer

    @api.exception_handler(FileUnreadable)
    def _file_unreadable(request: HttpRequest, error: FileUnreadable) -> HttpResponse:
        return problem(409, "\n".join((str(error), *getattr(error, "how", "").splitlines())))

    @api.exception_handler(WrongQuestion)
    def _wrong_question(request: HttpRequest, error: WrongQuestion) -> HttpResponse:
        return problem(422, NOT_ACCEPTED, error.problems)

    @api.exception_handler(SpecError)
    def _spec_error(request: HttpRequest, error: SpecError) -> HttpResponse:
        return problem(
            422,
            "The job specification is not accepted because of these fields.",
            error.problems,
        )

    @api.exception_handler(NotAllSubmitted)
    def _not_all_submitted(request: HttpRequest, error: NotAllSubmitted) -> HttpResponse:
        understood = all(isinstance(one, Refused) for one in error.refusals.values())
        problems = {
            f"specs.{position}.{field}" if field else f"specs.{position}": text
            for position, refusal in sorted(error.refusals.items())
            for field, text in problems_of(refusal).items()
        }
        return problem(409 if understood else 422, f"{error}.", problems)

    @api.exception_handler(ValidationError)
    def _validation_error(request: HttpRequest, error: ValidationError) -> HttpResponse:
        by_field: dict[str, list[dict[str, Any]]] = {}
        for item in error.errors:
            by_field.setdefault(_field(item["loc"]), []).append(item)
        problems = {field: plain_problem(items) for field, items in by_field.items()}
        return problem(422, NOT_ACCEPTED, problems)


def problems_of(refusal: SpecError | Refused) -> dict[str, str]:
    """Returns the problems of a refusal by field. The field is "" if the refusal names no field."""
    return refusal.problems if isinstance(refusal, SpecError) else {refusal.field or "": refusal.message}


def _field(place: Sequence[str | int]) -> str:
    """Converts a pydantic error location to the name that the sender used.

    The name is that of a query parameter, or the path to a field of the body, such as `specs.3.workers`.
    """
    where, *steps = [str(step) for step in place if not BRANCH.fullmatch(str(step))]
    if where == "body":  # the first step is the name of the view's parameter
        return ".".join(steps[1:]) or "body"
    return ".".join(steps)
