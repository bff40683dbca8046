"""Errors as application/problem+json (RFC 9457): type, title, status, detail, problems by field."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from ninja import NinjaAPI
from ninja.errors import AuthenticationError, HttpError, ValidationError

from accounting.errors import NotAllowed, Refused
from scheduling.spec import SpecError


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
    return JsonResponse(body, status=status, content_type="application/problem+json")


def not_found(request: HttpRequest, rest: str = "") -> HttpResponse:
    return problem(404, "There is nothing here that you may see.")


def answer_with_problems(api: NinjaAPI) -> None:
    """Makes `api` answer every expected error with a problem document."""

    @api.exception_handler(Http404)
    def _not_found(request: HttpRequest, error: Http404) -> HttpResponse:
        return not_found(request)

    @api.exception_handler(AuthenticationError)
    def _unauthorized(request: HttpRequest, error: AuthenticationError) -> HttpResponse:
        answer = problem(401, "Send a token (Authorization: Bearer …) or sign in.")
        answer["WWW-Authenticate"] = "Bearer"
        return answer

    @api.exception_handler(HttpError)
    def _http_error(request: HttpRequest, error: HttpError) -> HttpResponse:
        return problem(error.status_code, str(error))

    @api.exception_handler(NotAllowed)
    def _not_allowed(request: HttpRequest, error: NotAllowed) -> HttpResponse:
        return problem(403, str(error))

    @api.exception_handler(Refused)
    def _refused(request: HttpRequest, error: Refused) -> HttpResponse:
        return problem(409, error.message, {error.field: error.message} if error.field else None)

    @api.exception_handler(SpecError)
    def _spec_error(request: HttpRequest, error: SpecError) -> HttpResponse:
        return problem(422, "The job spec cannot be accepted.", error.problems)

    @api.exception_handler(ValidationError)
    def _validation_error(request: HttpRequest, error: ValidationError) -> HttpResponse:
        problems = {".".join(str(step) for step in item["loc"][1:]): item["msg"] for item in error.errors}
        return problem(422, "The request cannot be understood.", problems)
