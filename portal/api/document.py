"""The OpenAPI document: what ninja reads from the operations, with the errors and files that any of them may answer.

Errors come from one mechanism (`portal.api.problems` and the middleware before it), so they are declared here by
method and not at each operation.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.conf import settings
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse
from ninja import NinjaAPI
from ninja.operation import Operation
from ninja.security.http import HttpBearer

from portal.api.problems import PROBLEM, unauthorized
from portal.reports.formats import TYPES
from portal.tokens.actions import find_token
from scheduling.reports.exports import FORMS

ERRORS = {
    400: "The body cannot be read, or is not UTF-8.",
    401: "Neither a token nor a session says who calls.",
    403: "The caller may not do this, or the session's call lacks the CSRF token.",
    404: "It does not exist, or the caller may not see it.",
    408: "The request did not arrive in time.",
    413: "The body is larger than this address takes.",
    422: "A parameter or field is not accepted; `problems` names each.",
    429: "Too many calls; try again after the time in Retry-After.",
    503: "Fairlot is busy, or its database does not answer; try again after the time in Retry-After.",
    507: "A disk of Fairlot's is full: what saves something, if only that a token was used, cannot do so.",
}
CONFLICT = {409: "It is not possible now; `detail` says why, and `problems` names the field at fault."}
# `openapi_extra` of an operation that only reads and answers 409, too.
MAY_CONFLICT = {"responses": {409: {"$ref": "#/components/responses/Problem409"}}}
LATER = {429, 503}
PROBLEM_SCHEMA = {
    "title": "Problem",
    "description": "An error as RFC 9457 has it.",
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "problems": {
            "type": "object",
            "additionalProperties": {"type": "string"},
            "description": "By field or parameter: what is wrong with it and what is accepted.",
        },
    },
}
FILE = {"schema": {"type": "string", "format": "binary"}}
TEXT = {"schema": {"type": "string"}}


class DocumentedAPI(NinjaAPI):
    """An API whose document declares its errors and files, too, and is shown to whom the settings say."""

    def __init__(self, **options: Any) -> None:
        super().__init__(docs_decorator=for_readers, **options)

    def get_openapi_operation_id(self, operation: Operation) -> str:
        """Returns the name that generators of clients give to a call; it outlives moves inside this package."""
        return super().get_openapi_operation_id(operation).replace("_endpoints_", "_")

    def get_openapi_schema(self, **options: Any) -> Any:
        return completed(super().get_openapi_schema(**options))


def completed(document: dict[str, Any]) -> dict[str, Any]:
    """The document with the answers that operations do not declare themselves."""
    components = document["components"]
    components["schemas"]["Problem"] = PROBLEM_SCHEMA
    components["responses"] = {_name(status): _error(status, why) for status, why in _all_errors().items()}
    for path in document["paths"].values():
        for method, operation in path.items():
            answers = operation["responses"]
            for status in ERRORS if method == "get" else _all_errors():
                answers.setdefault(status, {"$ref": f"#/components/responses/{_name(status)}"})
            _declare_files(operation)
    return document


def for_readers(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """Shows the document to who is signed in or sends a token, and to everybody with FAIRLOT_PUBLIC_API_DOCS."""

    @wraps(view)
    def shown(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if settings.FAIRLOT_PUBLIC_API_DOCS or request.user.is_authenticated or _has_token(request):
            return view(request, *args, **kwargs)
        if request.path_info.endswith(".json"):
            return unauthorized()
        return redirect_to_login(request.get_full_path())

    return shown


def _has_token(request: HttpRequest) -> bool:
    scheme, _, token = request.headers.get(HttpBearer.header, "").partition(" ")
    return scheme.lower() == HttpBearer.openapi_scheme and find_token(token) is not None


def _all_errors() -> dict[int, str]:
    return dict(sorted((ERRORS | CONFLICT).items()))


def _name(status: int) -> str:
    return f"Problem{status}"


def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0]


def _error(status: int, why: str) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "description": why,
        "content": {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    if status in LATER:
        answer["headers"] = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."}}
    return answer


def _declare_files(operation: dict[str, Any]) -> None:
    """What operations answer that have a parameter for the format of a report, or the form of an export."""
    named = {parameter["name"]: parameter["schema"] for parameter in operation["parameters"]}
    content = operation["responses"].get(200, {}).setdefault("content", {})
    for form in named.get("format", {}).get("enum", ()):
        content.setdefault(_media_type(TYPES[form]), TEXT if form == "csv" else FILE)
    for form in named.get("form", {}).get("enum", ()):
        if form in FORMS:
            content.setdefault(
                _media_type(FORMS[form][1]), TEXT if form != "jobs.json" else {"schema": {"type": "array"}}
            )
