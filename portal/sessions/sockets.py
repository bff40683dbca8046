"""Relays WebSocket messages in both directions between the browser and the program of a session or service."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import aiohttp

from portal.edge.racing import first_of
from portal.sessions import headers
from portal.sessions.connection import Connection
from portal.sessions.http import client, until_barred, url_of
from portal.sessions.visits import Admitted
from scheduling.services.traffic import Outcome, outcome_of

logger = logging.getLogger(__name__)
LARGEST_MESSAGE = 64 * 1024 * 1024
# Seconds between two pings to the program. The connection is lost if a ping has no answer within half this time.
HEARTBEAT_SECONDS = 30.0
GOODBYE_SECONDS = 5.0
POLICY, TROUBLE = 1008, 1011
# Close codes that must not be sent in a frame (RFC 6455, section 7.4.1).
NEVER_SENT = {1005, 1006, 1015}


async def refuse(
    receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
    send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
) -> None:
    """Refuses the handshake of a WebSocket. The browser sees HTTP status 403."""
    await receive()
    await send({"type": "websocket.close", "code": POLICY})


async def relay(request: Connection, admitted: Admitted) -> None:
    """Relays the WebSocket of `request` to the program and back.

    Ends when the browser or the program closes the WebSocket, or when the sender may no longer use the program.
    """
    await request.receive()  # the handshake
    scope = request.scope
    scheme = {"wss": "https"}.get(scope.get("scheme", "ws"), "http")
    is_open = False
    try:
        async with (
            client() as link,
            link.ws_connect(
                url_of(scope, admitted),
                headers=headers.to_program(
                    request.headers, token=admitted.token, scheme=scheme, in_cookies=admitted.is_vscode
                ),
                protocols=scope.get("subprotocols") or (),
                timeout=aiohttp.ClientWSTimeout(ws_close=GOODBYE_SECONDS),
                heartbeat=HEARTBEAT_SECONDS,
                max_msg_size=LARGEST_MESSAGE,
            ) as program,
        ):
            is_open = True
            request.count(Outcome.OK)
            await request.send({"type": "websocket.accept", "subprotocol": program.protocol})
            await _Talk(request, admitted, program).run()
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        logger.info("session %s: %r", admitted.session_id, error)
        if not is_open:
            request.count(_failure(error))
        await request.send({"type": "websocket.close", "code": TROUBLE})


def _failure(error: Exception) -> Outcome:
    """Returns how a WebSocket ended that did not open because of `error`."""
    if isinstance(error, TimeoutError):
        return Outcome.TIMED_OUT
    status = error.status if isinstance(error, aiohttp.WSServerHandshakeError) else 0
    return outcome_of(status) if status >= 400 else Outcome.NO_ANSWER


class _Talk:
    """A relayed WebSocket: its two directions, and which side closed it."""

    def __init__(
        self, request: Connection, admitted: Admitted, program: aiohttp.ClientWebSocketResponse
    ) -> None:
        self.request, self.admitted, self.program = request, admitted, program
        self.browser_left = False

    async def run(self) -> None:
        try:
            await first_of(
                self._from_browser(), self._from_program(), until_barred(self.request, self.admitted)
            )
        finally:
            await self._close()

    async def _from_browser(self) -> None:
        while True:
            message = await self.request.receive()
            if message["type"] == "websocket.disconnect":
                self.browser_left = True
                code = message.get("code") or 1000
                await self.program.close(code=code if code not in NEVER_SENT else 1000)
                return
            await self.request.noted()
            text = message.get("text")
            if text is not None:
                await self.program.send_str(text)
            else:
                await self.program.send_bytes(message.get("bytes") or b"")

    async def _from_program(self) -> None:
        async for message in self.program:
            await self.request.noted()
            if message.type is aiohttp.WSMsgType.TEXT:
                await self.request.send({"type": "websocket.send", "text": message.data})
            elif message.type is aiohttp.WSMsgType.BINARY:
                await self.request.send({"type": "websocket.send", "bytes": message.data})

    async def _close(self) -> None:
        if self.browser_left:
            return
        code = POLICY
        if self.program.closed:
            code = self.program.close_code or TROUBLE
            code = TROUBLE if code in NEVER_SENT else code
        async with asyncio.timeout(GOODBYE_SECONDS):
            await self.request.send({"type": "websocket.close", "code": code})
