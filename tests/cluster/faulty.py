"""Simulates a bad network between Fairlot and the API server: a proxy that disturbs requests and responses on purpose.

The proxy terminates TLS with its own certificate, so that it can read each request. The function `plan` chooses the
fault of each request.
"""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import json
import random
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

T = TypeVar("T")
LONGEST_LINE = 1 << 22  # bytes of a header, or of the size of a chunk
# Exceptions of a connection whose other end has closed it.
HUNG_UP = (ConnectionError, asyncio.IncompleteReadError, TimeoutError, ssl.SSLError)


class Fault(Enum):
    """A kind of fault that can disturb a request."""

    LOST = "lost"  # the request does not reach the API server
    UNANSWERED = "unanswered"  # the request takes effect, and the connection closes without an answer
    SILENT = "silent"  # the request takes effect, and no answer comes until the client gives up
    LATE = "late"  # the request takes effect after the client has given up
    TORN = "torn"  # the request takes effect, and the connection is reset in the middle of the answer
    CONFLICT = "409"
    GONE = "410"  # for lists and watches: the requested resourceVersion is too old
    INVALID = "422"
    TOO_MANY = "429"
    BROKEN = "500"  # the request has no effect
    BROKEN_AFTER = "500 after the effect"
    HALF_OPEN = "half-open"  # a watch that stays open without any further event


SAID = {
    Fault.CONFLICT: (409, "Conflict", "the object has been modified"),
    Fault.GONE: (410, "Expired", "too old resource version"),
    Fault.INVALID: (422, "Invalid", "the server rejected our request due to an error in our request"),
    Fault.TOO_MANY: (429, "TooManyRequests", "too many requests, please try again later"),
    Fault.BROKEN: (500, "InternalError", "etcdserver: leader changed"),
    Fault.BROKEN_AFTER: (500, "InternalError", "etcdserver: request timed out"),
}
ANYWHERE = (Fault.LOST, Fault.SILENT, Fault.TORN, Fault.TOO_MANY, Fault.BROKEN)
OF_WRITES = (*ANYWHERE, Fault.UNANSWERED, Fault.LATE, Fault.CONFLICT, Fault.INVALID, Fault.BROKEN_AFTER)
OF_LISTS = (*ANYWHERE, Fault.GONE)
OF_WATCHES = (Fault.LOST, Fault.TORN, Fault.GONE, Fault.BROKEN, Fault.HALF_OPEN)


@dataclass(frozen=True)
class Request:
    method: str
    target: str
    head: bytes
    body: bytes

    @cached_property
    def path(self) -> str:
        return urlsplit(self.target).path

    @cached_property
    def is_watch(self) -> bool:
        return "watch" in parse_qs(urlsplit(self.target).query)

    @cached_property
    def is_list(self) -> bool:
        return self.method == "GET" and self.path.rsplit("/", 1)[-1] in ("jobs", "pods", "nodes")

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Returns the faults that are possible for this request, which depend on whether it watches, writes, lists or
        reads."""
        if self.is_watch:
            return OF_WATCHES
        if self.method != "GET":
            return OF_WRITES
        return OF_LISTS if self.is_list else ANYWHERE


Plan = Callable[[Request], Fault | None]


def no_faults(request: Request) -> None:
    return None


@dataclass
class Seeded:
    """Chooses faults at random from a seed: with the same seed, the nth request of a kind always gets the same fault.

    Each kind of request has its own random numbers, so the order of threads does not change the faults.
    """

    seed: int
    part: float  # share of the requests that fail
    dice: dict[str, random.Random] = field(default_factory=dict)
    met: Counter[str] = field(default_factory=Counter)

    def __call__(self, request: Request) -> Fault | None:
        kind = f"{request.method} {request.path.split('/')[-1 if request.is_list else -2]} {request.is_watch}"
        dice = self.dice.setdefault(kind, random.Random(f"{self.seed} {kind}"))
        if dice.random() >= self.part:
            return None
        fault = dice.choice(request.faults)
        self.met[fault.value] += 1
        return fault


class Proxy:
    """A proxy in front of the API server that causes faults.

    `plan` is called with each request, from any thread, and returns its fault or None. It may be replaced at any time.
    `down` begins a simulated outage, and `up` ends it. During an outage, connections are reset and new ones are
    refused.
    """

    def __init__(self, server: str, authority: Path, folder: Path) -> None:
        self.plan: Plan = no_faults
        self.late = 0  # requests whose clients have given up and that will still take effect
        self.later = 0.0  # seconds between the end of a client's patience and the late request
        self._upstream = urlsplit(server)
        self._to_upstream = ssl.create_default_context(cafile=str(authority))
        self.authority = folder / "proxy.crt"
        self._certify(folder)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="faulty proxy", daemon=True)
        self._server: asyncio.Server | None = None
        self.port = 0
        self._open: set[asyncio.Task[None]] = set()

    @contextmanager
    def started(self) -> Iterator[Proxy]:
        self._thread.start()
        self.up()
        try:
            yield self
        finally:
            self.down()
            self._call(self._end())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def kubeconfig(self, of: Path) -> str:
        """Returns the text of the kubeconfig file `of` with two changes: its server is the proxy, and it contains the
        certificate that the proxy uses."""
        content = yaml.safe_load(of.read_text())
        cluster = content["clusters"][0]["cluster"]
        cluster.pop("certificate-authority")
        cluster["server"] = f"https://127.0.0.1:{self.port}"
        cluster["certificate-authority-data"] = base64.b64encode(self.authority.read_bytes()).decode()
        text: str = yaml.safe_dump(content)
        return text

    def up(self) -> None:
        self._call(self._listen())

    def down(self) -> None:
        self._call(self._leave())

    def cut(self) -> None:
        """Resets all open connections. Clients can connect again immediately."""
        self._call(self._reset())

    # --- the server ------------------------------------------------------------------------------

    def _call(self, what: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result()

    async def _listen(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, limit=LONGEST_LINE)
            self.port = self._server.sockets[0].getsockname()[1]

    async def _leave(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._reset()

    async def _reset(self) -> None:
        tasks = list(self._open)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _end(self) -> None:
        """Waits for connections that the server had accepted, but not begun to serve, when it was closed."""
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        upstream: _Upstream | None = None
        if self._server is None:
            writer.transport.abort()
            return
        self._open.add(task)
        try:
            # The handshake happens here, and not in the server, so that `_reset` ends it too.
            await writer.start_tls(self._to_clients)
            while request := await _request(reader):
                if upstream is None:
                    upstream = await self._connect()
                if not await self._answer(request, upstream, reader, writer):
                    break
        except HUNG_UP:
            pass  # one end is gone; the other end is closed below
        except asyncio.CancelledError:
            pass  # the network is down; otherwise asyncio would log the task
        finally:
            self._open.discard(task)
            writer.transport.abort()
            if upstream is not None:
                upstream.writer.transport.abort()

    async def _connect(self) -> _Upstream:
        reader, writer = await asyncio.open_connection(
            self._upstream.hostname, self._upstream.port, ssl=self._to_upstream, limit=LONGEST_LINE
        )
        return _Upstream(reader, writer)

    async def _answer(
        self,
        request: Request,
        upstream: _Upstream,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        """Answers a request. Returns whether the client's connection can be used for another request."""
        fault = self.plan(request)
        match fault:
            case None:
                return await upstream.relay(request, writer)
            case Fault.LOST:
                return False
            case Fault.UNANSWERED:
                await upstream.ask(request)
                return False
            case Fault.SILENT:
                await upstream.ask(request)
                await _until_gone(reader)
                return False
            case Fault.LATE:
                self.late += 1
                try:
                    await _until_gone(reader)
                    await asyncio.sleep(self.later)
                    await upstream.ask(request)
                finally:
                    self.late -= 1
                return False
            case Fault.TORN:
                head, body = await upstream.ask(request)
                whole = head + body
                writer.write(whole[: len(head) + len(body) // 2])
                await writer.drain()
                return False
            case Fault.HALF_OPEN:
                await upstream.relay(request, writer, pieces=2)
                await _until_gone(reader)
                return False
            case _:
                if fault is Fault.BROKEN_AFTER:
                    await upstream.ask(request)
                writer.write(_refusal(fault))
                await writer.drain()
                return True

    def _certify(self, folder: Path) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "faulty proxy")])
        now = datetime.now(UTC)
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=30))
            .add_extension(x509.SubjectAlternativeName([address]), critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(key, hashes.SHA256())
        )
        self.authority.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        private = folder / "proxy.key"
        private.touch(mode=0o600)
        plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        private.write_bytes(key.private_bytes(serialization.Encoding.PEM, *plain))
        self._to_clients = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._to_clients.load_cert_chain(self.authority, private)


@dataclass
class _Upstream:
    """A connection to the API server that serves one client connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ask(self, request: Request) -> tuple[bytes, bytes]:
        """Sends the request. Returns the head and the body of the response unchanged. The response must not be a
        watch."""
        head, fields = await self._begin(request)
        return head, b"".join([piece async for piece in self._pieces(fields)])

    async def relay(self, request: Request, to: asyncio.StreamWriter, pieces: int | None = None) -> bool:
        """Sends the request and passes its response on as it arrives, or only the first `pieces` pieces.

        Returns whether the connection can be used for another request.
        """
        head, fields = await self._begin(request)
        to.write(head)
        await to.drain()
        count = 0
        async for piece in self._pieces(fields):
            count += 1
            if pieces is not None and count > pieces:
                return False
            to.write(piece)
            await to.drain()
        return fields.get("connection", "").lower() != "close"

    async def _begin(self, request: Request) -> tuple[bytes, dict[str, str]]:
        self.writer.write(request.head + request.body)
        await self.writer.drain()
        head = await self.reader.readuntil(b"\r\n\r\n")
        return head, _fields(head)

    async def _pieces(self, fields: Mapping[str, str]) -> Any:
        if fields.get("transfer-encoding") != "chunked":
            yield await self.reader.readexactly(int(fields.get("content-length", "0")))
            return
        while True:
            size = await self.reader.readuntil(b"\r\n")
            yield size + await self.reader.readexactly(int(size, 16) + 2)
            if int(size, 16) == 0:
                return


async def _request(reader: asyncio.StreamReader) -> Request | None:
    """Reads the next request of a connection. Returns None if the client has closed the connection."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    method, target, _ = head.split(b"\r\n", 1)[0].decode().split(" ")
    body = await reader.readexactly(int(_fields(head).get("content-length", "0")))
    return Request(method, target, head, body)


async def _until_gone(reader: asyncio.StreamReader) -> None:
    """Waits until the client closes the connection."""
    with suppress(*HUNG_UP):
        while await reader.read(1 << 16):
            pass


def _fields(head: bytes) -> dict[str, str]:
    lines = head.decode("latin-1").split("\r\n")[1:]
    return {name.strip().lower(): said.strip() for name, _, said in (line.partition(":") for line in lines)}


def _refusal(fault: Fault) -> bytes:
    code, reason, message = SAID[fault]
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure"}
    body = json.dumps(status | {"reason": reason, "message": message, "code": code}).encode()
    after = "Retry-After: 1\r\n" if fault is Fault.TOO_MANY else ""
    head = f"HTTP/1.1 {code} {reason}\r\nContent-Type: application/json\r\n{after}Content-Length: {len(body)}"
    return f"{head}\r\n\r\n".encode() + body
