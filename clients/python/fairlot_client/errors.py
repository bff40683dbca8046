"""The exceptions of the client."""

from __future__ import annotations

from collections.abc import Mapping


class FairlotError(Exception):
    """Base class of all exceptions of this package."""


class ConnectionFailed(FairlotError):
    """Raised when the portal cannot be reached or does not answer in time."""


class TimedOut(FairlotError, TimeoutError):
    """Raised when a job has not ended in the time for which the caller waits. The job goes on."""


class ApiError(FairlotError):
    """Raised when the portal answers a call with an error.

    `detail` says what is wrong, and `problems` maps each wrong field or parameter to what is accepted there.
    """

    def __init__(self, status: int, detail: str, problems: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.problems = dict(problems or {})

    def __str__(self) -> str:
        lines = [
            f"  {field}: {text}" if field else f"  {text}"
            for field, text in self.problems.items()
            if text != self.detail
        ]
        return "\n".join([self.detail, *lines])


class NotSignedIn(ApiError):
    """Raised when the token is missing, unknown, expired or revoked (401)."""


class NotAllowed(ApiError):
    """Raised when the caller may not do this (403)."""


class NotFound(ApiError):
    """Raised when an object does not exist, or the caller may not see it (404)."""


class Conflict(ApiError):
    """Raised when the change is not possible now (409), or if the object has changed meanwhile (412)."""


class NotAccepted(ApiError):
    """Raised when a parameter or field is not accepted (422)."""


class Unavailable(ApiError):
    """Raised when the portal is busy or out of order (429 and 5xx)."""


_OF_STATUS: dict[int, type[ApiError]] = {
    401: NotSignedIn,
    403: NotAllowed,
    404: NotFound,
    409: Conflict,
    412: Conflict,
    422: NotAccepted,
    429: Unavailable,
}


def error_of(status: int, body: object) -> ApiError:
    """Returns the exception for an error answer. `body` is its decoded JSON, or None if it is not a problem document
    (RFC 9457)."""
    kind = _OF_STATUS.get(status, Unavailable if status >= 500 else ApiError)
    if not isinstance(body, dict):
        return kind(status, f"The portal answered with the HTTP status {status} and no explanation.")
    problems = body.get("problems")
    return kind(
        status,
        str(body.get("detail") or f"The portal answered with the HTTP status {status}."),
        {str(field): str(text) for field, text in problems.items()} if isinstance(problems, dict) else {},
    )
