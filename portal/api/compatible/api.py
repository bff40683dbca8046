"""Calls in the shapes of Marathon and Chronos, for clients of those systems.

Their base address is https://…/api: `/v2/apps` are services, `/v1/scheduler` are schedules. Apps and jobs are converted
by scheduling/importers. Errors are JSON objects with a `message`, as both systems have them.
"""

from __future__ import annotations

from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from ninja import NinjaAPI
from ninja.errors import AuthenticationError, HttpError, ValidationError
from ninja.security import HttpBasicAuth

from accounting.core.errors import NotAllowed, Refused
from accounting.models import User
from portal.api.auth import Bearer
from portal.api.compatible.chronos import router as chronos
from portal.api.compatible.conversion import NotConverted
from portal.api.compatible.marathon import router as marathon
from portal.api.compatible.marathon_groups import router as marathon_groups
from portal.api.compatible.marathon_state import ping
from portal.api.compatible.marathon_state import router as marathon_state
from portal.models import Scope
from scheduling.spec.job_spec import SpecError


class Basic(HttpBasicAuth):
    """Authenticates a call by a token as the password of HTTP basic authentication, with any user name.

    Clients of Marathon and Chronos send no bearer tokens. Browsers that know a password add it to the requests of all
    sites, so requests that come from another site are not authenticated.
    """

    def __init__(self, bearer: Bearer) -> None:
        super().__init__()
        self._bearer = bearer

    def authenticate(self, request: HttpRequest, username: str, password: str) -> User | None:
        if request.headers.get("Sec-Fetch-Site", "none") not in {"none", "same-origin"}:
            return None
        return self._bearer.authenticate(request, password)


work = Bearer(Scope.WORK)
api = NinjaAPI(
    title="Marathon and Chronos",
    version="compatible",
    docs_url=None,
    openapi_url=None,
    auth=[work, Basic(work)],
)
api.add_router("/v2", marathon)
api.add_router("/v2", marathon_groups)
api.add_router("/v2", marathon_state)
api.get("/ping", url_name="marathon_ping")(ping)
api.add_router("/v1/scheduler", chronos)


def _answer(status: int, message: str, **more: Any) -> HttpResponse:
    return api.create_response(None, {"message": message, **more}, status=status)  # type: ignore[arg-type]


@api.exception_handler(Http404)
def _not_found(request: HttpRequest, error: Http404) -> HttpResponse:
    return _answer(404, "Nothing exists at this address, or you may not see it.")


@api.exception_handler(AuthenticationError)
def _unauthorized(request: HttpRequest, error: AuthenticationError) -> HttpResponse:
    answer = _answer(
        401, "Send a token of Fairlot: as a bearer token, or as the password of basic authentication."
    )
    answer["WWW-Authenticate"] = 'Basic realm="Fairlot"'
    return answer


@api.exception_handler(HttpError)
def _http_error(request: HttpRequest, error: HttpError) -> HttpResponse:
    return _answer(error.status_code, str(error))


@api.exception_handler(NotAllowed)
def _not_allowed(request: HttpRequest, error: NotAllowed) -> HttpResponse:
    return _answer(403, str(error))


@api.exception_handler(Refused)
def _refused(request: HttpRequest, error: Refused) -> HttpResponse:
    return _answer(409, error.message)


@api.exception_handler(SpecError)
def _spec_error(request: HttpRequest, error: SpecError) -> HttpResponse:
    details = [{"path": f"/{name}", "errors": [text]} for name, text in error.problems.items()]
    return _answer(422, "Object is not valid", details=details)


@api.exception_handler(NotConverted)
def _not_converted(request: HttpRequest, error: NotConverted) -> HttpResponse:
    details = [{"path": f"/{line.source}", "errors": [line.text]} for line in error.lines]
    return _answer(422, "Object is not valid", details=details)


@api.exception_handler(ValidationError)
def _validation_error(request: HttpRequest, error: ValidationError) -> HttpResponse:
    details = [{"path": f"/{item['loc'][-1]}", "errors": [item["msg"]]} for item in error.errors]
    return _answer(422, "Object is not valid", details=details)
