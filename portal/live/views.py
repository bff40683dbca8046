"""The view that streams changes to open pages, and the health check."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import closing

from asgiref.sync import sync_to_async
from django.contrib.auth.decorators import login_not_required
from django.http import Http404, JsonResponse, StreamingHttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from portal.edge.health import Health
from portal.edge.questions import Probe
from portal.live.hub import hub, missed
from portal.live.streams import COMMENT, HEARTBEAT, LONGEST_STREAM, Rights, event, stream
from portal.live.topics import MOST_TOPICS, may_hear
from portal.user_request import UserRequest


async def live(request: UserRequest) -> StreamingHttpResponse:
    """Streams changes of the topics in `?topics=a,b`. Raises Http404 unless the user may subscribe to all of them.

    `?since=` is the stream's position when the page was rendered, or the id of the last event that the page received.
    The stream begins with the changes after this position.
    """
    topics = {topic for topic in request.GET.get("topics", "").split(",") if topic}
    user = request.user
    if not topics or len(topics) > MOST_TOPICS or not await sync_to_async(may_hear)(user, topics):
        raise Http404
    rights = Rights(request, user, lambda reader: may_hear(reader, topics))
    return stream(_relay(topics, request.GET.get("since", ""), rights))


async def _relay(topics: set[str], position: str, rights: Rights) -> AsyncIterator[str]:
    until = time.monotonic() + LONGEST_STREAM
    async with hub().subscribe(topics) as subscription:
        while time.monotonic() < until and await rights.hold():
            relay, changed = await subscription.news(within=min(HEARTBEAT, rights.due_in()))
            if relay == "live":
                # Missed changes are read only after listening has begun, so that no change in between is lost.
                position, topics_missed = await missed(position)
                changed = subscription.among(topics_missed, changed)
            elif changed:
                position = subscription.position
            if relay is not None:
                yield event(relay, name="relay", event_id=position)
            for topic in changed:
                yield event({"topic": topic}, event_id=position)
            if relay is None and not changed:
                yield COMMENT
    yield event("again", name="bye")


@login_not_required
@never_cache
@require_safe
async def healthz(request: UserRequest) -> JsonResponse:
    """Reports the state of the database, Redis, the disks and the ledger. The status is 503 if the database or Redis
    fails.

    If `portal.edge` runs in front of Django, it answers this path itself, and this view is not called.
    """
    with closing(Health(Probe())) as health:
        status, report = await health.examine()
    return JsonResponse(report, status=status)
