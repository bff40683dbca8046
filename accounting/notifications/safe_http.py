"""Calls to an address that somebody else chose: never to this machine or a private network, unless told so.

The name is looked up once and the connection made to an address that was found and checked, so that a
name which answers otherwise a moment later leads nowhere else. Redirects are not followed. A call has its
time in all: who is called cannot hold up the caller by answering a byte at a time.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from http.client import HTTPException
from threading import Lock, Thread
from urllib.parse import SplitResult

import urllib3
from django.conf import settings
from urllib3.connection import HTTPConnection, HTTPSConnection

from accounting.notifications.addresses import WrongAddress, read_url, why_not_callable

SECONDS = 10.0  # of a call in all, from the look-up of the name to the last byte
TO_CONNECT = 5.0
MOST_TRIED = 4  # addresses of one name


class NotReachable(Exception):
    """Nothing was sent, or not taken; `str(error)` says why in plain words."""


def check_url(url: str, *, to_private: bool | None = None) -> SplitResult:
    """The parts of an address that may be called; NotReachable, with what is accepted, for one that never may.

    With `to_private`, which is FAIRLOT_WEBHOOKS_TO_PRIVATE unless said, it may be in a private network and
    without TLS. What a name leads to is looked up, and checked, for each call.
    """
    try:
        return read_url(url, to_private=_may(to_private))
    except WrongAddress as error:
        raise NotReachable(str(error)) from None


def post(url: str, body: bytes, headers: dict[str, str]) -> None:
    """Raises NotReachable unless it was answered with 2xx; what else the answer says is not read."""
    parts, to_private = check_url(url), _may(None)
    _in_time(
        lambda line: _call("POST", parts, line, body=body, headers=headers, to_private=to_private, most=0)
    )


def get(url: str, *, to_private: bool, most: int) -> bytes:
    """What it answers. Raises NotReachable unless that is 2xx with at most so many bytes."""
    parts = check_url(url, to_private=to_private)
    answer = _in_time(
        lambda line: _call("GET", parts, line, headers={}, to_private=to_private, most=most + 1)
    )
    if len(answer) > most:
        raise NotReachable("It answers more than it should.")
    return answer


def _may(to_private: bool | None) -> bool:
    return bool(settings.FAIRLOT_WEBHOOKS_TO_PRIVATE) if to_private is None else to_private


class _Line:
    """The connection of a call, which whoever has waited long enough for it cuts."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._connected: socket.socket | None = None
        self._is_cut = False

    def hold(self, connected: socket.socket) -> None:
        with self._lock:
            if self._is_cut:
                raise NotReachable("It was too late.")
            self._connected = connected

    def cut(self) -> None:
        with self._lock:
            self._is_cut = True
            if self._connected is not None:
                with suppress(OSError):  # it is closed already
                    # Not that of TLS, which would say farewell first.
                    socket.socket.shutdown(self._connected, socket.SHUT_RDWR)


def _in_time(work: Callable[[_Line], bytes]) -> bytes:
    """What `work` answers. Time limits of sockets are of one read each, and the look-up of a name has none."""
    line = _Line()
    found: Future[bytes] = Future()

    def run() -> None:
        try:
            found.set_result(work(line))
        except Exception as error:
            found.set_exception(error)

    Thread(target=run, daemon=True).start()
    try:
        return found.result(timeout=SECONDS)
    except TimeoutError:
        line.cut()
        raise NotReachable(f"It did not answer within {SECONDS:g} seconds.") from None


def _call(
    method: str,
    parts: SplitResult,
    line: _Line,
    *,
    headers: dict[str, str],
    to_private: bool,
    most: int,
    body: bytes | None = None,
) -> bytes:
    host = parts.hostname or ""
    addresses = _addresses(host, parts.port or (443 if parts.scheme == "https" else 80), to_private)
    path = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
    try:
        with closing(_connected(parts.scheme, host, addresses)) as connection:
            line.hold(connection.sock)
            connection.sock.settimeout(SECONDS)
            connection.request(
                method, path, body=body, headers=headers | {"Host": parts.netloc}, preload_content=False
            )
            with closing(connection.getresponse()) as answer:
                content = _read(answer, most)
                status = answer.status
    except (urllib3.exceptions.HTTPError, HTTPException, OSError, ValueError) as error:
        raise NotReachable(str(error)[:300]) from error
    if 300 <= status < 400:
        raise NotReachable(f"It answered with {status}; redirects are not followed.")
    if not 200 <= status < 300:
        raise NotReachable(f"It answered with {status}.")
    return content


def _read(answer: urllib3.BaseHTTPResponse, most: int) -> bytes:
    """The first so many bytes of an answer; it may come in pieces."""
    content = b""
    while len(content) < most:
        piece = answer.read(most - len(content))
        if not piece:
            break
        content += piece
    return content


def _connected(scheme: str, host: str, addresses: Sequence[tuple[str, int]]) -> HTTPConnection:
    """A connection to the first of these addresses that takes one. They were checked; none is looked up again."""
    for place, (address, port) in enumerate(addresses):
        connection: HTTPConnection
        if scheme == "https":
            connection = HTTPSConnection(
                address, port, timeout=TO_CONNECT, server_hostname=host, assert_hostname=host
            )
        else:
            connection = HTTPConnection(address, port, timeout=TO_CONNECT)
        try:
            connection.connect()
        except (urllib3.exceptions.HTTPError, OSError):
            connection.close()
            if place == len(addresses) - 1:
                raise
        else:
            return connection
    raise NotReachable(f"{host} has no address.")


def _addresses(host: str, port: int, to_private: bool) -> list[tuple[str, int]]:
    """Where a host is, each once; looked up once for a call. NotReachable unless all of them may be called."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise NotReachable(f"{host} has no address.") from error
    addresses = list(dict.fromkeys(str(one[4][0]) for one in found))
    # One that is private would do for an attack: whoever is asked may pick it.
    for address in addresses:
        if why := why_not_callable(address, to_private=to_private):
            raise NotReachable(f"{host} {why} ({address}).")
    return [(address, port) for address in addresses[:MOST_TRIED]]
