"""Programs follow logs and notifications by server-sent events: nothing is lost, and rights and numbers are bounded."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.http import StreamingHttpResponse
from django.test import AsyncClient

from accounting.models import Notification, NotificationEvent, User
from accounting.models.notifications import Audience
from portal.api.notifications.stream import News
from portal.live import streams
from portal.models import ApiToken
from portal.tokens.actions import create_token
from scheduling.backends.local import removal
from scheduling.backends.local.files import JobFiles
from scheduling.clusters.backend_factory import backend_for
from scheduling.core import pubsub
from scheduling.models import Job
from tests.portal.scene import Scene

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def log(scene: Scene) -> Iterator[Path]:
    """Yields the path of the log of worker 0 of Bob's running job."""
    files = JobFiles(backend_for(scene.job.cluster).root, scene.job.pk)
    removal.remove(files)
    files.make()
    files.log(0).write_bytes(b"one\ntwo\n")
    yield files.log(0)
    removal.remove(files)


def token_of(user: User) -> str:
    return create_token(actor=user, name="follower", scopes=(), days=1)[1]


async def opened(token: str, path: str, last_id: str = "") -> Any:
    headers = {"Authorization": f"Bearer {token}"} | ({"Last-Event-ID": last_id} if last_id else {})
    return await AsyncClient().get(f"/api/v1{path}", headers=headers)


async def upcoming(events: Any) -> dict[str, str]:
    """Returns the fields of the next event that is no comment."""
    while True:
        lines = (await anext(events)).decode().splitlines()
        fields = dict(line.split(": ", 1) for line in lines if line and not line.startswith(":"))
        if fields:
            return fields


def run(work: Callable[[], Awaitable[Any]]) -> Any:
    return async_to_sync(work)()


def told(user: User, key: str) -> Notification:
    event = NotificationEvent.about(
        "job.ended", key, audience=Audience.PERSON, concerns=[user.pk], title=key, text="", path="/"
    )
    event.save()
    made = Notification.objects.create(user=user, event=event)
    pubsub.publish(f"bell:{user.pk}")
    return made


def test_a_log_is_followed_with_a_token_and_resumed_after_the_last_event(scene: Scene, log: Path) -> None:
    token, path = token_of(scene.people.bob), f"/jobs/{scene.job.pk}/log/stream?first_rank=0&last_rank=0"

    async def work() -> None:
        answer = await opened(token, path)
        assert (answer.status_code, answer["Content-Type"]) == (200, streams.CONTENT_TYPE)
        events = aiter(answer.streaming_content)
        async with aclosing(events):
            assert (await upcoming(events))["event"] == "start"
            first = await upcoming(events)
        answer.close()
        items = json.loads(first["data"])["items"]
        assert [(line["rank"], line["text"]) for line in items] == [(0, "one\n"), (0, "two\n")]
        await sync_to_async(log.write_bytes)(b"one\ntwo\nthree\n")
        await sync_to_async(Job.objects.filter(pk=scene.job.pk).update)(state=Job.State.SUCCEEDED)
        answer = await opened(token, path, first["id"])
        events = aiter(answer.streaming_content)
        async with aclosing(events):
            await upcoming(events)
            assert [line["text"] for line in json.loads((await upcoming(events))["data"])["items"]] == [
                "three\n"
            ]
            assert (await upcoming(events))["event"] == "end"
        answer.close()

    run(work)


def test_notifications_are_streamed_as_they_arrive_and_those_missed_first(scene: Scene) -> None:
    bob = scene.people.bob
    token, seen = token_of(bob), told(bob, "seen")
    missed = told(bob, "missed")
    told(scene.people.charlie, "of Charlie")

    async def work() -> None:
        answer = await opened(token, "/notifications/stream", str(seen.pk))
        events = aiter(answer.streaming_content)
        async with aclosing(events):
            assert (await upcoming(events))["id"] == str(seen.pk)
            event = await upcoming(events)
            assert (event["id"], json.loads(event["data"])["title"]) == (str(missed.pk), "missed")
            new = await sync_to_async(told)(bob, "new")
            event = await upcoming(events)
            assert (event["id"], json.loads(event["data"])["title"]) == (str(new.pk), "new")
        answer.close()

    run(work)


def test_a_notification_that_is_committed_late_is_read_once(scene: Scene) -> None:
    bob = scene.people.bob
    early, late = told(bob, "early"), told(bob, "late")
    news = News.begin(bob, str(early.pk - 1))
    Notification.objects.filter(pk=early.pk).delete()  # as if its transaction had not been committed yet
    assert [one.pk for one in news.read()] == [late.pk]
    Notification.objects.create(pk=early.pk, user=bob, event=early.event)
    assert [one.pk for one in news.read()] == [early.pk]
    assert news.read() == []
    assert news.position == late.pk
    assert News.begin(bob, "").read() == []
    assert News.begin(bob, "x").position == late.pk


@pytest.mark.parametrize("path", ["/notifications/stream", "/jobs/{job}/log/stream"])
def test_a_stream_ends_when_its_token_is_revoked(
    scene: Scene, log: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "CHECK_SECONDS", 0.0)
    token = token_of(scene.people.bob)

    async def work() -> None:
        answer = await opened(token, path.format(job=scene.job.pk))
        events = aiter(answer.streaming_content)
        async with aclosing(events):
            assert (await upcoming(events))["event"] == "start"
            await sync_to_async(ApiToken.objects.all().delete)()
            while (event := await upcoming(events)).get("event") != "bye":
                assert "event" not in event
        answer.close()

    run(work)


def test_a_user_has_a_number_of_streams_and_closed_ones_do_not_count(
    scene: Scene, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "MOST_STREAMS", 2)
    monkeypatch.setattr(streams, "_open", Counter())  # other tests leave streams open
    token, other = token_of(scene.people.bob), token_of(scene.people.alice)

    async def work() -> None:
        answers: list[StreamingHttpResponse] = [
            await opened(token, "/notifications/stream") for _ in range(2)
        ]
        refused = await opened(token, "/notifications/stream")
        assert (refused.status_code, refused["Retry-After"]) == (429, "5")
        answers.append(await opened(other, "/notifications/stream"))
        answers[0].close()  # its reader left before anything was sent
        answers[0].close()
        answers.append(await opened(token, f"/jobs/{scene.job.pk}/log/stream"))
        assert [answer.status_code for answer in answers] == [200] * 4
        for answer in answers:
            answer.close()

    run(work)
    assert not streams._open


def test_who_may_not_see_a_job_cannot_follow_it(scene: Scene, log: Path) -> None:
    async def work() -> None:
        charlie = await sync_to_async(token_of)(scene.people.charlie)
        path = f"/jobs/{scene.job.pk}/log/stream"
        assert (await opened(charlie, path)).status_code == 404
        assert (await opened("fairlot_none_such", path)).status_code == 401

    run(work)
