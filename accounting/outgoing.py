"""POST to an address that somebody else chose: never to this machine or a private network, unless told so.

The name is looked up once and the connection made to an address that was found and checked, so that a
name which answers otherwise a moment later leads nowhere else. Redirects are not followed.
"""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from urllib.parse import SplitResult, urlsplit

import urllib3
from django.conf import settings

TIMEOUT = urllib3.Timeout(connect=5, read=10)
MOST_ANSWER = 64 * 1024
NAT64 = IPv6Network("64:ff9b::/96")


class NotReachable(Exception):
    """Nothing was sent, or not taken; `str(error)` says why in plain words."""


def check_url(url: str) -> SplitResult:
    """The parts of an address that may be called; NotReachable for one that never may."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise NotReachable("This is no address.") from None
    schemes = {"https", "http"} if settings.FAIRLOT_WEBHOOKS_TO_PRIVATE else {"https"}
    if parts.scheme not in schemes or not parts.hostname or port == 0:
        raise NotReachable("An address begins with https:// and a host name.")
    if parts.username or parts.password:
        raise NotReachable("An address must not have a user's name or password.")
    return parts


def post(url: str, body: bytes, headers: dict[str, str]) -> None:
    """Raises NotReachable unless it was answered with 2xx."""
    parts = check_url(url)
    host = parts.hostname or ""
    address, port = _address(host, parts.port or (443 if parts.scheme == "https" else 80))
    pool: urllib3.HTTPConnectionPool
    if parts.scheme == "https":
        pool = urllib3.HTTPSConnectionPool(
            address, port, timeout=TIMEOUT, retries=False, server_hostname=host, assert_hostname=host
        )
    else:
        pool = urllib3.HTTPConnectionPool(address, port, timeout=TIMEOUT, retries=False)
    path = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
    try:
        with pool:
            answer = pool.request(
                "POST", path, body=body, headers=headers | {"Host": parts.netloc},
                redirect=False, preload_content=False,
            )  # fmt: skip
            answer.read(MOST_ANSWER)
            status = answer.status
    except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        raise NotReachable(str(error)[:300]) from error
    if not 200 <= status < 300:
        raise NotReachable(f"It answered with {status}.")


def _address(host: str, port: int) -> tuple[str, int]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise NotReachable(f"{host} has no address.") from error
    addresses = [str(one[4][0]) for one in found]
    # One that is private would do for an attack: whoever is asked may pick it.
    if not settings.FAIRLOT_WEBHOOKS_TO_PRIVATE and not all(_is_public(one) for one in addresses):
        raise NotReachable(f"{host} is in a private network.")
    return addresses[0], port


def _is_public(address: str) -> bool:
    ip = ip_address(address.partition("%")[0])
    return all(one.is_global and not one.is_multicast for one in (ip, *_within(ip)))


def _within(ip: IPv4Address | IPv6Address) -> list[IPv4Address]:
    """The addresses of IPv4 to which one of IPv6 leads: mapped, 6to4, Teredo (server and client), NAT64."""
    if isinstance(ip, IPv4Address):
        return []
    found = [ip.ipv4_mapped, ip.sixtofour, *(ip.teredo or ())]
    if ip in NAT64:
        found.append(IPv4Address(int(ip) & 0xFFFF_FFFF))
    return [one for one in found if one is not None]
