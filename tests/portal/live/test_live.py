"""Pages receive changes through one Redis subscription, and only for topics that their user may read."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from typing import Any

import pytest
import redis
from asgiref.sync import async_to_sync, sync_to_async
from django.conf import settings
from django.db import OperationalError
from django.test import AsyncClient, Client, RequestFactory
from django.urls import reverse

from accounting.models import Membership, User
from portal.live import streams, views
from portal.live.hub import Hub, Subscription
from portal.live.topics import may_hear, topics_of_jobs
from scheduling.core import pubsub
from tests.portal.scene import Scene
from tests.waiting import PATIENCE


def run(work: Callable[[], Awaitable[Any]]) -> Any:
    async def with_deadline() -> Any:
        async with asyncio.timeout(PATIENCE):
            return await work()

    return async_to_sync(with_deadline)()


class Always:
    """Access rights that never expire, for a reader who may read the topics throughout the test."""

    def due_in(self) -> float:
        return PATIENCE

    async def hold(self) -> bool:
        return True


def publish(*topics: str) -> None:
    pubsub._send(topics)


async def heard(subscription: Subscription) -> list[str]:
    while True:
        _, changed = await subscription.news(within=PATIENCE)
        if changed:
            return changed


async def until_live(subscription: Subscription) -> None:
    relay = None
    while relay != "live":
        relay, _ = await subscription.news(within=PATIENCE)


def subscriptions_in_redis() -> int:
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        return dict(client.pubsub_numsub(pubsub.channel()))[pubsub.channel().encode()]


def cut_subscriptions() -> None:
    """Closes the Redis subscriptions of the pages in this pytest worker.

    Other pytest workers use other databases of the Redis server.
    """
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        database = str(client.connection_pool.connection_kwargs["db"])
        for connection in client.client_list(_type="pubsub"):
            if connection["db"] == database:
                client.client_kill_filter(_id=connection["id"])


def test_many_pages_share_one_subscription_and_each_hears_its_own_topics() -> None:
    async def listen() -> tuple[int, list[list[str]]]:
        hub = Hub()
        async with AsyncExitStack() as stack:
            pages = [
                await stack.enter_async_context(hub.subscribe([f"job:{n}", "cluster:1"])) for n in range(200)
            ]
            await until_live(pages[0])
            count = await sync_to_async(subscriptions_in_redis)()
            await sync_to_async(publish)("job:7", "job:999", "cluster:1")
            return count, [await heard(page) for page in pages]

    count, all_heard = run(listen)
    assert count == 1
    assert all("cluster:1" in changed for changed in all_heard)
    assert [n for n, changed in enumerate(all_heard) if f"job:{n}" in changed] == [7]


def test_the_subscription_ends_with_the_last_page() -> None:
    async def come_and_go() -> int:
        hub = Hub()
        async with hub.subscribe(["job:1"]) as page:
            await until_live(page)
        while count := await sync_to_async(subscriptions_in_redis)():  # noqa: ASYNC110 - Redis tells nobody
            await asyncio.sleep(0.02)
        return count

    assert run(come_and_go) == 0


def test_a_slow_page_keeps_each_topic_once() -> None:
    page = Subscription(["job:1", "jobs:*"])
    for _ in range(10_000):
        for topic in ("job:1", "jobs:4", "jobs:5", "job:2"):
            page.tell(topic)
    assert run(lambda: page.news(within=1)) == (None, ["job:1", "jobs:*"])


def test_pages_are_notified_when_redis_goes_and_comes_back() -> None:
    async def watch() -> list[str]:
        hub, states = Hub(), []
        async with hub.subscribe(["job:1"]) as page:
            await until_live(page)
            await sync_to_async(cut_subscriptions)()
            while states != ["away", "live"]:
                relay, _ = await page.news(within=PATIENCE)
                states += [relay] if relay else []
            await sync_to_async(publish)("job:1")
            assert await heard(page) == ["job:1"]
        return states

    assert run(watch) == ["away", "live"]


def test_no_user_receives_events_of_other_teams(scene: Scene) -> None:
    people, job = scene.people, scene.job
    own = [f"jobs:{people.astro.pk}", f"job:{job.pk}", f"cluster:{job.cluster_id}"]
    assert may_hear(people.bob, own)
    assert may_hear(people.olga, ["jobs:*"])
    for topic in (f"job:{job.pk}", f"jobs:{people.astro.pk}", "jobs:*"):
        assert not may_hear(people.charlie, [topic])
    for topic in ("job:0", "jobs:999999", "nonsense", "job:1;job:2", "cluster:", "cluster:99999"):
        assert not may_hear(people.olga, [topic])
    assert topics_of_jobs(people.bob) == f"jobs:{people.astro.pk}"


async def ask(user: User, **query: str):
    client = AsyncClient()
    await client.aforce_login(user, backend="django.contrib.auth.backends.ModelBackend")
    return await client.get(reverse("live"), query)


def told(block: bytes | str) -> tuple[str, str]:
    """Returns the name and the data of a server-sent event."""
    text = block if isinstance(block, str) else block.decode()
    fields = dict(line.split(": ", 1) for line in text.strip().splitlines())
    return fields.get("event", "message"), fields["data"]


def position_of(block: bytes) -> str:
    return dict(line.split(": ", 1) for line in block.decode().strip().splitlines())["id"]


@pytest.mark.django_db(transaction=True)
def test_the_stream_relays_changes_and_refuses_what_is_not_the_users(scene: Scene) -> None:
    async def listen() -> list[bytes]:
        topic = f"job:{scene.job.pk}"
        assert (await ask(scene.people.charlie, topics=topic)).status_code == 404
        assert (await ask(scene.people.bob, topics="")).status_code == 404
        since = await sync_to_async(pubsub.position)()
        answer = await ask(scene.people.bob, topics=topic, since=since)
        stream, blocks = aiter(answer.streaming_content), []
        async with aclosing(stream):
            blocks.append(await anext(stream))
            await sync_to_async(publish)(topic)
            blocks.append(await anext(stream))
        return blocks

    relay, change = run(listen)
    assert told(relay) == ("relay", "live")
    assert told(change) == ("message", f'{{"topic": "job:{scene.job.pk}"}}')
    assert position_of(change) == pubsub.position() != position_of(relay)


# --- no event is lost between a page and its stream, or between two streams ---------------------------


def first_words(topics: set[str], since: str, *, then: str) -> list[str]:
    """Opens an event stream of `topics` and of the topic `then`, at the position `since`. Publishes an event of `then`
    as soon as the stream is live.

    Returns the data of all events that arrive before this event.
    """

    async def listen() -> list[str]:
        heard = []
        async with aclosing(views._relay(topics | {then}, since, Always())) as stream:
            assert told(await anext(stream)) == ("relay", "live")
            await sync_to_async(publish)(then)
            async for block in stream:
                if told(block)[1] == f'{{"topic": "{then}"}}':
                    return heard
                heard.append(told(block)[1])
        raise AssertionError("the stream ended")

    return run(listen)


def test_a_stream_begins_with_what_changed_since_the_page_was_made(scene: Scene, browser_of) -> None:
    publish("job:76")
    page = browser_of(scene.people.bob).get(
        reverse("job", args=[scene.job.pk]), headers={"Accept": "text/html"}
    )
    [since] = re.findall(r'data-live-since="(\d+-\d+)"', page.content.decode())
    publish("job:77", f"job:{scene.job.pk}", "cluster:1", f"job:{scene.job.pk}")
    topics = {f"job:{scene.job.pk}", "cluster:2"}
    assert first_words(topics, since, then="job:5") == [f'{{"topic": "job:{scene.job.pk}"}}']


def test_a_stream_of_a_page_that_missed_nothing_tells_nothing() -> None:
    publish("job:1")
    assert first_words({"job:1", "cluster:1"}, pubsub.position(), then="job:5") == []


@pytest.mark.parametrize("since", ["", "nonsense", "0-0", "12-3"])
def test_where_it_is_not_known_what_was_missed_everything_may_have_changed(since: str) -> None:
    publish("job:1")
    everything = ['{"topic": "cluster:1"}', '{"topic": "job:1"}']
    assert first_words({"job:1", "cluster:1"}, since, then="jobs:5") == everything


def test_many_pages_at_once_ask_redis_once_and_miss_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    publish("job:1")
    since = pubsub.recent_position()
    publish("job:2")
    with monkeypatch.context() as away:
        away.setattr(pubsub, "position", lambda: pytest.fail("asked Redis again"))
        assert {pubsub.recent_position() for _ in range(100)} == {since}
    assert first_words({"job:1", "job:2"}, since, then="job:5") == ['{"topic": "job:2"}']
    monkeypatch.setattr(pubsub, "RECENT_SECONDS", 0.0)
    assert pubsub.recent_position() == pubsub.position() != since


def test_the_kept_news_are_bounded_and_an_older_page_refreshes_everything() -> None:
    publish("job:1")
    since = pubsub.position()
    publish(*(f"job:{n}" for n in range(pubsub.KEPT + 2000)))
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        assert client.xlen(pubsub.NEWS) <= pubsub.KEPT + 1000
    assert first_words({"cluster:1"}, since, then="jobs:5") == ['{"topic": "cluster:1"}']


def test_changes_made_while_redis_was_away_are_sent_once_it_is_back() -> None:
    async def listen() -> list[tuple[str, str]]:
        words = []
        since = await sync_to_async(pubsub.position)()
        async with aclosing(views._relay({"job:1", "job:2"}, since, Always())) as stream:
            assert told(await anext(stream)) == ("relay", "live")
            await sync_to_async(cut_subscriptions)()
            assert told(await anext(stream)) == ("relay", "away")
            await sync_to_async(publish)("job:2")
            while not words or words[-1][0] != "message":
                words.append(told(await anext(stream)))
        return words

    assert run(listen) == [("relay", "live"), ("message", '{"topic": "job:2"}')]


def test_a_portal_on_another_database_of_the_same_redis_hears_nothing_of_ours(settings) -> None:
    ours = pubsub.channel()
    settings.REDIS_URL = settings.REDIS_URL.rpartition("/")[0] + "/15"
    assert pubsub.channel() == "fairlot:live:15" != ours


def test_a_page_is_rendered_even_if_redis_is_away(scene: Scene, browser_of, settings) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    page = browser_of(scene.people.bob).get(reverse("jobs"), headers={"Accept": "text/html"})
    assert page.status_code == 200
    assert 'data-live-since=""' in page.content.decode()


@pytest.mark.django_db(transaction=True)
def test_a_stream_says_goodbye_after_its_time_so_that_rights_are_checked_again(
    scene: Scene, monkeypatch
) -> None:
    monkeypatch.setattr(views, "LONGEST_STREAM", 0.0)

    async def listen() -> list[bytes]:
        return [block async for block in views._relay({"job:1"}, "", Always())]

    assert run(listen) == [b"event: bye\ndata: again\n\n".decode()]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("what", ["logout", "deactivation", "password", "membership"])
@pytest.mark.parametrize("which", ["live", "log"])
def test_a_stream_ends_soon_after_its_reader_may_not_read_any_more(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, what: str, which: str
) -> None:
    monkeypatch.setattr(streams, "CHECK_SECONDS", 0.1)
    bob = scene.people.bob

    async def happens(client: AsyncClient) -> None:
        if what == "logout":
            await client.alogout()
        elif what == "deactivation":
            await User.objects.filter(pk=bob.pk).aupdate(is_active=False)
        elif what == "password":
            await User.objects.filter(pk=bob.pk).aupdate(password="another")
        else:
            await Membership.objects.filter(user=bob).adelete()

    async def ends() -> bytes:
        client = AsyncClient()
        await client.aforce_login(bob, backend="django.contrib.auth.backends.ModelBackend")
        path = reverse("live") + f"?topics=job:{scene.job.pk}"
        if which == "log":
            path = reverse("job_log_stream", args=[scene.job.pk])
        answer = await client.get(path)
        stream = aiter(answer.streaming_content)
        async with aclosing(stream):
            blocks = [await anext(stream)]
            await happens(client)
            blocks += [block async for block in stream]
        return blocks[-1]

    assert b"event: bye" in run(ends)


def rights_of_bob(scene: Scene) -> streams.Rights:
    client = Client()
    client.force_login(scene.people.bob, backend="django.contrib.auth.backends.ModelBackend")
    request = RequestFactory().get("/live")
    request.session = client.session
    return streams.Rights(request, scene.people.bob, lambda _: True)


async def check(rights: streams.Rights) -> bool:
    rights._due = 0.0
    return await rights.hold()


def test_a_stream_whose_checks_get_no_answer_ends_after_a_few(scene: Scene) -> None:
    answers = iter([None, None, True, None, None, None])
    rights = rights_of_bob(scene)

    def ask() -> bool:
        if next(answers) is None:
            raise OperationalError("the connection was lost")
        return True

    async def hold() -> list[bool]:
        rights._ask = ask  # type: ignore[method-assign]
        return [await check(rights) for _ in range(6)]

    assert run(hold) == [True, True, True, True, True, False]


def test_a_database_that_stands_still_is_no_answer_either(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "ANSWER_SECONDS", 0.05)
    goes_on = threading.Event()

    async def hold(rights: streams.Rights) -> list[bool]:
        rights._ask = lambda: goes_on.wait(PATIENCE)  # type: ignore[method-assign]
        found = [await check(rights) for _ in range(streams.MOST_UNANSWERED)]
        goes_on.set()
        return found

    assert asyncio.run(asyncio.wait_for(hold(rights_of_bob(scene)), PATIENCE)) == [True, True, False]


def test_well_when_database_and_redis_answer(db: None, monkeypatch) -> None:
    answer = Client().get(reverse("healthz"))
    disks = {"jobs": "ok", "temporary": "ok", "database": "ok"}
    assert (answer.status_code, answer.json()) == (
        200,
        {"status": "ok", "database": "ok", "redis": "ok", "disks": disks, "ledger": "ok"},
    )


def test_not_well_when_redis_is_away(db: None, settings) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    answer = Client().get(reverse("healthz"))
    assert (answer.status_code, answer.json()["redis"]) == (503, "failing")
