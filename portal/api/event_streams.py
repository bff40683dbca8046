"""Operations that answer with server-sent events, with the streaming of the pages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any

from django.http.response import HttpResponseBase

from portal.api.problems import problem
from portal.live.streams import MOST_STREAMS, TooManyStreams, counted_stream
from portal.user_request import ApiRequest

RETRY_SECONDS = 5
# `openapi_extra` of an operation that streams.
EVENTS: dict[str, Any] = {
    "responses": {
        200: {
            "description": "Server-sent events.",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        }
    }
}


def stream_to(request: ApiRequest, events: AsyncIterator[str]) -> HttpResponseBase:
    """Returns a stream for the caller, or 429 if the caller has too many open."""
    try:
        return counted_stream(request.auth, events)
    except TooManyStreams:
        answer = problem(
            HTTPStatus.TOO_MANY_REQUESTS,
            f"You have {MOST_STREAMS} streams open. Close one, or try again later.",
        )
        answer["Retry-After"] = str(RETRY_SECONDS)
        return answer


def position_of(request: ApiRequest, after: str) -> str:
    """Returns the position from which a stream continues: that of Last-Event-ID, or else `after`."""
    return request.headers.get("Last-Event-ID") or after
