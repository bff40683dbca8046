"""Decides what to send, what to make of the answer, and when to try again. It sends nothing itself.

`exchange` is a generator that yields requests and pauses, and receives responses. The sync and the async client drive
it, so that both follow the same rules.
"""

from __future__ import annotations

import json
import random
from collections.abc import Generator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from uuid import uuid4

import httpx2

from fairlot_client.calls import Call, Unset
from fairlot_client.errors import ApiError, ConnectionFailed, error_of

T = TypeVar("T")

PREFIX = "/api/v1"
LATER = {429, 502, 503, 504}
LONGEST_PAUSE = 60.0  # seconds; if the portal asks for more, the error is raised instead


@dataclass(frozen=True)
class Pause:
    """Asks the driver to wait for this many seconds."""

    seconds: float


Reply = httpx2.Response | httpx2.TransportError | None


def exchange(
    call: Call[T], *, url: str, headers: dict[str, str], retries: int
) -> Generator[httpx2.Request | Pause, Reply, T]:
    """Yields what the driver must do, and returns the answer of the call.

    The driver sends back the response or the transport error of each request, and None after a pause. Raises
    FairlotError if the call failed.
    """
    headers = headers | ({"Idempotency-Key": call.key or uuid4().hex} if call.takes_key else {})
    headers |= {"If-Match": f'"{call.version}"'} if call.version else {}
    tries = retries if call.may_repeat else 0
    unsure = False  # whether an earlier request may have had its effect
    for attempt in range(tries + 1):
        reply = yield request_of(call, url, headers)
        if isinstance(reply, httpx2.Response) and reply.status_code not in LATER:
            if unsure and call.method == "DELETE" and reply.status_code == 404:
                return None  # type: ignore[return-value]  # the first request deleted it
            return answer_of(call, reply)
        unsure = unsure or not isinstance(reply, httpx2.Response) or reply.status_code in {502, 504}
        pause = pause_before(attempt, reply)
        if attempt == tries or pause > LONGEST_PAUSE:
            break
        yield Pause(pause)
    if isinstance(reply, httpx2.Response):
        raise _error(reply)
    raise ConnectionFailed(f"{url} cannot be reached: {reply or type(reply).__name__}") from reply


def request_of(call: Call[Any], url: str, headers: dict[str, str]) -> httpx2.Request:
    """Returns the request that sends a call."""
    address = f"{url}{PREFIX}{call.path}"
    query = {name: _text(value) for name, value in call.query.items()}
    if isinstance(call.body, Unset):
        return httpx2.Request(call.method, address, params=query, headers=headers)
    if isinstance(call.body, bytes):
        headers = headers | {"Content-Type": "application/octet-stream"}
        return httpx2.Request(call.method, address, params=query, headers=headers, content=call.body)
    return httpx2.Request(call.method, address, params=query, headers=headers, json=call.body)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def answer_of(call: Call[T], response: httpx2.Response) -> T:
    """Returns the answer of a call. Raises ApiError if the response is an error."""
    if response.is_redirect:
        place = response.headers.get("Location", "another address")
        raise ApiError(
            response.status_code,
            f"The portal redirects this call to {place}. Use the URL of the portal itself.",
        )
    if response.is_error:
        raise _error(response)
    if call.is_file:
        return response.content  # type: ignore[return-value]
    if not response.content:
        return None  # type: ignore[return-value]
    body = _json(response)
    if body is None and response.content != b"null":
        raise ApiError(
            response.status_code, f"{response.url} does not answer like Fairlot. Is this the URL of a portal?"
        )
    return body  # type: ignore[no-any-return]


def _error(response: httpx2.Response) -> ApiError:
    return error_of(response.status_code, _json(response))


def _json(response: httpx2.Response) -> Any:
    try:
        return json.loads(response.content)
    except ValueError:
        return None


def pause_before(attempt: int, reply: Reply) -> float:
    """Returns the seconds to wait before the next attempt: those of Retry-After, or a random part of a time that
    doubles."""
    asked = reply.headers.get("Retry-After", "") if isinstance(reply, httpx2.Response) else ""
    if asked.isdecimal():
        return float(asked)
    if asked:
        try:
            return max(0.0, (parsedate_to_datetime(asked) - datetime.now(UTC)).total_seconds())
        except (ValueError, TypeError):  # neither seconds nor a date with a time zone
            pass
    longest = min(30.0, 0.5 * 2**attempt)
    return random.uniform(longest / 2, longest)  # noqa: S311 - spreads load, and needs no secrecy
