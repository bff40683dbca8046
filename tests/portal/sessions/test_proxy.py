"""Requests reach sessions through the portal.

Real programs run on the local backend, behind the portal's web server.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import json
import resource
import shlex
import socket
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp
import pytest
from django.conf import LazySettings
from django.db import OperationalError
from django.test import Client
from django.urls import reverse
from granian.constants import Interfaces
from granian.server.embed import Server

from accounting.actions import change_membership, deactivate_user
from accounting.core.clock import now_from_database
from accounting.models import AuditEvent, Membership, User
from portal.edge.threads import close_all
from portal.models import Scope, Visit
from portal.sessions import http, sockets, traffic, visits
from portal.sessions.editing import FILES
from portal.sessions.headers import TOKEN_COOKIES
from portal.sessions.visits import Admitted
from portal.tokens.actions import create_token
from scheduling.backends.local import isolation
from scheduling.backends.local.isolation import Isolation
from scheduling.clusters import backend_factory
from scheduling.clusters.backend_factory import backend_for
from scheduling.draining.actions import drain_node, return_node
from scheduling.execution.operations import perform_operations
from scheduling.execution.reconcile import observe
from scheduling.models import Job, JobForecast, Lease, Service, Session
from scheduling.services.actions import create_service, remove_service
from scheduling.services.replicas import step_service
from scheduling.services.traffic import Outcome, Traffic
from scheduling.services.traffic_samples import read_traffic
from scheduling.sessions.actions import start_session, stop_session
from scheduling.sessions.programs import command_for
from scheduling.spec.job_spec import JobSpec
from tests.scheduling.leases.test_whole_life import end_all
from tests.scheduling.world import World, world
from tests.threads import let_go
from tests.waiting import PATIENCE, wait_for

pytestmark = pytest.mark.django_db(transaction=True)

PROGRAM = Path(__file__).with_name("session_program.py")
BIG = 192 * 1024 * 1024
MOST_GROWTH = 96 * 1024  # KiB that the process may grow, with the client that runs in this test


@pytest.fixture
def lab(jobs_folder: Path) -> Iterator[World]:
    made = world(v100=4)
    backend_for(made.cluster).prepare()
    # Runs without isolation, which has its own tests: it would hide the program and this Python interpreter.
    isolation.force(
        backend_factory.local_places(), Isolation(False, False, "a test wants it so", "a test wants it so")
    )
    yield made
    end_all(made)


def started(lab: World, *, kind: str = "notebook", **fields: Any) -> Session:
    """Starts a session of Bob's, waits until it is ready, and returns it."""
    usual = {
        "name": "notes", "command": f"exec {sys.executable} {PROGRAM}", "port": 8000, "readiness_path": "/",
        "readiness_period_seconds": 1, "checkpoint_grace_seconds": 1,
    }  # fmt: skip
    session = start_session(
        actor=lab.people.bob,
        tenant=lab.people.astro,
        cluster=lab.cluster,
        spec=JobSpec(**(usual | fields)),
        kind=kind,
        idle_minutes=60,
    )

    def ready() -> bool:
        lab.fill()
        perform_operations(cluster=lab.cluster, log_limit_bytes=10_000_000)
        observe(lab.cluster)
        return Lease.objects.ready().filter(job=session.job).exists()

    wait_for(ready, what=lambda: f"ready; {list(session.job.events.values_list('text', flat=True))}")
    return session


@pytest.fixture
def port(settings: LazySettings) -> Iterator[int]:
    """Yields the port on which granian serves the portal's ASGI application."""
    from portal.asgi import application  # noqa: PLC0415 - needs the settings of the tests

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        number = int(taken.getsockname()[1])
    settings.PUBLIC_URL = f"http://127.0.0.1:{number}"
    settings.FAIRLOT_SESSIONS_URL = f"http://*.localhost:{number}"
    loop = asyncio.new_event_loop()
    server = Server(application, "127.0.0.1", number, interface=Interfaces.ASGINL, log_enabled=False)
    thread = threading.Thread(target=lambda: loop.run_until_complete(server.serve()))
    thread.start()
    wait_for(lambda: answers(number), what="the server listens")
    yield number
    loop.call_soon_threadsafe(server.stop)
    thread.join(PATIENCE)
    assert not thread.is_alive()
    loop.close()
    close_all()


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Browser:
    """A browser that requests pages from a session's host name. It sends only the cookie of this host."""

    def __init__(self, port: int, session: Session, cookie: str = "") -> None:
        self.name = f"session-{session.pk}.localhost:{port}"
        self.origin, self.port = f"http://{self.name}", port
        self.base = f"/sessions/{session.pk}/proxy/"
        self.cookie = cookie

    def headers(self, **more: str) -> dict[str, str]:
        usual = {"Host": self.name, "Origin": self.origin}
        usual |= {"Cookie": f"fairlot_visit={self.cookie}"} if self.cookie else {}
        named = {name.replace("_", "-"): value for name, value in more.items()}
        return {name: value for name, value in (usual | named).items() if value}

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path if path.startswith('/') else self.base + path}"

    def ask(self, path: str = "", method: str = "GET", data: Any = None, **more: str) -> Answer:
        async def once(link: aiohttp.ClientSession) -> Answer:
            async with link.request(
                method, self.url(path), headers=self.headers(**more), data=data, allow_redirects=False
            ) as answer:
                return Answer(answer.status, answer.headers.copy(), await answer.read())

        return self.talk(once)

    def talk(self, work: Callable[[aiohttp.ClientSession], Awaitable[Any]]) -> Any:
        async def all_of_it() -> Any:
            async with (
                asyncio.timeout(PATIENCE),
                aiohttp.ClientSession(
                    auto_decompress=False,
                    cookie_jar=aiohttp.DummyCookieJar(),
                    timeout=aiohttp.ClientTimeout(None),
                    max_field_size=2**20,
                ) as link,
            ):
                return await work(link)

        return asyncio.run(all_of_it())


class Answer:
    def __init__(self, status: int, headers: Any, body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user, "django.contrib.auth.backends.ModelBackend")
    return client


def let_in(client: Client, port: int, session: Session) -> Browser:
    """Opens a session through the portal as the user of `client`. Returns a browser at the session's host name, with
    the cookie that lets it in."""
    sent = client.get(f"/sessions/{session.pk}/open/")
    assert sent.status_code == 302
    browser = Browser(port, session)
    door = urlsplit(sent["Location"])
    assert door.netloc == browser.name
    answer = browser.ask(f"{door.path}?{door.query}")
    assert (answer.status, answer.headers["Location"]) == (302, browser.base)
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly; SameSite=Lax" in cookie
    browser.cookie = cookie.partition(";")[0].partition("=")[2]
    return browser


@pytest.fixture
def session(lab: World) -> Session:
    return started(lab)


@pytest.fixture
def bobs(lab: World, session: Session) -> Client:
    return signed_in(lab.people.bob)


@pytest.fixture
def browser(bobs: Client, port: int, session: Session) -> Browser:
    return let_in(bobs, port, session)


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_each_method_path_and_body_arrive_as_they_were(browser: Browser, method: str) -> None:
    body = b"\x00\xffbody" if method in {"POST", "PUT", "PATCH", "DELETE"} else None
    answer = browser.ask("echo/a%2Fb%20c;d?x=1&x=%26&y", method, body)
    assert answer.status == 200
    told = answer.headers
    assert (told["X-Method"], told["X-Path"]) == (method, f"{browser.base}echo/a%2Fb%20c;d?x=1&x=%26&y")
    assert told["X-Digest"] == hashlib.sha256(body or b"").hexdigest()
    if method == "HEAD":
        assert answer.body == b""


def test_a_proxy_on_this_machine_is_not_this_machine(browser: Browser) -> None:
    """A request that came through a proxy is refused, even if the proxy's header names this machine's address.

    Sessions of a local cluster admit only clients on this machine. Behind a proxy, the real client may be elsewhere.
    """
    assert browser.ask("headers").status == 200
    for name in ("X_Forwarded_For", "Forwarded", "Via", "X_Real_IP"):
        assert browser.ask("headers", **{name: "127.0.0.1"}).status == 403, name


def test_the_program_gets_neither_cookies_nor_authority_of_the_portal(
    browser: Browser, settings: LazySettings
) -> None:
    settings.FAIRLOT_LOCAL_BEYOND_LOOPBACK = (
        True  # X-Forwarded-For makes the request look like one through a proxy
    )
    cookies = f"a=1; fairlot_visit={browser.cookie}; fairlot_session=secret; fairlot_csrf=secret; b=2"
    answer = browser.ask(
        "headers",
        Cookie=cookies,
        Authorization="Bearer fairlot_abc_secret",
        X_Forwarded_For="10.0.0.1",
        X_Mine="kept",
        Connection="keep-alive, X-Hop",
        X_Hop="secret",
        Proxy_Authorization="Basic secret",
    )
    text = answer.body.decode()
    assert "secret" not in text
    assert browser.cookie not in text
    assert "10.0.0.1" not in text
    lines = dict(line.split(": ", 1) for line in text.splitlines())
    assert lines["cookie"] == "a=1; b=2"
    assert lines["x-mine"] == "kept"
    assert lines["host"] == browser.name
    assert lines["authorization"] == "token right", "the program knows Fairlot by it"


def test_answers_keep_cookies_to_their_path_and_bind_no_browser(browser: Browser) -> None:
    answer = browser.ask("cookies")
    assert answer.headers.getall("Set-Cookie") == [
        f"one=1; Path={browser.base}; HttpOnly",
        f"two=2; Path={browser.base}deep",
        f"three=3; Path={browser.base}",
    ]
    assert "Strict-Transport-Security" not in answer.headers
    assert "X-Hop" not in answer.headers
    assert answer.headers.getall("Content-Security-Policy") == [
        "default-src 'self'",
        "frame-ancestors 'self'",
    ]
    assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
    compressed = browser.ask("compressed", Accept_Encoding="gzip")
    assert compressed.headers["Content-Encoding"] == "gzip"
    assert compressed.body[:2] == b"\x1f\x8b", "passed on as it is"


@pytest.mark.parametrize(("lines", "size"), [(1, 20_000), (1, 60_000), (3, 20_000), (100, 500)])
def test_long_headers_of_answers_pass_whole(browser: Browser, lines: int, size: int) -> None:
    answer = browser.ask(f"long/{lines}/{size}")
    found = [value for name, value in answer.headers.items() if name.lower().startswith("x-long-")]
    assert (answer.status, found) == (200, ["x" * size] * lines)


@pytest.mark.parametrize(("lines", "size"), [(1, 70_000), (4, 20_000), (600, 10)])
def test_headers_beyond_the_limit_are_refused_with_its_size(browser: Browser, lines: int, size: int) -> None:
    answer = browser.ask(f"long/{lines}/{size}")
    assert answer.status == 502
    assert b"headers of at most 64 KiB and 500 lines" in answer.body


def test_requests_with_long_headers_pass_up_to_the_same_limit(browser: Browser) -> None:
    assert f"x-mine: {'x' * 7000}" in browser.ask("headers", X_Mine="x" * 7000).body.decode()
    refused = browser.ask("headers", X_Mine="x" * 70_000)
    assert refused.status == 431
    assert b"headers of at most 64 KiB" in refused.body


@pytest.mark.parametrize(
    "offered",
    [(command_for("notebook", None), "lab", b"JupyterLab"), (FILES, "", b"It works")],
    ids=["jupyter", "files"],
)
def test_commands_that_the_form_offers_work_at_first_click(
    lab: World, bobs: Client, port: int, offered: tuple[str, str, bytes]
) -> None:
    command, path, said = offered
    session = started(lab, command=command, environment="python", readiness_path="", port=8888)
    answer = let_in(bobs, port, session).ask(path)
    assert answer.status == 200
    assert said in answer.body


@pytest.mark.parametrize("cookie", ["vscode-tkn", "code-server-session"])
def test_vs_code_opens_at_first_click_and_to_nobody_who_lacks_its_token(
    lab: World, bobs: Client, port: int, cookie: str
) -> None:
    command = f"exec {sys.executable} {PROGRAM.with_name('vscode_program.py')} {cookie}"
    session = started(lab, kind="vscode", command=command, readiness_path="")
    browser = let_in(bobs, port, session)
    page = browser.ask("static/a%20b?x=1")
    assert page.status == 200
    # It serves at the root. Neither a stale cookie of the browser nor the portal's own reach it.
    assert page.body.decode() == f"VS Code at /static/a%20b?x=1, cookies {sorted(TOKEN_COOKIES)}"
    assert f"Path={browser.base}" in page.headers["Set-Cookie"]
    stale = f"fairlot_visit={browser.cookie}; {cookie}=stale; mine=1"
    assert "'mine'" in browser.ask("", Cookie=stale).body.decode()
    assert browser.ask("", Cookie="").status == 401

    async def echo(link: aiohttp.ClientSession) -> str:
        async with link.ws_connect(browser.url("socket"), headers=browser.headers()) as ws:
            await ws.send_str("through")
            return str(await ws.receive_str())

    assert browser.talk(echo) == "through"
    address = Lease.objects.get(job=session.job).address

    async def directly(link: aiohttp.ClientSession) -> int:
        async with link.get(f"http://{address}/") as answer:
            return answer.status

    assert browser.talk(directly) == 403


def test_statuses_and_redirects_are_the_programs_own(browser: Browser) -> None:
    assert browser.ask("status/404").status == 404
    assert browser.ask("status/204").status == 204
    assert browser.ask("status/500").status == 500
    away = browser.ask("redirect")
    assert (away.status, away.headers["Location"]) == (302, "elsewhere?x=1")


def test_a_big_answer_and_a_big_request_pass_without_being_held_in_memory(browser: Browser) -> None:
    async def down(link: aiohttp.ClientSession) -> int:
        size = 0
        async with link.get(browser.url(f"big/{BIG}"), headers=browser.headers()) as answer:
            async for piece in answer.content.iter_any():
                size += len(piece)
        return size

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(BIG // 2**16):
            yield bytes(2**16)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert browser.talk(down) == BIG
    assert browser.ask("count", "POST", pieces()).body == str(BIG).encode()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MOST_GROWTH


def test_a_slow_reader_holds_the_program_up_and_not_the_portals_memory(browser: Browser) -> None:
    async def read_nothing(link: aiohttp.ClientSession) -> int:
        async with link.get(browser.url(f"big/{BIG}?slow"), headers=browser.headers()) as answer:
            await answer.content.readexactly(1)
            sent = -1
            while True:  # until the program sends no more
                async with link.get(browser.url("sent"), headers=browser.headers()) as told:
                    now = int(await told.text())
                if now == sent:
                    return now
                sent = now
                await asyncio.sleep(0.5)

    assert browser.talk(read_nothing) < BIG / 2


def test_pieces_arrive_when_they_are_sent_and_a_disconnect_is_noticed(browser: Browser) -> None:
    async def listen(link: aiohttp.ClientSession) -> None:
        async with link.get(browser.url("drip"), headers=browser.headers()) as answer:
            assert await answer.content.readexactly(6) == b"first\n"
            # The program sends the second line only after this request, while the first response is still open.
            async with link.get(browser.url("go"), headers=browser.headers()) as other:
                assert other.status == 200
            assert await answer.content.readexactly(7) == b"second\n"

    browser.talk(listen)
    wait_for(lambda: browser.ask("left").body == b"1", what="the program sees that its reader has left")


def test_an_answer_that_is_cut_off_looks_cut_off(browser: Browser) -> None:
    async def read(link: aiohttp.ClientSession) -> bytes:
        async with link.get(browser.url("cut"), headers=browser.headers()) as answer:
            return await answer.read()

    with pytest.raises(aiohttp.ClientError):
        browser.talk(read)
    assert browser.ask("nothing").status == 502


@pytest.mark.parametrize("declares", [True, False])
def test_an_upload_is_bounded_in_size(browser: Browser, settings: LazySettings, declares: bool) -> None:
    settings.FAIRLOT_SESSIONS_BODY_LIMIT_BYTES = 1000

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield bytes(500)

    assert browser.ask("count", "POST", bytes(1000)).body == b"1000"
    assert browser.ask("count", "POST", bytes(1001) if declares else pieces()).status == 413


def test_an_upload_that_does_not_go_on_ends(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "PAUSE_SECONDS", 0.2)
    assert half_sent(browser).startswith(b"HTTP/1.1 408 ")


def half_sent(browser: Browser) -> bytes:
    """Sends an upload that never ends: a chunked POST without the last chunk. Returns all bytes that the server sends
    before it closes the connection."""
    with socket.create_connection(("127.0.0.1", browser.port), timeout=PATIENCE) as link:
        named = browser.headers() | {"Transfer-Encoding": "chunked"}
        head = [f"POST {browser.base}count HTTP/1.1", *(f"{name}: {value}" for name, value in named.items())]
        link.sendall("\r\n".join([*head, "", "3", "abc", ""]).encode())
        said = b""
        while piece := link.recv(4096):
            said += piece
    return said


@pytest.mark.parametrize(("limit", "refused"), [(1000, b"HTTP/1.1 408 "), (2, b"HTTP/1.1 413 ")])
def test_nothing_keeps_what_an_upload_that_is_refused_was_read_from(
    browser: Browser, monkeypatch: pytest.MonkeyPatch, settings: LazySettings, limit: int, refused: bytes
) -> None:
    """After an upload is refused, the portal keeps no reference to the `_Exchange`, the object that relayed the upload.

    If a reference remained, the server might leave the connection open.
    """
    monkeypatch.setattr(http, "PAUSE_SECONDS", 0.2)
    settings.FAIRLOT_SESSIONS_BODY_LIMIT_BYTES = limit
    exchanges: weakref.WeakSet[http._Exchange] = weakref.WeakSet()
    begin = http._Exchange.__init__

    def noted(exchange: http._Exchange, *args: Any, **named: Any) -> None:
        begin(exchange, *args, **named)
        exchanges.add(exchange)

    monkeypatch.setattr(http._Exchange, "__init__", noted)
    gc.disable()
    try:
        assert half_sent(browser).startswith(refused)
        wait_for(lambda: not exchanges, what="the exchange is forgotten")
    finally:
        gc.enable()


def test_websockets_speak_in_both_directions_with_their_protocol(browser: Browser) -> None:
    async def speak(link: aiohttp.ClientSession) -> tuple[list[Any], str | None, int | None]:
        async with link.ws_connect(
            browser.url("socket"), headers=browser.headers(), protocols=["v2", "v1"], max_msg_size=0
        ) as ws:
            heard: list[Any] = []
            for text in ("hello", "ö" * 100_000):
                await ws.send_str(text)
                heard.append((await ws.receive()).data == text)
            big = bytes(8 * 2**20)
            await ws.send_bytes(big)
            heard.append((await ws.receive()).data == big)
            protocol = ws.protocol
            await ws.send_str("close 4001")
            await ws.receive()
            return heard, protocol, ws.close_code

    assert browser.talk(speak) == ([True, True, True], "v1", 4001)


def test_a_client_that_closes_a_websocket_closes_it_for_the_program(browser: Browser) -> None:
    async def leave(link: aiohttp.ClientSession) -> None:
        ws = await link.ws_connect(browser.url("socket"), headers=browser.headers())
        await ws.send_str("hello")
        await ws.receive()
        await ws.close(code=4002)

    browser.talk(leave)
    wait_for(lambda: browser.ask("closed").body == b"4002", what="the program was told")


async def is_refused(link: aiohttp.ClientSession, browser: Browser, **headers: str) -> bool:
    try:
        async with link.ws_connect(browser.url("socket"), headers=browser.headers(**headers)):
            return False
    except aiohttp.WSServerHandshakeError as error:
        return error.status == 403


@pytest.mark.parametrize("origin", ["", "null", "http://evil.example", "http://127.0.0.1", "https://{name}"])
def test_only_the_sessions_own_pages_may_speak_and_change(browser: Browser, origin: str) -> None:
    origin = origin.format(name=browser.name)
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        assert browser.ask("echo", method, b"x", Origin=origin).status == 403
    assert browser.talk(lambda link: is_refused(link, browser, Origin=origin))


def test_pages_of_other_hosts_may_lead_there_and_nothing_else(browser: Browser) -> None:
    for site in ("cross-site", "same-site"):
        there = {"Sec_Fetch_Site": site, "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
        assert browser.ask("echo", **there).status == 200
        assert browser.ask("echo", **(there | {"Sec_Fetch_Dest": "iframe"})).status == 403
        assert browser.ask("echo", **(there | {"Sec_Fetch_Mode": "no-cors"})).status == 403
    assert browser.ask("echo", Sec_Fetch_Site="same-origin", Sec_Fetch_Mode="cors").status == 200


def test_a_ticket_works_once_for_its_session_and_only_for_its_user(
    lab: World, bobs: Client, port: int, session: Session
) -> None:
    door = urlsplit(
        bobs.get(f"/sessions/{session.pk}/open/?path=/sessions/{session.pk}/proxy/lab?x=1")["Location"]
    )
    browser = Browser(port, session)
    first = browser.ask(f"{door.path}?{door.query}")
    assert first.headers["Location"] == f"{browser.base}lab?x=1"
    again = browser.ask(f"{door.path}?{door.query}")
    assert "Set-Cookie" not in again.headers
    assert again.headers["Location"].endswith(f"/sessions/{session.pk}/open/")
    ticket = parse_qs(urlsplit(bobs.get(f"/sessions/{session.pk}/open/")["Location"]).query)["ticket"][0]
    Visit.objects.filter(entered_at=None).update(created_at="2020-01-01T00:00Z")
    old = browser.ask(f"/sessions/{session.pk}/enter/?ticket={ticket}")
    assert "Set-Cookie" not in old.headers
    people = lab.people
    change_membership(
        actor=people.alice, membership=Membership.objects.get(user=people.bob), role=Membership.Role.VIEWER
    )
    assert bobs.get(f"/sessions/{session.pk}/open/").status_code == 403, "a viewer only looks"
    assert signed_in(people.charlie).get(f"/sessions/{session.pk}/open/").status_code == 404
    assert signed_in(people.alice).get(f"/sessions/{session.pk}/open/").status_code == 302
    assert AuditEvent.objects.filter(verb="session.open", actor=people.bob).count() == 2


def test_a_browser_without_this_sessions_cookie_is_refused(
    lab: World, browser: Browser, session: Session
) -> None:
    stranger = Browser(browser.port, session)
    assert stranger.ask("headers").status == 401
    sent = stranger.ask("lab?x=1", Accept="text/html", Sec_Fetch_Mode="navigate")
    assert sent.status == 302
    assert sent.headers["Location"].startswith(
        f"http://127.0.0.1:{browser.port}/sessions/{session.pk}/open/?path="
    )
    assert stranger.talk(lambda link: is_refused(link, stranger))
    stranger.cookie = "wrong"
    assert stranger.ask("headers").status == 401
    other = started(lab, name="other")
    elsewhere = Browser(browser.port, other, browser.cookie)
    assert elsewhere.ask("headers").status == 401, "a cookie is of one session"
    assert browser.ask(f"/sessions/{other.pk}/proxy/headers").status == 404


def test_nothing_of_the_portal_is_served_on_a_sessions_host_and_the_reverse(
    bobs: Client, browser: Browser, session: Session
) -> None:
    for path in ("/login/", "/jobs/", "/api/v1/jobs", "/healthz", "/static/css/app.css"):
        assert browser.ask(path).status == 404
    assert browser.ask("/", Host=f"other.localhost:{browser.port}").status == 404
    own = browser.ask("/healthz", Host=f"127.0.0.1:{browser.port}")
    assert own.status == 200
    assert browser.ask("headers", Host=f"127.0.0.1:{browser.port}").status == 404


def no_longer(browser: Browser) -> int:
    return browser.ask("headers").status


def test_a_logout_ends_every_way_in(bobs: Client, browser: Browser) -> None:
    assert no_longer(browser) == 200
    bobs.post(reverse("logout"))
    assert no_longer(browser) == 401


def test_another_password_and_a_deactivated_user_do_so_too(lab: World, browser: Browser) -> None:
    bob = lab.people.bob
    bob.set_password("another one, long enough")
    bob.save()
    assert no_longer(browser) == 401
    fresh = let_in(signed_in(bob), browser.port, Session.objects.get())
    assert no_longer(fresh) == 200
    deactivate_user(actor=lab.people.ada, user=bob)
    assert no_longer(fresh) == 401


def test_a_user_who_loses_the_role_loses_access(lab: World, browser: Browser) -> None:
    member = Membership.objects.get(user=lab.people.bob)
    change_membership(actor=lab.people.alice, membership=member, role=Membership.Role.VIEWER)
    assert no_longer(browser) == 404


def test_the_target_is_what_the_backend_observed_of_the_running_lease(
    lab: World, browser: Browser, session: Session
) -> None:
    Lease.objects.filter(job=session.job).update(ready_since=None)
    assert no_longer(browser) == 503
    Lease.objects.filter(job=session.job).update(ready_since="2026-01-01T00:00Z", address="127.0.0.1:1")
    assert no_longer(browser) == 502, "nobody is there"
    stop_session(actor=lab.people.bob, session=session)
    assert no_longer(browser) == 503

    def ended() -> bool:
        perform_operations(cluster=lab.cluster, log_limit_bytes=10_000_000)
        observe(lab.cluster)
        session.job.refresh_from_db()
        return session.job.has_ended

    wait_for(ended, what="it has ended")
    assert no_longer(browser) == 410


def test_a_blocked_network_is_distinguished_from_a_silent_program(
    monkeypatch: pytest.MonkeyPatch, browser: Browser
) -> None:
    monkeypatch.setattr(http, "CONNECT_SECONDS", 0.2)
    with ExitStack() as stack:
        full = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        # Fills the backlog: the kernel then drops further connections, as a network policy does.
        while True:
            waiting = stack.enter_context(socket.socket())
            waiting.settimeout(1)
            try:
                waiting.connect(full.getsockname())
            except TimeoutError:
                break
        Lease.objects.update(address=f"127.0.0.1:{full.getsockname()[1]}")
        answer = browser.ask("headers")
    assert answer.status == 504
    assert b"a network policy may block the portal" in answer.body


@pytest.mark.parametrize("what", ["the login ends", "the program runs elsewhere", "no check gets an answer"])
def test_open_streams_and_sockets_end_with_the_login_and_with_the_turn(
    monkeypatch: pytest.MonkeyPatch, bobs: Client, browser: Browser, what: str
) -> None:
    monkeypatch.setattr(http, "CHECK_SECONDS", 0.2)

    def no_answer(**_: object) -> None:
        raise OperationalError("the connection was lost")

    def happens() -> None:
        if what == "the login ends":
            bobs.post(reverse("logout"))
        elif what == "no check gets an answer":
            monkeypatch.setattr(visits, "admit", no_answer)
        else:  # the program runs elsewhere; the old node is unreachable, so nothing closes its connections
            Lease.objects.update(address="127.0.0.1:1")

    async def stay(link: aiohttp.ClientSession) -> object:
        ws = await link.ws_connect(browser.url("socket"), headers=browser.headers())
        await ws.send_str("hello")
        await ws.receive()
        async with link.get(browser.url("drip"), headers=browser.headers()) as answer:
            await answer.content.readexactly(6)
            await asyncio.to_thread(let_go, happens)
            with pytest.raises(aiohttp.ClientError):
                await answer.read()
        said = await ws.receive()
        return said.data if said.type is aiohttp.WSMsgType.CLOSE else None

    assert browser.talk(stay) == 1008


def test_use_is_recorded_and_automatic_requests_of_pages_do_not_count(
    browser: Browser, session: Session
) -> None:
    for path in ("api/kernels", "api/sessions?1", "api/terminals", "api/status"):
        browser.ask(path)
    session.refresh_from_db()
    assert session.used_at is None
    browser.ask("lab")
    session.refresh_from_db()
    assert session.used_at is not None


# --- services ------------------------------------------------------------------------------------------


class ServiceBrowser(Browser):
    """A browser that requests pages from a service's host name. It sends no cookie."""

    def __init__(self, port: int, service: Service) -> None:
        self.name = f"service-{service.pk}.localhost:{port}"
        self.origin, self.port = f"http://{self.name}", port
        self.base, self.cookie = "/", ""


def serving(lab: World, replicas: int = 1) -> Service:
    """Starts a service of Bob's, and returns it. Each replica answers requests with its job id."""
    program = (
        "import os, http.server as h\n"
        "class H(h.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        if self.path == '/silent': return\n"
        "        self.send_response(500 if self.path == '/broken' else 200); self.end_headers()\n"
        "        self.wfile.write(f'{os.environ[\"FAIRLOT_JOB_ID\"]} {self.path} {self.headers}'.encode())\n"
        "    do_POST = do_GET\n"
        "    def log_message(self, *a): pass\n"
        "h.HTTPServer(('127.0.0.1', int(os.environ['PORT'])), H).serve_forever()\n"
    )
    service = create_service(
        actor=lab.people.bob,
        tenant=lab.people.astro,
        cluster=lab.cluster,
        spec=JobSpec(
            name="api",
            command=f"exec {sys.executable} -c {shlex.quote(program)}",
            port=8000,
            readiness_period_seconds=1,
            checkpoint_grace_seconds=1,
        ),
        replicas=replicas,
    )
    until_ready(lab, service, replicas)
    return service


def until_ready(lab: World, service: Service, replicas: int) -> None:
    def ready() -> bool:
        step_service(service_id=service.pk)
        lab.fill()
        perform_operations(cluster=lab.cluster, log_limit_bytes=10_000_000)
        observe(lab.cluster)
        return Lease.objects.ready().filter(job__service=service).count() == replicas

    wait_for(ready, what="ready")


def visit(client: Client, port: int, service: Service) -> ServiceBrowser:
    door = urlsplit(client.get(f"/services/{service.pk}/open/")["Location"])
    browser = ServiceBrowser(port, service)
    assert door.netloc == browser.name
    answer = browser.ask(f"{door.path}?{door.query}")
    assert (answer.status, answer.headers["Location"]) == (302, "/")
    browser.cookie = answer.headers["Set-Cookie"].partition(";")[0].partition("=")[2]
    return browser


def test_a_services_address_outlasts_its_replicas_and_says_meanwhile_why_it_is_silent(
    lab: World, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traffic, "tally", traffic.Tally())
    monkeypatch.setattr(traffic, "FLUSH_SECONDS", 0.1)
    service = serving(lab)
    browser = visit(signed_in(lab.people.bob), port, service)
    first = browser.ask("/a/b?c=1")
    assert first.status == 200
    assert first.body.split()[1] == b"/a/b?c=1"
    assert b"fairlot_visit" not in first.body
    drain_node(actor=lab.people.olga, node=lab.cluster.nodes.get(), reason="fans", mode="now")

    def gone() -> bool:
        perform_operations(cluster=lab.cluster, log_limit_bytes=10_000_000)
        observe(lab.cluster)
        return not Lease.objects.filter(state__in=Lease.HOLDING).exists()

    wait_for(gone, what="it has left the node")
    job = Job.objects.get(service=service)
    soon = now_from_database() + timedelta(minutes=5)
    JobForecast.objects.create(job=job, at=now_from_database(), starts_by=soon, earliest=soon)
    told = browser.ask("/a", Accept="application/json")
    assert (told.status, told.headers["Content-Type"]) == (503, "application/json")
    assert 200 < int(told.headers["Retry-After"]) <= 300
    facts = json.loads(told.body)
    assert (facts["code"], facts["detail"]) == ("not_ready", "v100-0 is being drained: fans.")
    assert facts["expected_back_at"] == soon.isoformat()
    assert facts["since"] is not None
    page = browser.ask("/a", Accept="text/html,*/*")
    assert page.status == 503
    assert page.headers["Content-Type"].startswith("text/html")
    assert "The service api is not ready" in page.body.decode()
    assert "v100-0 is being drained: fans." in page.body.decode()
    assert "is expected to be ready by" in page.body.decode()
    return_node(actor=lab.people.olga, node=lab.cluster.nodes.get())
    until_ready(lab, service, 1)
    assert browser.ask("/a/b").status == 200, "at the same address, with the same cookie"
    assert [browser.ask(path).status for path in ("/broken", "/silent")] == [500, 502]
    expected = {"ok": 2, "no_replica": 2, "server_error": 1, "no_answer": 1}

    def counted() -> Traffic:
        now = now_from_database()
        return read_traffic(service, begins=service.created_at, ends=now + timedelta(minutes=1)).whole

    wait_for(lambda: counted().outcomes == expected, what="each request is counted once")
    assert sum(counted().buckets.values()) == 3, "the times of answers of replicas"


class OneRequest:
    """A request whose sender leaves after it was sent. Says what it was counted as."""

    def __init__(self, **headers: str) -> None:
        self.scope = {"type": "http", "method": "GET", "path": "/", "query_string": b""}
        self.headers = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        self.leaves = asyncio.Event()
        self.counted: list[Outcome] = []

    async def receive(self) -> dict[str, Any]:
        await self.leaves.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        pass

    async def is_still(self, admitted: Admitted) -> bool:
        return True

    async def noted(self) -> None:
        pass

    def count(self, outcome: Outcome) -> None:
        self.counted.append(outcome)


@pytest.mark.parametrize(
    ("headers", "leaves", "is_listening", "expected"),
    [
        ({}, True, True, Outcome.LEFT),
        ({}, False, False, Outcome.NO_ANSWER),
        ({"content_length": "9" * 15}, False, True, Outcome.CLIENT_ERROR),
        ({"content_length": "5"}, True, True, Outcome.LEFT),
    ],
)
def test_a_request_without_an_answer_counts_as_what_ended_it(
    headers: dict[str, str], leaves: bool, is_listening: bool, expected: Outcome
) -> None:
    async def relayed() -> list[Outcome]:
        request = OneRequest(**headers)
        if leaves:
            request.leaves.set()
        with socket.create_server(("127.0.0.1", 0)) as silent:
            address = f"127.0.0.1:{silent.getsockname()[1]}"
            if not is_listening:
                silent.close()
            await http.relay(request, Admitted(1, address, "", "/"), notes=False)
        return request.counted

    assert asyncio.run(relayed()) == [expected]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n", Outcome.SERVER_ERROR),
        (b"HTTP/1.1 404 No\r\ncontent-length: 0\r\n\r\n", Outcome.CLIENT_ERROR),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", Outcome.NO_ANSWER),
        (b"", Outcome.NO_ANSWER),
    ],
)
def test_a_refused_websocket_counts_by_its_status(answer: bytes, expected: Outcome) -> None:
    async def relayed() -> list[Outcome]:
        async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            writer.close()

        request = OneRequest()
        request.leaves.set()
        async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
            address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            await sockets.relay(request, Admitted(1, address, "", "/"))
        return request.counted

    assert asyncio.run(relayed()) == [expected]


@pytest.mark.parametrize("way", [http, sockets])
def test_a_replica_that_does_not_accept_in_time_counts_as_timed_out(
    monkeypatch: pytest.MonkeyPatch, way: Any
) -> None:
    async def never(*_: object, **__: object) -> None:
        raise aiohttp.ConnectionTimeoutError

    async def relayed() -> list[Outcome]:
        request = OneRequest()
        if way is sockets:
            request.leaves.set()
        monkeypatch.setattr(aiohttp.TCPConnector, "connect", never)
        facts = {"notes": False} if way is http else {}
        await way.relay(request, Admitted(1, "127.0.0.1:1", "", "/"), **facts)
        return request.counted

    assert asyncio.run(relayed()) == [Outcome.TIMED_OUT]


def test_a_service_is_for_members_of_its_team_and_their_tokens(lab: World, port: int) -> None:
    service = serving(lab, 2)
    people = lab.people
    browser = ServiceBrowser(port, service)
    assert browser.ask("/").status == 401
    assert signed_in(people.charlie).get(f"/services/{service.pk}/open/").status_code == 404
    Membership.objects.create(user=people.charlie, tenant=people.astro, role=Membership.Role.VIEWER)
    assert signed_in(people.charlie).get(f"/services/{service.pk}/open/").status_code == 403
    replies = set()
    tokens = {
        (person, writes): create_token(actor=person, name="t", scopes=[Scope.WORK] if writes else [], days=1)[
            1
        ]
        for person in (people.alice, people.charlie)
        for writes in (True, False)
    }

    def asked(person: User, method: str, *, writes: bool) -> Answer:
        token = f"Bearer {tokens[person, writes]}"
        return browser.ask("/", method, b"x" if method == "POST" else None, Authorization=token, Origin="")

    for _ in range(20):
        answer = asked(people.alice, "POST", writes=True)
        assert answer.status == 200
        assert b"fairlot_" not in answer.body, "the program sees no token"
        replies.add(answer.body.split()[0])
    assert len(replies) == 2, "whichever replica"
    assert asked(people.alice, "GET", writes=False).status == 200
    assert asked(people.alice, "POST", writes=False).status == 401
    assert asked(people.charlie, "GET", writes=True).status == 404
    assert browser.ask("/", Authorization="Bearer fairlot_x_y").status == 401


def test_a_ticket_of_a_service_leads_to_its_own_host_alone(lab: World, port: int) -> None:
    service = serving(lab)
    client = signed_in(lab.people.bob)
    for path in ("//evil.example/", "/\\evil.example/", "https://evil.example/"):
        door = urlsplit(client.get(f"/services/{service.pk}/open/", {"path": path})["Location"])
        browser = ServiceBrowser(port, service)
        assert browser.ask(f"{door.path}?{door.query}").headers["Location"] == "/"
        assert browser.ask(f"{door.path}?{door.query}").headers["Location"].endswith("/open/"), (
            "it is void by now"
        )
    other = visit(client, port, service)
    assert other.ask("/", "POST", b"x", Origin="http://evil.example").status == 403
    assert other.ask("/", "POST", b"x").status == 200
    remove_service(actor=lab.people.bob, service=service)
    assert other.ask("/").status == 410
