"""The OpenAPI document. Ninja derives it from the operations, and this module adds error responses and file formats.

Some errors come from `portal.api.problems` and from the middleware, and not from an operation. They are the same for
all operations with the same HTTP method. Therefore this module declares them, and the operations need not.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from typing import Any

from django.conf import settings
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse
from ninja import NinjaAPI
from ninja.errors import ValidationError, ValidationErrorContext
from ninja.operation import Operation
from ninja.security.http import HttpBearer

from portal.administration.trail_search import FORMS as OF_TRAIL
from portal.api.problems import PROBLEM, unauthorized
from portal.reports.formats import TYPES
from portal.tokens.actions import find_token
from scheduling.reports.exports import FORMS as OF_JOBS

# The files that operations stream: by name, with their media types.
STREAMED = {form: media_type for forms in (OF_JOBS, OF_TRAIL) for form, (_, media_type) in forms.items()}
ERRORS = {
    400: "The request body is not valid JSON, or is not UTF-8 text.",
    401: "The call has neither a valid token nor a session.",
    403: "The caller may not do this, or the call uses a session but sends no CSRF token.",
    404: "The resource does not exist, or the caller may not see it.",
    408: "The request body did not arrive in time.",
    413: "The body is larger than this address accepts.",
    422: "A parameter or field is not accepted; `problems` lists each one.",
    429: "Too many calls. Try again after the number of seconds in the Retry-After header.",
    503: (
        "Fairlot is busy, or its database does not answer. Try again after the number of seconds "
        "in the Retry-After header."
    ),
    507: (
        "A disk of Fairlot is full. Every call that writes to the database fails, even if it only "
        "records the last use of a token."
    ),
}
# For operations that take the header If-Match.
OTHER_VERSION = {412: "The object has changed since the caller read the version that If-Match names."}
CONFLICT = {409: "The change is not possible now. `detail` says why, and `problems` names the field."}
# `openapi_extra` of a GET operation that may answer 409.
MAY_CONFLICT = {"responses": {409: {"$ref": "#/components/responses/Problem409"}}}
LATER = {429, 503}
PROBLEM_SCHEMA = {
    "title": "Problem",
    "description": "An error in the format of RFC 9457.",
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
            "description": "For each wrong field or parameter, by its name: what is wrong and what is accepted.",
        },
    },
}
FILE = {"schema": {"type": "string", "format": "binary"}}
TEXT = {"schema": {"type": "string"}}


class DocumentedAPI(NinjaAPI):
    """A NinjaAPI whose OpenAPI document also declares errors and files. A setting decides who may read the document."""

    def __init__(self, **options: Any) -> None:
        super().__init__(docs_decorator=for_readers, **options)
        self.document: Any = None  # built at the first request

    def get_openapi_operation_id(self, operation: Operation) -> str:
        """Returns the id of an operation, from which client generators derive a function name.

        For example, `submit` in portal.api.jobs.endpoints has the id portal_api_jobs_submit.
        """
        # Without `endpoints`, the id stays the same if a function moves to or from a module of that name.
        return super().get_openapi_operation_id(operation).replace("_endpoints_", "_")

    def validation_error_from_error_contexts(
        self, contexts: list[ValidationErrorContext[Any]]
    ) -> ValidationError:
        """Returns ninja's validation error, with the offending value added to each item. Ninja itself leaves the values
        out."""
        error = super().validation_error_from_error_contexts(contexts)
        found = [item for one in contexts for item in one.pydantic_validation_error.errors(include_url=False)]
        for item, own in zip(error.errors, found, strict=True):
            item["input"] = own["input"]
        return error

    def create_response(self, request: HttpRequest, data: Any, **options: Any) -> HttpResponse:
        """Returns the response. If it shows one object that has a version, the version is also its entity tag."""
        response = super().create_response(request, data, **options)
        if isinstance(data, dict) and isinstance(data.get("version"), str):  # a policy has a number
            response["ETag"] = f'"{data["version"]}"'
        return response

    def get_openapi_schema(self, **options: Any) -> Any:
        """Returns the OpenAPI document. It is built only at the first call, because building it takes longer than a
        usual page.

        All calls return the same object, so callers must not change it.
        """
        if self.document is None:
            self.document = completed(super().get_openapi_schema(**options))
        return self.document


def completed(document: dict[str, Any]) -> dict[str, Any]:
    """Adds the error responses, file formats and summaries of all operations to the OpenAPI document, and returns the
    document."""
    components = document["components"]
    components["schemas"]["Problem"] = PROBLEM_SCHEMA
    components["responses"] = {_name(status): _error(status, why) for status, why in _all_errors().items()}
    for path in document["paths"].values():
        for method, operation in path.items():
            answers = operation["responses"]
            takes_version = any(parameter["name"] == "If-Match" for parameter in operation["parameters"])
            errors = (
                ERRORS if method == "get" else ERRORS | CONFLICT | (OTHER_VERSION if takes_version else {})
            )
            for status in sorted(errors):
                answers.setdefault(status, {"$ref": f"#/components/responses/{_name(status)}"})
            _declare_files(operation)
            _summarise(operation)
    return document


def for_readers(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """Decorates a view of the API's documentation, so that it requires a signed-in user or a valid token.

    Other callers get 401 for the JSON document, and a redirect to the login for the page. If FAIRLOT_PUBLIC_API_DOCS is
    set, everybody may read the documentation.
    """

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
    return dict(sorted((ERRORS | CONFLICT | OTHER_VERSION).items()))


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
        answer["headers"] = {
            "Retry-After": {
                "schema": {"type": "integer"},
                "description": "Seconds after which the call may be repeated.",
            }
        }
    return answer


def _summarise(operation: dict[str, Any]) -> None:
    """Splits an operation's docstring: the first sentence becomes the summary, and the rest becomes the description.

    Without this split, ninja would use the function's name as the summary.
    """
    if operation.get("deprecated"):
        return
    first, *rest = re.split(r"\.(?:[ \n]+|$)", operation.pop("description"), maxsplit=1)
    operation["summary"] = " ".join(first.split())
    if any(rest):
        operation["description"] = rest[0]


def _declare_files(operation: dict[str, Any]) -> None:
    """Adds to an operation's OpenAPI entry the media types of the files that the operation can return.

    The types follow from the values that the operation's parameter `format` or `form` accepts.
    """
    named = {parameter["name"]: parameter["schema"] for parameter in operation["parameters"]}
    content = operation["responses"].get(200, {}).setdefault("content", {})
    for form in named.get("format", {}).get("enum", ()):
        content.setdefault(_media_type(TYPES[form]), TEXT if form == "csv" else FILE)
    for form in named.get("form", {}).get("enum", ()):
        if form in STREAMED:
            content.setdefault(
                _media_type(STREAMED[form]), TEXT if form != "jobs.json" else {"schema": {"type": "array"}}
            )
