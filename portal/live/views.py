"""The stream that tells an open page what changed, and the check that tells whether we are well."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import redis
from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.db import DatabaseError, connection
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from accounting.models import User
from portal.live.hub import hub, missed
from portal.live.streams import COMMENT, HEARTBEAT, LONGEST_STREAM, event, let_go_of_database, stream
from portal.live.topics import MOST_TOPICS, may_hear


async def live(request: HttpRequest) -> HttpResponse:
    """Relays the topics named by `?topics=a,b`; 404 if one of them is not the user's to hear.

    `?since=` is the position of the news when the page was read from the database, or the id of the last
    event that it got: what came after it is told at first.
    """
    topics = {topic for topic in request.GET.get("topics", "").split(",") if topic}
    user = await request.auser()
    if not topics or len(topics) > MOST_TOPICS or not await sync_to_async(_check)(user, topics):
        raise Http404
    return stream(_relay(topics, request.GET.get("since", "")))


def _check(user: User, topics: set[str]) -> bool:
    try:
        return may_hear(user, topics)
    finally:
        let_go_of_database()


async def _relay(topics: set[str], position: str) -> AsyncIterator[str]:
    until = time.monotonic() + LONGEST_STREAM
    async with hub().subscribe(topics) as subscription:
        while time.monotonic() < until:
            relay, changed = await subscription.news(within=HEARTBEAT)
            if relay == "live":
                # Asked only now that we listen, so that nothing falls in between.
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
def healthz(request: HttpRequest) -> JsonResponse:
    """Whether the database and Redis answer; 503 with what does not."""
    answers = {"database": _database_answers(), "redis": _redis_answers()}
    well = all(answers.values())
    body = {"status": "ok" if well else "failing"} | {k: "ok" if v else "failing" for k, v in answers.items()}
    return JsonResponse(body, status=200 if well else 503)


def _database_answers() -> bool:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
            return cursor.fetchone() == (1,)
    except DatabaseError:
        return False


def _redis_answers() -> bool:
    try:
        with redis.Redis.from_url(settings.REDIS_URL, socket_timeout=2, socket_connect_timeout=2) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False
