"""The ASGI app for the hosts of sessions and services.

The programs on these hosts are untrusted, so no program shares a host with the portal.
"""

from __future__ import annotations

import asyncio
import functools
import re
import time
from abc import ABC, abstractmethod
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
from portal.sessions import headers, hosts, http, sockets, traffic, visits
from portal.sessions.absence import Absence
from portal.sessions.connection import Receive, Scope, Send
from portal.sessions.visits import Admitted, Barred
from scheduling.services.traffic import ANSWERED, Outcome
from scheduling.sessions.actions import NOTED_EVERY

App = Callable[[Scope, Receive, Send], Awaitable[None]]

SAFE = {"GET", "HEAD", "OPTIONS"}
# Requests that an open JupyterLab page repeats without any action of the user. They do not count as use.
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
    Barred.NOT_READY: (503, "The session is not ready. The session's page in Fairlot says why."),
    Barred.ENDED: (410, "The session has ended."),
}
SERVICE_WORDS = {
    Barred.STRANGER: (
        401,
        "Open this service from its page in Fairlot, or send an API token: Authorization: Bearer fairlot_…",
    ),
    Barred.HIDDEN: (404, "There is no such service."),
    Barred.ELSEWHERE: (
        403,
        "This service's replicas run on Fairlot's own machine, so they serve clients on that machine only.",
    ),
    Barred.NOT_READY: (503, "No replica is ready. The service's page in Fairlot says why."),
    Barred.ENDED: (410, "The service was removed."),
}
# Threads for the checks, one set for each event loop. Pages use other threads, so that a check never waits for pages.
_threads: WeakKeyDictionary[asyncio.AbstractEventLoop, Threads] = WeakKeyDictionary()
# Threads for work that also waits for programs of a cluster. Checks use other threads, so that they never wait for it.
_slow_threads: WeakKeyDictionary[asyncio.AbstractEventLoop, Threads] = WeakKeyDictionary()
# The client in whose name Fairlot stores what it has counted.
FAIRLOT = Client("", "")
# The longest time in seconds that a check waits for a thread and the database.
ASK_SECONDS = 8.0
BUSY = "Fairlot's database does not answer or is overloaded. Try again in a moment."


class NoAnswer(Exception):
    """Raised if the database does not answer in time."""


async def ask(client: Client, work: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Calls `work`, a function that queries the database, with `args` and `named` in a thread, and returns its result.

    `client` is the client for whom the query is made. Raises NoAnswer if the database fails, or if there is no result
    within ASK_SECONDS.
    """
    loop = asyncio.get_running_loop()
    if loop not in _threads:
        # separate threads, so that these queries do not wait for pages
        _threads[loop] = Threads(visits_at_once(), "visits")
    return await _answer(_threads[loop], client, functools.partial(work, *args, **named))


async def ask_cluster(client: Client, work: Callable[..., Any], *args: Any) -> Any:
    """Calls `work` as `ask` does. `work` also waits for programs of a cluster, which may be slow on purpose."""
    loop = asyncio.get_running_loop()
    if loop not in _slow_threads:
        _slow_threads[loop] = Threads(visits_at_once(), "clusters", may_be_slow=True)
    return await _answer(_slow_threads[loop], client, functools.partial(work, *args))


async def _answer(threads: Threads, client: Client, work: Callable[[], Any]) -> Any:
    try:
        async with asyncio.timeout(ASK_SECONDS):
            return await threads.run(client, work, within=ASK_SECONDS)
    except (Full, TimeoutError, OperationalError, InterfaceError) as error:
        raise NoAnswer from error


def with_sessions(portal: App) -> App:
    """Returns an ASGI app that handles requests to the hosts of sessions and services, and passes all others to
    `portal`."""

    async def route_by_host(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await portal(scope, receive, send)
            return
        host = host_of(scope)
        session_id, service_id = hosts.session_of(host), hosts.service_of(host)
        if session_id is not None:
            await _open(SessionRequest(session_id, scope, receive, send))
        elif service_id is not None:
            await _open(ServiceRequest(service_id, scope, receive, send))
        elif hosts.matches_sessions_url(host) and host not in _own_hosts():
            if scope["type"] == "websocket":
                await sockets.refuse(receive, send)
                return
            await http.say(send, 404, "There is no such session or service.")
        else:
            await portal(scope, receive, send)

    return route_by_host


async def _open(request: HostRequest) -> None:
    """Handles `request`. If the database does not answer, answers 503, unless the response has already
    begun."""
    begun = False

    async def send(message: MutableMapping[str, Any]) -> None:
        nonlocal begun
        begun = True
        await passed_on(message)

    passed_on, request.send = request.send, send
    try:
        await request.open()
    except NoAnswer:
        if begun:
            raise
        if request.scope["type"] == "websocket":
            await sockets.refuse(request.receive, passed_on)
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


class HostRequest(ABC):
    """A request to the host of a session or service, with the checks that decide whether its sender is admitted."""

    # All paths of the program start with `base`. The path `exchange` exchanges a ticket for a cookie.
    base: str
    exchange: str
    # The path of the portal's page that checks the user's login and rights, and then redirects back with a ticket.
    ask_path: str
    origin: str
    # Whether the request carries an API token, which pages of other hosts cannot send.
    has_token = False

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope, self.receive, self.send = scope, receive, send
        self.headers: list[tuple[bytes, bytes]] = [(bytes(n), bytes(v)) for n, v in scope["headers"]]
        self.key = headers.cookie_of(self.headers, headers.cookie_name(secure=hosts.is_secure()))
        self.noted_at = self.relayed_at = time.monotonic()
        self.unanswered = 0  # number of consecutive checks without an answer from the database
        address, _ = scope.get("client") or ("", 0)
        self.client = Client(network_of(address), self.key)
        self.is_local = is_this_machine(address, (name.decode("latin-1") for name, _ in self.headers))

    @abstractmethod
    async def admit(self, before: Admitted | None = None) -> Admitted | Barred:
        """Checks the sender's login and rights. Returns the program's address, or the reason why the sender is not
        admitted.

        `before` is the result of an earlier check of this request, or None. For a service, the replica in `before` is
        returned again if it is still ready.
        """

    @abstractmethod
    async def note_use(self) -> None:
        """Records that a user is using the program now."""

    @abstractmethod
    async def key_for(self, ticket: str) -> str | None:
        """Exchanges a ticket for the value of the cookie that gives access to the host. Returns None for an invalid
        ticket.

        A ticket is a code from the portal that is valid once.
        """

    @abstractmethod
    async def absence(self) -> Absence | None:
        """Returns why the program is not responding; None if the sender has no right to see the reason."""

    @abstractmethod
    def words_for(self, barred: Barred) -> tuple[int, str]:
        """Returns the HTTP status and the text of the response to a sender who is not admitted. `barred` is the
        reason."""

    @abstractmethod
    def count(self, outcome: Outcome) -> None:
        """Counts the request to a service by how it ended."""

    async def open(self) -> None:
        if self.scope["type"] == "websocket":
            await self._open_socket()
            return
        method, path = self.scope["method"], self.scope["path"]
        if headers.are_too_large(self.headers):
            await http.say(self.send, *http.HEADERS_TOO_LARGE)
            return
        if path == self.exchange:
            await self._exchange()
        elif not path.startswith(self.base):
            await self._send_on(self.base) if path in {"/", self.base[:-1]} else await self._say(
                Barred.HIDDEN
            )
        elif self.has_token:
            await self._pass_on(method)
        elif headers.comes_from_elsewhere(self.headers, method):
            await http.say(self.send, 403, "Pages of other hosts may not send this request.")
        elif method not in SAFE and not headers.is_from_itself(self.headers, self.origin):
            await http.say(
                self.send,
                403,
                "Only pages of this host may send this request, but its Origin header names another host.",
            )
        else:
            await self._pass_on(method)

    async def _pass_on(self, method: str) -> None:
        admitted = await self.admit()
        if isinstance(admitted, Barred):
            if admitted is Barred.STRANGER and self._is_navigation(method):
                await self._send_on(self._page())
            elif admitted is Barred.NOT_READY:
                self.count(Outcome.NO_REPLICA)
                await self._say_why_absent()
            else:
                await self._say(admitted)
            return
        counts = method not in SAFE or not POLLS.search(self.scope["path"])
        if counts:
            await self.note_use()
        self.relayed_at = time.monotonic()
        await http.relay(self, admitted, notes=counts)

    async def _open_socket(self) -> None:
        is_ours = self.has_token or headers.is_from_itself(self.headers, self.origin)
        if not is_ours or not self.scope["path"].startswith(self.base):
            await sockets.refuse(self.receive, self.send)
            return
        admitted = await self.admit()
        if isinstance(admitted, Barred):
            if admitted is Barred.NOT_READY:
                self.count(Outcome.NO_REPLICA)
            await sockets.refuse(self.receive, self.send)
            return
        await self.note_use()
        self.relayed_at = time.monotonic()
        await sockets.relay(self, admitted)

    async def is_still(self, admitted: Admitted) -> bool:
        """Checks the sender again. Returns whether the sender is still admitted and the program still has the address
        in `admitted`.

        If the database does not answer, returns True. After MOST_UNANSWERED consecutive checks without an answer,
        returns False.
        """
        try:
            found = await self.admit(admitted)
        except NoAnswer:
            self.unanswered += 1
            return self.unanswered < MOST_UNANSWERED
        self.unanswered = 0
        return found == admitted

    async def noted(self) -> None:
        """Records that a user is still using the program, while a long request, a long response or a WebSocket is
        relayed. Writes to the database at most once per NOTED_EVERY."""
        if time.monotonic() - self.noted_at > NOTED_EVERY.total_seconds():
            await self.note_use()

    async def _exchange(self) -> None:
        """Exchanges the ticket in the URL query for a cookie. Then redirects to the path in the query's parameter
        `path`, or to the program's start page if the program does not serve this path.

        If the ticket is invalid, redirects to the portal's page that checks the login and issues a new ticket.
        """
        asked = parse_qs(self.scope["query_string"].decode("latin-1"))
        ticket, path = (asked.get(name, [""])[0] for name in ("ticket", "path"))
        key = await self.key_for(ticket) if ticket else None
        if key is None:
            await self._send_on(self._page())
            return
        name = headers.cookie_name(secure=hosts.is_secure())
        cookie = f"{name}={key}; Path=/; HttpOnly; SameSite=Lax{'; Secure' if hosts.is_secure() else ''}"
        # Browsers take a path that starts with // or with /\ as the address of another host.
        is_here = path.startswith(self.base) and not path.startswith(("//", "/\\"))
        await self._send_on(path if is_here else self.base, cookie)

    def _page(self) -> str:
        """Returns the URL of the portal's page that checks the login, and that then redirects back to this host.

        The redirect leads to the path of this request, if the program serves this path.
        """
        whole = self.scope.get("raw_path") or self.scope["path"].encode()
        path = whole.decode("latin-1").partition("?")[0]
        if query := self.scope["query_string"].decode("latin-1"):
            path = f"{path}?{query}"
        is_programs = path.startswith(self.base) and self.scope["path"] != self.exchange
        asked = urlencode({"path": path}) if is_programs else ""
        return f"{settings.PUBLIC_URL}{self.ask_path}{'?' if asked else ''}{asked}"

    def _is_navigation(self, method: str) -> bool:
        accepts = b"".join(headers.values_of(self.headers, b"accept"))
        mode = b"".join(headers.values_of(self.headers, b"sec-fetch-mode"))
        return method == "GET" and b"text/html" in accepts and mode in {b"", b"navigate"}

    async def _send_on(self, to: str, cookie: str = "") -> None:
        extra = [(b"location", to.encode("latin-1"))]
        extra += [(b"set-cookie", cookie.encode())] if cookie else []
        await http.say(self.send, 302, "", extra)

    async def _say_why_absent(self) -> None:
        absent = await self.absence()
        if absent is None:
            await self._say(Barred.NOT_READY)
            return
        accepts = b",".join(headers.values_of(self.headers, b"accept")).decode("latin-1")
        body, content_type, extra = absent.answer(accepts)
        await http.say(self.send, 503, body, extra, content_type)

    async def _say(self, barred: Barred) -> None:
        await http.say(self.send, *self.words_for(barred))


class SessionRequest(HostRequest):
    """A request to the host of a session. Users who may work in the session are admitted."""

    def __init__(self, session_id: int, scope: Scope, receive: Receive, send: Send) -> None:
        super().__init__(scope, receive, send)
        self.session_id = session_id
        self.base, self.origin = f"/sessions/{session_id}/proxy/", hosts.origin_of(session_id)
        self.exchange, self.ask_path = f"/sessions/{session_id}/enter/", f"/sessions/{session_id}/open/"

    async def admit(self, before: Admitted | None = None) -> Admitted | Barred:
        if not self.key:
            return Barred.STRANGER
        found: Admitted | Barred = await ask(
            self.client, visits.admit, session_id=self.session_id, key=self.key, is_local=self.is_local
        )
        return found

    def count(self, outcome: Outcome) -> None:
        """Does nothing, because only the traffic of services is counted."""

    async def note_use(self) -> None:
        self.noted_at = time.monotonic()
        with suppress(NoAnswer):  # the next chunk of the exchange tries again
            await ask(self.client, visits.used, self.session_id)

    async def key_for(self, ticket: str) -> str | None:
        key: str | None = await ask(self.client, visits.enter, session_id=self.session_id, ticket=ticket)
        return key

    async def absence(self) -> Absence | None:
        found: Absence | None = await ask(
            self.client, visits.absence, session_id=self.session_id, key=self.key
        )
        return found

    def words_for(self, barred: Barred) -> tuple[int, str]:
        return WORDS[barred]


class ServiceRequest(HostRequest):
    """A request to the host of a service, which is relayed to a ready replica.

    Users who may use the service are admitted, either with the cookie of the service's host or with an API token.
    """

    base, exchange = "/", hosts.SERVICE_DOOR

    def __init__(self, service_id: int, scope: Scope, receive: Receive, send: Send) -> None:
        super().__init__(scope, receive, send)
        self.service_id = service_id
        self.origin, self.ask_path = hosts.origin_of_service(service_id), f"/services/{service_id}/open/"
        scheme, _, text = b"".join(headers.values_of(self.headers, b"authorization")).partition(b" ")
        bearer = text.strip().decode("latin-1") if scheme.lower() == b"bearer" else ""
        self.has_token = bool(bearer)
        writes = scope.get("method") not in SAFE  # a WebSocket has no method and counts as writing
        self.caller = visits.Caller(self.key, bearer, writes)

    async def admit(self, before: Admitted | None = None) -> Admitted | Barred:
        if not (self.key or self.has_token):
            return Barred.STRANGER
        found: Admitted | Barred = await ask(
            self.client,
            visits.admit_to_service,
            service_id=self.service_id,
            caller=self.caller,
            is_local=self.is_local,
            address=before.address if before else "",
        )
        return found

    def count(self, outcome: Outcome) -> None:
        """Counts the request. The time that counts goes from the relay's begin to the first byte of the answer."""
        seconds = time.monotonic() - self.relayed_at if outcome in ANSWERED else None
        traffic.count(self.service_id, outcome, seconds, functools.partial(ask, FAIRLOT))

    async def note_use(self) -> None:
        """Does nothing, because services have no idle timeout."""
        self.noted_at = time.monotonic()

    async def key_for(self, ticket: str) -> str | None:
        key: str | None = await ask(
            self.client, visits.enter_service, service_id=self.service_id, ticket=ticket
        )
        return key

    async def absence(self) -> Absence | None:
        found: Absence | None = await ask(
            self.client, visits.absence_of_service, service_id=self.service_id, caller=self.caller
        )
        return found

    def words_for(self, barred: Barred) -> tuple[int, str]:
        return SERVICE_WORDS[barred]
