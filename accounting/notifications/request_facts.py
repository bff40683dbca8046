"""The facts of a notification about a request: who made the request, who answered it, and its times."""

from __future__ import annotations

from datetime import datetime
from typing import TypeAlias

from accounting.models import Request
from accounting.notifications.request_words import Words

# A text, a moment that is shown in the reader's time zone, or None for "no end".
Value: TypeAlias = str | dict[str, str] | None


def facts_of(request: Request) -> list[tuple[str, Value]]:
    """Returns the details of a request as facts of an event (NotificationEvent.facts)."""
    extended = _extended(request)
    words = Words.of([request, *([extended] if extended else [])])
    what = f" ({words.say(extended, extended.granted)})" if extended else ""
    found: list[tuple[str, Value]] = [
        ("Team", request.tenant.name),
        ("Requested change", f"{words.asks(request)}{what}"),
        ("Requested end", _moment(request.until)),
        ("Requested by", request.asked_by.get_username()),
        ("Reason for the request", request.reason),
    ]
    if request.state == Request.State.APPROVED:
        found += [
            ("Granted change", f"{words.say(request, request.granted)}{what}"),
            ("End of the grant", _moment(extended.ends_at if extended else request.ends_at)),
        ]
    if request.state != Request.State.OPEN:
        by = request.decided_by.get_username() if request.decided_by else "Fairlot"
        found.append((f"{request.get_state_display()} by", by))
    if request.answer:
        found.append(("Answer", request.answer))
    if request.ended_at is not None:
        found += [("Grant ended", _moment(request.ended_at)), ("Result", request.ending)]
    elif request.ending:
        found.append(("Grant did not end on time because", request.ending))
    return found


def _moment(at: datetime | None) -> Value:
    return {"at": at.isoformat()} if at else None


def _extended(request: Request) -> Request | None:
    if request.extends_id is None:
        return None
    return Request.objects.select_related("tenant").get(pk=request.extends_id)
