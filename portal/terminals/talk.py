"""Carries bytes between a terminal in a job and a client's WebSocket.

The client sends keys as binary messages, and these texts:

    {"size": [rows, columns]}    of the client's screen
    {"read": 65536}              how many bytes of output the client has shown since the last such message
    {"pong": 3}                  its answer to {"ping": 3}, if it asked for such questions when it connected

The server sends first the text {"terminal": key, "worker": rank, "new": whether the shell is new}. If the client wants
earlier output and there is some, {"earlier": 4096} in this text says how many bytes of it come first. Then the server
sends output as binary messages, and at the end the text {"ended": reason, "code": exit code or null}.

It asks {"ping": number} every PING_SECONDS, because ASGI knows no pings of WebSockets: a client that vanished says
nothing within as many seconds, and its connection is lost. It sends at most MOST_UNREAD bytes that the client has not
shown yet, because a browser would keep all it gets in memory. What the job prints meanwhile waits in the terminal, so
that a program that floods its terminal is slowed down.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import time
from collections.abc import Awaitable, Callable

from portal.edge.racing import first_of
from portal.sessions.connection import Receive, Send
from scheduling.backends.base import OpenTerminal

CHUNK = 16 * 1024
MOST_UNREAD = 256 * 1024  # bytes of output
MOST_UNSENT = 1024 * 1024  # bytes of keys that the job's programs have not read
CHECK_SECONDS = 15.0
PING_SECONDS = 15.0
LARGEST_TEXT = 256  # letters; longer texts are ignored
LEFT = "left"  # the reason of an end after which the shell lives on


class Talk:
    """A client at a terminal. `ended` is the reason why it ended: LEFT, or words for the client and the audit trail."""

    def __init__(
        self,
        terminal: OpenTerminal,
        receive: Receive,
        send: Send,
        *,
        is_still: Callable[[], Awaitable[bool]],
        idle_seconds: float,
        answers_pings: bool,
    ) -> None:
        self.ended = ""
        self.code: int | None = None
        self._terminal, self._receive, self._send = terminal, receive, send
        self._is_still, self._idle_seconds = is_still, idle_seconds
        self._answers_pings = answers_pings
        self._heard = asyncio.Event()
        self._unread = 0
        self._may_send = asyncio.Event()
        self._may_send.set()
        self._keys = bytearray()
        self._has_keys = asyncio.Event()
        self._used_at = time.monotonic()

    async def run(self, earlier: bytes = b"") -> None:
        """Carries bytes until the talk ends. Sends `earlier` output first."""
        if earlier:
            self._unread += len(earlier)
            await self._send({"type": "websocket.send", "bytes": earlier})
        await first_of(
            self._from_client(),
            self._to_job(),
            self._from_job(),
            self._from_backend(),
            self._check(),
            *([self._ping()] if self._answers_pings else []),
        )

    def _end(self, reason: str) -> None:
        self.ended = self.ended or reason

    async def _from_client(self) -> None:
        while True:
            message = await self._receive()
            if message["type"] == "websocket.disconnect":
                self._end(LEFT)
                return
            self._heard.set()
            text = message.get("text")
            if text is not None:
                self._follow(text)
                continue
            self._keys += message.get("bytes") or b""
            self._used_at = time.monotonic()
            if len(self._keys) > MOST_UNSENT:
                self._end("more was typed than the program reads")
                return
            self._has_keys.set()

    def _follow(self, text: str) -> None:
        if len(text) > LARGEST_TEXT:
            return
        try:
            told = json.loads(text)
            if "size" in told:
                rows, columns = told["size"]
                self._terminal.resize(rows=int(rows), columns=int(columns))
            if "read" in told:
                self._unread = max(0, self._unread - int(told["read"]))
                if self._unread < MOST_UNREAD:
                    self._may_send.set()
        except (ValueError, TypeError, OverflowError):
            return  # a client that speaks another language harms itself only

    async def _to_job(self) -> None:
        while True:
            await self._has_keys.wait()
            self._has_keys.clear()
            while self._keys:
                try:
                    count = os.write(self._terminal.fileno(), bytes(self._keys[:CHUNK]))
                except BlockingIOError:
                    await _until_ready(self._terminal.fileno(), writing=True)
                except OSError:  # the shell has ended
                    self._keys.clear()
                else:
                    del self._keys[:count]

    async def _from_job(self) -> None:
        while True:
            await self._may_send.wait()
            await _until_ready(self._terminal.fileno())
            if not await self._pass_on():
                # The supervisor tells why. A program that keeps the terminal open is no reason to wait.
                await asyncio.Event().wait()

    async def _pass_on(self) -> bool:
        """Sends a piece of output to the client. Returns False once the terminal is closed."""
        try:
            data = self._terminal.read(CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not data:
            return False
        self._unread += len(data)
        if self._unread >= MOST_UNREAD:
            self._may_send.clear()
        await self._send({"type": "websocket.send", "bytes": data})
        return True

    async def _from_backend(self) -> None:
        message = await asyncio.get_running_loop().sock_recv(self._terminal.link, 4096)
        if b"replaced" in message:
            self._end("opened elsewhere")
            return
        self.code = self._terminal.exit_code(message)
        self._end("the shell ended" if self.code is not None else "the job ended")

    async def _check(self) -> None:
        while True:
            await asyncio.sleep(min(CHECK_SECONDS, self._idle_seconds))
            if not await self._is_still():
                self._end("no longer allowed")
                return
            if time.monotonic() - self._used_at > self._idle_seconds:
                self._end("nothing was typed for too long")
                return

    async def _ping(self) -> None:
        for number in itertools.count(1):
            self._heard.clear()
            try:
                async with asyncio.timeout(
                    PING_SECONDS
                ):  # sending waits, too, while the client reads nothing
                    await self._send({"type": "websocket.send", "text": json.dumps({"ping": number})})
                    await self._heard.wait()
            except TimeoutError:
                self._end(LEFT)
                return
            await asyncio.sleep(PING_SECONDS)

    async def say_goodbye(self) -> None:
        """Sends the output that is still there, and then the reason of the end, to a client that has not left."""
        while self.code is not None and self._unread < MOST_UNREAD:
            before = self._unread
            if not await self._pass_on() or self._unread == before:
                break
        await self._send(
            {"type": "websocket.send", "text": json.dumps({"ended": self.ended, "code": self.code})}
        )


async def _until_ready(fd: int, *, writing: bool = False) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    (loop.add_writer if writing else loop.add_reader)(fd, ready.set)
    try:
        await ready.wait()
    finally:
        (loop.remove_writer if writing else loop.remove_reader)(fd)
