"""In front of Django, request bodies, threads, streams and logins are limited. One client that uses many of them does
not keep other clients out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.conf import LazySettings
from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from portal.edge import app as edge_app
from portal.edge import bodies
from portal.edge.app import STREAMS, Edge
from portal.edge.clients import Client, client_of
from portal.edge.handler import Handler
from portal.edge.turns import Turns
from tests.portal.edge.test_bounds import Busy, Call, _ended, addresses, portal_of, run, until  # noqa: F401
from tests.waiting import PATIENCE

MALLORY, BOB = "203.0.113.66", "192.0.2.1"
MIB = 1024 * 1024


def cookie(session: str) -> dict[str, str]:
    return {"cookie": f"fairlot_session={session}"}


@asynccontextmanager
async def waiting(edge: Edge, calls: list[Call]) -> AsyncIterator[list[asyncio.Task[Call]]]:
    """Sends all `calls` and yields their tasks. At the end, disconnects all clients and waits for the tasks."""
    tasks = [asyncio.create_task(call.to(edge.serve)) for call in calls]
    try:
        yield tasks
    finally:
        for call in calls:
            call.left.set()
        await asyncio.gather(*tasks)


def halves(address: str, count: int, size: int) -> list[Call]:
    """Returns `count` requests with a made-up cookie. Each announces a body of `size` + 1 bytes, but sends only `size`
    bytes of it."""
    calls = []
    for _ in range(count):
        headers = cookie("guessed") | {"content-length": str(size + 1)}
        calls.append(Call("/submit/", "POST", headers, [bytes(size)], address=address))
        calls[-1].is_whole = False
    return calls


def small_body_of(address: str) -> Call:
    return Call("/submit/", "POST", {"content-length": "100"}, [bytes(100)], address=address)


class TestBodies:
    @pytest.mark.parametrize(
        "attack",
        [
            pytest.param(halves(MALLORY, bodies.MOST_READ_AT_ONCE, 3), id="all places"),
            pytest.param(halves(MALLORY, 17, 4 * MIB - 1), id="all bytes"),
        ],
    )
    def test_one_address_leaves_room_to_others(self, attack: list[Call]) -> None:
        async def crowd() -> tuple[int, int]:
            edge = Edge(portal_of(str))
            async with waiting(edge, attack):
                await until(lambda: all(call.status or not call.pieces for call in attack))
                refused = sum(call.status == 503 for call in attack)
                return refused, (await small_body_of(BOB).to(edge.serve)).status

        refused, status = run(crowd())
        assert refused >= len(attack) * 0.6
        assert status == 200

    def test_large_bodies_of_many_addresses_leave_room_to_small_ones(self) -> None:
        async def crowd() -> int:
            edge = Edge(portal_of(str))
            attack = [call for one in addresses(17) for call in halves(one, 1, 4 * MIB - 1)]
            async with waiting(edge, attack):
                await until(lambda: all(call.status or not call.pieces for call in attack))
                return (await small_body_of(BOB).to(edge.serve)).status

        assert run(crowd()) == 200

    def test_a_cookie_that_is_no_login_allows_no_large_body(self) -> None:
        call = Call("/submit/", "POST", {"cookie": "theme=dark", "content-length": str(MIB)})
        assert run(call.to(Edge(portal_of(str)).serve)).status == 413


class TestThreads:
    @pytest.mark.parametrize("session", ["mallory", "mallory; a={}", "mallory{}"])
    def test_slow_requests_of_one_client_leave_threads_to_others(
        self, monkeypatch: pytest.MonkeyPatch, session: str
    ) -> None:
        """A page of another client is served while one client's slow requests wait for threads.

        The slow client has one address. It uses one session cookie, with or without other cookies that vary, or many
        session cookies.
        """
        monkeypatch.setattr(edge_app, "WAIT_SECONDS", 1.0)
        busy = Busy()

        async def portal(scope: Any, receive: Any, send: Any) -> None:
            await portal_of(busy if scope["path"] == "/slow" else str)(scope, receive, send)

        async def crowd() -> tuple[list[Call], Call]:
            edge = Edge(portal)
            names = [cookie(session.format(number)) for number in range(edge_app.pages_at_once() + 3)]
            attack = [Call("/slow", headers=name, address=MALLORY) for name in names]
            async with waiting(edge, attack) as tasks:
                await until(lambda: busy.now > 0)
                await until(lambda: sum(task.done() for task in tasks) == len(tasks) - busy.now)
                page = await Call("/jobs/", headers=cookie("bob"), address=BOB).to(edge.serve)
                busy.go_on.set()
                return [await task for task in tasks], page

        attack, page = run(crowd())
        late = [call for call in attack if call.status == 503]
        assert page.status == 200
        assert busy.most < edge_app.pages_at_once()
        assert len(late) == len(attack) - busy.most
        assert {call.headers["retry-after"] for call in late} == {"5"}

    @pytest.mark.parametrize(
        ("count", "may_be_slow", "of_login", "of_address"),
        [
            pytest.param(8, True, 4, 6, id="many"),
            pytest.param(7, True, 3, 6, id="pages by default"),
            pytest.param(2, True, 1, 1, id="as few pages as there may be"),
            pytest.param(2, False, 1, 2, id="streams and sessions by default"),
            pytest.param(4, False, 2, 3, id="streams of a large portal"),
        ],
    )
    def test_a_login_has_half_and_an_address_more(
        self, count: int, may_be_slow: bool, of_login: int, of_address: int
    ) -> None:
        async def begun(clients: list[Client]) -> int:
            turns = Turns(count, may_be_slow=may_be_slow)
            tasks = [asyncio.create_task(turns.begin(client, PATIENCE)) for client in clients]
            await asyncio.sleep(0)
            done = sum(task.done() for task in tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            return done

        assert run(begun([Client(MALLORY, "one")] * count)) == of_login
        assert run(begun([Client(MALLORY, str(number)) for number in range(count)])) == of_address

    def test_a_client_with_many_made_up_sessions_waits_no_less_than_others(self) -> None:
        async def order() -> list[str]:
            turns, served = Turns(1), []
            await turns.begin(Client(MALLORY, ""), PATIENCE)

            async def one(client: Client) -> None:
                await turns.begin(client, PATIENCE)
                served.append(client.login)
                turns.end(client)

            made_up = [Client(MALLORY, f"guess-{number}") for number in range(100)]
            real = [Client(BOB, "bob"), Client("192.0.2.2", "alice")]
            tasks = [asyncio.create_task(one(client)) for client in (*made_up, *real)]
            await asyncio.sleep(0)
            turns.end(Client(MALLORY, ""))
            await asyncio.gather(*tasks)
            return served

        served = run(order())
        assert served[:4] == ["guess-0", "bob", "alice", "guess-1"]
        assert len(served) == 102

    def test_a_request_that_stops_waiting_leaves_nothing_behind(self) -> None:
        async def give_up() -> tuple[int, int]:
            turns, bob = Turns(1), Client(BOB, "bob")
            await turns.begin(bob, 1)
            tasks = [asyncio.create_task(turns.begin(bob, PATIENCE)) for _ in range(4)]
            await asyncio.sleep(0)
            tasks[0].cancel()  # the request still waits
            await asyncio.sleep(0)
            tasks[1].cancel()  # the request is next in turn
            turns.end(bob)
            tasks[2].cancel()  # the request has just got its turn
            await asyncio.gather(*tasks, return_exceptions=True)
            turns.end(bob)
            return len(turns._waiting), turns._of_logins.taken

        assert run(give_up()) == (0, 0)


class TestClients:
    @pytest.mark.parametrize(
        ("path", "headers", "login"),
        [
            ("/jobs/", {}, ""),
            ("/jobs/", {"cookie": "a=1; fairlot_session=bob; b=2"}, "bob"),
            ("/jobs/", {"cookie": 'fairlot_session=x; fairlot_session="bob"'}, "bob"),
            ("/jobs/", {"cookie": "fairlot_session=bob", "authorization": "Bearer 1"}, "bob"),
            ("/api/v1/jobs", {"cookie": "fairlot_session=bob", "authorization": "Basic 1"}, "bob"),
            ("/api/v1/jobs", {"cookie": "fairlot_session=1", "authorization": "bearer bob"}, "bob"),
        ],
    )
    def test_a_login_is_what_the_portal_takes_for_it(
        self, path: str, headers: dict[str, str], login: str
    ) -> None:
        assert client_of(Call(path, headers=headers, address=BOB).scope) == Client(BOB, login)

    def test_an_ipv6_network_is_one_address(self) -> None:
        found = {client_of(Call("/", address=f"2001:db8::{number}").scope) for number in range(9)}
        assert found == {Client("2001:db8::/64", "")}


class TestStreams:
    def test_streams_are_recognised_by_their_address(self) -> None:
        assert STREAMS.fullmatch(reverse("live"))
        assert STREAMS.fullmatch(reverse("job_log_stream", args=[17]))
        assert not STREAMS.fullmatch(reverse("job_log", args=[17]))

    def test_no_header_lets_a_page_wait_as_long_as_a_stream(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(edge_app, "WAIT_SECONDS", 0.1)
        monkeypatch.setattr(edge_app, "STREAM_WAIT_SECONDS", PATIENCE)
        busy = Busy()

        async def crowd() -> int:
            edge = Edge(portal_of(busy))
            async with waiting(edge, [Call("/jobs/", address=one) for one in addresses(edge.pages.count)]):
                await until(lambda: busy.now == edge.pages.count)
                late = Call("/jobs/", headers={"accept": "text/event-stream"}, address=MALLORY)
                await late.to(edge.serve)
                busy.go_on.set()
            return late.status

        assert run(crowd()) == 503

    def test_users_at_one_address_may_use_all_threads_and_another_address_is_next(self) -> None:
        busy = Busy()
        begun: list[str] = []

        async def portal(scope: Any, receive: Any, send: Any) -> None:
            begun.append(scope["client"][0])
            await portal_of(busy)(scope, receive, send)

        async def crowd() -> list[str]:
            edge = Edge(portal)
            campus = [Call("/live", headers=cookie(f"one-{n}"), address=MALLORY) for n in range(20)]
            async with waiting(edge, campus) as tasks:
                await until(lambda: busy.now == edge.streams.count)
                tasks.append(asyncio.create_task(Call("/live", address=BOB).to(edge.serve)))
                await until(lambda: BOB in edge.streams._turns._waiting)
                busy.go_on.set()
                await asyncio.gather(*tasks)
            return begun[: edge.streams.count + 2]

        # One more request that already waits at the first address gets a thread; the next free thread serves Bob.
        assert run(crowd()) == [MALLORY, MALLORY, MALLORY, BOB]

    def test_streams_that_begin_take_no_thread_of_a_page(self) -> None:
        busy = Busy()

        async def portal(scope: Any, receive: Any, send: Any) -> None:
            await portal_of(busy if scope["path"] == "/live" else str)(scope, receive, send)

        async def crowd() -> int:
            edge = Edge(portal)
            async with waiting(edge, [Call("/live", address=one) for one in addresses(40)]):
                await until(lambda: busy.now == edge.streams.count)
                page = await Call("/jobs/", address=BOB).to(edge.serve)
                busy.go_on.set()
            return page.status

        assert run(crowd()) == 200


def test_a_stranger_who_guesses_passwords_leaves_room_for_others_to_sign_in(settings: LazySettings) -> None:
    settings.FAIRLOT_PASSWORDS_AT_ONCE = 2
    busy = Busy()

    async def portal(scope: Any, receive: Any, send: Any) -> None:
        is_attack = scope["client"][0] == MALLORY
        said = await sync_to_async(busy if is_attack else str)()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": said.encode()})

    async def crowd() -> int:
        edge = Edge(portal)
        async with waiting(edge, [Call("/account/login/", "POST", address=MALLORY) for _ in range(10)]):
            await until(lambda: busy.now > 0)
            login = await Call("/account/login/", "POST", address=BOB).to(edge.serve)
            busy.go_on.set()
        return login.status

    assert run(crowd()) == 200


def test_a_client_that_disconnects_keeps_its_turn_until_the_password_is_hashed(
    settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.FAIRLOT_PASSWORDS_AT_ONCE = 1
    monkeypatch.setattr(edge_app, "WAIT_SECONDS", PATIENCE)
    busy = Busy()

    class Hashing(Handler):
        def get_response(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse(busy())

    def login(address: str) -> Call:
        return Call("/account/login/", "POST", {"content-length": "1"}, [b"x"], address)

    async def crowd() -> tuple[int, int]:
        edge = Edge(Hashing())
        first, second = login(MALLORY), login(BOB)
        leaving = asyncio.create_task(first.to(edge.serve))
        await until(lambda: busy.now == 1)
        first.left.set()
        await leaving
        staying = asyncio.create_task(second.to(edge.serve))
        await until(lambda: busy.now == 2 or bool(edge.hashing._waiting))
        busy.go_on.set()
        await staying
        await until(lambda: edge.pages.free == edge.pages.count)
        return second.status, edge.hashing._of_logins.taken

    assert run(crowd()) == (200, 0)
    assert busy.most == 1
