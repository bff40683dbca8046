"""The part of the server in front of Django limits threads, bodies, waiting times, password hashes and connections."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.conf import LazySettings
from django.core.signals import request_finished, request_started
from django.db import OperationalError, connection
from django.db.backends.signals import connection_created
from django.test import Client

from portal import hashing
from portal.edge import app as edge_app
from portal.edge import bodies, places, questions
from portal.edge.app import Edge, with_edge
from portal.edge.clients import Client as Sender
from portal.edge.threads import ThreadLoan, Threads, close_all
from portal.edge.turns import Full
from tests.waiting import PATIENCE

BOB = Sender("192.0.2.1", "bobs-session")
Message = MutableMapping[str, Any]
App = Callable[[Any, Any, Any], Awaitable[None]]


@pytest.fixture(autouse=True)
def _ended() -> Iterator[None]:
    yield
    close_all()


def run(work: Awaitable[Any]) -> Any:
    async def with_deadline() -> Any:
        async with asyncio.timeout(PATIENCE):
            return await work

    return asyncio.run(with_deadline())


class Call:
    """An ASGI request and the response to it. Setting the event `left` disconnects the client."""

    def __init__(
        self,
        path: str,
        method: str = "GET",
        headers: dict[str, str] | None = None,
        body: list[bytes] | None = None,
        address: str = "127.0.0.1",
    ) -> None:
        named = {"host": "localhost"} | (headers or {})
        self.scope = {
            "type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b"",
            "scheme": "http", "client": (address, 1), "server": ("127.0.0.1", 80), "http_version": "1.1",
            "headers": [(name.encode(), value.encode()) for name, value in named.items()],
        }  # fmt: skip
        self.pieces = list(body or [])
        self.is_whole = True
        self.status, self.headers, self.body = 0, {}, b""
        self.begun = asyncio.Event()
        self.left = asyncio.Event()
        self.taken = 0

    async def receive(self) -> Message:
        if self.pieces:
            piece = self.pieces.pop(0)
            self.taken += len(piece)
            return {
                "type": "http.request",
                "body": piece,
                "more_body": bool(self.pieces) or not self.is_whole,
            }
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode().lower(): value.decode() for name, value in message["headers"]}
            self.begun.set()
        else:
            self.body += message.get("body", b"")

    async def to(self, app: App) -> Call:
        await app(self.scope, self.receive, self.send)
        return self


def portal_of(work: Callable[[], Any]) -> App:
    """Returns an ASGI app that calls `work` in a thread and answers with its result."""

    async def portal(scope: Any, receive: Any, send: Any) -> None:
        said = await sync_to_async(work)()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": str(said).encode()})

    return portal


class Busy:
    """A function that blocks until `go_on` is set. `most` is the greatest number of simultaneous calls."""

    def __init__(self) -> None:
        self.go_on, self.lock = threading.Event(), threading.Lock()
        self.now = self.most = 0

    def __call__(self) -> str:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        assert self.go_on.wait(PATIENCE)
        with self.lock:
            self.now -= 1
        return "done"


def addresses(count: int) -> list[str]:
    """Returns `count` client addresses. A single address may use only its share of the limits, so some tests need
    several."""
    return [f"192.0.2.{number}" for number in range(1, count + 1)]


async def until(true: Callable[[], bool]) -> None:
    while not true():  # noqa: ASYNC110 - what other threads do sets no event
        await asyncio.sleep(0.01)


@pytest.fixture
def few(settings: LazySettings) -> int:
    """Sets the lowest accepted limit on database connections. Returns how many pages can work simultaneously under this
    limit."""
    settings.FAIRLOT_WEB_DATABASE_CONNECTIONS = 5
    return edge_app.pages_at_once()


class TestThreads:
    def test_no_more_requests_work_at_once_than_there_are_threads_and_all_are_served(self, few: int) -> None:
        busy = Busy()

        async def crowd() -> list[int]:
            app = with_edge(portal_of(busy))
            calls = [asyncio.create_task(Call("/jobs/", address=one).to(app)) for one in addresses(20)]
            await until(lambda: busy.now == few)
            busy.go_on.set()
            return [call.status for call in await asyncio.gather(*calls)]

        assert run(crowd()) == [200] * 20
        assert busy.most == few == 2

    def test_a_request_that_waits_too_long_is_told_when_to_retry(self, few: int, monkeypatch) -> None:
        monkeypatch.setattr(edge_app, "WAIT_SECONDS", 0.1)
        busy = Busy()

        async def crowd() -> tuple[Call, Call, Call, Call]:
            edge = Edge(portal_of(busy))
            working = [
                asyncio.create_task(Call("/jobs/", address=one).to(edge.serve)) for one in addresses(few)
            ]
            await until(lambda: busy.now == few)
            page = await Call("/jobs/", headers={"accept": "text/html"}).to(edge.serve)
            api = await Call("/api/v1/jobs").to(edge.serve)
            health = await Call("/healthz").to(edge.serve)
            busy.go_on.set()
            await asyncio.gather(*working)
            await until(lambda: edge.pages.free == few)
            return page, api, health, await Call("/jobs/").to(edge.serve)

        page, api, health, afterwards = run(crowd())
        assert (page.status, page.headers["retry-after"]) == (503, "5")
        assert b"<h1>Fairlot is busy</h1>" in page.body
        assert (api.status, api.headers["content-type"]) == (503, "application/problem+json")
        assert json.loads(api.body)["status"] == 503
        assert (health.status, json.loads(health.body)["database"]) == (200, "ok")
        assert afterwards.status == 200

    def test_streams_hold_no_thread_and_may_still_ask_the_database(self, few: int) -> None:
        enough = asyncio.Event()
        asked: list[str] = []

        async def portal(scope: Any, receive: Any, send: Any) -> None:
            await sync_to_async(str)()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"news", "more_body": True})
            await enough.wait()
            asked.append(await sync_to_async(lambda: threading.current_thread().name)())
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        async def crowd() -> int:
            edge = Edge(portal)
            calls = [Call("/live") for _ in range(50)]
            tasks = [asyncio.create_task(call.to(edge.serve)) for call in calls]
            await asyncio.gather(*(call.begun.wait() for call in calls))
            await until(lambda: edge.streams.free == edge.streams.count)
            enough.set()
            await asyncio.gather(*tasks)
            await until(lambda: edge.streams.free == edge.streams.count)
            return edge.pages.free

        assert run(crowd()) == few
        assert len(asked) == 50
        assert all(name.startswith("streams-") for name in asked)

    @pytest.mark.django_db(transaction=True)
    def test_a_connection_stays_from_request_to_request_and_is_replaced_when_it_broke(self, few: int) -> None:
        def backend() -> int:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_backend_pid()")
                return int(cursor.fetchone()[0])

        async def portal(scope: Any, receive: Any, send: Any) -> None:
            await request_started.asend(sender=None, scope=scope)
            await portal_of(backend)(scope, receive, send)
            await request_finished.asend(sender=None)

        async def three_times() -> list[int]:
            edge = Edge(portal)
            found = []
            for number in range(3):
                found.append(int((await Call("/jobs/").to(edge.serve)).body))
                await until(lambda: edge.pages.free == few)
                if number == 1:
                    await asyncio.to_thread(end, found[-1])
            return found

        def end(pid: int) -> None:
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT pg_terminate_backend(%s, 60000)", [pid]
                )  # waits until the backend has ended
            connection.close()

        first, second, third = run(three_times())
        assert first == second != third

    def test_a_thread_that_is_given_up_waiting_for_is_not_lost(self) -> None:
        async def give_up() -> int:
            threads = Threads(1, "test")
            thread = await threads.take(BOB, 1)
            for _ in range(3):
                with pytest.raises(Full):
                    await threads.take(BOB, 0.01)
            waiting = asyncio.create_task(threads.take(BOB, PATIENCE))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            threads.give_back(thread, BOB)
            await until(lambda: threads.free == 1)
            threads.give_back(await threads.take(BOB, PATIENCE), BOB)
            await until(lambda: threads.free == 1)
            return threads.free

        assert run(give_up()) == 1

    def test_a_call_for_a_closed_stream_is_not_made(self) -> None:
        async def leave() -> list[str]:
            threads, made = Threads(1, "test"), []
            lease = ThreadLoan(threads, await threads.take(BOB, 1), BOB)
            lease.release()
            thread = await threads.take(BOB, PATIENCE)
            call = lease.submit(made.append, "left")
            await asyncio.sleep(0)
            call.cancel()
            threads.give_back(thread, BOB)
            await asyncio.wrap_future(lease.submit(made.append, "stayed"))
            return made

        assert run(leave()) == ["stayed"]

    def test_a_thread_that_is_lent_when_all_ends_is_closed_too(self) -> None:
        threads = Threads(1, "test")
        thread = run(threads.take(BOB, 1))
        close_all()
        with pytest.raises(RuntimeError, match="after shutdown"):
            thread.submit(str)


class TestSilentDatabase:
    @pytest.mark.parametrize(
        "path", ["/jobs/", "/live"]
    )  # /live waits longer for a thread, because it is a stream
    def test_requests_end_and_the_portal_goes_on_when_it_answers_again(
        self, few: int, monkeypatch, path: str
    ) -> None:
        monkeypatch.setattr(edge_app, "STREAM_WAIT_SECONDS", PATIENCE)
        monkeypatch.setattr(edge_app, "LOOK_AFTER_SECONDS", 0.1)
        monkeypatch.setattr(edge_app, "LOOK_SECONDS", 0.1)
        busy, answers = Busy(), threading.Event()

        def ask() -> Any:
            assert answers.wait(PATIENCE)
            return edge_app.Probe().question._work()

        async def stand_still() -> tuple[list[int], float, int]:
            edge = Edge(portal_of(busy))
            edge.probe.question._work = ask
            begun = time.monotonic()
            calls = await asyncio.gather(*(Call(path, address=one).to(edge.serve) for one in addresses(6)))
            took = time.monotonic() - begun
            threads = edge.streams if path == "/live" else edge.pages
            assert threads.free == 0  # all threads hang, and no further thread was started
            answers.set()
            busy.go_on.set()
            await until(lambda: threads.free == threads.count)
            while (again := await Call(path).to(edge.serve)).status == 503:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            return [call.status for call in calls], took, again.status

        statuses, took, again = run(stand_still())
        assert statuses == [503] * 6
        assert took < 60
        assert busy.most == (1 if path == "/live" else few)
        assert again == 200

    def test_a_slow_request_is_waited_for(self, few: int, monkeypatch) -> None:
        monkeypatch.setattr(edge_app, "LOOK_AFTER_SECONDS", 0.05)
        busy = Busy()

        async def slow() -> int:
            edge = Edge(portal_of(busy))
            call = asyncio.create_task(Call("/jobs/").to(edge.serve))
            await until(lambda: edge.probe.question.last is not None)
            await asyncio.sleep(0.2)
            busy.go_on.set()
            return (await call).status

        assert run(slow()) == 200


class TestBodies:
    @pytest.mark.parametrize("path", ["/nosuch", "/account/login/", "/api/v1/jobs", "/api/v1/nosuch"])
    @pytest.mark.parametrize("declares", [True, False])
    def test_strangers_send_little_wherever_it_goes(self, path: str, declares: bool) -> None:
        length = {"content-length": "600000000"} if declares else {"transfer-encoding": "chunked"}
        call = Call(path, "POST", length, [bytes(65536)] * 1000)
        run(call.to(with_edge(portal_of(str))))
        assert (call.status, call.headers["connection"]) == (413, "close")
        assert call.taken <= 2 * 65536
        assert b"64 KiB" in call.body

    def test_requests_with_credentials_may_send_larger_bodies_to_existing_addresses(
        self, settings: LazySettings
    ) -> None:
        known = {"authorization": "Bearer fairlot_a_b", "transfer-encoding": "chunked"}
        whole = [bytes(65536)] * (settings.FAIRLOT_BODY_LIMIT_BYTES // 65536)
        statuses = []
        for path, pieces in (("/api/v1/jobs", whole), ("/api/v1/jobs", [*whole, b"x"]), ("/nosuch", whole)):
            call = Call(path, "POST", known, list(pieces))
            run(call.to(with_edge(portal_of(str))))
            statuses.append(call.status)
        assert statuses == [200, 413, 413]

    def test_django_gets_the_whole_body_and_keeps_it_in_memory(self, settings: LazySettings) -> None:
        got = []

        async def portal(scope: Any, receive: Any, send: Any) -> None:
            message = await receive()
            got.append((message["body"], message["more_body"]))
            await portal_of(str)(scope, receive, send)

        run(Call("/submit/", "POST", {"content-length": "6"}, [b"abc", b"def"]).to(with_edge(portal)))
        assert got == [(b"abcdef", False)]
        assert settings.FILE_UPLOAD_MAX_MEMORY_SIZE >= settings.FAIRLOT_BODY_LIMIT_BYTES

    @pytest.mark.parametrize("pieces", [[], [b"abc"]])
    def test_uploads_that_stall_are_ended(self, monkeypatch, pieces: list[bytes]) -> None:
        monkeypatch.setattr(bodies, "PAUSE_SECONDS", 0.05)
        call = Call("/nosuch", "POST", {"content-length": "10"}, pieces)
        call.is_whole = False
        run(call.to(with_edge(portal_of(str))))
        assert (call.status, call.headers["connection"]) == (408, "close")

    def test_uploads_that_drip_are_ended_too(self, settings: LazySettings) -> None:
        settings.FAIRLOT_BODY_SECONDS = 0.2
        call = Call("/nosuch", "POST", {"content-length": "60000"})

        async def drip() -> Message:
            await asyncio.sleep(0.02)
            return {"type": "http.request", "body": b"x", "more_body": True}

        call.receive = drip  # type: ignore[method-assign]
        run(call.to(with_edge(portal_of(str))))
        assert call.status == 408

    def test_half_sent_bodies_hold_no_thread_and_are_bounded_together(self, monkeypatch) -> None:
        monkeypatch.setattr(bodies, "MOST_READ_AT_ONCE", 5)

        async def crowd() -> tuple[int, int]:
            edge = Edge(portal_of(str))
            halves = [
                Call("/submit/", "POST", {"content-length": "9"}, [b"abc"], address=one)
                for one in addresses(5)
            ]
            for half in halves:
                half.is_whole = False
            tasks = [asyncio.create_task(half.to(edge.serve)) for half in halves]
            await until(lambda: not any(half.pieces for half in halves))
            one_more = await Call("/submit/", "POST", {"content-length": "3"}, [b"abc"]).to(edge.serve)
            page = await Call("/jobs/").to(edge.serve)
            for half in halves:
                half.left.set()
            await asyncio.gather(*tasks)
            return one_more.status, page.status

        assert run(crowd()) == (503, 200)


class TestHealth:
    def test_concurrent_requests_share_one_connection_to_redis(self, settings: LazySettings) -> None:
        connections = 0

        async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections
            connections += 1
            writer.close()
            await writer.wait_closed()

        async def crowd() -> set[int]:
            server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
            settings.REDIS_URL = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
            edge = Edge(portal_of(str))
            calls = await asyncio.gather(*(Call("/healthz").to(edge.serve) for _ in range(50)))
            server.close()
            await server.wait_closed()
            return {call.status for call in calls}

        assert run(crowd()) == {503}
        assert connections == 1

    @pytest.mark.django_db
    def test_the_check_without_an_edge_leaves_no_thread(self, monkeypatch: pytest.MonkeyPatch) -> None:
        made: list[ThreadPoolExecutor] = []

        def make(*args: Any) -> ThreadPoolExecutor:
            made.append(ThreadPoolExecutor(*args))
            return made[-1]

        monkeypatch.setattr(questions, "ThreadPoolExecutor", make)
        assert Client().get("/healthz").status_code == 200
        assert made
        for executor in made:
            with pytest.raises(RuntimeError, match="after shutdown"):
                executor.submit(str)


class TestPasswords:
    def test_few_are_hashed_at_once_and_the_others_wait(self, monkeypatch) -> None:
        monkeypatch.setattr(hashing, "_turns", threading.BoundedSemaphore(2))
        monkeypatch.setattr(hashing, "WAIT_SECONDS", PATIENCE)
        busy = Busy()
        monkeypatch.setattr(hashing.Argon2PasswordHasher, "encode", lambda *_: busy())
        with ThreadPoolExecutor(10) as pool:
            hashes = [pool.submit(hashing.BoundedArgon2().encode, "secret", "salt" * 4) for _ in range(10)]
            while busy.now < 2:
                time.sleep(0.01)
            busy.go_on.set()
            assert {one.result() for one in hashes} == {"done"}
        assert busy.most == 2

    def test_a_password_check_that_waits_too_long_is_refused(self, monkeypatch) -> None:
        monkeypatch.setattr(hashing, "_turns", threading.BoundedSemaphore(1))
        monkeypatch.setattr(hashing, "WAIT_SECONDS", 0.01)
        assert hashing._turns.acquire()
        with pytest.raises(hashing.TooManyPasswords):
            hashing.BoundedArgon2().verify("secret", "argon2$argon2id$v=19$m=102400,t=2,p=8$YQ$YQ")

    def test_hashes_are_those_of_django(self) -> None:
        class Quick(hashing.BoundedArgon2):
            time_cost, memory_cost, parallelism = 1, 8, 1

        encoded = Quick().encode("secret", "salt" * 4)
        assert Quick().verify("secret", encoded)
        assert not Quick().verify("other", encoded)
        assert Quick.algorithm == "argon2"

    def test_logins_do_not_take_the_threads_of_pages(self, settings: LazySettings, few: int) -> None:
        settings.FAIRLOT_PASSWORDS_AT_ONCE = 1
        busy = Busy()

        async def portal(scope: Any, receive: Any, send: Any) -> None:
            await portal_of(busy if scope["method"] == "POST" else str)(scope, receive, send)

        async def crowd() -> list[int]:
            edge = Edge(portal)
            logins = [
                asyncio.create_task(Call("/account/login/", "POST", address=one).to(edge.serve))
                for one in addresses(10)
            ]
            await until(lambda: busy.now == 1)
            page = await Call("/jobs/").to(edge.serve)
            busy.go_on.set()
            return [page.status, *(login.status for login in await asyncio.gather(*logins))]

        assert run(crowd()) == [200] * 11
        assert busy.most == 1


@pytest.mark.django_db(transaction=True)
def test_web_processes_together_leave_connections_to_the_others(
    settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    # If this process has imported the web application, each connection takes a place, even the test's own connection.
    shared = connection_created.disconnect(dispatch_uid="web places")
    monkeypatch.setattr(
        places, "LOCK", 7_111_000
    )  # another lock, so that places of other processes do not count
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT current_setting('max_connections')::int"
            " - current_setting('superuser_reserved_connections')::int"
            " - current_setting('reserved_connections')::int"
        )
        settings.FAIRLOT_RESERVED_DATABASE_CONNECTIONS = cursor.fetchone()[0] - 2
    webs = [connection.copy() for _ in range(3)]
    try:
        for one in webs[:2]:
            one.connect()
            places.take_slot(None, one)
        webs[2].connect()
        with pytest.raises(OperationalError):
            places.take_slot(None, webs[2])
        assert webs[2].connection is None
        webs[0].close()
        webs[2].connect()
        places.take_slot(None, webs[2])  # the place of the closed connection is free again
    finally:
        for one in webs:
            one.close()
        if shared:
            places.limit_connections()


def test_an_error_of_a_lent_thread_keeps_nothing_of_what_the_work_held() -> None:
    class Held:
        pass

    def fail(held: Held) -> None:
        raise ValueError

    async def lend() -> weakref.ref[Held]:
        held = Held()
        with suppress(ValueError):
            await Threads(1, "lent").run(BOB, fail, held)
        return weakref.ref(held)

    gc.disable()
    try:
        assert run(lend())() is None
    finally:
        gc.enable()
