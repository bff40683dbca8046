"""The text of mails about a request: who made the request, who answered it, and the times in the reader's time zone."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import cache, partial

from django.conf import settings

from accounting.core.clock import zone_named
from accounting.core.wording import exact
from accounting.models import Request, User
from accounting.notifications.request_words import Words

Fact = tuple[str, str | datetime | None]


def text_of(request: Request, said: str) -> Callable[[User], str]:
    """Returns a function that takes a reader and returns the text of the mail.

    The text is `said`, followed by the details of the request, which are read from the database only once.
    """
    facts = cache(partial(_facts, request))

    def text(reader: User) -> str:
        lines = [f"{name}: {_value(value, reader)}" for name, value in facts()]
        return "\n".join([said, "", *lines, "", f"{settings.PUBLIC_URL}/requests/{request.pk}/", ""])

    return text


def _value(value: str | datetime | None, reader: User) -> str:
    if isinstance(value, datetime):
        return exact(value.astimezone(zone_named(reader.time_zone)))
    return "no end" if value is None else value


def _facts(request: Request) -> list[Fact]:
    extended = _extended(request)
    words = Words.of([request, *([extended] if extended else [])])
    what = f" ({words.say(extended, extended.granted)})" if extended else ""
    found: list[Fact] = [
        ("Team", request.tenant.name),
        ("Requested change", f"{words.say(request, request.wanted)}{what}"),
        ("Requested end", request.until),
        ("Requested by", request.asked_by.get_username()),
        ("Reason for the request", request.reason),
    ]
    if request.state == Request.State.APPROVED:
        found += [
            ("Granted change", f"{words.say(request, request.granted)}{what}"),
            ("End of the grant", extended.ends_at if extended else request.ends_at),
        ]
    if request.state != Request.State.OPEN:
        by = request.decided_by.get_username() if request.decided_by else "Fairlot"
        found.append((f"{request.get_state_display()} by", by))
    if request.answer:
        found.append(("Answer", request.answer))
    if request.ended_at is not None:
        found += [("Grant ended", request.ended_at), ("Result", request.ending)]
    elif request.ending:
        found.append(("Grant did not end on time because", request.ending))
    return found


def _extended(request: Request) -> Request | None:
    if request.extends_id is None:
        return None
    return Request.objects.select_related("tenant").get(pk=request.extends_id)
