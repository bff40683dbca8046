"""HTTP calls to addresses that users chose.

Calls to this machine or to a private network are refused, unless a setting allows them. The host name is looked up
once, and the connection goes to the IP address that was checked. So a DNS name that changes between check and
connection cannot redirect the call. HTTP redirects are not followed. Each call has one overall time limit, so that a
slow server cannot block the caller by sending one byte at a time.
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

SECONDS = 10.0  # for the whole call, from the DNS look-up to the last byte
TO_CONNECT = 5.0
MOST_TRIED = 4  # IP addresses of one host name


class NotReachable(Exception):
    """Raised when a call was refused, failed, or was answered with an error.

    `str(error)` is the reason, worded for users.
    """


def check_url(url: str, *, to_private: bool | None = None) -> SplitResult:
    """Parses a URL and returns its parts; raises NotReachable if Fairlot may not call the URL.

    `to_private`: whether private networks and http are also allowed; None means the setting
    FAIRLOT_WEBHOOKS_TO_PRIVATE.

    Does not look up the host name: its IP addresses are checked when the URL is called.
    """
    try:
        return read_url(url, to_private=_may(to_private))
    except WrongAddress as error:
        raise NotReachable(str(error)) from None


def post(url: str, body: bytes, headers: dict[str, str]) -> None:
    """Posts `body` to the URL without reading the body of the response.

    Raises NotReachable unless the HTTP status is 2xx.
    """
    parts, to_private = check_url(url), _may(None)
    _in_time(
        lambda line: _call("POST", parts, line, body=body, headers=headers, to_private=to_private, most=0)
    )


def get(url: str, *, to_private: bool, most: int) -> bytes:
    """Returns the body of the response. Raises NotReachable unless the HTTP status is 2xx.

    Also raises NotReachable if the body has more than `most` bytes.
    """
    parts = check_url(url, to_private=to_private)
    answer = _in_time(
        lambda line: _call("GET", parts, line, headers={}, to_private=to_private, most=most + 1)
    )
    if len(answer) > most:
        raise NotReachable("The server's answer is too long.")
    return answer


def _may(to_private: bool | None) -> bool:
    return bool(settings.FAIRLOT_WEBHOOKS_TO_PRIVATE) if to_private is None else to_private


class _Line:
    """Represents the connection of a call. The calling thread shuts it down when the time limit has passed."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._connected: socket.socket | None = None
        self._is_cut = False

    def hold(self, connected: socket.socket) -> None:
        with self._lock:
            if self._is_cut:
                raise NotReachable(f"The call took longer than {SECONDS:g} seconds.")
            self._connected = connected

    def cut(self) -> None:
        with self._lock:
            self._is_cut = True
            if self._connected is not None:
                with suppress(OSError):  # it may be closed already
                    # Not SSLSocket's shutdown, which would first exchange TLS messages.
                    socket.socket.shutdown(self._connected, socket.SHUT_RDWR)


def _in_time(work: Callable[[_Line], bytes]) -> bytes:
    """Runs `work` in a thread and returns its result; raises NotReachable if it takes longer than SECONDS.

    Socket timeouts are not enough: they limit each read separately, and they do not limit DNS look-ups.
    """
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
        raise NotReachable(f"The server did not answer within {SECONDS:g} seconds.") from None


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
    port = parts.port or (443 if parts.scheme == "https" else 80)
    addresses = addresses_of(host, port, to_private=to_private)
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
        raise NotReachable(
            f"The server answered with HTTP status {status}, a redirect, which Fairlot does not follow."
        )
    if not 200 <= status < 300:
        raise NotReachable(f"The server answered with HTTP status {status}.")
    return content


def _read(answer: urllib3.BaseHTTPResponse, most: int) -> bytes:
    """Returns the first `most` bytes of the response body, or the whole body if it is shorter."""
    content = b""
    while len(content) < most:
        piece = answer.read(most - len(content))
        if not piece:
            break
        content += piece
    return content


def _connected(scheme: str, host: str, addresses: Sequence[tuple[str, int]]) -> HTTPConnection:
    """Tries to connect to these IP addresses in order, and returns the first connection that succeeds.

    The caller must have checked the addresses. Makes no DNS look-up. Raises the last error if all connections fail, and
    NotReachable if `addresses` is empty.
    """
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
    raise NotReachable(f"The host name {host} has no IP address.")


def addresses_of(host: str, port: int, *, to_private: bool) -> list[tuple[str, int]]:
    """Returns distinct (IP address, port) pairs of a host, at most MOST_TRIED, from one DNS look-up.

    Raises NotReachable unless Fairlot may call all IP addresses of the host.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise NotReachable(f"The host name {host} has no IP address.") from error
    addresses = list(dict.fromkeys(str(one[4][0]) for one in found))
    # All are checked, because the connection may go to any of them: one private address would be enough for an attack.
    for address in addresses:
        if why := why_not_callable(address, to_private=to_private):
            raise NotReachable(f"{host} {why} ({address}).")
    return [(address, port) for address in addresses[:MOST_TRIED]]
