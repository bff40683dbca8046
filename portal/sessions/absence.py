"""The 503 response for a session or service that is not responding: why, since when, and when it is expected back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from html import escape

from django.utils import timezone

from accounting.core.wording import exact

# The value of Retry-After in seconds if the time of the return is unknown.
AGAIN_SECONDS = 10
LONGEST_SECONDS = 3600
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="refresh" content="{again}"><title>{who} is not ready</title></head>
<body><main><h1>{who} is not ready</h1>{lines}<p><a href="{page}">Its page in Fairlot</a> has details. \
This page reloads automatically.</p></main></body></html>
"""


@dataclass(frozen=True, slots=True)
class Absence:
    """An outage of a session or service: the reason, the start, and the expected end."""

    who: str
    page: str  # URL of the session's or service's page in the portal
    why: str
    since: datetime | None  # begin of the outage; None if the program has never responded
    back_by: datetime | None  # expected return; None if unknown

    def answer(self, accepts: str) -> tuple[str, str, list[tuple[bytes, bytes]]]:
        """Returns the body, the content type and additional headers of the 503 response.

        The body is HTML, JSON or plain text, depending on the request's Accept header `accepts`.
        """
        again = AGAIN_SECONDS
        if self.back_by is not None:
            left = (self.back_by - timezone.now()) / timedelta(seconds=1)
            again = min(max(again, round(left)), LONGEST_SECONDS)
        extra = [(b"retry-after", str(again).encode())]
        if "text/html" in accepts:
            lines = "".join(f"<p>{escape(line)}</p>" for line in self._lines())
            # The page reloads more often than Retry-After says, because the program may be back earlier than expected.
            page = _PAGE.format(
                who=escape(self.who), lines=lines, page=escape(self.page), again=AGAIN_SECONDS
            )
            return page, "text/html; charset=utf-8", extra
        if "application/json" in accepts:
            told = {
                "code": "not_ready",
                "detail": self.why,
                "since": self.since and self.since.isoformat(),
                "expected_back_at": self.back_by and self.back_by.isoformat(),
                "page": self.page,
            }
            return json.dumps(told), "application/json", extra
        return "\n".join([f"{self.who} is not ready.", *self._lines(), self.page]), TEXT, extra

    def _lines(self) -> list[str]:
        lines = [self.why] if self.why else []
        if self.since is not None:
            lines.append(f"{self.who} has not responded since {_moment(self.since)}.")
        if self.back_by is not None:
            lines.append(f"{self.who} is expected to be ready by {_moment(self.back_by)}.")
        return lines


TEXT = "text/plain; charset=utf-8"


def _moment(at: datetime) -> str:
    return f"{exact(at.astimezone(timezone.get_default_timezone()))}"
