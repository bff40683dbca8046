"""Errors as application/problem+json (RFC 9457): type, title, status, detail, problems by field."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus

from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.urls import Resolver404, resolve
from django.views.decorators.csrf import csrf_exempt
from ninja import NinjaAPI
from ninja.errors import AuthenticationError, HttpError, ValidationError

from accounting.core.errors import NotAllowed, Refused
from portal.api.parsing import NotStorable, why_no_json
from portal.reports.periods import WrongQuestion
from scheduling.jobs.submitting import NotAllSubmitted
from scheduling.spec.job_spec import SpecError

PROBLEM = "application/problem+json"
NOT_UNDERSTOOD = "The request cannot be understood."
# Steps of a place that name none: which of several types was tried, and that a key is meant.
BRANCH = re.compile(r"str|int|float|bool|none|.*\[.*\]")
_WORDS = {
    403: "The call was refused: with a session, whatever changes something needs the CSRF token.",
    405: "This address does not know this method; the header Allow names those that it knows.",
    500: "Something went wrong inside Fairlot; its log says what.",
    503: "Fairlot cannot answer just now: its database is away or busy. Try again in a moment.",
    507: "A disk of Fairlot's is full: nothing can be saved until an operator has freed space.",
}


def problem(status: int, detail: str, problems: Mapping[str, str] | None = None) -> HttpResponse:
    """A problem document; `problems` maps a field to what is wrong with it."""
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
    """The answer for who sends neither a token nor a session."""
    answer = problem(401, "Send a token (Authorization: Bearer …) or sign in.")
    answer["WWW-Authenticate"] = "Bearer"
    return answer


@csrf_exempt  # it changes nothing, and a refusal of the token would be a page
def not_found(request: HttpRequest, rest: str = "") -> HttpResponse:
    """Nothing is there; for an address with a slash too many, where it would be without."""
    shorter = request.path_info.rstrip("/")
    if shorter != request.path_info and _is_there(shorter):
        query = request.META.get("QUERY_STRING", "")
        answer = problem(308, f"The address is {shorter}, without a slash at its end.")
        answer["Location"] = f"{request.META.get('SCRIPT_NAME', '')}{shorter}{'?' if query else ''}{query}"
        return answer
    return problem(404, "There is nothing here that you may see.")


def _is_there(path: str) -> bool:
    try:
        return resolve(path).url_name != "api_not_found"
    except Resolver404:
        return False


class ApiProblemsMiddleware:
    """Whatever refuses a call before or behind the API, what is under /api/ says so as a problem document."""

    sync_capable = True
    async_capable = False

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response = self.get_response(request)
        is_problem = response.headers.get("Content-Type") == PROBLEM
        if response.status_code < 400 or is_problem or not request.path_info.startswith("/api/"):
            return response
        answer = problem(response.status_code, _words(response))
        for name in ("Allow", "Retry-After"):
            if name in response.headers:
                answer[name] = response[name]
        return answer


def _words(response: HttpResponseBase) -> str:
    """What a refusal in plain text says itself; pages are for people, so these are said in other words."""
    if isinstance(response, HttpResponse) and response.headers.get("Content-Type") == "text/plain":
        return response.content.decode().strip()
    return _WORDS.get(response.status_code, "The call was refused.")


def answer_with_problems(api: NinjaAPI) -> None:
    """Makes `api` answer every expected error with a problem document."""

    @api.exception_handler(Http404)
    def _not_found(request: HttpRequest, error: Http404) -> HttpResponse:
        return not_found(request)

    @api.exception_handler(AuthenticationError)
    def _unauthorized(request: HttpRequest, error: AuthenticationError) -> HttpResponse:
        return unauthorized()

    @api.exception_handler(HttpError)
    def _http_error(request: HttpRequest, error: HttpError) -> HttpResponse:
        cause = error.__cause__  # of a body that could not be read
        if isinstance(cause, NotStorable):
            return problem(422, NOT_UNDERSTOOD, cause.problems)
        return problem(error.status_code, why_no_json(cause) if cause else str(error))

    @api.exception_handler(NotAllowed)
    def _not_allowed(request: HttpRequest, error: NotAllowed) -> HttpResponse:
        return problem(403, str(error))

    @api.exception_handler(Refused)
    def _refused(request: HttpRequest, error: Refused) -> HttpResponse:
        return problem(409, error.message, {error.field: error.message} if error.field else None)

    @api.exception_handler(WrongQuestion)
    def _wrong_question(request: HttpRequest, error: WrongQuestion) -> HttpResponse:
        return problem(422, NOT_UNDERSTOOD, error.problems)

    @api.exception_handler(SpecError)
    def _spec_error(request: HttpRequest, error: SpecError) -> HttpResponse:
        return problem(422, "The job spec cannot be accepted.", error.problems)

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
        problems: dict[str, str] = {}
        for item in error.errors:
            field = _field(item["loc"])
            problems[field] = "; ".join(filter(None, [problems.get(field), item["msg"]]))
        return problem(422, NOT_UNDERSTOOD, problems)


def problems_of(refusal: SpecError | Refused) -> dict[str, str]:
    """By field, why a job spec was refused."""
    return refusal.problems if isinstance(refusal, SpecError) else {refusal.field or "": refusal.message}


def _field(place: Sequence[str | int]) -> str:
    """The field of the request as its sender knows it: a body's own field, or the name of a parameter."""
    where, *steps = [str(step) for step in place if not BRANCH.fullmatch(str(step))]
    if where == "body":  # the first step is the name that the view has for it
        return ".".join(steps[1:]) or "body"
    return ".".join(steps)
