"""The client's address is the one that trusted proxies report, never one that the client sends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from django.conf import LazySettings
from django.test import Client
from django.urls import reverse

from portal.addresses import forwarded_for, is_this_machine, network_of, with_client_address
from scheduling.models import Cluster

PROXY = "172.18.0.1"


def seen(peer: str, *lines: str, name: bytes = b"x-forwarded-for") -> str:
    """Returns the client's address that `with_client_address` passes on for a request from `peer`.

    `lines` are the values of the request's `name` headers.
    """
    found: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        found.append(scope["client"][0])

    headers = [(name, line.encode()) for line in lines]
    scope = {"type": "http", "path": "/", "client": (peer, 5000), "headers": headers}
    asyncio.run(with_client_address(app)(scope, None, None))
    return found[0]


@pytest.mark.parametrize(
    ("proxies", "lines", "client"),
    [
        (0, ["192.0.2.9"], PROXY),
        (1, ["192.0.2.9"], "192.0.2.9"),
        (1, ["10.0.0.1, 127.0.0.1, 192.0.2.9"], "192.0.2.9"),
        (1, ["127.0.0.1", "192.0.2.9"], "192.0.2.9"),
        (1, [], PROXY),
        (1, ["192.0.2.9, "], PROXY),
        (1, ["192.0.2.9, unknown"], PROXY),
        (1, ["192.0.2.9, _hidden"], PROXY),
        (2, ["127.0.0.1, 192.0.2.9, 198.51.100.1"], "192.0.2.9"),
        (2, ["192.0.2.9"], PROXY),  # the client has bypassed the outer proxy
        (1, ["192.0.2.9:4711"], "192.0.2.9"),
        (1, ["2001:DB8::0001"], "2001:db8::1"),
        (1, ["[2001:db8::1]"], "2001:db8::1"),
        (1, ["[2001:db8::1]:443"], "2001:db8::1"),
        (1, ['"[2001:db8::1]:443"'], "2001:db8::1"),
        (1, ["fe80::1%eth0"], "fe80::1"),
        (1, ["::ffff:192.0.2.9"], "192.0.2.9"),
        (1, ["192.0.2.9'; DROP TABLE"], PROXY),
        (1, ["0x7f.1"], PROXY),
        (1, ["x" * 10_000], PROXY),
    ],
)
def test_the_address_is_that_many_from_the_right_and_never_what_the_client_wrote(
    settings: LazySettings, proxies: int, lines: list[str], client: str
) -> None:
    settings.FAIRLOT_TRUSTED_PROXIES = proxies
    assert seen(PROXY, *lines) == client


def test_a_header_of_nearly_that_name_is_not_that_header(settings: LazySettings) -> None:
    settings.FAIRLOT_TRUSTED_PROXIES = 1
    assert seen(PROXY, "192.0.2.9", name=b"x_forwarded_for") == PROXY
    assert forwarded_for([b"\xff\xfe"], 1) == ""


@pytest.mark.parametrize(
    "header",
    ["X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "Forwarded", "X-Real-IP", "Via", "CF-Connecting-IP"],
)  # fmt: skip
def test_requests_through_a_proxy_on_this_machine_come_from_elsewhere(
    db: None, client: Client, header: str
) -> None:
    """By default, a portal that runs local jobs serves only this machine, so it refuses requests that have a proxy's
    header.

    A request is refused even if the header names this machine's own address. /healthz still answers.
    """
    Cluster.objects.create(name="lab", backend=Cluster.Backend.LOCAL)
    assert client.get(reverse("login")).status_code == 200
    refused = client.get(reverse("login"), headers={header: "127.0.0.1"})
    assert refused.status_code == 403
    assert b"FAIRLOT_LOCAL_BEYOND_LOOPBACK" in refused.content
    assert client.get("/healthz", headers={header: "127.0.0.1"}).status_code == 200


def test_no_client_behind_a_proxy_counts_as_on_this_machine(settings: LazySettings) -> None:
    assert is_this_machine("127.0.0.1", ["host"])
    assert is_this_machine("::ffff:127.0.0.1", [])
    assert not is_this_machine("", [])
    assert not is_this_machine("127.0.0.1", ["Host", "X-FORWARDED-PORT"])
    settings.BEHIND_PROXY = True
    assert not is_this_machine("127.0.0.1", ["host"])


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2::/64"),
        ("", "unknown"),
    ],
)
def test_an_ipv6_address_counts_with_its_network(address: str, network: str) -> None:
    assert network_of(address) == network
