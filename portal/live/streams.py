"""Server-sent events, as all streams of the portal send them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from django.db import connections
from django.http import StreamingHttpResponse

HEARTBEAT = 15.0  # seconds; proxies cut what is silent for longer
LONGEST_STREAM = 600.0  # seconds; then the page asks again, and its rights are checked again
COMMENT = ": still here\n\n"


def event(data: Any, *, name: str = "", event_id: object = "") -> str:
    """One event; `data` goes as JSON, so that it stays on one line."""
    lines = [f"id: {event_id}"] if event_id != "" else []
    if name:
        lines.append(f"event: {name}")
    lines.append(f"data: {data if isinstance(data, str) and name else json.dumps(data)}")
    return "\n".join(lines) + "\n\n"


def stream(events: AsyncIterator[str]) -> StreamingHttpResponse:
    return StreamingHttpResponse(
        events,
        content_type="text/event-stream; charset=utf-8",
        headers={"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"},
    )


def let_go_of_database() -> None:
    """Gives this thread's database connections back; a stream may be open for hours."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()
