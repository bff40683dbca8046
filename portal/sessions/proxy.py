"""The ASGI app of sessions' hosts. Nothing of the portal is served there, and no session anywhere else."""

from __future__ import annotations

import asyncio
import functools
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs, urlencode
from weakref import WeakKeyDictionary

from django.conf import settings
from django.db import InterfaceError, OperationalError

from portal.addresses import is_this_machine, network_of
from portal.edge.app import visits_at_once
from portal.edge.clients import Client
from portal.edge.threads import Threads
from portal.edge.turns import Full
from portal.live.streams import MOST_UNANSWERED
from portal.sessions import headers, hosts, http, sockets, visits
from portal.sessions.visits import Admitted, Barred
from scheduling.actions.sessions import NOTED_EVERY

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

SAFE = {"GET", "HEAD", "OPTIONS"}
# What a page of JupyterLab asks for again and again while nobody does anything.
POLLS = re.compile(
    r"/(api/(kernels|sessions|terminals|status|contents|kernelspecs|me|metrics)\b|lsp/status)", re.ASCII
)
WORDS = {
    Barred.STRANGER: (401, "Open this session from its page in Fairlot."),
    Barred.HIDDEN: (404, "There is no such session."),
    Barred.ELSEWHERE: (
        403,
        "This session's program runs on Fairlot's own machine, so it serves clients on that machine only.",
    ),
    Barred.NOT_READY: (503, "The session is not ready. Its page in Fairlot tells why."),
    Barred.ENDED: (410, "The session has ended."),
}
# Not the pages' threads: a check must not wait behind pages. One set for each event loop.
_threads: WeakKeyDictionary[asyncio.AbstractEventLoop, Threads] = WeakKeyDictionary()
# How long a check waits for a thread, and with it for the database.
ASK_SECONDS = 8.0
BUSY = "Fairlot's database does not answer, or has too much to do. Try again in a moment."


class NoAnswer(Exception):
    """The database did not answer in time."""


async def ask(client: Client, work: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Asks the database from a thread that pages do not use. Raises NoAnswer."""
    loop = asyncio.get_running_loop()
    if loop not in _threads:
        _threads[loop] = Threads(visits_at_once(), "visits")
    try:
        async with asyncio.timeout(ASK_SECONDS):
            return await _threads[loop].run(
                client, functools.partial(work, *args, **named), within=ASK_SECONDS
            )
    except (Full, TimeoutError, OperationalError, InterfaceError) as error:
        raise NoAnswer from error


def with_sessions(portal: App) -> App:
    """The portal, and beside it the hosts of sessions."""

    async def doors(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await portal(scope, receive, send)
            return
        host = host_of(scope)
        session_id = hosts.session_of(host)
        if session_id is not None:
            await _open(Door(session_id, scope, receive, send))
        elif scope["type"] == "websocket":
            await sockets.refuse(receive, send)
        elif hosts.is_under_them(host) and host not in _own_hosts():
            await http.say(send, 404, "There is no such session.")
        else:
            await portal(scope, receive, send)

    return doors


async def _open(door: Door) -> None:
    """Lets the request in, or says that the database does not answer."""
    begun = False

    async def send(message: MutableMapping[str, Any]) -> None:
        nonlocal begun
        begun = True
        await passed_on(message)

    passed_on, door.send = door.send, send
    try:
        await door.open()
    except NoAnswer:
        if begun:
            raise
        if door.scope["type"] == "websocket":
            await sockets.refuse(door.receive, passed_on)
        else:
            await http.say(passed_on, 503, BUSY, [(b"retry-after", b"5")])


def host_of(scope: Scope) -> str:
    names = [b"x-forwarded-host", b"host"] if settings.USE_X_FORWARDED_HOST else [b"host"]
    for name in names:
        if found := headers.values_of(scope["headers"], name):
            return found[0].decode("latin-1").partition(",")[0].strip()
    return ""


def _own_hosts() -> set[str]:
    return {settings.PUBLIC_URL.partition("://")[2], *settings.ALLOWED_HOSTS}


class Door:
    """One request to a session's host."""

    def __init__(self, session_id: int, scope: Scope, receive: Receive, send: Send) -> None:
        self.session_id, self.scope, self.receive, self.send = session_id, scope, receive, send
        self.headers: list[tuple[bytes, bytes]] = [(bytes(n), bytes(v)) for n, v in scope["headers"]]
        self.origin = hosts.origin_of(session_id)
        self.base = f"/sessions/{session_id}/proxy/"
        self.key = headers.cookie_of(self.headers, headers.cookie_name(secure=hosts.is_secure()))
        self.noted_at = time.monotonic()
        self.unanswered = 0  # checks in a row
        address, _ = scope.get("client") or ("", 0)
        self.client = Client(network_of(address), self.key)
        self.is_local = is_this_machine(address, (name.decode("latin-1") for name, _ in self.headers))

    async def open(self) -> None:
        if self.scope["type"] == "websocket":
            await self._open_socket()
            return
        method, path = self.scope["method"], self.scope["path"]
        if headers.are_too_large(self.headers):
            await http.say(self.send, *http.HEADERS_TOO_LARGE)
            return
        if path == f"/sessions/{self.session_id}/enter/":
            await self._exchange()
        elif not path.startswith(self.base):
            await self._send_on(self.base) if path in {"/", self.base[:-1]} else await self._say(
                Barred.HIDDEN
            )
        elif headers.comes_from_elsewhere(self.headers, method):
            await http.say(self.send, 403, "Pages of other hosts may not ask for this.")
        elif method not in SAFE and not headers.is_from_itself(self.headers, self.origin):
            await http.say(
                self.send, 403, "Only a page of this session may ask for this: its Origin is another."
            )
        else:
            await self._pass_on(method)

    async def _pass_on(self, method: str) -> None:
        admitted = await self.admit()
        if isinstance(admitted, Barred):
            if admitted is Barred.STRANGER and self._is_navigation(method):
                await self._send_on(self._page())
            else:
                await self._say(admitted)
            return
        counts = method not in SAFE or not POLLS.search(self.scope["path"])
        if counts:
            await self.note_use()
        await http.relay(self, admitted, notes=counts)

    async def _open_socket(self) -> None:
        is_ours = headers.is_from_itself(self.headers, self.origin)
        if not is_ours or not self.scope["path"].startswith(self.base):
            await sockets.refuse(self.receive, self.send)
            return
        admitted = await self.admit()
        if isinstance(admitted, Barred):
            await sockets.refuse(self.receive, self.send)
            return
        await self.note_use()
        await sockets.relay(self, admitted)

    async def admit(self) -> Admitted | Barred:
        if not self.key:
            return Barred.STRANGER
        found: Admitted | Barred = await ask(
            self.client, visits.admit, session_id=self.session_id, key=self.key, is_local=self.is_local
        )
        return found

    async def is_still(self, admitted: Admitted) -> bool:
        """Tells whether the same holds as at the beginning, or the database has not answered a few times at most."""
        try:
            found = await self.admit()
        except NoAnswer:
            self.unanswered += 1
            return self.unanswered < MOST_UNANSWERED
        self.unanswered = 0
        return found == admitted

    async def note_use(self) -> None:
        self.noted_at = time.monotonic()
        with suppress(NoAnswer):  # the next piece notes it again
            await ask(self.client, visits.used, self.session_id)

    async def noted(self) -> None:
        """The same for each piece of a long talk; the database hears of it now and then."""
        if time.monotonic() - self.noted_at > NOTED_EVERY.total_seconds():
            await self.note_use()

    async def _exchange(self) -> None:
        """The ticket's cookie, and on to where it was to lead."""
        asked = parse_qs(self.scope["query_string"].decode("latin-1"))
        ticket, path = (asked.get(name, [""])[0] for name in ("ticket", "path"))
        key = None
        if ticket:
            key = await ask(self.client, visits.enter, session_id=self.session_id, ticket=ticket)
        if key is None:
            await self._send_on(self._page())
            return
        name = headers.cookie_name(secure=hosts.is_secure())
        cookie = f"{name}={key}; Path=/; HttpOnly; SameSite=Lax{'; Secure' if hosts.is_secure() else ''}"
        await self._send_on(path if path.startswith(self.base) else self.base, cookie)

    def _page(self) -> str:
        """Where the portal asks who this is and, if it may, sends it back here."""
        whole = self.scope.get("raw_path") or self.scope["path"].encode()
        path = whole.decode("latin-1").partition("?")[0]
        if query := self.scope["query_string"].decode("latin-1"):
            path = f"{path}?{query}"
        asked = urlencode({"path": path}) if path.startswith(self.base) else ""
        return f"{settings.PUBLIC_URL}/sessions/{self.session_id}/open/{'?' if asked else ''}{asked}"

    def _is_navigation(self, method: str) -> bool:
        accepts = b"".join(headers.values_of(self.headers, b"accept"))
        mode = b"".join(headers.values_of(self.headers, b"sec-fetch-mode"))
        return method == "GET" and b"text/html" in accepts and mode in {b"", b"navigate"}

    async def _send_on(self, to: str, cookie: str = "") -> None:
        extra = [(b"location", to.encode("latin-1"))]
        extra += [(b"set-cookie", cookie.encode())] if cookie else []
        await http.say(self.send, 302, "", extra)

    async def _say(self, barred: Barred) -> None:
        await http.say(self.send, *WORDS[barred])
