"""The ASGI app for the WebSockets of terminals, which are the only WebSockets on the portal's own host."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import suppress
from functools import partial
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

from django.conf import settings
from django.http.request import validate_host

from portal.addresses import is_this_machine, network_of
from portal.edge.clients import Client
from portal.live.streams import MOST_UNANSWERED
from portal.sessions import headers, sockets
from portal.sessions.connection import Receive, Scope, Send
from portal.sessions.proxy import App, NoAnswer, ask, ask_cluster, host_of
from portal.terminals import visits
from portal.terminals.talk import LEFT, Talk
from portal.terminals.visits import Barred, Caller, Wish
from scheduling.backends.base import OpenTerminal
from scheduling.models import Terminal

PATH = re.compile(r"/jobs/([0-9]{1,18})/terminal/socket", re.ASCII)
POLICY = 1008
LARGEST_SIDE = 1000
GOODBYE_SECONDS = 5.0  # for a client that does not read


def with_terminals(portal: App) -> App:
    """Returns an ASGI app that handles all WebSockets, and passes everything else to `portal`."""

    async def route(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            await portal(scope, receive, send)
            return
        found = PATH.fullmatch(scope["path"])
        wish = _wish(int(found[1]), scope) if found else None
        if wish is None:
            await sockets.refuse(receive, send)
            return
        await _Visit(scope, receive, send, wish).open()

    return route


def _wish(job: int, scope: Scope) -> Wish | None:
    asked = {name: values[0] for name, values in parse_qs(scope["query_string"].decode("latin-1")).items()}
    try:
        rows, columns, worker = (
            int(asked.get(name, usual))
            for name, usual in (("rows", "24"), ("columns", "80"), ("worker", "0"))
        )
        key = UUID(asked["terminal"]) if asked.get("terminal") else None
    except ValueError:
        return None
    if not (0 < rows <= LARGEST_SIDE and 0 < columns <= LARGEST_SIDE and 0 <= worker < 100_000):
        return None
    return Wish(
        job,
        worker,
        key,
        rows,
        columns,
        answers_pings=asked.get("pings") == "1",
        wants_earlier=asked.get("earlier") == "1",
    )


class _Visit:
    """A WebSocket for a terminal, from its handshake to its end."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, wish: Wish) -> None:
        self.scope, self.receive, self.send, self.wish = scope, receive, send, wish
        self.headers: list[tuple[bytes, bytes]] = [(bytes(n), bytes(v)) for n, v in scope["headers"]]
        address, _ = scope.get("client") or ("", 0)
        scheme, _, text = b"".join(headers.values_of(self.headers, b"authorization")).partition(b" ")
        self.caller = Caller(
            login=headers.cookie_of(self.headers, settings.SESSION_COOKIE_NAME),
            bearer=text.strip().decode("latin-1") if scheme.lower() == b"bearer" else "",
            origin=address,
            is_local=is_this_machine(address, (name.decode("latin-1") for name, _ in self.headers)),
        )
        self.client = Client(network_of(address), self.caller.login or self.caller.bearer)
        self.unanswered = 0

    async def open(self) -> None:
        # A page of another site cannot send a token, but the browser sends the cookie with its request.
        if not (self.caller.bearer or self._is_from_portal()):
            await sockets.refuse(self.receive, self.send)
            return
        try:
            terminal, backend = await ask(self.client, visits.admit, self.caller, self.wish)
        except NoAnswer:
            await sockets.refuse(self.receive, self.send)
            return
        except Barred as barred:
            if not str(barred):
                await sockets.refuse(self.receive, self.send)
            else:
                await self._accept()
                await self._close({"refused": str(barred)})
            return
        await self._accept()
        try:
            link: OpenTerminal = await ask_cluster(self.client, visits.connect, terminal, backend, self.wish)
        except NoAnswer:
            await self._close({"refused": "Fairlot is overloaded. Try again in a moment."})
        except Barred as barred:
            await self._close({"refused": str(barred)})
        else:
            await self._talk(terminal, link)

    async def _talk(self, terminal: Terminal, link: OpenTerminal) -> None:
        earlier = link.earlier if self.wish.wants_earlier else b""
        opened = {"terminal": str(terminal.pk), "worker": terminal.worker, "new": link.is_new}
        opened |= {"earlier": len(earlier)} if earlier else {}
        talk = Talk(
            link,
            self.receive,
            self.send,
            is_still=partial(self._is_still, terminal),
            idle_seconds=settings.FAIRLOT_TERMINAL_IDLE_MINUTES * 60.0,
            answers_pings=self.wish.answers_pings,
        )
        try:
            await self.send({"type": "websocket.send", "text": json.dumps(opened)})
            await talk.run(earlier)
        finally:
            if talk.ended in {"", LEFT, "opened elsewhere"}:
                link.close()  # the shell lives on for a while
            else:
                link.end()
        if talk.ended in {"", LEFT}:
            with suppress(NoAnswer):  # then the terminal is taken for left when its user is not seen any more
                await ask(self.client, visits.left, terminal)
            return
        try:
            with suppress(TimeoutError):  # the client does not read what is sent
                async with asyncio.timeout(GOODBYE_SECONDS):
                    await talk.say_goodbye()
                    code = 1000 if talk.code is not None else POLICY
                    await self.send({"type": "websocket.close", "code": code})
        finally:
            link.close()
            if talk.ended != "opened elsewhere":
                with suppress(NoAnswer):  # then it is noted when its user is not seen any more
                    await ask(self.client, visits.ended, terminal, talk.ended)

    async def _is_still(self, terminal: Terminal) -> bool:
        try:
            found: bool = await ask(self.client, visits.is_still, self.caller, terminal)
        except NoAnswer:
            self.unanswered += 1
            return self.unanswered < MOST_UNANSWERED
        self.unanswered = 0
        return found

    def _is_from_portal(self) -> bool:
        """Returns whether a page of the portal sent the request: the Origin header, which scripts cannot set, names the
        portal's host, and the host is one of ours."""
        host = host_of(self.scope)
        name = host.rpartition(":")[0] if re.fullmatch(r".*:[0-9]+", host) else host
        origins = headers.values_of(self.headers, b"origin")
        if len(origins) != 1 or not validate_host(name.lower(), settings.ALLOWED_HOSTS):
            return False
        try:
            origin = urlsplit(origins[0].decode("latin-1"))
        except ValueError:
            return False
        is_secure = settings.SESSION_COOKIE_SECURE
        return origin.netloc == host and origin.scheme in ({"https"} if is_secure else {"http", "https"})

    async def _accept(self) -> None:
        await self.receive()  # the handshake
        await self.send({"type": "websocket.accept"})

    async def _close(self, words: dict[str, str]) -> None:
        await self.send({"type": "websocket.send", "text": json.dumps(words)})
        await self.send({"type": "websocket.close", "code": POLICY})
