"""Determines the client's IP address, with or without proxies in front of the portal."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from functools import cache, lru_cache
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any

from django.conf import settings

logger = logging.getLogger(__name__)
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

# Headers that proxies add, besides those that begin with X-Forwarded.
OF_PROXIES = {
    "forwarded", "via", "x-real-ip", "x-client-ip", "x-cluster-client-ip", "x-original-forwarded-for",
    "x-proxyuser-ip", "client-ip", "true-client-ip", "cf-connecting-ip", "cf-ray", "fastly-client-ip",
    "x-envoy-external-address", "x-amzn-trace-id", "x-original-host", "x-forwarder-for",
}  # fmt: skip


def with_client_address(app: App) -> App:
    """Wraps an ASGI app, and sets `scope["client"]` to the address of the client that called the outermost trusted
    proxy.

    Without trusted proxies, `scope["client"]` stays unchanged.
    """

    async def addressed(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in {"http", "websocket"} and settings.FAIRLOT_TRUSTED_PROXIES:
            peer, _ = scope.get("client") or ("", 0)
            values = [bytes(value) for name, value in scope["headers"] if bytes(name) == b"x-forwarded-for"]
            found = forwarded_for(values, settings.FAIRLOT_TRUSTED_PROXIES)
            if not found and scope["path"] != "/healthz":
                _warn()
            scope = {**scope, "client": (found or peer, 0)}
        await app(scope, receive, send)

    return addressed


@cache
def _warn() -> None:
    """Logs a warning, once per process, that client addresses are unknown. All clients then share the limits on wrong
    passwords."""
    logger.warning(
        "X-Forwarded-For lacks the client's address: FAIRLOT_TRUSTED_PROXIES is %s, and each must append to it",
        settings.FAIRLOT_TRUSTED_PROXIES,
    )


def forwarded_for(values: Sequence[bytes], proxies: int) -> str:
    """Returns the address at position `proxies` from the right in X-Forwarded-For; "" if there are fewer addresses.

    `proxies` is the number of trusted proxies. Addresses further left are not trusted, because a client can send any.
    """
    items = b",".join(values).decode("latin-1").split(",")
    return parsed(items[-proxies]) if len(items) >= proxies else ""


def parsed(text: str) -> str:
    """Returns an IP address in canonical form, without port, brackets and IPv6 zone; "" if `text` is not an IP
    address."""
    text = text.strip().strip('"')
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return ""
    if isinstance(address, IPv6Address) and address.ipv4_mapped:
        return str(address.ipv4_mapped)
    return str(address)


@lru_cache(1024)
def network_of(address: str) -> str:
    """Returns the network to which an address belongs, for limits that apply to whole networks.

    It is the /64 network of an IPv6 address, or an IPv4 address itself. Returns "unknown" for an invalid address.
    """
    try:
        found = ip_address(address)
    except ValueError:
        return "unknown"
    if isinstance(found, IPv6Address):
        if found.ipv4_mapped:
            return str(found.ipv4_mapped)
        return str(ip_network((int(found), 64), strict=False))
    return str(found)


def is_this_machine(address: str, header_names: Iterable[str]) -> bool:
    """Returns whether a client on this machine sent the request directly.

    Returns True if the address is a loopback address and the request has no header that a proxy adds.
    """
    if settings.BEHIND_PROXY or any(_is_of_proxy(name.lower()) for name in header_names):
        return False
    found = parsed(address)
    return bool(found) and ip_address(found).is_loopback


def _is_of_proxy(name: str) -> bool:
    return name in OF_PROXIES or name.startswith("x-forwarded")
