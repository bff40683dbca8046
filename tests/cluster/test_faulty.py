"""Tests that the faulty proxy disturbs requests exactly as each kind of fault describes."""

from __future__ import annotations

import gc
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from scheduling.backends.kubernetes.api import Api as OwnApi
from scheduling.backends.kubernetes.api import Gone, Invalid, Object, Refused, Unreachable
from tests.cluster.api import Api
from tests.cluster.controlplane import ControlPlane
from tests.cluster.faulty import Fault, Proxy, Request, Seeded, no_faults
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

MAPS = "/api/v1/namespaces/{}/configmaps"


@pytest.fixture
def proxy(plane: ControlPlane, tmp_path: Path) -> Iterator[Proxy]:
    with Proxy(plane.server, plane.certificates / "apiserver.crt", tmp_path).started() as running:
        yield running


@pytest.fixture
def through(plane: ControlPlane, proxy: Proxy) -> Iterator[OwnApi]:
    api = OwnApi(yaml.safe_load(proxy.kubeconfig(plane.kubeconfig("test-admin"))))
    yield api
    api.close()


def named(name: str) -> Object:
    return {"metadata": {"name": name}}


def always(fault: Fault) -> Callable[[Request], Fault]:
    return lambda request: fault


def is_there(admin: Api, namespace: str, name: str) -> bool:
    return name in {thing["metadata"]["name"] for thing in admin.items(MAPS.format(namespace))}


def test_without_faults_every_request_succeeds(through: OwnApi, namespace: str) -> None:
    through.create(MAPS.format(namespace), named("one"))
    assert "one" in {thing["metadata"]["name"] for thing in through.get(MAPS.format(namespace))["items"]}


@pytest.mark.parametrize(
    ("fault", "happens"), [(Fault.LOST, False), (Fault.UNANSWERED, True), (Fault.TORN, True)]
)
def test_a_missing_answer_says_nothing_about_the_effect(
    *, through: OwnApi, proxy: Proxy, admin: Api, namespace: str, fault: Fault, happens: bool
) -> None:
    proxy.plan = always(fault)
    with pytest.raises(Unreachable):
        through.create(MAPS.format(namespace), named("one"))
    assert is_there(admin, namespace, "one") == happens
    proxy.plan = no_faults
    assert through.get(MAPS.format(namespace))["items"]


def test_a_late_request_takes_effect_when_its_client_has_given_up(
    through: OwnApi, proxy: Proxy, admin: Api, namespace: str
) -> None:
    proxy.plan = always(Fault.LATE)
    with (
        pytest.raises(Unreachable),
        through._answer("POST", MAPS.format(namespace), {}, read_seconds=0.2, content=named("one")),
    ):
        raise AssertionError("unreachable")
    wait_for(lambda: is_there(admin, namespace, "one"), what="it comes after all")


@pytest.mark.parametrize(
    ("fault", "code", "kind"),
    [
        (Fault.CONFLICT, 409, Refused),
        (Fault.GONE, 410, Gone),
        (Fault.INVALID, 422, Invalid),
        (Fault.TOO_MANY, 429, Refused),
        (Fault.BROKEN, 500, Refused),
    ],
)
def test_refusals_are_those_of_the_api_server(
    *, through: OwnApi, proxy: Proxy, namespace: str, fault: Fault, code: int, kind: type[Refused]
) -> None:
    proxy.plan = always(fault)
    with pytest.raises(kind) as refused:
        through.get(MAPS.format(namespace))
    assert refused.value.code == code
    assert refused.value.retry_after == (1.0 if fault is Fault.TOO_MANY else 0.0)


def test_a_half_open_watch_is_silent_until_its_reader_gives_up(
    through: OwnApi, proxy: Proxy, namespace: str
) -> None:
    proxy.plan = always(Fault.HALF_OPEN)
    with through.watch(MAPS.format(namespace), read_seconds=1.0) as stream, pytest.raises(Unreachable):
        list(stream)


def test_while_there_is_no_server_connections_are_refused(
    through: OwnApi, proxy: Proxy, namespace: str
) -> None:
    proxy.down()
    with pytest.raises(Unreachable, match="refused"):
        through.get(MAPS.format(namespace))
    proxy.up()
    assert "items" in through.get(MAPS.format(namespace))


def test_the_schedule_of_faults_follows_from_its_seed() -> None:
    asked = [Request("PATCH", "/apis/batch/v1/namespaces/a/jobs/b", b"", b"") for _ in range(50)]
    asked += [Request("GET", "/api/v1/pods?watch=true", b"", b"") for _ in range(50)]
    first, again, other = (Seeded(seed, part=0.3) for seed in (7, 7, 8))
    turned = {id(request): first(request) for request in asked}
    assert [again(request) for request in asked[50:] + asked[:50]] == [
        turned[id(request)] for request in asked[50:] + asked[:50]
    ]
    assert [other(request) for request in asked] != [turned[id(request)] for request in asked]


def test_the_end_closes_connections_that_are_in_their_handshake(plane: ControlPlane, tmp_path: Path) -> None:
    proxy = Proxy(plane.server, plane.certificates / "apiserver.crt", tmp_path)
    with ExitStack() as clients, proxy.started():
        _silent, whole = (
            clients.enter_context(socket.create_connection(("127.0.0.1", proxy.port))) for _ in range(2)
        )
        context = ssl.create_default_context(cafile=str(proxy.authority))
        clients.enter_context(context.wrap_socket(whole, server_hostname="127.0.0.1"))
        # the proxy has accepted the silent one, because it accepts connections in their order
    gc.collect()  # makes Python warn of what was left open
