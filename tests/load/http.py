"""An HTTP/1.1 client with persistent connections that uses little CPU time, built on asyncio alone.

The client runs on the same cores as the portal that it measures, so it does only what the benchmark needs.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes


class Closed(Exception):
    """Raised when the server closes the connection before the response is complete."""


class Connection(asyncio.Protocol):
    """A connection to the portal, which carries one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._answer: asyncio.Future[Answer] | None = None
        self._head_end = 0
        self._length = -1
        self._status = 0
        self.streamed = 0  # bytes received of a response that does not end
        self._streams = False
        self.must_close = False

    @classmethod
    async def open(cls, port: int) -> Connection:
        _, connection = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        return connection

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing() and not self.must_close

    async def ask(self, request: bytes, *, within: float) -> Answer:
        """Sends `request` and returns the response. Raises Closed, or TimeoutError after `within` seconds."""
        assert self._transport is not None
        self._buffer.clear()
        self._head_end, self._length = 0, -1
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            async with asyncio.timeout(within):
                return await self._answer
        except TimeoutError:
            self.close()
            raise

    async def stream(self, request: bytes, *, within: float) -> int:
        """Sends `request` and returns the HTTP status of a response that does not end. Counts the bytes of its body in
        `streamed`."""
        self._streams = True
        return (await self.ask(request, within=within)).status

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # --- asyncio's side ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._streams and self._answer is not None and self._answer.done():
            self.streamed += len(data)
            return
        self._buffer += data
        if not self._head_end:
            at = self._buffer.find(b"\r\n\r\n")
            if at < 0:
                return
            self._head_end = at + 4
            self._read_head(bytes(self._buffer[:at]).lower())
        if self._answer is None or self._answer.done():
            return
        body = self._buffer[self._head_end :]
        if self._streams:
            self.streamed += len(body)
            self._answer.set_result(Answer(self._status, b""))
        elif self._length >= 0:
            if len(body) >= self._length:
                self._answer.set_result(Answer(self._status, bytes(body)))
        # the last chunk; the body keeps the chunk sizes, which the benchmark does not use
        elif self._buffer.endswith(b"0\r\n\r\n"):
            self._answer.set_result(Answer(self._status, bytes(body)))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(Closed(str(exc or "closed")))

    def _read_head(self, head: bytes) -> None:
        self._status = int(head[9:12])
        self.must_close = b"\nconnection: close" in head
        if self._status in {204, 304}:
            self._length = 0
            return
        at = head.find(b"\ncontent-length:")
        self._length = int(head[at + 16 :].split(b"\r", 1)[0]) if at >= 0 else -1


def request(method: str, path: str, headers: dict[str, str], body: bytes = b"", *, host: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if body or method == "POST":
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body
